"""How are bags of rows pooled exactly? A plain fp64 sum with a certificate; where that fails, fixed
grids.

    bag i = k*S + s of entry k:  rows[offsets[i]:offsets[i+1]],  row r at table[base[k] + r*width[k]
    : + width[k]]

The certificate (`docs/arithmetic.md` §3): m terms whose nonzero exponents lie in [e, E] add exactly
in fp64, in any order, if m * 2^(E+1) <= 2^53 * 2^(e-23). Otherwise each term is cut on a fixed
grid, q = (x + sigma) - sigma with sigma = 1.5 * 2^j: the q's add exactly into one word, the rests
go to the next grid (Rump). Range and count alone fix the number of words; two are enough for nearly
all bags that one is not.

Finding the range costs as much as adding. Where the processor tells whether anything was rounded
(`simd/flags.py`), `pooled_sum` first just adds, a group of bags at a time, and asks; a group in
which something was rounded is done again. `round_bag` does so with a block of columns of a large
bag.
"""

import math

import numpy as np
from numba import prange

from neocpu.kernels._jit import inlined, kernel, parallel_kernel
from neocpu.kernels.rounding import CANONICAL_NAN, round_words
from neocpu.kernels.simd import prefetch, prefetch_far
from neocpu.kernels.simd.bags import (
    NEAR,
    WIDE,
    bare,
    cut_rows_1,
    cut_rows_16,
    far_of,
    plain_rows_1,
    plain_rows_16,
    plain_rows_long,
    plain_rows_short,
    sum_rows_1,
    sum_rows_4,
    sum_rows_16,
    sum_rows_32,
    sum_rows_64,
    sum_rows_128,
    view,
)
from neocpu.kernels.simd.decoders import number_at, widened_row
from neocpu.kernels.simd.flags import may_ask, rounded

LONG, SHORT = (128, 64) if WIDE else (32, 16)
_sum_long, _sum_short = (sum_rows_128, sum_rows_64) if WIDE else (sum_rows_32, sum_rows_16)
# bags that are checked together; columns of them at most; groups after a failed check
GROUP = 16
GROUPED = 4096
DOUBTS = 4
# terms of a bag, from which on asking the processor costs less than finding their range
WORTH = 256
# of a parallel kernel at most; lookups of a task at least
TASKS = 128
SMALL = 512


@inlined
def log2_ceiling(n):
    """Smallest k with 2^k >= n."""
    k = 0
    while (1 << k) < n:
        k += 1
    return k


@inlined
def top(spread):
    """Power of two above every finite term whose bit range is `spread` (from `sum_rows_64`)."""
    return min(254, max(1, (spread >> 56) & 255)) - 126


@inlined
def words_needed(spread, terms):
    """Words that hold the exact sum of `terms` fp32 numbers whose bit range is `spread`."""
    low = max(1, (spread >> 24) & 255) - 150
    log = log2_ceiling(terms)
    bound = top(spread)
    words = 1
    while bound + log > 53 + low:
        bound = bound + log - 52
        words = words + 1
    return words


@inlined
def wider(a, b):
    """Union of two bit ranges."""
    high = max((a >> 32) & 0xFFFFFFFF, (b >> 32) & 0xFFFFFFFF)
    return (high << 32) | min(a & 0xFFFFFFFF, b & 0xFFFFFFFF)


@inlined
def canonical(x):
    """fp64 -> fp32, rounded once; -0 becomes +0, every NaN the same."""
    y = np.float32(x) + np.float32(0.0)
    return y if y == y else CANONICAL_NAN


@inlined
def sum_block(values, index, weights, lo, hi, base, stride, column, left, acc):
    """fp64 sums of the next of `left` columns into acc; returns (columns done, bit range)."""
    if left >= LONG:
        return LONG, _sum_long(values, index, weights, lo, hi, base, stride, column, acc)
    if left >= SHORT:
        return SHORT, _sum_short(values, index, weights, lo, hi, base, stride, column, acc)
    if left >= 16:
        return 16, sum_rows_16(values, index, weights, lo, hi, base, stride, column, acc)
    if left >= 4:
        return 4, sum_rows_4(values, index, weights, lo, hi, base, stride, column, acc)
    return 1, sum_rows_1(values, index, weights, lo, hi, base, stride, column, acc)


