"""How long does a rank work on a step outside its kernels? Python's time, on 2 to 32 ranks.

Ranks are threads that take turns, so each has a core to itself and waits for nobody: a thread's CPU
time is its own work. From it the time of the threads' own exchange is taken, in whose place MPI's
would be, and that of kernels, of which a tiny batch leaves little but their calls.
"""

import argparse
import cProfile
import itertools
import json
import pstats
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from neocpu.core.jagged import KJT
from neocpu.core.trees import rank_samples
from neocpu.parallel.embeddings.sharded import ShardedEmbedding
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.threads import MeetingRoom, run_threads
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec, bags
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.model.layout import ModelLayout
from neocpu.train.step.step import TrainStep

TABLES = 26
ROWS = 1000
COLUMNS = 16
PLANS = {
    "table_wise": ("table_wise",),
    "mixed": ("table_wise", "row_wise", "column_wise", "data_parallel"),
}
WARMUP = 3


class Batch:
    """A rank's samples of a batch, one lookup in each bag."""

    def __init__(self, comm: Comm, samples: int, leaves: int) -> None:
        lo, hi = rank_samples(comm.rank, comm.size, samples, leaves)
        rng = np.random.default_rng(comm.rank)
        keys = tuple(f"f{t}" for t in range(TABLES))
        lengths = np.ones((TABLES, hi - lo), np.int32)
        self.dense = rng.standard_normal((hi - lo, 13)).astype(np.float32)
        self.labels = rng.integers(0, 2, hi - lo).astype(np.float32)
        self.sparse = KJT(keys, lengths, rng.integers(0, ROWS, lengths.size))
        self.samples = samples


class Exchanges:
    """CPU seconds of this thread inside the threads' own exchange."""

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}

    def watch(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method with its time counted."""

        def watched(*arguments: Any) -> Any:
            start = time.thread_time()
            try:
                return method(*arguments)
            finally:
                thread = threading.get_ident()
                spent = time.thread_time() - start
                self.seconds[thread] = self.seconds.get(thread, 0.0) + spent

        return watched

    def here(self) -> float:
        """Of the calling thread."""
        return self.seconds.get(threading.get_ident(), 0.0)


def measure(ranks: int, plan_name: str, steps: int, profile: bool) -> list[float]:
    """CPU milliseconds of a step outside exchanges, of each rank."""
    leaves = max(32, ranks)
    samples = 2 * leaves
    tables = tuple(TableSpec(f"t{t}", ROWS, COLUMNS, (f"f{t}",)) for t in range(TABLES))
    schemes = [PLANS[plan_name][t % len(PLANS[plan_name])] for t in range(TABLES)]
    plan = place(tables, schemes, ranks, ranks)
    exchanges = Exchanges()
    originals = MeetingRoom.bring, MeetingRoom.wait
    MeetingRoom.bring = exchanges.watch(originals[0])  # type: ignore[method-assign]
    MeetingRoom.wait = exchanges.watch(originals[1])  # type: ignore[method-assign]

    def body(comm: Comm) -> float:
        rule = SparseOptimizer("exact_rowwise_adagrad", learning_rate=0.01)
        dims = tuple(tables[bag.table].dim for bag in bags(tables))
        model = Dlrm(ModelLayout(13, dims, (16, COLUMNS), (16, 1), "dot"))
        env = ShardingEnv(plan, comm, rule, 1, leaves, model.first_column, huge=False)
        embedding = ShardedEmbedding(env)
        dense = DenseOptimizer(SparseOptimizer("exact_sgd", learning_rate=0.01), model.flat)
        step = TrainStep(model, embedding, dense)
        batch = Batch(comm, samples, leaves)
        # a run makes its schedule once; versions without one take steps one by one
        if hasattr(step, "over"):
            take = step.over(itertools.repeat(batch), 1).next
        else:
            numbers = itertools.count(1)

            def take() -> object:
                return step(batch, next(numbers))

        for _ in range(WARMUP):
            take()
        profiler = cProfile.Profile(time.thread_time)
        comm.barrier()
        start = time.thread_time() - exchanges.here()
        if profile and comm.rank == 0:
            profiler.enable()
        for _ in range(steps):
            comm.largest(0)
            take()
        profiler.disable()
        if profile and comm.rank == 0:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
        return (time.thread_time() - exchanges.here() - start) / steps * 1e3

    try:
        return run_threads(ranks, body, in_turn=True)
    finally:
        MeetingRoom.bring, MeetingRoom.wait = originals  # type: ignore[method-assign]


def main() -> None:
    """Print a line for each plan and number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32])
    parser.add_argument("--plans", nargs="+", default=list(PLANS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    for plan in options.plans:
        for ranks in options.ranks:
            rounds = [
                np.median(measure(ranks, plan, options.steps, options.profile))
                for _ in range(options.rounds)
            ]
            record = {"plan": plan, "ranks": ranks, "ms of a rank and step": round(min(rounds), 3)}
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
