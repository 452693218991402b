"""How are rows of any format looked up, pooled or one by one, and what is the gradient of a
lookup's weight?

    entry k     reads rows of one table (`operands.Entries`)
    bags        those of entry k are first[k] .. first[k+1], as many as there are (variable batches)
    out         flat: bag i of entry k goes to out[place[k] + i * pitch[k] : + width[k]]

So one kernel serves training's matrix [B, sum of D], FBGEMM's flat output of variable batches,
mixed widths and shared tables, and rows of every format: the dtype of the table picks the decoder
(`simd/decoders.py`). Bounds are checked here too: counted, and mended in copies.
"""

from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from neocpu.kernels.compile.jit import inlined, kernel, parallel_kernel
from neocpu.kernels.numbers.rounding import CANONICAL_NAN, round_words
from neocpu.kernels.operands import Bag
from neocpu.kernels.rows.compensated import NO_ATTEMPT, BagGroup, may_compensate, try_group
from neocpu.kernels.rows.few import goes_past, pool_bag
from neocpu.kernels.rows.pooling import (
    SMALL,
    TASKS,
    bare_terms,
    canonical,
    entry_of,
    sum_plain,
    task_bags,
    task_count,
)
from neocpu.kernels.scratch import task_body
from neocpu.kernels.simd.bags import bare, view
from neocpu.kernels.simd.decoders import fetch_row, read_row
from neocpu.kernels.simd.flags import may_ask, rounded
from neocpu.kernels.simd.memory import settle_past
from neocpu.kernels.simd.quiet import QUIET
from neocpu.kernels.simd.record_views import bare_record

Floats = NDArray[np.float32]
Words = NDArray[np.float64]

GROUP = 32  # bags that are checked together: to read the flag takes as long as some rows
ROOM = 4096  # columns of them, at most: their fp64 sums wait in the cache until the flag is read
# Columns times lookups of them, where sums are compensated: hardly any such group has a term that
# is too small for them. Of long bags there are as many columns as of those of 20.
GROUPED = 512 * 20
FEW = 4  # bags that are left of an entry: fewer are checked together with those of the next
DOUBTS = 4  # groups that are not added plainly after one in which a sum was rounded
AHEAD = 8  # lookups
CHAINS = 16  # partial sums of a dot product
# More than the error of fp64 sums in CHAINS chains, relative to the terms and to their number.
ROUNDING = 1.0 / (1 << 50)


@inlined
def group_end(entry, k, begin, last, room):
    """End of the group of bags that begins at `begin`, in entry k: `GROUP` of them, or fewer with
    `room` columns in all.
    """
    columns = 0
    end = begin
    while end < last and end - begin < GROUP:
        while entry.first[k + 1] <= end:
            k += 1
        fitting = max(0, room - columns) // max(entry.width[k], 1)
        if end == begin:
            # a group has a bag, however wide
            fitting = max(fitting, 1)
        more = min(fitting, entry.first[k + 1] - end, last - end, GROUP + begin - end)
        if more == 0:
            break
        columns += more * entry.width[k]
        end += more
    return end


@inlined
def group_sums(terms, entry, offsets, k, begin, end, sums):
    """fp64 sums of the bags [begin, end), from entry k on, one after the other, into `sums`;
    returns whether all are exact.
    """
    # clear what earlier arithmetic left in the flag
    rounded()
    place = 0
    b = begin
    while b < end:
        while entry.first[k + 1] <= b:
            k += 1
        stop = min(end, entry.first[k + 1])
        base = entry.base[k]
        stride = entry.stride[k]
        width = entry.width[k]
        for i in range(b, stop):
            bag = Bag(offsets[i], offsets[i + 1], base, stride, width)
            sum_plain(terms, bag, view(sums, place, width))
            place += width
        b = stop
    return not rounded()


@inlined
def next_group(terms, entry, offsets, k, begin, last):
    """(end, may the processor be asked?) of the group of bags from `begin` on, in entry k."""
    end = min(begin + GROUP, last)
    lookups = offsets[end] - offsets[begin]
    # bags of one row or two are exact without
    if lookups <= 2 * (end - begin) or not may_ask(terms.values, terms.weights):
        return end, False
    if not QUIET:
        return group_end(entry, k, begin, last, ROOM), True
    # compensated sums are those of one entry
    left = entry.first[k + 1] - begin
    stop = min(begin + left, last) if left >= FEW else last
    room = GROUPED * (end - begin) // lookups
    return group_end(entry, k, begin, stop, min(max(room, 512), ROOM)), True


