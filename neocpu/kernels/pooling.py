"""How are bags of rows pooled exactly? A plain fp64 sum with a certificate; where that fails, fixed grids.

    bag i = k*S + s of entry k:  rows[offsets[i]:offsets[i+1]],  row r at table[base[k] + r*width[k] : + width[k]]

The certificate (`docs/arithmetic.md` §3): m terms whose nonzero exponents lie in [e, E] add exactly in fp64, in any order,
if m * 2^(E+1) <= 2^53 * 2^(e-23). Otherwise each term is cut on a fixed grid, q = (x + sigma) - sigma with sigma = 1.5 * 2^j:
the q's add exactly into one word, the rests go to the next grid (Rump). Range and count alone fix the number of words.
"""

import math

import numpy as np
from numba import prange
from numba.extending import register_jitable

from neocpu.kernels._jit import inlined, kernel, parallel_kernel
from neocpu.kernels.rounding import round_words
from neocpu.kernels.simd import prefetch, prefetch_far
from neocpu.kernels.simd_rows import (
    FAR,
    NEAR,
    bare,
    sum_rows_1,
    sum_rows_4,
    sum_rows_16,
    sum_rows_64,
    sum_rows_128,
    view,
)

TASK = 64  # bags of one task


@inlined
def words_needed(spread, terms):
    """Words that hold the exact sum of `terms` fp32 numbers whose bit range is `spread` (from `sum_rows_N`)."""
    high, low = min(254, max(1, (spread >> 56) & 255)) - 126, max(1, (spread >> 24) & 255) - 150
    log = 0
    while (1 << log) < terms:
        log += 1
    bound, words = high, 1
    while bound + log > 53 + low:
        bound, words = bound + log - 52, words + 1
    return words


@register_jitable
def split_words(values, index, weights, lo, hi, base, stride, column, width, spread, words, out):
    """out[:words, :width] = exact words of a bag: word k is the exact fp64 sum of the terms' parts on grid k."""
    log = 0
    while (1 << log) < hi - lo:
        log += 1
    top = min(254, max(1, (spread >> 56) & 255)) - 126
    out[:words, :width] = 0.0
    for j in range(lo, hi):
        if index[j] < 0:
            continue
        at = base + index[j] * stride + column
        for c in range(width):
            term = values[at + c]
            if weights.size:
                term = term * weights[j]
            x, bound = np.float64(term), top
            for k in range(words - 1):
                sigma = math.ldexp(1.5, bound + 1 + log)
                bound = bound + log - 52
                q = (x + sigma) - sigma
                out[k, c] += q
                x = x - q if abs(q) < np.inf else 0.0
            out[words - 1, c] += x


@inlined
def wider(a, b):
    """Union of two bit ranges."""
    high = max((a >> 32) & 0xFFFFFFFF, (b >> 32) & 0xFFFFFFFF)
    return (high << 32) | min(a & 0xFFFFFFFF, b & 0xFFFFFFFF)


@inlined
def sum_block(values, index, weights, lo, hi, base, stride, column, width, acc):
    """fp64 sums of the next block of columns into acc; returns (columns done, bit range)."""
    left = width - column
    if left >= 128:
        return 128, sum_rows_128(values, index, weights, lo, hi, base, stride, column, acc)
    if left >= 64:
        return 64, sum_rows_64(values, index, weights, lo, hi, base, stride, column, acc)
    if left >= 16:
        return 16, sum_rows_16(values, index, weights, lo, hi, base, stride, column, acc)
    if left >= 4:
        return 4, sum_rows_4(values, index, weights, lo, hi, base, stride, column, acc)
    return 1, sum_rows_1(values, index, weights, lo, hi, base, stride, column, acc)


@register_jitable
def round_split(values, index, weights, lo, hi, base, stride, column, width, spread, words, out):
    """out[column : column + width] = sum of a block of columns that takes several words, rounded once."""
    parts = np.empty((words, width))
    line, scratch = np.empty(words), np.empty(words)
    split_words(values, index, weights, lo, hi, base, stride, column, width, spread, words, parts)
    for c in range(width):
        for k in range(words):
            line[k] = parts[k, c]
        out[column + c] = round_words(line, words, scratch)


@inlined
def ask_ahead(values, index, j, base, stride, width):
    """Prefetch rows that come after lookup j: bags of one lookup are too short to do it themselves."""
    far, near = (
        base + index[min(j + FAR, index.size - 1)] * stride,
        base + index[min(j + NEAR, index.size - 1)] * stride,
    )
    for c in range(0, width, 16):
        prefetch_far(values, far + c)
        prefetch(values, near + c)