@kernel
def _split_words(values, index, weights, lo, hi, base, stride, column, width, spread, words, out):
    """out f64[words, width] = exact words of the columns from `column` on: word k sums the terms'
    parts on grid k.
    """
    flat = out.reshape(-1)
    log = log2_ceiling(hi - lo)
    if words == 2:
        sigma = math.ldexp(1.5, top(spread) + 1 + log)
        parts = np.empty(32)
        c = 0
        while c < width:
            done = 16 if width - c >= 16 else 1
            if done == 16:
                cut_rows_16(values, index, weights, lo, hi, base, stride, column + c, sigma, parts)
            else:
                cut_rows_1(values, index, weights, lo, hi, base, stride, column + c, sigma, parts)
            for i in range(done):
                flat[c + i] = parts[i]
                flat[width + c + i] = parts[done + i]
            c += done
        return
    flat[: words * width] = 0.0
    for j in range(lo, hi):
        if index[j] < 0:
            continue
        row = base + index[j] * stride
        bound = top(spread)
        for k in range(words):
            last = k == words - 1
            sigma = 0.0 if last else math.ldexp(1.5, bound + 1 + log)
            bound = bound + log - 52
            for c in range(width):
                term = number_at(values, row, stride, column + c)
                x = np.float64(term * weights[j] if weights.size else term)
                for i in range(k):
                    x = _rest(x, math.ldexp(1.5, top(spread) + 1 + log + i * (log - 52)))
                flat[k * width + c] += x if last else (x + sigma) - sigma


@inlined
def _rest(x, sigma):
    """What a grid leaves of x; nothing of an infinity or a NaN."""
    rest = x - ((x + sigma) - sigma)
    return rest if rest == rest else 0.0


@inlined
def fetch_bag(values, index, j, base, stride, width):
    """Prefetch the rows some lookups after j."""
    far = index[min(j + far_of(4 * width), index.size - 1)]
    near = index[min(j + NEAR, index.size - 1)]
    for c in range(0, width, 16):
        prefetch_far(values, base + far * stride + c)
        prefetch(values, base + near * stride + c)


@inlined
def plain_block(values, index, weights, lo, hi, base, stride, column, left, acc):
    """fp64 sums, exact or not, of the next of `left` columns of a bag into acc; returns columns
    done.
    """
    if left >= LONG:
        plain_rows_long(values, index, weights, lo, hi, base, stride, column, acc)
        return LONG
    if left >= SHORT:
        plain_rows_short(values, index, weights, lo, hi, base, stride, column, acc)
        return SHORT
    if left >= 16:
        plain_rows_16(values, index, weights, lo, hi, base, stride, column, acc)
        return 16
    plain_rows_1(values, index, weights, lo, hi, base, stride, column, acc)
    return 1


@kernel
def round_bag(values, index, weights, lo, hi, base, stride, width, out, acc):
    """out[:width] = exact sum of one bag, rounded once.

    Shapes: values f32[:]; index i64[:], lookups [lo, hi), -1 skipped; weights f32[:] or f32[0];
    term of lookup j, column c: values[base + index[j]*stride + c] (times weights[j]); out f32[:];
    acc f64[128] scratch. Source: docs/arithmetic.md §3.
    Order: none.
    """
    column = np.int64(0)
    asks = may_ask(values, weights) and (hi - lo) * width >= WORTH
    while column < width:
        done = 0
        spread = np.int64(0)
        words = 1
        if asks:
            rounded()
            done = plain_block(
                values, index, weights, lo, hi, base, stride, column, width - column, acc
            )
            asks = not rounded()
        if not asks:
            done, spread = sum_block(
                values, index, weights, lo, hi, base, stride, column, width - column, acc
            )
            words = words_needed(spread, hi - lo)
        if words == 1:
            line = view(out, column, done)  # indexed from 0, or LLVM scatters
            for c in range(done):
                line[c] = canonical(acc[c])
        else:
            parts = np.empty((words, done))
            some = np.empty(words)
            scratch = np.empty(words)
            _split_words(
                values, index, weights, lo, hi, base, stride, column, done, spread, words, parts
            )
            for c in range(done):
                for k in range(words):
                    some[k] = parts[k, c]
                out[column + c] = round_words(some, words, scratch)
        column += done


