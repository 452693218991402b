"""Which logical rows have rows of their own, and which are next?

One sketch, in buckets of one cache line.

    logical rows 4 x i64 | scores 4 x f32 | hot rows 4 x i32       64 bytes, by descending score

Source: CAFE's HotSketch (`tables/kinds/cafe.py`); arithmetic: `kernels/rows/sketch.py`.
"""

from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Floats, Ints
from neocpu.kernels.compile.threads import thread_count
from neocpu.kernels.rows import sketch as kernels
from neocpu.kernels.rows.sketch import EMPTY, Observations, PooledGradient, SketchViews
from neocpu.tables.specs.optimizers import power

LINE = 64  # bytes that a bucket of four entries begins at a multiple of
PARTS = 8  # threads that share out the buckets: each reads all lookups
# A logical row, below 2^63, and a hot row, below 2^31, as fp32 numbers that hold them exactly.
DIGIT = 1 << 21
LOGICAL_DIGITS = 3
ROW_DIGITS = 2


@dataclass(frozen=True)
class SketchSizes:
    """Shape of a sketch and its rules.

    rows : of the logical table.
    buckets, slots : of the sketch; there are as many hot rows as buckets.
    hash_rows : shared rows.
    threshold, decay : as of `kinds.cafe.CafeKeys`.
    """

    rows: int
    buckets: int
    slots: int
    hash_rows: int
    threshold: float
    decay: float


@dataclass(frozen=True)
class Promotions:
    """Logical rows i64[n] that become hot, their hot rows i64[n], ascending, and the shared rows
    i64[n] that they had.
    """

    logical_rows: Ints
    hot_rows: Ints
    shared_rows: Ints