@inlined
def divide(line, by):
    """line /= by, element by element."""
    for c in range(line.size):
        line[c] = line[c] / by


@inlined
def round_line(sums, line):
    """line = fp64 sums, each rounded once."""
    for c in range(line.size):
        line[c] = canonical(sums[c])


class PoolScratch(NamedTuple):
    """Memory of one task: sums of a block of columns f64[128], and of a group f64[ROOM]; peaks
    of compensated sums u32[16], zeros.
    """

    block: Words
    group: Words
    peaks: NDArray[np.uint32]


@task_body
def pool_task(span, scratch, table, entries, bags, mean, lines, out):
    """One task of `pooled_rows`: the bags of a span (begin, end), group after group, those of one
    entry in a loop.
    """
    offsets = bags.offsets
    acc = bare(scratch.block)
    sums = bare(scratch.group)
    terms = bare_terms(table, bags)
    entry = bare_record(entries)
    first = entry.first
    begin, last = span
    k = entry_of(first, begin)
    peaks = bare(scratch.peaks)
    attempts = NO_ATTEMPT
    doubt = 0
    while begin < last:
        while first[k + 1] <= begin:
            k += 1
        end, asks = next_group(terms, entry, offsets, k, begin, last)
        asks = asks and doubt == 0
        exact = False
        compensated = False
        if asks and may_compensate(terms, entry, k, end):
            group = BagGroup(k, begin, end)
            compensated, attempts = try_group(
                terms, entry, offsets, group, lines, attempts, peaks, out
            )
        if asks and not compensated and entry.width[k] <= ROOM:
            exact = group_sums(terms, entry, offsets, k, begin, end, sums)
            # Data that rounded once rounds again soon: for some groups the plain sums would be
            # wasted.
            doubt = 0 if exact else DOUBTS + 1
        summed = 0
        while begin < end:
            while first[k + 1] <= begin:
                k += 1
            stop = min(end, first[k + 1])
            base = entry.base[k]
            stride = entry.stride[k]
            width = entry.width[k]
            pitch = lines.pitch[k]
            place = lines.place[k] + (begin - first[k]) * pitch
            past = goes_past(out, place, pitch, width)
            for b in range(begin, stop):
                bag = Bag(offsets[b], offsets[b + 1], base, stride, width)
                line = view(out, place + (b - begin) * pitch, width)
                if exact:
                    round_line(view(sums, summed, width), line)
                    summed += width
                elif not compensated:
                    pool_bag(terms, bag, past, line, acc)
                # by the whole length, pruned lookups included (docs/arithmetic.md §3); by 1 changes
                # nothing
                if mean and bag.hi - bag.lo > 1:
                    divide(line, np.float32(bag.hi - bag.lo))
            begin = stop
        doubt = max(0, doubt - 1)
    # who is told that this task is over must see its lines
    settle_past()


@parallel_kernel
def pooled_rows(table, entries, bags, mean, lines, out):
    """Pooled rows of any format: line i of entry k of out = exact sum of its i-th bag, rounded
    once; divided, if `mean`.

    Shapes: table 1-D, f32 or a record of a format; entries `Entries`, strides in elements of table;
    bags `Bags`; mean bool: divide by the length of the bag, pruned lookups included; lines `Lines`;
    out f32[:].
    Source: docs/arithmetic.md §3; FBGEMM's table-batched embedding forward. Order: none.
    """
    tasks = task_count(bags.offsets)
    for task in prange(tasks):
        scratch = PoolScratch(np.empty(128), np.empty(ROOM), np.zeros(16, np.uint32))
        span = task_bags(bags.offsets, np.int64(task), tasks)
        pool_task(span, scratch, table, entries, bags, mean, lines, out)


@inlined
def one_nan(line):
    """Every NaN of a line gets the one form that is stored."""
    for c in range(line.size):
        x = line[c]
        line[c] = x if x == x else CANONICAL_NAN