@inlined
def pool_bag(values, index, weights, lo, hi, base, stride, width, out, acc):
    """`round_bag`; the bag of one lookup, the commonest, is done in the caller's loop."""
    if hi - lo == 1 and weights.size == 0 and index[lo] >= 0:
        fetch_bag(values, index, lo, base, stride, width)
        source = view(values, base + index[lo] * stride, width)
        for c in range(width):
            y = source[c] + np.float32(0.0)
            out[c] = y if y == y else CANONICAL_NAN
    else:
        round_bag(values, index, weights, lo, hi, base, stride, width, out, acc)


@kernel
def _range_of_bag(values, index, weights, lo, hi, base, stride, width, out, acc):
    """out[:width] = fp64 sum of one bag; returns its bit range."""
    at = 0
    spread = np.int64(0xFFFFFFFF)
    while at < width:
        done, here = sum_block(values, index, weights, lo, hi, base, stride, at, width - at, acc)
        line = view(out, at, done)
        for c in range(done):
            line[c] = acc[c]
        spread = wider(spread, here)
        at = at + done
    return spread


@kernel
def sum_bag(values, index, weights, lo, hi, base, stride, width, out, acc):
    """out[:width] = fp64 sum of one bag; returns the number of words that hold its exact sum: 1 if
    this is it.

    Shapes: as `round_bag`, but out f64[:]. Source: docs/arithmetic.md §3.
    Order: lookups ascending, which does not matter where one word is enough.
    """
    if hi - lo > 1 or (hi > lo and weights.size > 0):
        return words_needed(
            _range_of_bag(values, index, weights, lo, hi, base, stride, width, out, acc), hi - lo
        )
    if hi > lo and index[lo] >= 0:
        fetch_bag(values, index, lo, base, stride, width)
        widened_row(values, base + index[lo] * stride, stride, width, out)
    else:
        for c in range(width):
            out[c] = 0.0
    return 1


