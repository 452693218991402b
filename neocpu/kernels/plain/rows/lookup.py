"""How does a textbook pool bags of rows? Bag by bag: add the rows in fp64 and watch the exponents;
where fp64 may have rounded, add that bag again in integers.
"""

import numpy as np
from numba import prange

from neocpu.kernels.compile.jit import inlined, parallel_kernel
from neocpu.kernels.plain.numbers.exact import (
    LIMBS,
    NOTHING,
    add_term,
    certain,
    round_limbs,
    rounded,
    widen,
)
from neocpu.kernels.simd.decoders import read_row


@inlined
def read_term(table, at, stride, weight, line):
    """line f32[D] = the row from element `at` on, decoded, times weight."""
    read_row(table, at, stride, line.size, line)
    for c in range(line.size):
        line[c] = line[c] * weight


@inlined
def sum_bag(table, base, stride, rows, weights, lo, hi, sums):
    """sums f64[D] = fp64 sums of the terms of lookups [lo, hi); returns whether they are exact."""
    sums[:] = 0.0
    # allocated for each bag, as a textbook does; the tuned kernel's tasks lend theirs
    line = np.empty(sums.size, np.float32)
    low, high = NOTHING
    for j in range(lo, hi):
        if rows[j] >= 0:
            weight = weights[j] if weights.size else np.float32(1.0)
            read_term(table, base + rows[j] * stride, stride, weight, line)
            low, high = widen(line.view(np.uint32), low, high)
            for c in range(line.size):
                sums[c] += np.float64(line[c])
    return certain(hi - lo, low, high)


@inlined
def pool_bag(table, base, stride, rows, weights, lo, hi, out):
    """out f32[D] = exact sum of the terms of lookups [lo, hi), rounded once."""
    sums = np.empty(out.size)
    if sum_bag(table, base, stride, rows, weights, lo, hi, sums):
        for c in range(out.size):
            out[c] = rounded(sums[c])
        return
    line = np.empty(out.size, np.float32)
    # for every column, although few need it: that path is rare and may be slow
    limbs = np.zeros((out.size, LIMBS), np.int64)
    for j in range(lo, hi):
        if rows[j] >= 0:
            weight = weights[j] if weights.size else np.float32(1.0)
            read_term(table, base + rows[j] * stride, stride, weight, line)
            words = line.view(np.uint32)
            for c in range(out.size):
                add_term(limbs[c], words[c])
    for c in range(out.size):
        out[c] = round_limbs(limbs[c])


@parallel_kernel
def pooled_rows(table, entries, bags, mean, lines, out):
    """Bag i of entry k, pooled, to out[lines.place[k] + i * lines.pitch[k] :]; arguments as those
    of `kernels.rows.lookup.pooled_rows`.
    """
    for b in prange(bags.offsets.size - 1):
        k = np.searchsorted(entries.first, b, side="right") - 1
        lo = bags.offsets[b]
        hi = bags.offsets[b + 1]
        at = lines.place[k] + (b - entries.first[k]) * lines.pitch[k]
        line = out[at : at + entries.width[k]]
        pool_bag(table, entries.base[k], entries.stride[k], bags.rows, bags.weights, lo, hi, line)
        if mean and hi - lo > 1:
            for c in range(line.size):
                line[c] = line[c] / np.float32(hi - lo)
