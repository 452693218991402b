"""How are rows of any format looked up, pooled or one by one, and what is the gradient of a
lookup's weight?

    entry k     reads rows of one table (base[k], width[k] columns, stride[k] elements from row to row)
    bags        those of entry k are first_bag[k] .. first_bag[k+1]: as many as it likes (variable batch sizes)
    out         flat: the i-th bag of entry k goes to out[place[k] + i * pitch[k] : + width[k]]

So one kernel serves a matrix [B, sum of D], FBGEMM's flat output of variable batches, mixed widths
and shared tables. Training uses `pooling.pooled_sum`, which does the same for fp32 rows and one
batch size. Bounds are checked here too: counted, and mended in copies.
"""

import numpy as np
from numba import prange

from neocpu.kernels._jit import inlined, kernel, parallel_kernel
from neocpu.kernels.pooling import (
    DOUBTS,
    GROUP,
    GROUPED,
    SMALL,
    TASKS,
    canonical,
    round_bag,
    sum_plain,
    task_bags,
    task_count,
)
from neocpu.kernels.rounding import CANONICAL_NAN, round_words
from neocpu.kernels.simd.bags import bare, view
from neocpu.kernels.simd.decoders import fetch_row, read_row
from neocpu.kernels.simd.flags import may_ask, rounded

AHEAD = 8  # lookups
CHAINS = 16  # partial sums of a dot product
ROUNDING = 1.0 / (
    1 << 50
)  # more than the error of fp64 sums in CHAINS chains, relative to the terms and to their number


@inlined
def one_nan(line):
    """Every NaN of a line gets the one form that is stored."""
    for c in range(line.size):
        x = line[c]
        line[c] = x if x == x else CANONICAL_NAN


@inlined
def divide(line, by):
    """line /= by, element by element."""
    for c in range(line.size):
        line[c] = line[c] / by


@inlined
def entry_sums(values, index, weights, base, stride, width, offsets, bag, end, sums):
    """fp64 sums of the unweighted bags [bag, end) of one entry into `sums`; returns whether all are
    exact (`pooling.py`).
    """
    rounded()
    for b in range(bag, end):
        line = view(sums, (b - bag) * width, width)
        sum_plain(values, index, weights, offsets[b], offsets[b + 1], base, stride, width, line)
    return not rounded()


