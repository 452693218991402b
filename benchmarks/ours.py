"""How is neocpu called in a benchmark? Through the same objects that a training run uses."""

import os
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.shapes import Lookup, Model, Sample

# Learning rate of every sparse optimizer.
RATE = 0.01
# Whether the user has set how threads wait; read before kernels, on loading, set it for a lone
# thread.
SPIN_IS_SET = "GOMP_SPINCOUNT" in os.environ


def wait_as_in_training() -> None:
    """Let kernel threads wait for each other as those of `neocpu train` do.

    Called after rivals have read the environment.
    """
    from neocpu.parallel.transport.launch import SPIN

    if not SPIN_IS_SET:
        os.environ["GOMP_SPINCOUNT"] = SPIN


def threads(count: int) -> None:
    """Let Numba's kernels use `count` threads, placed as `neocpu train` places them."""
    wait_as_in_training()
    from neocpu.kernels.compile.threads import use_threads

    use_threads(count)
    place(count)


def place(count: int) -> None:
    """Pin `count` OpenMP threads to a core each, if they use all cores."""
    from neocpu.core.cores import available
    from neocpu.kernels.compile.threads import bind_threads

    if count > 1 and count == len(available()):
        bind_threads(sorted(available()))


def rowwise_adagrad(rate: float = RATE) -> Any:
    """The sparse optimizer of every benchmark."""
    from neocpu.tables.specs.optimizers import SparseOptimizer

    return SparseOptimizer(name="exact_rowwise_adagrad", learning_rate=rate, eps=1e-8)


