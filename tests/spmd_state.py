"""Are state, checkpoints, metrics and the lock on several ranks those of one?"""

from pathlib import Path

import numpy as np
import pytest
from spmd import spmd
from test_checkpoint import MIXED, TABLE_WISE, make
from test_checkpoint_chain import wholes, written

from neocpu.core.errors import TrainingError
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.train import checkpoint
from neocpu.train.run.folder import RunLock
from neocpu.train.state.state import digest
from neocpu.train.watch.metrics import compute


@spmd(2, 3, 8)
def checkpoints_come_back(comm: Comm, folder: Path) -> None:
    expected = digest(make(SingleComm(), TABLE_WISE), 4)
    assert checkpoint.save(folder, make(comm, MIXED), 4) == expected
    path = checkpoint.latest(folder, comm)
    assert path is not None and path.name == "step-00000004.h5"
    for schemes in (["column_wise"] * 4, ["row_wise"] * 4):
        world = make(comm, schemes, learnt=False)
        assert checkpoint.load(path, world) == 4
        assert digest(world, 4) == expected


@spmd(2, 8)
def changes_are_written_meanwhile(comm: Comm, folder: Path) -> None:
    assert written(folder, comm, MIXED, range(1, 4), background=True) == wholes(range(1, 4))
    path = checkpoint.latest(folder, comm)
    world = make(comm, ["row_wise"] * 4, ("optimizer.sparse.name=exact_adagrad",), False)
    assert path is not None and checkpoint.load(path, world) == 3
    assert digest(world, 3) == wholes(range(1, 4))[-1]


@spmd(2, 4)
def metrics_are_those_of_one_rank(comm: Comm) -> None:
    random = np.random.default_rng(3)
    p = np.round(random.random(3000), 2).astype(np.float32)
    y = (random.random(3000) < p).astype(np.float32)
    samples = np.arange(3000) % comm.size == comm.rank
    assert compute(p[samples], y[samples], "bce", comm) == compute(p, y, "bce", SingleComm())


@spmd(3)
def a_folder_is_locked_for_all(comm: Comm, folder: Path) -> None:
    out = folder / "run"
    with RunLock(out, comm, resume=False):
        if comm.rank == 0:
            (out / "run.json").write_text("{}")
        comm.barrier()
    with pytest.raises(TrainingError, match="already has results"):
        RunLock(out, comm, resume=False).__enter__()
