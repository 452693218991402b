"""How are rows of 8- or 16-bit floats updated? As `update.py` updates fp32 rows, with a decoder
before and an encoder after.

    codes of a row ──decode, exactly──► fp32 ──merge, phases of the rule──► fp32 ──round──► codes
                                                                                 nearest even │
                                                                                 stochastically │
                                                                                 not at all:
    split-SGD keeps the lower halves of its fp32 weights in `low`: nothing is rounded           split in two halves

Only looked-up rows are decoded. The loop is that of `update.py`; here is how its rows are opened
and closed (`CODES`). Where a row waits for others between its phases, `open_rows` and `close_rows`
do it in one go. Small floats are described by the five words of a layout
(`reference.codecs.layout`), so one kernel per width of codes serves all of them. Sources: Kalamkar
et al. 2020 (bf16, split-SGD); FBGEMM's fp16 training tables.
"""

from functools import cache

import numpy as np
from numba import prange

from neocpu.kernels import update
from neocpu.kernels._jit import inlined, parallel_kernel
from neocpu.kernels.codecs import FBGEMM, draw_words, largest_of, words_of
from neocpu.kernels.pooling import TASKS
from neocpu.kernels.simd import prefetch_far, prefetch_write
from neocpu.kernels.simd.bags import bare, view
from neocpu.kernels.simd.small_floats import (
    nearest_code,
    number_of_code,
    random_code,
    truncated_code,
    with_noise,
)
from neocpu.kernels.update import find_shard, widest


@inlined
def read_line(codes, low, at, words, line):
    """line = the numbers of the codes from `at` on; with halves `low` of their own, the fp32
    numbers of both.
    """
    upper = view(codes, at, line.size)
    if low.size:
        lower = view(low, at, line.size)
        bits = line.view(np.uint32)
        for c in range(line.size):
            bits[c] = np.uint32(upper[c]) << np.uint32(16) | np.uint32(lower[c])
    else:
        for c in range(line.size):
            line[c] = number_of_code(np.uint32(upper[c]), words)