@parallel_kernel
def pooled_rows(
    table, base, width, stride, first_bag, offsets, rows, weights, mean, place, pitch, out
):
    """Pooled rows of any format: line i of entry k of out = exact sum of its i-th bag, rounded
    once; divided, if `mean`.

    Shapes: table 1-D, f32 or a record of a format; base, width, stride, place, pitch i64[K], stride
    in elements of table; first_bag i64[K+1]; offsets i64[bags+1]; rows i64[n], -1 skipped; weights
    f32[n] or f32[0]; mean bool: divide by the length of the bag, pruned lookups included; out
    f32[:]. Source: docs/arithmetic.md §3. Order: none.
    """
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
        k = task_entry(first_bag, bag)
        while bag < last:
            while first_bag[k + 1] <= bag:
                k += 1
            d = width[k]
            end = min(last, first_bag[k + 1], bag + max(1, min(GROUP, GROUPED // max(d, 1))))
            exact = False
            doubt = max(0, doubt - 1)
            several = offsets[end] - offsets[bag] > 2 * (end - bag)
            if doubt == 0 and several and may_ask(values, scale) and d <= GROUPED:
                exact = entry_sums(
                    values, index, scale, base[k], stride[k], d, offsets, bag, end, sums
                )
                doubt = 0 if exact else DOUBTS
            for b in range(bag, end):
                lo = offsets[b]
                hi = offsets[b + 1]
                line = view(out, place[k] + (b - first_bag[k]) * pitch[k], d)
                if exact:
                    source = view(sums, (b - bag) * d, d)
                    for c in range(d):
                        line[c] = canonical(source[c])
                elif hi - lo == 1 and scale.size == 0 and index[lo] >= 0:
                    fetch_row(
                        values,
                        base[k] + max(index[min(lo + AHEAD, index.size - 1)], 0) * stride[k],
                        stride[k],
                        d,
                    )
                    read_row(values, base[k] + index[lo] * stride[k], stride[k], d, line)
                    for c in range(d):
                        line[c] = canonical(line[c])
                else:
                    round_bag(values, index, scale, lo, hi, base[k], stride[k], d, line, acc)
                if mean and hi - lo > 1:
                    divide(line, np.float32(hi - lo))
            bag = end
        # what the views look at lives until here
        scratch[0] = 0.0
        fast[0] = 0.0


@inlined
def task_entry(first, lookup):
    """Entry of a lookup; first i64[K+1]: lookups of each entry."""
    return np.searchsorted(first, lookup, "right") - 1


@parallel_kernel
def gathered_rows(table, base, width, stride, first, rows, weights, place, pitch, out):
    """Rows one by one: line i of entry k of out = the row of its i-th lookup (times its weight);
    zeros for a pruned one.

    Shapes: as `pooled_rows`; first i64[K+1]: entry k has the lookups [first[k], first[k+1]). A row
    is copied: -0 stays.
    Source: FBGEMM's sequence embeddings (PoolingMode.NONE). Order: none.
    """
    n = rows.size
    tasks = max(1, min(TASKS, n // SMALL))
    for task in prange(tasks):
        values = bare(table)
        lo = n * task // tasks
        hi = n * (task + 1) // tasks
        k = task_entry(first, lo)
        for j in range(lo, hi):
            while first[k + 1] <= j:
                k += 1
            ahead = rows[min(j + AHEAD, first[k + 1] - 1)]
            fetch_row(values, base[k] + max(ahead, 0) * stride[k], stride[k], width[k])
            line = view(out, place[k] + (j - first[k]) * pitch[k], width[k])
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
    if low == high and low != 0.0 and abs(total) < np.inf:
        return low
    for c in range(x.size):
        words[c] = np.float64(x[c]) * np.float64(y[c])
    return round_words(words, x.size, scratch)


@parallel_kernel
def weight_gradients(
    table, base, width, stride, first_bag, offsets, rows, grad, mean, place, pitch, out
):
    """out[j] = dot product of the row of lookup j and the gradient of its bag, rounded once; +0 for
    a pruned lookup.

    Shapes: as `pooled_rows`; grad f32[:], lines as there `out`; out f32[n]. With `mean` a gradient
    is divided by the length of its bag first, fl(g / L). Source: docs/arithmetic.md §3; FBGEMM's
    indice_weights_grad. Order: none.
    """
    tasks = task_count(offsets)
    most = CHAINS
    for k in range(width.size):
        most = max(most, width[k])
    for task in prange(tasks):
        values = bare(table)
        row = np.empty(most, np.float32)
        g = np.empty(most, np.float32)
        words = np.empty(most)
        scratch = np.empty(most)
        first, last = task_bags(offsets, task, tasks)
        k = task_entry(first_bag, first)
        for bag in range(first, last):
            while first_bag[k + 1] <= bag:
                k += 1
            lo = offsets[bag]
            hi = offsets[bag + 1]
            d = width[k]
            source = view(grad, place[k] + (bag - first_bag[k]) * pitch[k], d)
            mine = view(g, 0, d)
            here = view(row, 0, d)
            length = np.float32(hi - lo) if mean else np.float32(1.0)
            for c in range(d):
                mine[c] = source[c] / length
            for j in range(lo, hi):
                ahead = rows[min(j + AHEAD, rows.size - 1)]
                fetch_row(values, base[k] + max(ahead, 0) * stride[k], stride[k], d)
                if rows[j] < 0:
                    out[j] = 0.0
                else:
                    read_row(values, base[k] + rows[j] * stride[k], stride[k], d, here)
                    out[j] = exact_dot(here, mine, words, scratch)
        # what the views look at lives until here
        row[0] = 0.0
        g[0] = 0.0


@kernel
def first_malformed(offsets, lookups):
    """First bag whose offsets go down or leave [0, lookups]; number of bags if only the ends are
    wrong; -1 if all is well.

    Shapes: offsets i64[bags+1]. The first offset is 0, the last `lookups`. Source: FBGEMM
    bounds_check_indices.
    """
    bags = offsets.size - 1
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
    found = -1
    for k in range(limit.size):
        wrong = 0
        none = 0
        for j in range(first[k], first[k + 1]):
            wrong += (rows[j] < -1) | (rows[j] >= limit[k])
            none += rows[j] == -1
        outside[k] = wrong
        pruned[k] = none
        if wrong and found < 0:
            for j in range(first[k], first[k + 1]):
                if rows[j] < -1 or rows[j] >= limit[k]:
                    found = j
                    break
    return found


@kernel
def mend_rows(first, rows, limit, instead):
    """Rows outside [-1, limit) of their entry become `instead`, in place.

    Shapes: as `count_outside`. Source: FBGEMM bounds_check_indices, which takes row 0.
    """
    for k in range(limit.size):
        for j in range(first[k], first[k + 1]):
            if rows[j] < -1 or rows[j] >= limit[k]:
                rows[j] = instead
