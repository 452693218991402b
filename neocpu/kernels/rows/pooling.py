"""How are bags of rows pooled exactly? A plain fp64 sum with a certificate; where that fails, fixed
grids.

A bag's terms are rows of a table, each times its weight if there are weights (`operands.Terms`,
`operands.Bag`). `lookup.pooled_rows` walks the bags of a batch; here is what happens in one bag.

The certificate (`docs/arithmetic.md` §3): m terms whose nonzero exponents lie in [e, E] add exactly
in fp64, in any order, if m * 2^(E+1) <= 2^53 * 2^(e-23). Otherwise each term is cut on a fixed
grid, q = (x + sigma) - sigma with sigma = 1.5 * 2^j: the q's add exactly into one word, the rests
go to the next grid (Rump). Range and count alone fix the number of words; two are enough for nearly
all bags that one is not.

Finding the range costs as much as adding. Where the processor tells whether anything was rounded
(`simd/flags.py`), a group of bags is first just added, in two floats where it can round without
telling (`rows/compensated.py`), and the processor is asked; a group in which something was rounded
is done again. `round_bag` does so with a block of columns of a large bag.
"""

import math

import numpy as np
from numba import prange

from neocpu.kernels.compile.jit import called_kernel, inlined, kernel, parallel_kernel
from neocpu.kernels.numbers.rounding import CANONICAL_NAN, round_words
from neocpu.kernels.operands import Bag, Terms
from neocpu.kernels.scratch import task_body
from neocpu.kernels.simd.ahead import NEAR, far_of
from neocpu.kernels.simd.bags import (
    LONG,
    SHORT,
    bare,
    cut_rows_1,
    cut_rows_16,
    plain_rows_1,
    plain_rows_16,
    plain_rows_long,
    plain_rows_short,
    sum_rows_1,
    sum_rows_4,
    sum_rows_16,
    sum_rows_long,
    sum_rows_short,
    view,
)
from neocpu.kernels.simd.decoders import (
    fetch_row,
    fetch_row_far,
    number_at,
    widened_row,
)
from neocpu.kernels.simd.flags import may_ask, rounded
from neocpu.kernels.simd.record_views import bare_record

# From so many numbers of a bag on, asking the processor costs less than finding their range.
WORTH = 256
TASKS = 128  # of a parallel kernel, at most
SMALL = 512  # lookups of a task, at least


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
    # 254: infinity and NaN take no part in the range, whatever is summed with them is lost anyway
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
def sum_block(terms, bag, column, left, acc):
    """fp64 sums of the next of `left` columns into acc; returns (columns done, bit range)."""
    if left >= LONG:
        return LONG, sum_rows_long(terms, bag, column, acc)
    if left >= SHORT:
        return SHORT, sum_rows_short(terms, bag, column, acc)
    if left >= 16:
        return 16, sum_rows_16(terms, bag, column, acc)
    if left >= 4:
        return 4, sum_rows_4(terms, bag, column, acc)
    return 1, sum_rows_1(terms, bag, column, acc)


@inlined
def plain_block(terms, bag, column, left, acc):
    """fp64 sums, exact or not, of the next of `left` columns into acc; returns columns done."""
    if left >= LONG:
        plain_rows_long(terms, bag, column, acc)
        return LONG
    if left >= SHORT:
        plain_rows_short(terms, bag, column, acc)
        return SHORT
    if left >= 16:
        plain_rows_16(terms, bag, column, acc)
        return 16
    plain_rows_1(terms, bag, column, acc)
    return 1


@inlined
def sum_plain(terms, bag, out):
    """out[:width] = fp64 sums of one bag, exact or not."""
    column = np.int64(0)
    while column < bag.width:
        line = view(out, column, bag.width - column)
        column += plain_block(terms, bag, column, bag.width - column, line)


@inlined
def _rest(x, sigma):
    """What a grid leaves of x; nothing of an infinity or a NaN."""
    rest = x - ((x + sigma) - sigma)
    return rest if rest == rest else 0.0


@inlined
def _two_words(terms, bag, column, width, sigma, out):
    """out f64[2 * width] = sums of the parts on one grid, then of the rests, of some columns."""
    parts = np.empty(32)
    c = 0
    while c < width:
        done = 16 if width - c >= 16 else 1
        if done == 16:
            cut_rows_16(terms, bag, column + c, sigma, parts)
        else:
            cut_rows_1(terms, bag, column + c, sigma, parts)
        for i in range(done):
            out[c + i] = parts[i]
            out[width + c + i] = parts[done + i]
        c += done


