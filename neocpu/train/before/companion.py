"""What can a second process compile while the first compiles lookup and update? The dense half of a
run, sort, and new rows.

Numba compiles under one lock per process, so a second core helps only a second process. This one
runs the kernels of the MLPs, the interaction, the loss, the dense optimizer, the sort of the
lookups, the making of rows and the reading of data on made-up numbers; they land in the cache that
both processes share. If it fails, nothing is lost but time: the first process then compiles these
kernels itself.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

from neocpu.core.cores import available, end_with_parent
from neocpu.core.types import JsonObject
from neocpu.kernels.compile.cache import QUIET, activity, cannot_write
from neocpu.train.config.config import Config

MODULE = "neocpu.train.before.companion"
BATCH = 4
DIM = 8
ROWS = 40


class Companion:
    """A process that compiles its half, or none.

    It writes one byte for each kernel that it compiles.
    """

    def __init__(self, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self._process = process
        self._compiled = 0

    def wait(self) -> None:
        """Wait until its half is compiled."""
        if self._process is not None:
            self._process.wait()

    def compiled(self) -> int:
        """Kernels that it has compiled so far."""
        if self._process is not None and self._process.stdout is not None:
            with suppress(BlockingIOError, ValueError):  # nothing new, or closed
                self._compiled += len(os.read(self._process.stdout.fileno(), 1 << 16))
        return self._compiled


@contextmanager
def companion(config: Config) -> Iterator[Companion]:
    """A process that compiles its half while the block runs; none where there is no second core for
    it or no cache through which it could give away what it compiles.
    """
    if len(available()) < 2 or cannot_write():
        yield Companion()
        return
    model = config.model
    facts = {
        "interaction": model.interaction,
        "modules": model.dhen.modules,
        "diagonal": model.diagonal,
        "loss": model.loss,
        "dense_optimizer": config.optimizer.dense.name,
    }
    with subprocess.Popen(
        [sys.executable, "-m", MODULE, json.dumps(facts), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, QUIET: "1"},
    ) as process:
        assert process.stdout is not None
        # `compiled` is asked while both compile, and must not wait
        os.set_blocking(process.stdout.fileno(), False)
        try:
            yield Companion(process)
        finally:
            # what it has compiled by now is in the cache, kernel by kernel
            process.kill()


def compile_rows() -> None:
    """Compile what finds out which lookups touch the same row, and makes rows that are new."""
    from neocpu.parallel.sharding.schemes import Shard
    from neocpu.tables.embedding.lookups import EntryLayout, Lookups
    from neocpu.tables.embedding.sorting import Scratch, sort
    from neocpu.tables.embedding.tbe import TableBatchedEmbedding
    from neocpu.tables.specs.optimizers import SparseOptimizer
    from neocpu.tables.specs.specs import TableSpec

    rows = np.arange(2 * BATCH, dtype=np.int64) % ROWS
    lookups = Lookups(
        np.arange(BATCH + 1, dtype=np.int64) * 2, rows, np.empty(0, np.float32), BATCH
    )
    layout = EntryLayout(np.zeros(1, np.int64), np.zeros(1, np.int64))
    sort(layout, lookups, np.array([ROWS]), DIM, Scratch())
    tbe = TableBatchedEmbedding(
        [TableSpec("t", ROWS, DIM, ("f",))],
        [Shard(0, (0, ROWS), (0, DIM), 0)],
        SparseOptimizer(),
        1,
    )
    tbe.create(layout, lookups)
    tbe.initial(0, rows)


def compile_dense(facts: JsonObject) -> None:
    """Compile one training step of everything but the tables."""
    from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
    from neocpu.tables.specs.optimizers import SparseOptimizer
    from neocpu.train.model.dlrm import Dlrm
    from neocpu.train.model.layout import ModelLayout
    from neocpu.train.model.options import DhenShape

    layout = ModelLayout(
        dense_features=3,
        dims=(DIM, DIM),
        bottom=(DIM,),
        top=(4, 1),
        interaction=facts["interaction"],
        diagonal=facts["diagonal"],
        loss=facts["loss"],
        dhen=DhenShape(1, tuple(facts["modules"])),
    )
    model = Dlrm(layout)
    E = np.zeros((BATCH, model.columns), np.float32)
    model.forward_bottom(np.ones((BATCH, 3), np.float32), E)
    model.forward_top(E)
    model.loss_gradient(np.zeros(BATCH, np.float32), BATCH)
    model.backward()
    gradient = np.empty(model.flat.size, np.float32)
    model.weight_gradient_node(np.arange(BATCH + 1, dtype=np.int64), gradient)
    DenseOptimizer(SparseOptimizer(facts["dense_optimizer"]), model.flat).step(gradient, 1)


def count_compiled() -> None:
    """Tell the first process that one more kernel is compiled."""
    with suppress(OSError):
        os.write(1, b".")


if __name__ == "__main__":
    from neocpu.ingest.loader import warm_up_reading

    # nobody waits for it any more once the first process is killed
    end_with_parent()
    if os.getppid() != int(sys.argv[2]):
        sys.exit()
    gc.disable()  # as in `warmup.py`
    activity.on_compile = count_compiled
    compile_rows()
    compile_dense(json.loads(sys.argv[1]))
    warm_up_reading()
