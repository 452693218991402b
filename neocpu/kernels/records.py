"""Which records do the kernels of embedding rows take? Where shards are, the lookups of a step by
row, coded tables, initial values.

Named tuples of contiguous 1-D arrays and numbers, so that a call reads `fused(table, states,
row_state, places, segments, gradient, hyper)`. Records are flat, and arguments of the kernel: Numba
hands no nested one to the threads of a kernel, nor one that was taken out of another.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Codes = NDArray[np.unsignedinteger]


class CodedTable(NamedTuple):
    """A table of codes, and how a step rounds what it writes.

    codes    : u8[:] or u16[:]
    low      : u16[:], the lower halves of fp32 numbers whose upper ones are the codes, or u16[0]
    layout   : i64[5] of the small float (`core.codecs.layout`)
    rounding : i64 of `core.codecs.ROUNDINGS`: 0 nearest even, 1 stochastic, 4 FBGEMM's fp16 trick
    step     : i64, by which random words go
    rows     : i64[U], the number in its shard of each unique row, by which they go too:
               `Segments.unique` may be slots of a cache
    """

    codes: Codes
    low: NDArray[np.uint16]
    layout: Ints
    rounding: int
    step: int
    rows: Ints


class ShardPlaces(NamedTuple):
    """Where each of H shards is, in its store and in its table.

    base       : i64[H], first element in the store
    width      : i64[H], columns of the shard
    full_width : i64[H], columns of its table
    row_base   : i64[H], number of its first row (or slot) among those of all shards
    row0       : i64[H], its first row in the table
    column0    : i64[H], its first column in the table
    key        : u64[H], of the random words that round its rows (docs/arithmetic.md §9)
    """

    base: Ints
    width: Ints
    full_width: Ints
    row_base: Ints
    row0: Ints
    column0: Ints
    key: NDArray[np.uint64]


class Segments(NamedTuple):
    """The lookups of a step by shard and row: unique rows u, each with a run of lookups.

    shards  : i64[N], unique rows [first[i], first[i+1]) are of shard shards[i]
    first   : i64[N+1]
    unique  : i64[U], the row in its shard (or its slot), ascending in each shard
    starts  : i64[U+1], row u has lookups [starts[u], starts[u+1])
    place   : i64[n], first element of a lookup's gradient
    weights : f32[n], what a lookup's gradient is multiplied with, or f32[0]
    """

    shards: Ints
    first: Ints
    unique: Ints
    starts: Ints
    place: Ints
    weights: Floats

    def spans(self) -> list[tuple[int, int, int]]:
        """(shard, lo, hi) of every shard: its unique rows are [lo, hi)."""
        ends = self.first.tolist()
        return list(zip(self.shards.tolist(), ends, ends[1:]))

    def part(self, lo: int, hi: int) -> "Segments":
        """Those of shards [lo, hi) of `shards`."""
        if hi - lo == self.shards.size:
            return self
        begin = int(self.first[lo])
        end = int(self.first[hi])
        return self._replace(
            shards=self.shards[lo:hi],
            first=self.first[lo : hi + 1] - begin,
            unique=self.unique[begin:end],
            starts=self.starts[begin : end + 1],
        )


def one_by_one(shard: int, rows: Ints, place: Ints) -> Segments:
    """Segments of one shard in which each row has one lookup, whose gradient is at `place`."""
    return Segments(
        shards=np.array([shard]),
        first=np.array([0, rows.size]),
        unique=rows,
        starts=np.arange(rows.size + 1, dtype=np.int64),
        place=place,
        weights=np.empty(0, np.float32),
    )


def whole_table(width: int) -> ShardPlaces:
    """The place of a whole table of `width` columns that is alone in its store."""
    zero = np.zeros(1, np.int64)
    columns = np.array([width])
    return ShardPlaces(
        base=zero,
        width=columns,
        full_width=columns,
        row_base=zero,
        row0=zero,
        column0=zero,
        key=np.zeros(1, np.uint64),
    )


class InitialValues(NamedTuple):
    """What rows begin with (docs/arithmetic.md §9).

    key         : u64[H], of the random words of each shard
    scale, mean : f32[H], weights are mean + a number uniform in [-scale, scale)
    states      : f32[m], of each element state
    row_states  : f32[n], of each row state
    """

    key: NDArray[np.uint64]
    scale: Floats
    mean: Floats
    states: Floats
    row_states: Floats


class LookupChunks(NamedTuple):
    """Runs of lookups that threads share: chunk t is lookups [start[t], start[t+1]) of one shard.

    start : i64[C+1]
    bag   : i64[C], bag of its first lookup
    shift : i64[C], a row's group in its shard is row >> shift
    """

    start: Ints
    bag: Ints
    shift: Ints


class RowGroups(NamedTuple):
    """Lookups of one shard whose rows share their high bits, group after group.

    start : i64[G+1], first lookup
    row   : i64[G], first row
    bits  : i64[G], low bits of its rows
    """

    start: Ints
    row: Ints
    bits: Ints


class SparseLines(NamedTuple):
    """A sparse matrix line by line: rows with their columns, or columns with their rows.

    starts : i64[n + 1], first entry of each line, and the end
    places : i32[e], where across its line each entry stands
    values : f64[e], or f64[0]: every entry is 1
    """

    starts: Ints
    places: NDArray[np.int32]
    values: NDArray[np.float64]
