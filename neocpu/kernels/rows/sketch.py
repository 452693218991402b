"""Which ids of a table matter most? A sketch of hot ids, as CAFE keeps it.

    bucket = id mod buckets: one line of memory, its ids by descending score

        | id 0 | id 1 | id 2 | id 3 | score 0..3 | hot row 0..3 |
          i64    i64    i64    i64    f32          i32

An id that has no entry takes an empty one; else the last one, with its score, unless that id is
hot. Buckets do not know of each other, so threads share them out and every order of the buckets
gives the same bits; within one, lookups come in the order of the batch.

Source: Zhang et al. 2023 (CAFE), HotSketch; docs/arithmetic.md §14.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from neocpu.kernels.compile.jit import inlined, kernel, parallel_kernel
from neocpu.kernels.rows.row_maps import EXACT, quotient
from neocpu.kernels.simd import prefetch
from neocpu.kernels.simd.square_sums import LANES, square_sum

EMPTY = -1  # no id, and no hot row
CHUNK = 1 << 11  # lookups, or bags, that a thread takes at a time
AHEAD = 16  # lookups between a prefetch of a bucket and its use


Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class SketchViews(NamedTuple):
    """One memory of k entries a bucket, seen as numbers of each kind.

    ids      : i64[buckets, 2k]
    scores   : f32[buckets, 4k], those at [2k, 3k)
    hot_rows : i32[buckets, 4k], those at [3k, 4k)
    """

    ids: Ints
    scores: Floats
    hot_rows: NDArray[np.int32]


class Observations(NamedTuple):
    """Lookups of some batches, in runs.

    rows       : i64[n], -1 is no lookup
    importance : f32[n]
    starts     : i64[m, 2], first and last lookup of each run
    batches    : i64[s + 1], the first run of each batch, and the end
    """

    rows: Ints
    importance: Floats
    starts: Ints
    batches: Ints


class PooledGradient(NamedTuple):
    """Gradients of pooled bags: columns [column, column + width) of values f32[b, columns]."""

    values: Floats
    column: int
    width: int


@inlined
def _remainder(row, size, inverse):
    """row mod size, for 0 <= row; inverse : fl64(1 / size), many times faster than a division."""
    if row >= EXACT:
        return row % size
    return row - quotient(row, size, inverse) * size


@inlined
def _fetch(ids, row, inverse):
    """Bring up the bucket of a row."""
    bucket = _remainder(max(row, np.int64(0)), np.int64(len(ids)), inverse)
    prefetch(ids, bucket * ids.shape[1])


@parallel_kernel
def map_hot_rows(rows, limit, sketch, hash_rows, hot, shared):
    """Rows of the table of hot ids, and of the shared one: one of them is -1.

    Shapes: rows i64[n], of the logical table, which has `limit`; hash_rows : of the shared table,
    whose row is row mod hash_rows; hot, shared i64[n]. A row below 0 is no row in `hot` and stays
    as it is in `shared`; one beyond the table becomes `limit` there, which is refused like it.
    """
    ids = sketch.ids
    hot_rows = sketch.hot_rows
    buckets = np.int64(len(ids))
    slots = ids.shape[1] // 2
    to_bucket = 1.0 / np.float64(buckets)
    to_shared = 1.0 / np.float64(hash_rows)
    for chunk in prange((rows.size + CHUNK - 1) // CHUNK):
        for i in range(chunk * CHUNK, min((chunk + 1) * CHUNK, rows.size)):
            row = rows[i]
            _fetch(ids, rows[min(i + AHEAD, rows.size - 1)], to_bucket)
            if row < 0 or row >= limit:
                # refused later, with all rows outside their tables, by the table that it is looked
                # up in
                hot[i] = EMPTY
                shared[i] = min(row, limit)
                continue
            bucket = _remainder(row, buckets, to_bucket)
            # without branches: most would be guessed wrongly
            entry = np.int64(0)
            known = False
            for j in range(slots):
                same = ids[bucket, j] == row
                entry = j if same else entry
                known |= same
            place = np.int64(hot_rows[bucket, 3 * slots + entry])
            place = place if known else np.int64(EMPTY)
            rest = _remainder(row, np.int64(hash_rows), to_shared)
            hot[i] = place
            shared[i] = np.int64(EMPTY) if place >= 0 else rest


@inlined
def _norm(gradient, bag):
    """Norm of a bag's gradient in fp64: whole blocks as `square_sum` adds them, then the rest."""
    values = gradient.values
    first = gradient.column
    blocks = gradient.width // LANES
    total = square_sum(values, bag * values.shape[1] + first, blocks)
    for c in range(first + blocks * LANES, first + gradient.width):
        total += np.float64(values[bag, c]) * np.float64(values[bag, c])
    return math.sqrt(total)