@inlined
def round_bag(values, index, weights, lo, hi, base, stride, width, out, acc):
    """out[:width] = sum of one bag, rounded once."""
    if hi - lo == 1 and weights.size == 0:
        ask_ahead(values, index, lo, base, stride, width)
        if index[lo] < 0:
            for c in range(width):
                out[c] = np.float32(0.0)
            return
        source = view(values, base + index[lo] * stride, width)
        for c in range(width):
            out[c] = source[c] + np.float32(0.0)
        return
    column = 0
    while column < width:
        done, spread = sum_block(values, index, weights, lo, hi, base, stride, column, width, acc)
        words = words_needed(spread, hi - lo)
        if words == 1:
            target = view(out, column, done)  # indexed from 0, or LLVM scatters
            for c in range(done):
                target[c] = np.float32(acc[c]) + np.float32(0.0)
        else:
            round_split(values, index, weights, lo, hi, base, stride, column, done, spread, words, out)
        column += done


@inlined
def words_of_bag(values, index, weights, lo, hi, base, stride, width, out, acc):
    """out[:width] = fp64 sum of one bag; returns the number of words that an exact sum takes."""
    at, spread = 0, np.int64(0xFFFFFFFF)
    while at < width:
        done, here = sum_block(values, index, weights, lo, hi, base, stride, at, width, acc)
        target = view(out, at, done)
        for c in range(done):
            target[c] = acc[c]
        spread, at = wider(spread, here), at + done
    return words_needed(spread, hi - lo)


@parallel_kernel
def pooled_sum(table, base, width, offsets, rows, weights, out, column):
    """Pooled rows of finished shards: out[s, column[k] : + width[k]] = exact sum of bag k*S + s, rounded once.

    Shapes: table f32[:]; base, width, column i64[K]; offsets i64[K*S+1]; rows i64[n], -1 skipped; weights f32[n] or f32[0];
    out f32[S, C]. Source: docs/arithmetic.md §3; FBGEMM's table-batched embedding forward. Order: none.
    """
    entries, samples, flat = base.size, out.shape[0], out.reshape(-1)
    tasks = (samples + TASK - 1) // TASK
    for task in prange(entries * tasks):
        k, first = task // tasks, task % tasks * TASK
        scratch = np.empty(128)
        acc, source, index, scale = bare(scratch), bare(table), bare(rows), bare(weights)
        for s in range(first, min(first + TASK, samples)):
            bag = k * samples + s
            line = view(flat, s * out.shape[1] + column[k], width[k])
            round_bag(source, index, scale, offsets[bag], offsets[bag + 1], base[k], width[k], width[k], line, acc)
        scratch[0] = 0.0  # what `acc` looks at is alive until here


@parallel_kernel
def pooled_words(table, base, width, offsets, rows, weights, out, column, used):
    """Exact first words of bags of row-split shards, out[s, column[k] : + width[k]] (fp64), where one word is enough.

    Shapes: as `pooled_sum`, but out f64[S, C]; used u8[K*S]: words that the bag needs; where more than 1, its columns of
    out are left for `further_words`. Source: docs/arithmetic.md §3. Order: none.
    """
    entries, samples, flat = base.size, out.shape[0], out.reshape(-1)
    tasks = (samples + TASK - 1) // TASK
    for task in prange(entries * tasks):
        k, first = task // tasks, task % tasks * TASK
        scratch = np.empty(128)
        acc, source, index, scale = bare(scratch), bare(table), bare(rows), bare(weights)
        for s in range(first, min(first + TASK, samples)):
            bag = k * samples + s
            lo, hi = offsets[bag], offsets[bag + 1]
            line = view(flat, s * out.shape[1] + column[k], width[k])
            used[bag] = words_of_bag(source, index, scale, lo, hi, base[k], width[k], width[k], line, acc)
        scratch[0] = 0.0  # what `acc` looks at is alive until here


@kernel
def further_words(values, index, weights, lo, hi, base, stride, width, words, out):
    """All words of one bag, out[:words, :width] (fp64); for the rare bag that needs several.

    Shapes: values f32[:]; index i64[n]; weights f32[n] or f32[0]; row r at values[base + r*stride]; out f64[words, width].
    Source: docs/arithmetic.md §3. Order: none.
    """
    acc = np.empty(128)
    at, spread = 0, np.int64(0xFFFFFFFF)
    while at < width:
        done, here = sum_block(values, index, weights, lo, hi, base, stride, at, width, acc)
        spread, at = wider(spread, here), at + done
    split_words(values, index, weights, lo, hi, base, stride, 0, width, spread, words, out)