@inlined
def write_line(line, codes, low, at, words, top, rounding, key, row, column0, step, drawn):
    """Codes from `at` on = line, rounded; `drawn`: scratch u32 for a random word per column and up
    to six more.
    """
    upper = view(codes, at, line.size)
    if low.size:
        lower = view(low, at, line.size)
        bits = line.view(np.uint32)
        for c in range(line.size):
            upper[c] = bits[c] >> np.uint32(16)
            lower[c] = bits[c]
    elif rounding == 0:
        for c in range(line.size):
            upper[c] = nearest_code(line[c], words)
    else:
        before = column0 % 4
        draw_words(
            key, row, column0 - before, step, view(drawn, 0, (before + line.size + 3) // 4 * 4)
        )
        word = view(drawn, before, line.size)
        if rounding == FBGEMM:
            for c in range(line.size):
                upper[c] = truncated_code(with_noise(line[c], word[c]), top, words)
        else:
            for c in range(line.size):
                upper[c] = random_code(line[c], word[c], top, words)


@inlined
def share(table):
    """(codes, low, layout, rounding, key, row0, column0, step, rows) as the threads of a kernel
    take them.
    """
    codes, low, layout, rounding, key, row0, column0, step, rows = table
    words = words_of(layout)
    return (
        bare(codes),
        bare(low),
        words,
        largest_of(words),
        rounding,
        bare(key),
        bare(row0),
        bare(column0),
        np.uint64(step),
        bare(rows),
    )


@inlined
def fetch_row(rows, far, near, d):
    """Prefetch the rows from codes `far` and `near` on, of d numbers."""
    codes = rows[0]
    low = rows[1]
    for c in range(0, d, 64 // codes.itemsize):
        prefetch_far(codes, far + c)
        prefetch_write(codes, near + c)
        if low.size:
            prefetch_far(low, far + c)
            prefetch_write(low, near + c)


@inlined
def open_row(rows, at, line):
    """The row from code `at` on as fp32 numbers to be changed, in `line` f32[D]."""
    read_line(rows[0], rows[1], at, rows[2], line)
    return line


@inlined
def opened(rows, at, line):
    """A row that is open already."""
    return line


@inlined
def close_row(rows, at, h, u, line, spare):
    """Unique row u, of shard h, has its new numbers: encode them."""
    codes, low, words, top, rounding, key, row0, column0, step, local = rows
    number = np.uint64(row0[h] + local[u])
    drawn = spare.view(np.uint32)
    write_line(line, codes, low, at, words, top, rounding, key[h], number, column0[h], step, drawn)


CODES = update.RowAccess(share, fetch_row, open_row, opened, close_row, 1)


@cache
def fused(name, row_scalars, row_states, limited):
    """The fused kernel of a rule over coded rows; arguments as of `update.fused`.

    `fused(…)(codes, low, state0, …, gradient, hyper, layout, rounding, key, row0, column0, step,
    rows)`: as `update.fused`, but codes u16[:] or u8[:] for the table; low u16[:], the lower halves
    of fp32 weights of which codes are the upper ones, or u16[0]; layout i64[5] of the small float;
    rounding i64: 0 nearest even, 1 stochastic, 4 FBGEMM's fp16 trick (`codecs.py`); key u64[H],
    row0, column0 i64[H]: of the random words of a shard (docs/arithmetic.md §9); step i64; rows
    i64[U]: what `unique` would be if that were not slots: random words go by row. States are fp32.
    Source: docs/arithmetic.md §3 to §5; docs/formats.md. Order: as `update.fused`.
    """
    kernel = update.fused(name, row_scalars, row_states, limited, CODES)

    def fused_update(codes, low, *rest):
        (*places, layout, rounding, key, row0, column0, step, rows) = rest
        kernel((codes, low, layout, rounding, key, row0, column0, step, rows), *places)

    return fused_update


@parallel_kernel
def open_rows(codes, low, base, width, shards, first, unique, layout, to, out):
    """out[to[u] : + width] = the numbers of row unique[u] of shard shards[i], u in [first[i],
    first[i+1]).

    Shapes: codes u16[:] or u8[:]; low u16[:] or u16[0]; base, width i64[H]; shards i64[N], first
    i64[N+1]; unique, to i64[U]; layout i64[5]; out f32[:]. Source: docs/arithmetic.md §5. Order:
    none.
    """
    words = words_of(layout)
    rows = unique.size
    for task in prange(TASKS):
        i = 0
        for u in range(rows * task // TASKS, rows * (task + 1) // TASKS):
            i = find_shard(first, i, u)
            d = width[shards[i]]
            read_line(codes, low, base[shards[i]] + unique[u] * d, words, view(out, to[u], d))


@parallel_kernel
def close_rows(
    codes,
    low,
    base,
    width,
    shards,
    first,
    unique,
    layout,
    rounding,
    key,
    row0,
    column0,
    step,
    rows,
    to,
    numbers,
):
    """Row unique[u] of shard shards[i] = numbers[to[u] : + width], encoded as `fused` does it.

    Shapes: as in `open_rows` and `fused`; numbers f32[:]. Source: docs/arithmetic.md §5. Order:
    none.
    """
    words = words_of(layout)
    count = unique.size
    top = largest_of(words)
    for task in prange(TASKS):
        i = 0
        drawn = np.empty(widest(width, shards) + 8, np.uint32)
        for u in range(count * task // TASKS, count * (task + 1) // TASKS):
            i = find_shard(first, i, u)
            h = shards[i]
            d = width[h]
            row = np.uint64(row0[h] + rows[u])
            line = view(numbers, to[u], width[h])
            at = base[h] + unique[u] * d
            write_line(
                line,
                codes,
                low,
                at,
                words,
                top,
                rounding,
                key[h],
                row,
                column0[h],
                np.uint64(step),
                drawn,
            )
