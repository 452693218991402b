"""When does a row get its initial values? When it is first looked up.

A byte per row says whether it exists. All threads look for rows that do not (`find_untouched`); one
claims them, so that no row is made twice (`claim_rows`); all threads make them (`make_rows`).
Values come from Philox by (tensor, row, column), so it does not matter which thread makes a row, or
when (docs/arithmetic.md §9).
"""

import numpy as np
from numba import prange

from neocpu.kernels.compile.jit import kernel, parallel_kernel
from neocpu.kernels.numbers.philox import philox4x32, symmetric
from neocpu.kernels.simd import prefetch
from neocpu.kernels.simd.record_views import bare_record, fill_record

# lookups; of skewed ones few miss the cache, and as many of those as can be shall be under way
AHEAD = 96


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
            # one byte of a table for each row: mostly not in the cache
            prefetch(touched, origin[t] + max(rows[min(j + AHEAD, last - 1)], 0))
            if rows[j] >= 0 and touched[origin[t] + rows[j]] == 0:
                fresh[first + n] = origin[t] + rows[j]
                n += 1
        count[t] = n


@kernel
def claim_rows(chunk, count, touched, fresh):
    """Mark the rows that `find_untouched` found, each once, and bring them to the front of `fresh`;
    returns their number.

    Shapes: chunk i64[C+1]; count i64[C]; touched u8[R]; fresh i64[n]. Order: chunks, lookups.
    """
    claimed = 0
    for t in range(count.size):
        for i in range(chunk[t], chunk[t] + count[t]):
            row = fresh[i]
            # found by several chunks: threads only looked, so nobody wrote what another reads
            if touched[row] == 0:
                touched[row] = 1
                fresh[claimed] = row
                claimed += 1
    return claimed


@parallel_kernel
def make_rows(fresh, places, initial, table, states, row_state):
    """Initial values and states of rows.

    Shapes: fresh i64[m], numbers among the rows of all shards; places `records.ShardPlaces`,
    row_base ascending; initial `records.InitialValues`; table f32[:]; states: a record of the
    element states, f32[:] like the table; row_state f32[R*n], the states of a row beside each
    other. Source: docs/arithmetic.md §9. Order: none.
    """
    row_base = places.row_base
    per_row = initial.row_states.size
    for u in prange(fresh.size):
        where = bare_record(places)
        start = bare_record(initial)
        h = np.searchsorted(row_base, fresh[u], "right") - 1
        row = fresh[u] - row_base[h]
        d = where.width[h]
        first = where.column0[h]
        at = where.base[h] + row * d
        number = np.uint64(where.row0[h] + row)
        for block in range(first // 4, (first + d + 3) // 4):
            words = philox4x32(start.key[h], number, np.uint64(block), np.uint64(0))
            column = 4 * block - first
            for i in range(4):
                if 0 <= column + i < d:
                    number_in_row = start.mean[h] + symmetric(words[i], start.scale[h])
                    table[at + column + i] = number_in_row
        fill_record(states, start.states, at, d)
        for i in range(per_row):
            row_state[fresh[u] * per_row + i] = start.row_states[i]
