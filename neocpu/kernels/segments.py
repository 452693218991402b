"""Which lookups touch the same row? Sort them by row, shard by shard, and look where the row changes.

    lookups of shard h: rows[cuts[h]:cuts[h+1]]                       (entries of one shard stand together)
    after sort_lookups: order   positions of its lookups by (row, position), pruned rows dropped
                        unique  rows that occur, ascending            both at cuts[h] + …, counts in valid[h], found[h]
                        starts, stops  the run of its lookups in `order`

A stable radix sort by digits of the row number; only as many digits as the shard's height needs. Source: Neo's exact
backward (sort, run-length encode; FBGEMM `transpose_embedding_input`).
"""

import numpy as np
from numba import prange
from numba.extending import register_jitable

from neocpu.kernels._jit import parallel_kernel

DIGIT = 11  # bits of a pass, at most: its counters stay in the first-level cache


@register_jitable
def radix_pass(keys, order, count, shift, mask, keys_out, order_out, heads):
    """One stable pass by the digit (key >> shift) & mask."""
    heads[: mask + 1] = 0
    for i in range(count):
        heads[(keys[i] >> shift) & mask] += 1
    total = 0
    for d in range(mask + 1):
        here = heads[d]
        heads[d] = total
        total += here
    for i in range(count):
        d = (keys[i] >> shift) & mask
        to = heads[d]
        heads[d] = to + 1
        keys_out[to] = keys[i]
        order_out[to] = order[i]


@parallel_kernel
def sort_lookups(rows, cuts, heights, order, unique, starts, stops, valid, found):
    """Stable order of the lookups of every shard by row, and its unique rows.

    Shapes: rows i64[n]; cuts i64[H+1]; heights i64[H] (rows below it); out: order, unique, starts, stops i64[n],
    valid, found i64[H]. `starts` and `stops` are positions in `order`. Source: docs/arithmetic.md §3.
    Order: by (row, position); rows < 0 are dropped.
    """
    for h in prange(heights.size):
        lo, hi = cuts[h], cuts[h + 1]
        n = hi - lo
        keys, spare_keys, spare_order = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
        mine = order[lo:hi]
        count = 0
        for i in range(n):
            if rows[lo + i] >= 0:
                keys[count] = rows[lo + i]
                mine[count] = lo + i
                count += 1
        bits = 1
        while heights[h] - 1 >> bits:
            bits += 1
        passes = (bits + DIGIT - 1) // DIGIT
        digit = (bits + passes - 1) // passes
        heads = np.empty(1 << digit, np.int64)
        mask = (1 << digit) - 1
        for p in range(passes):
            if p % 2 == 0:
                radix_pass(keys, mine, count, p * digit, mask, spare_keys, spare_order, heads)
            else:
                radix_pass(spare_keys, spare_order, count, p * digit, mask, keys, mine, heads)
        if passes % 2:
            for i in range(count):
                keys[i] = spare_keys[i]
                mine[i] = spare_order[i]
        rows_found = 0
        for i in range(count):
            if i == 0 or keys[i] != keys[i - 1]:
                unique[lo + rows_found] = keys[i]
                starts[lo + rows_found] = lo + i
                rows_found += 1
            stops[lo + rows_found - 1] = lo + i + 1
        valid[h], found[h] = count, rows_found


@parallel_kernel
def gradient_places(offsets, column, stride, place):
    """Where each lookup finds its gradient: place[j] = s*stride + column[k] for every lookup j of bag k*S + s.

    Shapes: offsets i64[K*S+1]; column i64[K]; place i64[n]. Order: none.
    """
    bags = offsets.size - 1
    samples = bags // max(1, column.size)
    for bag in prange(bags):
        k = bag // samples
        at = (bag - k * samples) * stride + column[k]
        for j in range(offsets[bag], offsets[bag + 1]):
            place[j] = at


@parallel_kernel
def gather_sorted(order, cuts, valid, place, weights, place_out, weights_out):
    """Places and weights of lookups in sorted order: place_out[i] = place[order[i]], likewise weights (f32[n] or f32[0]).

    Shapes: order, place, place_out i64[n]; cuts i64[H+1]; valid i64[H]. Order: none.
    """
    for h in prange(valid.size):
        for i in range(cuts[h], cuts[h] + valid[h]):
            place_out[i] = place[order[i]]
            if weights.size:
                weights_out[i] = weights[order[i]]