@kernel
def _split_words(terms, bag, column, spread, out):
    """out f64[words, width] = exact words of the columns from `column` on: word k sums the terms'
    parts on grid k.

    `spread`: bit range of the terms.
    """
    values, index, weights = terms
    words, width = out.shape
    flat = out.reshape(-1)
    log = log2_ceiling(bag.hi - bag.lo)
    first_sigma = math.ldexp(1.5, top(spread) + 1 + log)
    if words == 2:
        _two_words(terms, bag, column, width, first_sigma, flat)
        return
    flat[:] = 0.0
    for j in range(bag.lo, bag.hi):
        if index[j] < 0:
            continue
        row = bag.base + index[j] * bag.stride
        bound = top(spread)
        for k in range(words):
            last = k == words - 1
            sigma = 0.0 if last else math.ldexp(1.5, bound + 1 + log)
            bound = bound + log - 52
            for c in range(width):
                term = number_at(values, row, bag.stride, column + c)
                x = np.float64(term * weights[j] if weights.size else term)
                for i in range(k):
                    x = _rest(x, math.ldexp(1.5, top(spread) + 1 + log + i * (log - 52)))
                flat[k * width + c] += x if last else (x + sigma) - sigma


@inlined
def fetch_ahead(terms, bag, j):
    """Prefetch the rows some lookups after lookup j, which is one of a bag."""
    values, index, _ = terms
    far = index[min(j + far_of(4 * bag.width), index.size - 1)]
    near = index[min(j + NEAR, index.size - 1)]
    fetch_row_far(values, bag.base + far * bag.stride, bag.stride, bag.width)
    fetch_row(values, bag.base + near * bag.stride, bag.stride, bag.width)


@called_kernel
def _round_wide(terms, bag, column, spread, words, out):
    """out = exact sums, rounded once, of the columns from `column` on that take several words.

    Rare, and most of what pooling takes to compile.
    """
    parts = np.empty((words, out.size))
    column_words = np.empty(words)
    scratch = np.empty(words)
    _split_words(terms, bag, column, spread, parts)
    for c in range(out.size):
        for k in range(words):
            column_words[k] = parts[k, c]
        out[c] = round_words(column_words, words, scratch)


@inlined
def round_bag(terms, bag, out, acc):
    """out[:width] = exact sum of one bag, rounded once.

    Shapes: terms `Terms`; bag `Bag`; out f32[:]; acc f64[128] scratch.
    Source: docs/arithmetic.md §3. Order: none.
    """
    column = np.int64(0)
    asks = may_ask(terms.values, terms.weights) and (bag.hi - bag.lo) * bag.width >= WORTH
    while column < bag.width:
        done = 0
        spread = np.int64(0)
        words = 1
        if asks:
            rounded()
            done = plain_block(terms, bag, column, bag.width - column, acc)
            asks = not rounded()
        if not asks:
            done, spread = sum_block(terms, bag, column, bag.width - column, acc)
            words = words_needed(spread, bag.hi - bag.lo)
        if words == 1:
            line = view(out, column, done)  # indexed from 0, or LLVM scatters
            for c in range(done):
                line[c] = canonical(acc[c])
        else:
            _round_wide(terms, bag, column, spread, words, view(out, column, done))
        column += done


@inlined
def _range_of_bag(terms, bag, out, acc):
    """out[:width] = fp64 sum of one bag; returns its bit range."""
    column = 0
    spread = np.int64(0xFFFFFFFF)
    while column < bag.width:
        done, block_spread = sum_block(terms, bag, column, bag.width - column, acc)
        line = view(out, column, done)
        for c in range(done):
            line[c] = acc[c]
        spread = wider(spread, block_spread)
        column = column + done
    return spread


