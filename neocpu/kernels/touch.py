"""When does a row come into being? When it is first looked up: then, and only then, it gets its
initial values.

A byte per row says whether it exists. All threads look for rows that do not (`find_untouched`); one
claims them, so that no row is made twice (`claim_rows`); all threads make them (`make_rows`).
Values come from Philox by (tensor, row, column), so it does not matter who makes a row, or when
(`docs/arithmetic.md` §9).
"""

import numpy as np
from numba import prange

from neocpu.kernels._jit import kernel, parallel_kernel
from neocpu.kernels.philox import philox4x32, symmetric
from neocpu.kernels.simd import prefetch

AHEAD = 16  # lookups


@parallel_kernel
def find_untouched(rows, chunk, origin, touched, fresh, count):
    """Lookups whose row does not exist yet: fresh[chunk[t] :] gets origin[t] + row, count[t] of
    them; a row may repeat.

    Shapes: rows i64[n], -1 skipped; chunk i64[C+1]: chunk t holds lookups [chunk[t], chunk[t+1]) of
    one shard, whose first row is origin[t] (i64[C]) of touched u8[R], or whose rows all exist: -1;
    fresh i64[n]; count i64[C].
    Order: lookups ascending.
    """
    for t in prange(origin.size):
        n = 0
        first = chunk[t]
        last = chunk[t + 1] if origin[t] >= 0 else chunk[t]
        for j in range(first, last):
            prefetch(touched, origin[t] + max(rows[min(j + AHEAD, last - 1)], 0))
            if rows[j] >= 0 and touched[origin[t] + rows[j]] == 0:
                fresh[first + n] = origin[t] + rows[j]
                n += 1
        count[t] = n


@kernel
def claim_rows(chunk, count, touched, fresh):
    """Mark the rows that were found, each once, and bring them to the front of `fresh`; returns how
    many they are.

    Shapes: chunk i64[C+1]; count i64[C]; touched u8[R]; fresh i64[n], as from `find_untouched`.
    Order: chunks, lookups.
    """
    found = 0
    for t in range(count.size):
        for i in range(chunk[t], chunk[t] + count[t]):
            row = fresh[i]
            if touched[row] == 0:
                touched[row] = 1
                fresh[found] = row
                found += 1
    return found


@parallel_kernel
def make_rows(
    fresh,
    row_base,
    base,
    width,
    row0,
    column0,
    key,
    scale,
    start0,
    start1,
    start_row,
    table,
    state0,
    state1,
    row_state,
):
    """Initial values and states of rows.

    Shapes: fresh i64[m], numbers among the rows of all shards; by shard, ascending in row_base:
    row_base (its first row), base (its first element in `table`), width, row0, column0 (its place
    in the whole table) i64[H], key u64[H], scale f32[H]; start0, start1 f32, start_row f32[n]:
    initial states; table, state0, state1 f32[:], states [0] if absent; row_state f32[R*n]. Source:
    docs/arithmetic.md §9. Order: none.
    """
    for u in prange(fresh.size):
        h = np.searchsorted(row_base, fresh[u], "right") - 1
        row = fresh[u] - row_base[h]
        d = width[h]
        first = column0[h]
        at = base[h] + row * d
        for block in range(first // 4, (first + d + 3) // 4):
            words = philox4x32(key[h], np.uint64(row0[h] + row), np.uint64(block), np.uint64(0))
            to = 4 * block - first
            for i in range(4):
                if 0 <= to + i < d:
                    table[at + to + i] = symmetric(words[i], scale[h])
        for c in range(d):
            if state0.size:
                state0[at + c] = start0
            if state1.size:
                state1[at + c] = start1
        for i in range(start_row.size):
            row_state[fresh[u] * start_row.size + i] = start_row[i]