class HotSketch:
    """The hot rows of one table.

    Attributes: logical_rows, scores, hot_rows, [buckets, slots] each; lookups, seen since the last
    decay.
    """

    def __init__(self, sizes: SketchSizes) -> None:
        self.sizes = sizes
        self.lookups = 0
        width = 16 * sizes.slots
        memory = np.zeros(sizes.buckets * width + LINE, np.uint8)
        # NumPy aligns arrays to less than a line, and a bucket should cost one miss
        first = -memory.ctypes.data % LINE
        lines = memory[first : first + sizes.buckets * width].reshape(sizes.buckets, width)
        self._views = SketchViews(
            lines.view(np.int64), lines.view(np.float32), lines.view(np.int32)
        )
        self.logical_rows = self._views.ids[:, : sizes.slots]
        self.scores = self._views.scores[:, 2 * sizes.slots : 3 * sizes.slots]
        self.hot_rows = self._views.hot_rows[:, 3 * sizes.slots :]
        self.logical_rows[:] = EMPTY
        self.hot_rows[:] = EMPTY

    def map(self, logical_rows: Ints, hot: Ints, shared: Ints) -> None:
        """Rows i64[n] of the logical table to those of the two physical ones, i64[n] each."""
        sizes = self.sizes
        kernels.map_hot_rows(logical_rows, sizes.rows, self._views, sizes.hash_rows, hot, shared)

    def observe(self, seen: Observations) -> None:
        """Take in the lookups of some batches."""
        means = np.empty(seen.batches.size - 1)
        self.lookups += kernels.batch_means(seen, means)
        threads = min(thread_count(), PARTS, self.sizes.buckets)
        kernels.observe(seen, means, threads, self._views)

    def decide(self) -> Promotions:
        """Let scores decay, take hot rows from logical rows, and give free ones to others.

        The highest scores come first, of equal ones the smaller logical row.
        """
        self._decay()
        free = np.ones(self.sizes.buckets, np.bool_)
        free[self.hot_rows[self.hot_rows != EMPTY]] = False
        ready = (self.hot_rows == EMPTY) & (self.logical_rows != EMPTY)
        ready &= self.scores >= np.float32(self.sizes.threshold)
        bucket, entry = np.nonzero(ready)
        candidates = self.logical_rows[bucket, entry]
        # lexsort sorts by its last key first; ties must not depend on the order of buckets
        order = np.lexsort((candidates, -self.scores[bucket, entry]))
        hot_rows = np.flatnonzero(free)[: order.size]
        order = order[: hot_rows.size]
        promoted = candidates[order]
        # a hot row has no shared one: that is asked before it is hot
        shared_rows = np.empty_like(promoted)
        self.map(promoted, np.empty_like(promoted), shared_rows)
        self.hot_rows[bucket[order], entry[order]] = hot_rows
        return Promotions(promoted, hot_rows, shared_rows)

    def _decay(self) -> None:
        sizes = self.sizes
        limit = int(10 * sizes.buckets * sizes.threshold)
        times = self.lookups // max(limit, 1)
        if not times:
            return
        self.lookups -= times * max(limit, 1)
        # all decays that are due at once, rounded once (docs/arithmetic.md §14)
        self.scores *= np.float32(power(sizes.decay, times))
        cold = self.scores < np.float32(sizes.threshold)
        self.hot_rows[cold] = EMPTY

    # ---- state ----

    def numbers(self) -> Floats:
        """All of the sketch as fp32 numbers f32[buckets * slots + 1, 6], digits in base 2^21.

        A line for each entry: its logical row + 1 (three digits), its score, its hot row + 1 (two);
        and one with the number of lookups in the place of a logical row.
        """
        out = np.zeros((self.logical_rows.size + 1, LOGICAL_DIGITS + 1 + ROW_DIGITS), np.float32)
        out[:-1, :LOGICAL_DIGITS] = _digits(self.logical_rows.reshape(-1) + 1, LOGICAL_DIGITS)
        out[:-1, LOGICAL_DIGITS] = self.scores.reshape(-1)
        out[:-1, LOGICAL_DIGITS + 1 :] = _digits(
            self.hot_rows.reshape(-1).astype(np.int64) + 1, ROW_DIGITS
        )
        out[-1:, :LOGICAL_DIGITS] = _digits(np.array([self.lookups]), LOGICAL_DIGITS)
        return out

    def load(self, numbers: Floats) -> None:
        """Take up the state that `numbers` gave."""
        entries = numbers[:-1]
        shape = self.logical_rows.shape
        self.logical_rows[:] = (_joined(entries[:, :LOGICAL_DIGITS]) - 1).reshape(shape)
        self.scores[:] = entries[:, LOGICAL_DIGITS].reshape(shape)
        self.hot_rows[:] = (_joined(entries[:, LOGICAL_DIGITS + 1 :]) - 1).reshape(shape)
        self.lookups = int(_joined(numbers[-1:, :LOGICAL_DIGITS])[0])


def _digits(values: Ints, count: int) -> Floats:
    """Digits of whole numbers i64[n] in base 2^21, lowest first: f32[n, count]."""
    return np.stack([(values // DIGIT**i % DIGIT) for i in range(count)], axis=1).astype(np.float32)


def _joined(digits: Floats) -> Ints:
    """The whole numbers i64[n] of these digits."""
    powers = np.array([DIGIT**i for i in range(digits.shape[1])], np.int64)
    return (digits.astype(np.int64) * powers).sum(axis=1)


def warm_up_sketch() -> None:
    """Compile (or load) the kernels of a sketch."""
    sketch = HotSketch(SketchSizes(4, 2, 4, 2, 1.0, 1.0))
    rows = np.arange(4, dtype=np.int64)
    importance = np.empty(4, np.float32)
    gradient = PooledGradient(np.ones((2, 4), np.float32), 1, 2)
    offsets = np.array([0, 3, 4])
    for weights in (np.empty(0, np.float32), np.ones(4, np.float32)):
        kernels.importances(rows, offsets, weights, gradient, False, importance)
    starts = np.array([[0, 4]])
    sketch.observe(Observations(rows, importance, starts, np.array([0, 1])))
    sketch.map(rows, np.empty_like(rows), np.empty_like(rows))