@inlined
def sum_bag(terms, bag, out, acc):
    """out[:width] = fp64 sum of one bag; returns the number of words that hold its exact sum: 1 if
    this is it.

    Shapes: as `round_bag`, but out f64[:]. Source: docs/arithmetic.md §3.
    Order: lookups ascending, which does not matter where one word is enough.
    """
    lo = bag.lo
    terms_count = bag.hi - lo
    if terms_count > 1 or (terms_count > 0 and terms.weights.size > 0):
        return words_needed(_range_of_bag(terms, bag, out, acc), terms_count)
    if terms_count > 0 and terms.index[lo] >= 0:
        fetch_ahead(terms, bag, lo)
        row = bag.base + terms.index[lo] * bag.stride
        widened_row(terms.values, row, bag.stride, bag.width, out)
    else:
        for c in range(bag.width):
            out[c] = 0.0
    return 1


@inlined
def task_count(offsets):
    """Tasks worth starting for these bags: at most `TASKS`, each of some microseconds."""
    bags = offsets.size - 1
    # 4 lookups for each bag itself: its loop, its rounding and its output
    return max(1, min(TASKS, (offsets[bags] - offsets[0] + 4 * bags) // SMALL))


@inlined
def task_bags(offsets, task, tasks):
    """Bags [begin, end) of a task; all have equal work: lookups, and 4 more for each bag itself."""
    bags = offsets.size - 1
    work = offsets[bags] - offsets[0] + 4 * bags
    begin = 0
    end = 0
    for share in (work * task // tasks, work * (task + 1) // tasks):
        begin = end
        lo = 0
        hi = bags
        while lo < hi:
            middle = (lo + hi) // 2
            if offsets[middle] - offsets[0] + 4 * middle < share:
                lo = middle + 1
            else:
                hi = middle
        end = lo
    return begin, end


@inlined
def entry_of(first, item):
    """Entry of a bag or lookup; first i64[K+1]: those of entry k are first[k] .. first[k+1]."""
    lo = 0
    hi = first.size - 1
    while lo < hi:
        middle = (lo + hi) // 2
        if first[middle + 1] <= item:
            lo = middle + 1
        else:
            hi = middle
    return lo


@inlined
def bare_terms(table, bags):
    """The terms of the bags, as bare views."""
    return Terms(bare(table), bare(bags.rows), bare(bags.weights))


@inlined
def bag_of(entries, offsets, k, b):
    """Bag b, which is one of entry k."""
    return Bag(offsets[b], offsets[b + 1], entries.base[k], entries.stride[k], entries.width[k])


@task_body
def words_task(span, acc, table, entries, bags, lines, out, used):
    """One task of `pooled_words`: the bags of a span (begin, end); acc f64[128]."""
    offsets = bags.offsets
    terms = bare_terms(table, bags)
    entry = bare_record(entries)
    begin, end = span
    k = entry_of(entry.first, begin)
    for b in range(begin, end):
        while entry.first[k + 1] <= b:
            k += 1
        bag = bag_of(entry, offsets, k, b)
        line = view(out, lines.place[k] + (b - entry.first[k]) * lines.pitch[k], bag.width)
        used[b] = sum_bag(terms, bag, line, bare(acc))


@parallel_kernel
def pooled_words(table, entries, bags, lines, out, used):
    """Exact first words of bags of row-split shards, where one word is enough.

    Shapes: as `lookup.pooled_rows`, but out f64[:]; used i64[bags]: words that the bag needs; where
    more than 1, its line of out is left for `bag_words`.
    Source: docs/arithmetic.md §3. Order: none.
    """
    tasks = task_count(bags.offsets)
    for task in prange(tasks):
        span = task_bags(bags.offsets, np.int64(task), tasks)
        words_task(span, np.empty(128), table, entries, bags, lines, out, used)


@parallel_kernel
def bag_words(terms, bags, out, extra):
    """Words of the bags that need several: the first into out[place[i] : + width[i]], the others
    into extra[start[i] :].

    Shapes: terms `Terms`, values fp32; bags `WideBags`; out, extra f64[:].
    Source: docs/arithmetic.md §3. Order: none.
    """
    for i in prange(bags.lo.size):
        width = bags.width[i]
        used = bags.used[i]
        bag = Bag(bags.lo[i], bags.hi[i], bags.base[i], bags.stride[i], width)
        parts = np.empty((used, width))
        spread = _range_of_bag(terms, bag, np.empty(width), np.empty(128))
        # no literal: that is a type of its own, for which `_split_words` would be compiled again
        _split_words(terms, bag, np.int64(0), spread, parts)
        for c in range(width):
            out[bags.place[i] + c] = parts[0, c]
            for k in range(1, used):
                extra[bags.start[i] + (k - 1) * width + c] = parts[k, c]
