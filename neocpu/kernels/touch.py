"""When does a row come into being? When it is first looked up: then, and only then, it gets its initial values.

A byte per row says whether it exists. Lookups of one shard are walked by one thread, so no two threads make one row; values
come from Philox by (tensor, row, column), so it does not matter who makes them, or when (`docs/arithmetic.md` §9).
"""

import numpy as np
from numba import prange

from neocpu.kernels._jit import parallel_kernel
from neocpu.kernels.philox import philox4x32, symmetric
from neocpu.kernels.simd import prefetch

AHEAD = 16  # lookups


@parallel_kernel
def first_touch(
    rows,
    cuts,
    shard,
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
    touched,
    table,
    state0,
    state1,
    row_state,
    made,
):
    """Make every row that is looked up and does not exist yet.

    Shapes: rows i64[n] local rows, -1 skipped; cuts i64[G+1]: lookups of group g belong to shard[g] (i64[G], each shard at
    most once); by shard: row_base, base (first row in `touched`, first element in `table`), width, row0, column0 (its place
    in the whole table) i64[H], key u64[H], scale f32[H]; start0, start1, start_row f32: initial states; touched u8[R];
    table, state0, state1 f32[:], states [0] if absent; row_state f32[R] or [0]; made i64[H] += rows made.
    Source: docs/arithmetic.md §9. Order: none.
    """
    for g in prange(shard.size):
        h = shard[g]
        d, origin, first, made_here = width[h], row_base[h], np.int64(column0[h]), 0
        for j in range(cuts[g], cuts[g + 1]):
            prefetch(touched, origin + max(rows[min(j + AHEAD, cuts[g + 1] - 1)], 0))
            row = rows[j]
            if row < 0 or touched[origin + row]:
                continue
            touched[origin + row] = 1
            made_here += 1
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
            if row_state.size:
                row_state[origin + row] = start_row
        made[h] += made_here