@parallel_kernel
def gathered_rows(table, entries, rows, weights, lines, out):
    """Rows one by one: line i of entry k of out = the row of its i-th lookup (times its weight);
    zeros for a pruned one.

    Shapes: as `pooled_rows`, but entry k has the lookups first[k] .. first[k+1]; rows i64[n];
    weights f32[n] or f32[0]. A row is copied: -0 stays.
    Source: FBGEMM's sequence embeddings (PoolingMode.NONE). Order: none.
    """
    base, width, stride, first = entries
    n = rows.size
    tasks = max(1, min(TASKS, n // SMALL))
    for task in prange(tasks):
        # bare: a slice of a counted array in the loop would count references in all threads
        values = bare(table)
        lo = n * task // tasks
        hi = n * (task + 1) // tasks
        k = entry_of(first, lo)
        for j in range(lo, hi):
            while first[k + 1] <= j:
                k += 1
            ahead = rows[min(j + AHEAD, first[k + 1] - 1)]
            fetch_row(values, base[k] + max(ahead, 0) * stride[k], stride[k], width[k])
            line = view(out, lines.place[k] + (j - first[k]) * lines.pitch[k], width[k])
            if rows[j] < 0:
                for c in range(line.size):
                    line[c] = 0.0
                continue
            read_row(values, base[k] + rows[j] * stride[k], stride[k], width[k], line)
            if weights.size:
                weight = weights[j]
                for c in range(line.size):
                    line[c] = line[c] * weight
            one_nan(line)


@inlined
def plain_dot(x, y, sums, sizes):
    """(fp64 sum of the products of x and y, sum of their magnitudes), in chains."""
    for i in range(CHAINS):
        sums[i] = 0.0
        sizes[i] = 0.0
    whole = x.size // CHAINS * CHAINS
    # chains, so that additions do not wait for one another, and LLVM makes vectors of them
    for c in range(0, whole, CHAINS):
        for i in range(CHAINS):
            product = np.float64(x[c + i]) * np.float64(y[c + i])
            sums[i] += product
            sizes[i] += abs(product)
    total = 0.0
    size = 0.0
    for i in range(CHAINS):
        total = total + sums[i]
        size = size + sizes[i]
    for c in range(whole, x.size):
        product = np.float64(x[c]) * np.float64(y[c])
        total = total + product
        size = size + abs(product)
    return total, size


@kernel
def exact_dot(x, y, words, scratch):
    """fp32 nearest to the sum of x[c] * y[c], as real numbers; +0 for a zero sum, one NaN.

    Shapes: x, y f32[D]; words, scratch f64[max(D, 16)]. The fp64 sum will do if it and what it may
    be off by round to one number. Source: docs/arithmetic.md §3. Order: none.
    """
    total, size = plain_dot(x, y, view(words, 0, CHAINS), view(scratch, 0, CHAINS))
    error = size * ROUNDING * (x.size + CHAINS)
    low = np.float32(total - error)
    high = np.float32(total + error)
    # not for 0: +0 and -0 are equal, and a sum that cancels may be less than its bound
    if low == high and low != 0.0 and abs(total) < np.inf:
        return low
    for c in range(x.size):
        words[c] = np.float64(x[c]) * np.float64(y[c])
    return round_words(words, x.size, scratch)


class DotScratch(NamedTuple):
    """Memory of one task, each of the widest row: a row, a gradient f32; products, words f64."""

    row: Floats
    gradient: Floats
    products: Words
    words: Words


@task_body
def dot_task(span, scratch, table, entries, bags, gradient, mean, lines, out):
    """One task of `weight_gradients`: the bags of a span (begin, end); `gradient` f32[:]: that of
    the output.
    """
    base, width, stride, first = entries
    offsets = bags.offsets
    rows = bags.rows
    values = bare(table)
    begin, end = span
    k = entry_of(first, begin)
    for b in range(begin, end):
        while first[k + 1] <= b:
            k += 1
        lo = offsets[b]
        hi = offsets[b + 1]
        d = width[k]
        source = view(gradient, lines.place[k] + (b - first[k]) * lines.pitch[k], d)
        row = view(scratch.row, 0, d)
        term_gradient = view(scratch.gradient, 0, d)
        length = np.float32(hi - lo) if mean else np.float32(1.0)
        for c in range(d):
            term_gradient[c] = source[c] / length
        for j in range(lo, hi):
            ahead = rows[min(j + AHEAD, rows.size - 1)]
            fetch_row(values, base[k] + max(ahead, 0) * stride[k], stride[k], d)
            if rows[j] < 0:
                out[j] = 0.0
            else:
                read_row(values, base[k] + rows[j] * stride[k], stride[k], d, row)
                out[j] = exact_dot(row, term_gradient, scratch.products, scratch.words)


@parallel_kernel
def weight_gradients(table, entries, bags, grad, mean, lines, out):
    """out[j] = dot product of the row of lookup j and the gradient of its bag, rounded once; +0 for
    a pruned lookup.

    Shapes: as `pooled_rows`; grad f32[:], its lines as there those of `out`; out f32[n]. With
    `mean` a gradient is divided by the length of its bag first, fl(g / L). The weights of `bags` do
    not count.
    Source: docs/arithmetic.md §3; FBGEMM's indice_weights_grad. Order: none.
    """
    tasks = task_count(bags.offsets)
    most = CHAINS
    for width in entries.width:
        most = max(most, width)
    for task in prange(tasks):
        scratch = DotScratch(
            np.empty(most, np.float32), np.empty(most, np.float32), np.empty(most), np.empty(most)
        )
        span = task_bags(bags.offsets, np.int64(task), tasks)
        dot_task(span, scratch, table, entries, bags, grad, mean, lines, out)


@kernel
def first_malformed(offsets, lookups):
    """First bag whose offsets go down or leave [0, lookups]; number of bags if only the ends are
    wrong; -1 if all is well.

    Shapes: offsets i64[bags+1]. The first offset is 0, the last `lookups`. Source: FBGEMM
    bounds_check_indices.
    """
    bags = offsets.size - 1
    # a bag by itself: neighbours share an offset, and one that goes down shows between them
    for b in range(bags):
        if offsets[b] < 0 or offsets[b] > offsets[b + 1] or offsets[b + 1] > lookups:
            return b
    return bags if offsets[0] != 0 or offsets[bags] != lookups else -1


@kernel
def mend_offsets(offsets, lookups):
    """Offsets as FBGEMM mends them, in place: the last becomes `lookups`, then bag after bag its
    ends move inside.

    Shapes: offsets i64[bags+1]. Returns how many bags were malformed, and one more for each end
    that was wrong. A first offset above 0 stays: the lookups before it belong to no bag.
    Source: FBGEMM bounds_check_indices. Order: bags ascending.
    """
    bags = offsets.size - 1
    wrong = 1 if offsets[0] > 0 else 0
    # first: the ends of bags are moved inside what the last offset allows
    if offsets[bags] != lookups:
        offsets[bags] = lookups
        wrong += 1
    for b in range(bags):
        lo = offsets[b]
        hi = offsets[b + 1]
        if lo < 0 or lo > hi or hi > lookups:
            wrong += 1
            lo = max(0, min(lo, lookups))
            offsets[b], offsets[b + 1] = lo, max(lo, min(hi, lookups))
    return wrong


@kernel
def count_outside(first, rows, limit, outside, pruned):
    """Lookups of each entry whose row is outside [-1, limit), and those that are -1; returns the
    first outside, or -1.

    Shapes: first i64[K+1]: entry k has the lookups [first[k], first[k+1]); rows i64[n]; limit,
    outside, pruned i64[K].
    Source: FBGEMM bounds_check_indices.
    """
    first_outside = -1
    for k in range(limit.size):
        outside_count = 0
        pruned_count = 0
        for j in range(first[k], first[k + 1]):
            # no branch, and vectors; which lookup it was is looked for only where there is one
            outside_count += (rows[j] < -1) | (rows[j] >= limit[k])
            pruned_count += rows[j] == -1
        outside[k] = outside_count
        pruned[k] = pruned_count
        if outside_count and first_outside < 0:
            for j in range(first[k], first[k + 1]):
                if rows[j] < -1 or rows[j] >= limit[k]:
                    first_outside = j
                    break
    return first_outside


@kernel
def mend_rows(first, rows, limit, instead):
    """Rows outside [-1, limit) of their entry become `instead`, in place.

    Shapes: as `count_outside`. Source: FBGEMM bounds_check_indices, which takes row 0.
    """
    for k in range(limit.size):
        for j in range(first[k], first[k + 1]):
            if rows[j] < -1 or rows[j] >= limit[k]:
                rows[j] = instead
