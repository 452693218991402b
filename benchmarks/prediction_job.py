"""What does one rank of the prediction benchmark do? Steps under many plans, whole and by phase.

    mpiexec -n W python -m mpi4py -m benchmarks.prediction_job RESULT PLANS STEPS PASSES SECONDS

Rank 0 writes RESULT, a JSON list: for every plan its model, seed, seconds of a step and of each
phase. PLANS is a number of plans, or FIRST:END of their seeds. A step is timed from a barrier to
the next. Phases are timed in steps of their own, with a barrier in front of every phase; a phase
takes as long as the slowest rank, and one in which a rank lost its core counts only where there is
no other. Of all steps, in every pass over the plans, the shortest counts.
After SECONDS no further plan begins.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.prediction_models import DENSE_FEATURES, LEAVES, MODELS, Model, draw_plan
from neocpu.core.trees import rank_samples
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.launch import (
    bind_kernel_threads,
    get_comm,
    prepare_threads,
    run_guarded,
)
from neocpu.plan.machines.measure.phase_clock import PhaseClock

# Batches that take turns.
BATCHES = 3
# Steps before those that are timed.
WARMUP = 3


class Run:
    """One model under one plan."""

    def __init__(self, model: Model, comm: Comm, seed: int) -> None:
        from benchmarks.ours import ClickBatch, rowwise_adagrad
        from neocpu.parallel.embeddings.sharded import ShardedEmbedding
        from neocpu.parallel.exchange.sharding_env import ShardingEnv
        from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
        from neocpu.tables.specs.optimizers import SparseOptimizer
        from neocpu.train.model.dlrm import Dlrm
        from neocpu.train.model.layout import ModelLayout
        from neocpu.train.step.step import TrainStep

        self._comm = comm
        layout = ModelLayout(
            DENSE_FEATURES, tuple(model.dims), model.bottom, model.top, model.interaction
        )
        self._model = Dlrm(layout, seed=1)
        env = ShardingEnv(
            draw_plan(model, comm.size, seed),
            comm,
            rowwise_adagrad(),
            1,
            LEAVES,
            self._model.first_column,
        )
        self._tables = ShardedEmbedding(env)
        sgd = SparseOptimizer(name="exact_sgd", learning_rate=0.01)
        self._dense = DenseOptimizer(sgd, self._model.flat)
        self._step = TrainStep(self._model, self._tables, self._dense)
        lo, hi = rank_samples(comm.rank, comm.size, model.batch, LEAVES)
        rng = np.random.default_rng(comm.rank)
        self._batches = [
            ClickBatch(
                rng.standard_normal((hi - lo, DENSE_FEATURES), np.float32),
                model.lookups(seed * BATCHES + i, lo, hi),
                rng.integers(0, 2, hi - lo).astype(np.float32),
                model.batch,
            )
            for i in range(BATCHES)
        ]
        self._steps = 0

    def step(self) -> float:
        """Seconds of a step, to the barrier after it."""
        self._comm.barrier()
        start = time.perf_counter()
        self._steps += 1
        self._step(self._batches[self._steps % BATCHES], self._steps)
        self._comm.barrier()
        return time.perf_counter() - start

    def phases(self, clock: PhaseClock) -> None:
        """A step, phase by phase (the stages of `TrainStep`)."""
        self._steps += 1
        batch = self._batches[self._steps % BATCHES]
        model = self._model
        coming = clock("input", lambda: self._started(batch))
        E = self._step.vectors.matrix(batch.labels.size)
        clock("dense_forward", lambda: model.forward_bottom(batch.dense, E))
        self._pool(clock, coming, E)
        clock("dense_forward", lambda: model.forward_top(E))
        dE = clock("dense_backward", lambda: self._backward(batch))
        bucket = self._step.buckets["lower"]
        reduced = clock("dense_exchange", lambda: self._step.start_sum(bucket).wait())
        self._update(clock, dE)
        clock("dense_update", lambda: self._dense.step(reduced, self._steps))

    def _started(self, batch: Any) -> Any:
        coming = self._tables.start(batch.sparse, batch.samples)
        coming.wait()
        return coming

    def _pool(self, clock: PhaseClock, coming: Any, E: Any) -> None:
        """`ShardedEmbedding.forward` and `finish`."""
        tables = self._tables
        if tables.exchange.alone:
            lookup = tables.forward(coming, self._model_batch)
            clock("lookup", lambda: lookup.finish(E))
            return
        batch_input = coming.wait()
        if tables._last is not None:
            tables.exchange.release(tables._last)
        tables._input = tables._last = batch_input
        keys = tables.all_keys
        pooled = clock("lookup", lambda: tables.pool(batch_input, keys))
        if batch_input.copies is not None:
            clock("lookup", lambda: tables.tbe.forward(keys.copies, batch_input.copies, E))
        shape = batch_input.shape
        clock("output", lambda: tables.exchange.start_output(shape, pooled).finish(E))

    @property
    def _model_batch(self) -> int:
        return self._batches[0].samples

    def _backward(self, batch: Any) -> Any:
        model = self._model
        model.loss_gradient(batch.labels, batch.samples)
        nodes = self._step.node_gradients(batch.samples)
        model.backward_upper(nodes)
        gradient = model.backward_lower()
        model.backward_bottom(nodes)
        return gradient

    def _update(self, clock: PhaseClock, dE: Any) -> None:
        """`ShardedEmbedding.backward`."""
        tables = self._tables
        batch_input = tables._input
        if tables.exchange.alone:
            clock("update", lambda: tables.backward(dE, self._steps))
            return
        assert batch_input is not None
        tables._input = None
        shape = batch_input.shape
        gradients = clock("gradient", lambda: tables.exchange.start_gradients(shape, dE).wait())
        clock("update", lambda: tables.update_shards(batch_input, gradients, self._steps))
        if batch_input.copies is not None:
            clock("replicas", lambda: self._update_replicas(batch_input, dE))
        tables.tbe.settle()

    def _update_replicas(self, batch_input: Any, dE: Any) -> None:
        tables = self._tables
        summed = tables.start_replicas(tables.merge_copies(batch_input, dE))
        assert summed is not None
        tables.update_copies(summed.wait(), self._steps)

    def close(self) -> None:
        """Free the tables."""
        self._tables.tbe.close()

    def measure(self, steps: int) -> dict[str, Any]:
        """Shortest seconds of a step, and of each phase on the slowest rank. Collective."""
        for _ in range(WARMUP):
            self.step()
        shortest = min(self.step() for _ in range(steps))
        clock = PhaseClock(self._comm, elsewhere=0)
        phases = clock.steps(lambda _: self.phases(clock))
        return {"step": shortest, "phases": phases}


def merge(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """The shorter of two measurements."""
    if old is None:
        return new
    phases = {name: min(seconds, new["phases"][name]) for name, seconds in old["phases"].items()}
    return old | {"step": min(old["step"], new["step"]), "phases": phases}


def measure_plans(
    comm: Comm, plans: range, steps: int, passes: int, limit: float, keep: Callable[[Any], None]
) -> None:
    """Every model under the plans of these seeds, models taking turns. Collective.

    limit : seconds after which no further plan begins. keep : is given all records now and then.
    """
    best: dict[tuple[str, int], dict[str, Any]] = {}
    end = time.monotonic() + limit
    for _ in range(passes):
        for seed in plans:
            for model in MODELS:
                run = Run(model, comm, seed)
                seconds = run.measure(steps)
                run.close()
                record = {"model": model.name, "ranks": comm.size, "seed": seed} | seconds
                best[model.name, seed] = merge(best.get((model.name, seed)), record)
            keep(list(best.values()))
            if comm.largest(int(time.monotonic() > end)):
                return


def main() -> int:
    """One rank."""
    path, plans, steps, passes, limit = sys.argv[1:]
    comm = get_comm()
    prepare_threads(comm)
    bind_kernel_threads(comm)

    def keep(records: list[dict[str, Any]]) -> None:
        if comm.rank == 0:
            Path(path).write_text(json.dumps(records), encoding="utf-8")

    first, _, end = plans.rpartition(":")
    seeds = range(int(first or 0), int(end))
    measure_plans(comm, seeds, int(steps), int(passes), float(limit), keep)
    return 0


if __name__ == "__main__":
    sys.exit(run_guarded(main))