class NeocpuLookup:
    """TableBatchedEmbedding on one `Lookup` shape, all tables whole on this rank."""

    def __init__(
        self,
        shape: Lookup,
        batches: list[NDArray[np.int64]],
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        wait_as_in_training()
        from neocpu.parallel.sharding.schemes import Shard
        from neocpu.parallel.transport.buffers import Buffers
        from neocpu.tables.embedding.lookups import EntryLayout, Lookups
        from neocpu.tables.embedding.tbe import TableBatchedEmbedding
        from neocpu.tables.specs.specs import TableSpec

        T = shape.tables
        D = shape.dim
        specs = tuple(TableSpec(f"t{t}", shape.rows, D, (f"f{t}",)) for t in range(T))
        shards = [Shard(t, (0, shape.rows), (0, D), 0) for t in range(T)]
        self._tbe = TableBatchedEmbedding(specs, shards, rowwise_adagrad(), 1)
        self._layout = EntryLayout(np.arange(T, dtype=np.int64), np.arange(T, dtype=np.int64) * D)
        weights = np.zeros(0, np.float32) if weights is None else weights
        self._batches = [Lookups(shape.offsets(), rows, weights, shape.samples) for rows in batches]
        # as a step has it
        self._out = Buffers().matrix("E", shape.samples, T * D, np.float32)
        self._steps = 0
        # First touch of every row that will be read.
        for batch in self._batches:
            self._tbe.forward(self._layout, batch, self._out)

    def tables(self) -> list[NDArray[np.float32]]:
        """Views f32[E, D] of the weights."""
        return [self._tbe.state(t)["weight"] for t in range(len(self._layout.shard))]

    def forward(self, i: int) -> NDArray[np.float32]:
        """Pooled rows f32[B, T*D] of batch i: exact sums, rounded once."""
        self._tbe.forward(self._layout, self._batches[i % len(self._batches)], self._out)
        return self._out

    def backward(self, i: int, grad: NDArray[np.float32]) -> None:
        """Fused backward of batch i: sort, exact merge, one row-wise AdaGrad update per row."""
        self._steps += 1
        self._tbe.backward(self._layout, self._batches[i % len(self._batches)], grad, self._steps)


def mpi_comm() -> Any:
    """This rank's communicator under mpiexec."""
    from neocpu.parallel.transport.mpi import MpiComm

    return MpiComm()


@dataclass(frozen=True)
class ClickBatch:
    """This rank's share of one batch, as the training step reads it."""

    dense: NDArray[np.float32]
    sparse: Any
    labels: NDArray[np.float32]
    samples: int


class NeocpuDlrm:
    """The training step of `neocpu train` on synthetic batches.

    comm: this rank's communicator (default: a single rank). memory: the MemoryPlan of the tables
    (default: all rows in memory). pipeline: what overlaps. optimizer: makes the optimizer of the
    dense half of (comm, Dlrm) (default: SGD). precision: its PrecisionKeys (default: fp32).
    """

    def __init__(
        self,
        model: Model,
        batches: list[Sample],
        comm: Any = None,
        plan: str = "table_wise",
        leaves: int = 16,
        memory: Any = None,
        pipeline: str = "full",
        optimizer: Any = None,
        precision: Any = None,
    ) -> None:
        wait_as_in_training()
        from neocpu.parallel.embeddings.sharded import ShardedEmbedding
        from neocpu.parallel.exchange.sharding_env import ShardingEnv
        from neocpu.parallel.transport.comm import SingleComm
        from neocpu.plan.search.auto import make_plan
        from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
        from neocpu.tables.specs.optimizers import SparseOptimizer
        from neocpu.tables.specs.specs import TableSpec
        from neocpu.train.config.settings import TrainingConfig
        from neocpu.train.model.dlrm import Dlrm
        from neocpu.train.model.layout import ModelLayout
        from neocpu.train.step.pipeline import ahead
        from neocpu.train.step.step import StepOptions, TrainStep

        comm = comm or SingleComm()
        specs = [
            TableSpec(f"t{t}", rows, model.dim, (f"f{t}",)) for t, rows in enumerate(model.rows)
        ]
        layout = ModelLayout(13, (model.dim,) * len(specs), model.bottom, model.top)
        if precision is not None:
            layout = replace(layout, precision=precision)
        self.dlrm = dlrm = Dlrm(layout, seed=1)
        sharding_plan = make_plan(specs, plan, comm.size)
        env = ShardingEnv(
            sharding_plan, comm, rowwise_adagrad(), 1, leaves, dlrm.first_column, memory=memory
        )
        self.tables = tables = ShardedEmbedding(env)
        sgd = SparseOptimizer(name="exact_sgd", learning_rate=0.1)
        dense = optimizer(comm, dlrm) if optimizer else DenseOptimizer(sgd, dlrm.flat)
        options = StepOptions(pipeline, TrainingConfig.bucket_bytes)
        self.dense = dense
        step = TrainStep(dlrm, tables, dense, options)
        prepared = [self._batch(sample, tables.keys, comm, leaves) for sample in batches]
        early = ahead(0 if memory is None else memory.prefetch, 0)
        self._steps = step.over(cycle(prepared), 1, early)

    @staticmethod
    def _batch(sample: Sample, keys: tuple[str, ...], comm: Any, leaves: int) -> ClickBatch:
        from neocpu.core.jagged import KJT
        from neocpu.core.trees import rank_samples

        samples = sample.labels.size
        lo, hi = rank_samples(comm.rank, comm.size, samples, leaves)
        lengths = np.ones((len(keys), hi - lo), np.int32)
        rows = np.ascontiguousarray(sample.rows[:, lo:hi]).reshape(-1)
        return ClickBatch(
            sample.dense[lo:hi].copy(),
            KJT(keys, lengths, rows),
            sample.labels[lo:hi].copy(),
            samples,
        )

    def touch(self) -> None:
        """Make all rows of all tables."""
        from neocpu.tables.embedding.lookups import EntryLayout, Lookups

        none = np.empty(0, np.float32)
        for h, rows in enumerate(self.tables.tbe.heights.tolist()):
            layout = EntryLayout(np.array([h]), np.zeros(1, np.int64))
            for first in range(0, rows, 1 << 22):
                piece = np.arange(first, min(first + (1 << 22), rows), dtype=np.int64)
                self.tables.tbe.create(layout, Lookups(np.array([0, piece.size]), piece, none, 1))

    def step(self, i: int) -> float:
        """One training step; the mean loss of this rank's samples.

        The batches come in order, whatever i, as each is on its way before its step.
        """
        return float(self._steps.next()[1].loss.mean())


def convert(source: Path, target: Path) -> None:
    """Convert a Criteo TSV to a dataset file."""
    from neocpu.ingest.dataset.convert import convert as convert_log

    convert_log([source], target, "criteo")
