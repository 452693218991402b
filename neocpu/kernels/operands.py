"""What do kernels take together? Records of the arrays and numbers that mean one thing.

A record is a `NamedTuple`, so Numba compiles it as it does a tuple, and the twins take the same
records. K: entries of a call (a feature of a batch that reads one table).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
# of one of several widths, or of the record of a row format: the kernel is compiled for each
Elements = NDArray[np.generic]
Integers = NDArray[np.integer]


class Position(NamedTuple):
    """Where a matrix begins in a flat array, and the elements from one of its lines to the next.

    at, step : i64
    """

    at: int
    step: int


class Bags(NamedTuple):
    """Bags of lookups: bag b has the lookups offsets[b] .. offsets[b+1].

    offsets : i64[bags+1]
    rows    : i64[n], row of each lookup; -1 is pruned: it reads nothing
    weights : f32[n], factor of each lookup; f32[0] without any
    """

    offsets: Ints
    rows: Ints
    weights: Floats


class Entries(NamedTuple):
    """Which rows the bags of each entry read: row r of entry k starts at base[k] + r * stride[k].

    base   : i64[K], element of the table where row 0 starts
    width  : i64[K], columns
    stride : i64[K], elements from one row to the next
    first  : i64[K+1], entry k has the bags first[k] .. first[k+1]
    """

    base: Ints
    width: Ints
    stride: Ints
    first: Ints


class Lines(NamedTuple):
    """Where the output of bag i of entry k goes in a flat array: place[k] + i * pitch[k].

    place, pitch : i64[K]
    """

    place: Ints
    pitch: Ints


class Terms(NamedTuple):
    """Terms of sums: that of lookup j is row index[j] of `values`, times weights[j].

    values  : f32[:] or records of a row format
    index   : i64[n], -1 is left out
    weights : f32[n], or f32[0] without any
    """

    values: Elements
    index: Ints  # type: ignore[assignment]  # hides tuple.index
    weights: Floats


class Bag(NamedTuple):
    """One bag: the lookups [lo, hi), whose row r starts at element base + r * stride; i64 each."""

    lo: int
    hi: int
    base: int
    stride: int
    width: int


class WideBags(NamedTuple):
    """Bags whose exact sums take several fp64 words: bag i has the lookups [lo[i], hi[i]).

    lo, hi, base, stride, width : i64[m], as in `Bag`
    used  : i64[m], words of each bag
    place : i64[m], where its first word goes
    start : i64[m], where its further words go
    """

    lo: Ints
    hi: Ints
    base: Ints
    stride: Ints
    width: Ints
    used: Ints
    place: Ints
    start: Ints


class CacheState(NamedTuple):
    """What a cache knows of its lines, and of its sets of 32 lines.

    prints         : u8[lines], by which a row is found; 0 is an empty line
    tags           : i64[lines], the row in each line
    locks          : integers[lines], batches in flight that use it
    dirty          : u8[lines], was the row changed?
    stamp          : integers[lines], what the policy remembers of it
    next_use       : i64[lines], the batch that uses it next; [0] where the policy keeps none
    hand           : i64[sets], the policy's place in each set; [0] where it keeps none

    All but `prints` may have any stride: they are best the fields of one record per line.
    """

    prints: NDArray[np.uint8]
    tags: Ints
    locks: Integers
    dirty: NDArray[np.uint8]
    stamp: Integers
    next_use: Ints
    hand: Ints


class BatchRows(NamedTuple):
    """The unique rows of a batch.

    ids    : i64[n] >= 0, each once
    counts : i64[n], lookups of each
    use    : i64[n], the batch that uses each next; [0] where nobody knows
    """

    ids: Ints
    counts: Ints
    use: Ints


class RowsFound(NamedTuple):
    """What a search of a cache gives: by row, and by chunk of 1024 rows.

    lines   : i64[n], line of each row, or -1 - its set
    missed  : i64[n], positions of the misses of chunk t from 1024 t on
    misses  : i64[ceil(n / 1024)], how many there are
    lookups : i64[ceil(n / 1024)], sum of its counts
    """

    lines: Ints
    missed: Ints
    misses: Ints
    lookups: Ints


class Misses(NamedTuple):
    """Rows of a batch that are in no line.

    missed : i64[m], their positions in the batch
    sets   : i64[m], their sets
    amount : i64[m], how often each was looked up, as the policy counts
    order  : i64[m], who comes first; [0]: in ascending order of the rows
    """

    missed: Ints
    sets: Ints
    amount: Ints
    order: Ints


class Evicted(NamedTuple):
    """Rows that had to leave, by the turn of the miss they left for.

    rows  : i64[m], -1: none
    lines : i64[m], where they were
    stamp : i64[m], what the policy remembered of them
    dirty : u8[m], were they changed?
    """

    rows: Ints
    lines: Ints
    stamp: Ints
    dirty: NDArray[np.uint8]


class OperandFormat(NamedTuple):
    """Numbers that operands of products are rounded to.

    layout : words i64[5] of a small float (`core/codecs.py`). scale : power of two that numbers are
    multiplied by before, and divided by after. most : magnitude that they are moved to then where
    they are larger; infinity: none.
    """

    layout: Ints
    scale: np.float32
    most: np.float32