@parallel_kernel
def importances(rows, offsets, weights, gradient, mean, out):
    """How much each lookup moves its row: the norm of the gradient that it gives it.

    Shapes: rows i64[n], of bags offsets i64[b + 1]; weights f32[n], or f32[0]: none; gradient :
    PooledGradient of b bags; mean: do bags pool by their mean? out f32[n]. 0 for a row below 0, and
    where the norm is not finite.
    """
    bags = offsets.size - 1
    for chunk in prange((bags + CHUNK - 1) // CHUNK):
        for bag in range(chunk * CHUNK, min((chunk + 1) * CHUNK, bags)):
            first = offsets[bag]
            last = offsets[bag + 1]
            if first == last:
                continue
            norm = _norm(gradient, bag)
            if mean:
                norm /= np.float64(last - first)
            for i in range(first, last):
                value = norm
                if weights.size:
                    value *= abs(np.float64(weights[i]))
                rounded = np.float32(value)
                # an infinity would be the mean of its whole batch
                known = rows[i] >= 0 and np.isfinite(rounded)
                out[i] = rounded if known else np.float32(0)


@inlined
def _insert(sketch, bucket, row, score):
    """Add to the score of an id of a bucket, and keep the bucket sorted."""
    ids = sketch.ids
    scores = sketch.scores
    hot_rows = sketch.hot_rows
    slots = ids.shape[1] // 2
    place = slots - 1
    for j in range(slots):
        known = ids[bucket, j] == row
        empty = ids[bucket, j] == EMPTY
        if known or empty:
            place = j
            break
    if ids[bucket, place] != row:
        # a hot id keeps its entry: its row moves only between steps (docs/arithmetic.md §14)
        if hot_rows[bucket, 3 * slots + place] != EMPTY:
            return
        ids[bucket, place] = row
    raised = scores[bucket, 2 * slots + place] + score
    hot_row = hot_rows[bucket, 3 * slots + place]
    # insertion: one score changed, and a bucket has a few entries in one line of memory
    while place > 0 and scores[bucket, 2 * slots + place - 1] < raised:
        ids[bucket, place] = ids[bucket, place - 1]
        scores[bucket, 2 * slots + place] = scores[bucket, 2 * slots + place - 1]
        hot_rows[bucket, 3 * slots + place] = hot_rows[bucket, 3 * slots + place - 1]
        place -= 1
    ids[bucket, place] = row
    scores[bucket, 2 * slots + place] = raised
    hot_rows[bucket, 3 * slots + place] = hot_row


@kernel
def batch_means(seen, means):
    """Mean importance of the lookups of each batch; returns the number of all lookups.

    seen : Observations of s batches. means f64[s]: the fp64 sum of the batch's importances, lookup
    by lookup, over their number; 0 where the sum is 0.
    """
    lookups = 0
    for batch in range(means.size):
        total = 0.0
        count = 0
        for run in range(seen.batches[batch], seen.batches[batch + 1]):
            for i in range(seen.starts[run, 0], seen.starts[run, 1]):
                if seen.rows[i] >= 0:
                    total += np.float64(seen.importance[i])
                    count += 1
        means[batch] = total / count if total > 0 else 0.0
        lookups += count
    return lookups


@parallel_kernel
def observe(seen, means, parts, sketch):
    """Insert lookups into the sketch, in the order of their runs, scaled to mean 1 in each batch.

    seen : Observations of s batches. means f64[s], of `batch_means`. parts : the buckets are shared
    out to so many threads, whose number no bit depends on. sketch : SketchViews. A lookup adds
    fl(importance / mean), or 0 where the mean is 0.
    """
    height = np.int64(len(sketch.ids))
    inverse = 1.0 / np.float64(height)
    for part in prange(parts):
        first = height * part // parts
        last = height * (part + 1) // parts
        for batch in range(means.size):
            mean = means[batch]
            for run in range(seen.batches[batch], seen.batches[batch + 1]):
                end = seen.starts[run, 1]
                for i in range(seen.starts[run, 0], end):
                    row = seen.rows[i]
                    _fetch(sketch.ids, seen.rows[min(i + AHEAD, end - 1)], inverse)
                    if row < 0:
                        continue
                    bucket = _remainder(row, height, inverse)
                    # Each thread reads all lookups and takes those of its buckets: their order
                    # stays that of the batch without any lock.
                    if bucket < first or bucket >= last:
                        continue
                    score = np.float32(0)
                    if mean > 0:
                        score = np.float32(np.float64(seen.importance[i]) / mean)
                    _insert(sketch, bucket, row, score)