@inlined
def task_count(offsets):
    """Tasks worth starting for these bags: at most `TASKS`, each of some microseconds."""
    bags = offsets.size - 1
    return max(1, min(TASKS, (offsets[bags] - offsets[0] + 4 * bags) // SMALL))


@inlined
def task_bags(offsets, task, tasks):
    """Bags [first, last) of one of some tasks of equal work: lookups, and a few for the bag itself."""
    bags = offsets.size - 1
    found = 0
    work = offsets[bags] - offsets[0] + 4 * bags
    first = 0
    for wanted in (work * task // tasks, work * (task + 1) // tasks):
        first = found
        lo = 0
        hi = bags
        while lo < hi:
            middle = (lo + hi) // 2
            if offsets[middle] - offsets[0] + 4 * middle < wanted:
                lo = middle + 1
            else:
                hi = middle
        found = lo
    return first, found


@inlined
def sum_plain(values, index, weights, lo, hi, base, stride, width, out):
    """out[:width] = fp64 sums of one bag, exact or not."""
    column = np.int64(0)
    while column < width:
        line = view(out, column, width - column)
        column += plain_block(
            values, index, weights, lo, hi, base, stride, column, width - column, line
        )


@inlined
def group_end(offsets, width, samples, bag, last):
    """End of the group of bags that begins at `bag`: `GROUP` of them, or fewer with `GROUPED`
    columns in all.
    """
    columns = 0
    end = bag
    while end < last and end - bag < GROUP:
        columns += width[end // samples]
        if columns > GROUPED and end > bag:
            break
        end += 1
    return end


@inlined
def group_sums(values, index, weights, base, width, offsets, samples, bag, end, sums):
    """fp64 sums of the bags [bag, end), one after the other, into `sums`; returns whether all are
    exact.
    """
    rounded()
    place = 0
    for b in range(bag, end):
        k = b // samples
        line = view(sums, place, width[k])
        sum_plain(
            values, index, weights, offsets[b], offsets[b + 1], base[k], width[k], width[k], line
        )
        place += width[k]
    return not rounded()


@inlined
def round_group(sums, width, samples, bag, end, out, columns, column):
    """What `group_sums` found, rounded once, into its places in `out`, the flat matrix of `columns`
    columns.
    """
    place = 0
    for b in range(bag, end):
        k = b // samples
        source = view(sums, place, width[k])
        line = view(out, (b - k * samples) * columns + column[k], width[k])
        for c in range(line.size):
            line[c] = canonical(source[c])
        place += width[k]


@parallel_kernel
def pooled_sum(table, base, width, offsets, rows, weights, out, column):
    """Pooled rows of finished shards: out[s, column[k] : + width[k]] = exact sum of bag k*S + s,
    rounded once.

    Shapes: table f32[:]; base, width, column i64[K]; offsets i64[K*S+1]; rows i64[n], -1 skipped;
    weights f32[n] or f32[0]; out f32[S, C]. Source: docs/arithmetic.md §3; FBGEMM's table-batched
    embedding forward. Order: none.
    """
    samples = out.shape[0]
    flat = out.reshape(-1)
    tasks = task_count(offsets)
    for task in prange(tasks):
        scratch = np.empty(128)
        fast = np.empty(GROUPED)
        doubt = 0
        acc = bare(scratch)
        sums = bare(fast)
        values = bare(table)
        index = bare(rows)
        scale = bare(weights)
        bag, last = task_bags(offsets, task, tasks)
        while bag < last:
            end = group_end(offsets, width, samples, bag, last)
            several = offsets[end] - offsets[bag] > 2 * (end - bag)
            if (
                doubt == 0
                and several
                and may_ask(values, scale)
                and width[bag // samples] <= GROUPED
            ):
                if group_sums(values, index, scale, base, width, offsets, samples, bag, end, sums):
                    round_group(sums, width, samples, bag, end, flat, out.shape[1], column)
                    bag = end
                    continue
                doubt = DOUBTS
            for b in range(bag, end):
                k = b // samples
                line = view(flat, (b - k * samples) * out.shape[1] + column[k], width[k])
                pool_bag(
                    values,
                    index,
                    scale,
                    offsets[b],
                    offsets[b + 1],
                    base[k],
                    width[k],
                    width[k],
                    line,
                    acc,
                )
            bag = end
            doubt = max(0, doubt - 1)
        # what the views look at lives until here
        scratch[0] = 0.0
        fast[0] = 0.0


@parallel_kernel
def pooled_words(table, base, width, offsets, rows, weights, out, column, used):
    """Exact first words of bags of row-split shards, out[s, column[k] : + width[k]] (fp64), where
    one word is enough.

    Shapes: as `pooled_sum`, but out f64[S, C]; used i64[K*S]: words that the bag needs; where more
    than 1, its columns of out are left for `bag_words`. Source: docs/arithmetic.md §3. Order: none.
    """
    samples = out.shape[0]
    flat = out.reshape(-1)
    tasks = task_count(offsets)
    for task in prange(tasks):
        scratch = np.empty(128)
        acc = bare(scratch)
        values = bare(table)
        index = bare(rows)
        scale = bare(weights)
        first, last = task_bags(offsets, task, tasks)
        for bag in range(first, last):
            k = bag // samples
            lo = offsets[bag]
            hi = offsets[bag + 1]
            line = view(flat, (bag - k * samples) * out.shape[1] + column[k], width[k])
            used[bag] = sum_bag(
                values, index, scale, lo, hi, base[k], width[k], width[k], line, acc
            )
        scratch[0] = 0.0


@parallel_kernel
def bag_words(values, index, weights, lo, hi, base, stride, width, used, place, start, out, extra):
    """Words of the bags that need several: the first into out[place[i] : + width[i]], the others
    into extra[start[i] :].

    Shapes: values f32[:]; index i64[n]; weights f32[n] or f32[0]; by bag i64[m]: lookups [lo, hi)
    of it, term of lookup j in column c: values[base + index[j]*stride + c], width, used (words),
    place and start; out, extra f64[:].
    Source: docs/arithmetic.md §3. Order: none.
    """
    for i in prange(lo.size):
        parts = np.empty((used[i], width[i]))
        line = np.empty(width[i])
        spread = _range_of_bag(
            values, index, weights, lo[i], hi[i], base[i], stride[i], width[i], line, np.empty(128)
        )
        _split_words(
            values,
            index,
            weights,
            lo[i],
            hi[i],
            base[i],
            stride[i],
            0,
            width[i],
            spread,
            used[i],
            parts,
        )
        for c in range(width[i]):
            out[place[i] + c] = parts[0, c]
            for k in range(1, used[i]):
                extra[start[i] + (k - 1) * width[i] + c] = parts[k, c]
