"""What does the sketch of hot ids cost beside the lookups that it serves (kind "cafe")?

Some tables of a million rows, one lookup a sample, ids by Zipf's law, kept in a tenth of their
memory. Per step, for all tables: rows of a batch are found (map), gradients of the bags become
importances (norms), and ids are taken into the sketch (observe). Beside them: lookup and update of
the hot and shared tables themselves, and of full tables with the same ids.

    python -m benchmarks.cafe            # dim 16, 64, 128
    python -m benchmarks.cafe --quick
"""

import argparse
from collections.abc import Callable

import numpy as np

from benchmarks.harness import CORES, Contender, measure
from neocpu.kernels.compile.threads import use_threads
from neocpu.kernels.rows.sketch import Observations, PooledGradient, importances
from neocpu.parallel.sharding.schemes import Shard
from neocpu.tables.embedding.hot_sketch import HotSketch, SketchSizes
from neocpu.tables.embedding.lookups import EntryLayout, Lookups
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.kinds.cafe import CafeKeys, split
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec

ROWS = 1_000_000
TABLES = 8
BATCHES = 8  # different ones, in turn
NONE = np.empty(0, np.float32)


class Work:
    """The parts of a step, each as a function of the number of the call."""

    def __init__(self, dim: int, samples: int) -> None:
        random = np.random.default_rng(0)
        hot, shared = split(ROWS, 4 * dim, CafeKeys(compression=10.0))
        sizes = SketchSizes(ROWS, hot, 4, shared, 20.0, 0.99)
        self.sketches = [HotSketch(sizes) for _ in range(TABLES)]
        self.ids = [[_zipf(random, samples) for _ in range(TABLES)] for _ in range(BATCHES)]
        self.importance = np.ones(samples, np.float32)
        self.offsets = np.arange(samples + 1, dtype=np.int64)
        self.gradient = np.ones((samples, TABLES * dim), np.float32)
        self.dim = dim
        self.rows = np.empty((2, samples), np.int64)
        for number in range(2 * BATCHES):
            self.observe(number)
        for sketch in self.sketches:
            sketch.decide()
        self.cafe = Tables([hot, shared] * TABLES, dim, [self._mapped(batch) for batch in self.ids])
        self.full = Tables([ROWS] * TABLES, dim, [np.concatenate(batch) for batch in self.ids])

    def _mapped(self, batch: list[np.ndarray]) -> np.ndarray:
        """Rows of all hot and shared tables."""
        parts = []
        for sketch, ids in zip(self.sketches, batch):
            sketch.map(ids, *self.rows)
            parts.append(self.rows.reshape(-1).copy())
        return np.concatenate(parts)

    def map(self, call: int) -> None:
        """Find the rows of a batch."""
        for sketch, ids in zip(self.sketches, self.ids[call % BATCHES]):
            sketch.map(ids, *self.rows)

    def norms(self, call: int) -> None:
        """Importances of a batch."""
        for table, ids in enumerate(self.ids[call % BATCHES]):
            gradient = PooledGradient(self.gradient, table * self.dim, self.dim)
            importances(ids, self.offsets, NONE, gradient, False, self.importance)

    def observe(self, call: int) -> None:
        """Take a batch into the sketches."""
        run = np.array([[0, self.importance.size]])
        batch = np.array([0, 1])
        for sketch, ids in zip(self.sketches, self.ids[call % BATCHES]):
            sketch.observe(Observations(ids, self.importance, run, batch))

    def sketch(self, call: int) -> None:
        """All that the sketch does in a step."""
        self.map(call)
        self.norms(call)
        self.observe(call)


class Tables:
    """Lookups and updates of tables of these heights; rows : of each batch, table by table."""

    def __init__(self, heights: list[int], dim: int, rows: list[np.ndarray]) -> None:
        tables = [TableSpec(f"t{i}", height, dim, (f"f{i}",)) for i, height in enumerate(heights)]
        shards = [Shard(i, (0, height), (0, dim), 0) for i, height in enumerate(heights)]
        optimizer = SparseOptimizer("exact_rowwise_adagrad")
        self._tbe = TableBatchedEmbedding(tables, shards, optimizer, 1, huge=False)
        numbers = np.arange(len(heights))
        self._layout = EntryLayout(numbers, numbers * dim)
        bags = np.arange(rows[0].size + 1)
        samples = rows[0].size // len(heights)
        self._lookups = [Lookups(bags, batch, NONE, samples) for batch in rows]
        self._out = np.empty((samples, len(heights) * dim), np.float32)

    def lookup(self, call: int) -> None:
        """Pool the rows of a batch."""
        self._tbe.forward(self._layout, self._lookups[call % BATCHES], self._out)

    def step(self, call: int) -> None:
        """Pool the rows of a batch, and update them."""
        self.lookup(call)
        lookups = self._lookups[call % BATCHES]
        self._tbe.backward(self._layout, lookups, self._out, call + 1)


def _zipf(random: np.random.Generator, samples: int) -> np.ndarray:
    """Ids by Zipf's law with exponent 1.1, the frequent ones anywhere."""
    ids = random.zipf(1.1, 4 * samples) - 1
    return (ids[ids < ROWS][:samples] * 7919 % ROWS).astype(np.int64)


def main() -> None:
    """Print the times of all parts, and their shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one dim, few samples and rounds")
    parser.add_argument("--threads", type=int, default=CORES)
    args = parser.parse_args()
    for dim in (16,) if args.quick else (16, 64, 128):
        work = Work(dim, 512 if args.quick else 8192)
        parts: dict[str, Callable[[int], None]] = {
            "map": work.map,
            "norms": work.norms,
            "observe": work.observe,
            "sketch": work.sketch,
            "lookup": work.cafe.lookup,
            "lookup and update": work.cafe.step,
            "full lookup": work.full.lookup,
            "full lookup and update": work.full.step,
        }
        contenders = [
            Contender(name, "ours", run, args.threads, use_threads, repeat=5)
            for name, run in parts.items()
        ]
        measure(contenders, rounds=1 if args.quick else 9, warmup=1)
        seconds = {each.name: min(each.seconds) for each in contenders}
        print(f"dim {dim}, {TABLES} tables, {work.importance.size} samples, {args.threads} threads")
        for name, time in seconds.items():
            print(f"  {name:24}{1e3 * time:9.3f} ms")
        for name in ("lookup", "lookup and update", "full lookup and update"):
            print(f"  sketch / {name:24}{seconds['sketch'] / seconds[name]:7.0%}")


if __name__ == "__main__":
    main()
