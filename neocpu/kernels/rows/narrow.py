"""How are rows of 8- or 16-bit floats updated? As `rows/update.py` updates fp32 rows, with a
decoder before and an encoder after.

    codes of a row
        │ decode, exactly
    fp32 ──merge, phases of the rule──► fp32
                                         │ round: to nearest even, or stochastically; split-SGD
                                         │ keeps the lower halves of its fp32 weights in `low`, so
                                         ▼ nothing is rounded, both halves are stored
                                   codes of the row

Only looked-up rows are decoded. The loop is that of `rows/update.py`; here is how its rows are
opened and closed (`CODES`). Where a row waits for others between its phases, `open_rows` and
`close_rows` do it in one go. Small floats are described by the five words of a layout
(`core.codecs.layout`), so one kernel per width of codes serves all of them. Sources: Kalamkar et
al. 2020 (bf16, split-SGD); FBGEMM's fp16 training tables.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from neocpu.kernels.codecs.small_floats import FBGEMM, draw_words, largest_of, words_of
from neocpu.kernels.compile.jit import inlined, parallel_kernel
from neocpu.kernels.records import Codes, Ints
from neocpu.kernels.rows import update
from neocpu.kernels.rows.pooling import TASKS
from neocpu.kernels.rows.update import find_shard, widest
from neocpu.kernels.scratch import task_body
from neocpu.kernels.simd import prefetch_far, prefetch_write
from neocpu.kernels.simd.bags import bare, view
from neocpu.kernels.simd.record_views import bare_record
from neocpu.kernels.simd.small_floats import (
    nearest_code,
    number_of_code,
    random_code,
    truncated_code,
    with_noise,
)


class CodeRows(NamedTuple):
    """A `records.CodedTable` as the body of a task takes it, with what encoding it needs of the
    `records.ShardPlaces`.

    words   : those of the layout
    largest : the largest number of the format
    """

    codes: Codes
    low: NDArray[np.uint16]
    words: tuple[np.int32, ...]
    largest: np.int32
    rounding: int
    step: np.uint64
    rows: Ints
    row0: Ints
    column0: Ints
    key: NDArray[np.uint64]


@inlined
def share_codes(table, places):
    """The table as the body of a task takes it."""
    words = words_of(table.layout)
    return CodeRows(
        bare(table.codes),
        bare(table.low),
        words,
        largest_of(words),
        table.rounding,
        np.uint64(table.step),
        bare(table.rows),
        bare(places.row0),
        bare(places.column0),
        bare(places.key),
    )


@inlined
def read_line(table, at, line):
    """line = the numbers of the codes from `at` on; with lower halves, the fp32 numbers of both."""
    upper = view(table.codes, at, line.size)
    if table.low.size:
        lower = view(table.low, at, line.size)
        bits = line.view(np.uint32)
        for c in range(line.size):
            bits[c] = np.uint32(upper[c]) << np.uint32(16) | np.uint32(lower[c])
    else:
        for c in range(line.size):
            line[c] = number_of_code(np.uint32(upper[c]), table.words)


@inlined
def write_line(table, at, h, u, line, drawn):
    """Codes from `at` on = line, rounded: unique row u, of shard h.

    drawn u32 : scratch for a random word per column and up to six more.
    """
    upper = view(table.codes, at, line.size)
    words = table.words
    if table.low.size:
        lower = view(table.low, at, line.size)
        bits = line.view(np.uint32)
        for c in range(line.size):
            upper[c] = bits[c] >> np.uint32(16)
            lower[c] = bits[c]
    # asked once for a row, not for each column
    elif table.rounding == 0:
        for c in range(line.size):
            upper[c] = nearest_code(line[c], words)
    else:
        # Philox gives four words at a time, by the column in the whole table
        before = table.column0[h] % 4
        row = np.uint64(table.row0[h] + table.rows[u])
        count = (before + line.size + 3) // 4 * 4
        draw_words(table.key[h], row, table.column0[h] - before, table.step, view(drawn, 0, count))
        word = view(drawn, before, line.size)
        if table.rounding == FBGEMM:
            for c in range(line.size):
                upper[c] = truncated_code(with_noise(line[c], word[c]), table.largest, words)
        else:
            for c in range(line.size):
                upper[c] = random_code(line[c], word[c], table.largest, words)


@inlined
def fetch_row(table, far, near, d):
    """Prefetch the rows from codes `far` and `near` on, of d numbers."""
    codes = table.codes
    low = table.low
    for c in range(0, d, 64 // codes.itemsize):
        prefetch_far(codes, far + c)
        prefetch_write(codes, near + c)
        # the lower halves lie in an array of their own, so that lookups read 16 bits a number
        if low.size:
            prefetch_far(low, far + c)
            prefetch_write(low, near + c)


@inlined
def open_row(table, at, line):
    """The row from code `at` on as fp32 numbers to be changed, in `line` f32[D]."""
    read_line(table, at, line)
    return line


@inlined
def opened_row(table, at, line):
    """A row that is open already."""
    return line


@inlined
def close_row(table, at, h, u, line, drawn):
    """Unique row u, of shard h, has its new numbers in `line`: encode them."""
    write_line(table, at, h, u, line, drawn.view(np.uint32))


CODES = update.RowAccess(share_codes, fetch_row, open_row, opened_row, close_row, lines=1)


@cache
def fused(rule, limited):
    """The fused kernel of a rule over coded rows.

    `fused(...)(table, states, row_state, places, segments, gradient, hyper)`: as
    `update.fused`, but the table is a `records.CodedTable`. States are fp32.
    Source: docs/arithmetic.md §3 to §5; docs/formats.md. Order: as `update.fused`.
    """
    return update.fused(rule, limited, CODES)


@parallel_kernel
def open_rows(table, places, segments, offsets, out):
    """out[offsets[u] : + width] = the numbers of unique row u.

    Shapes: table `records.CodedTable`; places `records.ShardPlaces`; segments `records.Segments`;
    offsets i64[U]; out f32[:]. Source: docs/arithmetic.md §5. Order: none.
    """
    for task in prange(TASKS):
        shared = share_codes(table, places)
        where = bare_record(places)
        lookups = bare_record(segments)
        unique = lookups.unique
        i = 0
        for u in range(unique.size * task // TASKS, unique.size * (task + 1) // TASKS):
            i = find_shard(lookups.first, i, u)
            h = lookups.shards[i]
            d = where.width[h]
            read_line(shared, where.base[h] + unique[u] * d, view(out, offsets[u], d))


@task_body
def close_task(task, drawn, table, places, segments, offsets, numbers):
    """One task of `close_rows`; drawn u32[D + 8]."""
    shared = share_codes(table, places)
    where = bare_record(places)
    lookups = bare_record(segments)
    unique = lookups.unique
    drawn_words = bare(drawn)
    i = 0
    for u in range(unique.size * task // TASKS, unique.size * (task + 1) // TASKS):
        i = find_shard(lookups.first, i, u)
        h = lookups.shards[i]
        d = where.width[h]
        at = where.base[h] + unique[u] * d
        write_line(shared, at, h, u, view(numbers, offsets[u], d), drawn_words)


@parallel_kernel
def close_rows(table, places, segments, offsets, numbers):
    """Unique row u = numbers[offsets[u] : + width], encoded as `fused` does it.

    Shapes: as in `open_rows`; numbers f32[:]. Source: docs/arithmetic.md §5. Order: none.
    """
    width = widest(places.width, segments.shards)
    for task in prange(TASKS):
        drawn = np.empty(width + 8, np.uint32)
        close_task(np.int64(task), drawn, table, places, segments, offsets, numbers)
