"""When does a row get its initial values? When it is first looked up.

A bit per row says whether it exists: of a table's bits a core's first-level cache holds most. All
threads look for rows that do not (`find_untouched`); one claims them, so that no row is made twice
(`claim_rows`); all threads make them (`make_rows`).
Values come from Philox by (tensor, row, column), so it does not matter which thread makes a row, or
when (docs/arithmetic.md §9).
"""

import numpy as np
from numba import prange

from neocpu.kernels.compile.jit import inlined, kernel, parallel_kernel
from neocpu.kernels.numbers.philox import philox4x32, symmetric
from neocpu.kernels.simd import prefetch
from neocpu.kernels.simd.record_views import bare_record, fill_record

AHEAD = 512  # row numbers: a processor stops at the end of a page to fetch what it reads in order
LINE = 8  # row numbers of a cache line
BLOCK = 64  # lookups whose numbers are asked for together


@inlined
def exists(bits, row):
    """Does a row exist, by its number among those of all shards?"""
    at = np.uint64(row)
    return (bits[at >> np.uint64(6)] >> (at & np.uint64(63))) & np.uint64(1) != 0


@parallel_kernel
def find_untouched(rows, chunk, origin, bits, fresh, count):
    """Lookups whose row does not exist yet: fresh[chunk[t] :] gets origin[t] + row, count[t] of
    them; a row may repeat.

    Shapes: rows i64[n], -1 skipped; chunk i64[C+1]: chunk t holds lookups [chunk[t], chunk[t+1]) of
    one shard, whose first row is origin[t] (i64[C]) of bits u64[R/64], or whose rows all exist: -1;
    row r of bits: bit r % 64 of word r // 64; fresh i64[n]; count i64[C].
    Order: lookups ascending.
    """
    for t in prange(origin.size):
        n = 0
        base = origin[t]
        first = chunk[t]
        last = chunk[t + 1] if base >= 0 else chunk[t]
        for block in range(first, last, BLOCK):
            for number in range(0, BLOCK, LINE):
                prefetch(rows, min(block + AHEAD + number, rows.size - 1))
            for j in range(block, min(block + BLOCK, last)):
                # unsigned, here and in `exists`: Numba then asks of no index whether it is negative
                row = rows[np.uint64(j)]
                if row >= 0 and not exists(bits, base + row):
                    fresh[first + n] = base + row
                    n += 1
        count[t] = n


@kernel
def claim_rows(chunk, count, bits, fresh):
    """Mark the rows of chunks, each once, and bring those that did not exist to the front of
    `fresh`; returns their number.

    Shapes: chunk i64[C+1]; count i64[C]; bits u64[R/64]; fresh i64[n], as `find_untouched` leaves
    it. Order: chunks, lookups.
    """
    claimed = 0
    for t in range(count.size):
        for i in range(chunk[t], chunk[t] + count[t]):
            row = fresh[i]
            # found by several chunks: threads only looked, so nobody wrote what another reads
            if not exists(bits, row):
                bits[row >> 6] |= np.uint64(1) << np.uint64(row & 63)
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
