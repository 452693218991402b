"""Which lookups touch the same row? Deal them to groups by (shard, high bits of the row), sort
each, see where rows change.

    chunks   runs of lookups, none across two shards    count_groups -> place_chunks -> deal_lookups   (parallel by chunk)
    groups   the lookups of one shard whose rows share their high bits                 sort_groups     (parallel by group)
    after    unique rows by (shard, row), and for each the run of its lookups          write_segments  (parallel by group)

A lookup travels as one number, (low bits of its row) << bits | id: a radix sort by the upper part
carries the id along. So one huge table is sorted by all threads, as many tables are. Source: Neo's
exact backward (sort, run-length encode; FBGEMM `transpose_embedding_input`). Numbers that are
indices are unsigned here: those with a sign would be looked at, each time, whether they count from
the end.
"""

import numpy as np
from numba import prange

from neocpu.kernels._jit import inlined, kernel, parallel_kernel

WORD = np.uint64
NO_ROW = WORD(0xFFFFFFFFFFFFFFFF)
DIGIT = 11  # bits of a pass, at most: its counters stay in the first-level cache


@parallel_kernel
def count_groups(rows, chunk, shift, counts):
    """counts[t, q] = lookups of chunk t with row >> shift[t] == q.

    Shapes: rows i64[n], -1 skipped; chunk i64[C+1]: chunk t holds lookups [chunk[t], chunk[t+1]);
    shift i64[C]; counts i64[C, Q]. Order: none.
    """
    for t in prange(shift.size):
        mine = counts[t]
        mine[:] = 0
        for j in range(chunk[t], chunk[t + 1]):
            if rows[j] >= 0:
                mine[WORD(rows[j]) >> WORD(shift[t])] += 1


@kernel
def place_chunks(counts, shard_chunk, groups, group_start):
    """Where each chunk puts its lookups: counts[t, q] becomes the first place of chunk t's lookups
    of group q.

    Shapes: counts i64[C, Q]; shard_chunk i64[H+1]: shard h has chunks [shard_chunk[h],
    shard_chunk[h+1]); groups i64[H]; group_start i64[G+1], groups of shard after shard. Order:
    shard, group, chunk.
    """
    total = 0
    g = 0
    for h in range(groups.size):
        for q in range(groups[h]):
            group_start[g] = total
            g += 1
            for t in range(shard_chunk[h], shard_chunk[h + 1]):
                here = counts[t, q]
                counts[t, q] = total
                total += here
    group_start[g] = total


@parallel_kernel
def deal_lookups(rows, offsets, by_bag, chunk, bags, shift, bits, places, keys):
    """keys[…] = (row below its group's first) << bits | id, the id being the lookup's bag, or the
    lookup itself.

    Shapes: rows i64[n]; offsets i64[N+1]; by_bag bool; chunk i64[C+1]; bags i64[C], the bag of a
    chunk's first lookup; shift i64[C]; bits i64; places i64[C, Q] from `place_chunks` (counted up);
    keys u64[m], m the rows >= 0. Order: lookups ascending in each group.
    """
    for t in prange(shift.size):
        mine = places[t]
        bag = bags[t]
        low = (WORD(1) << WORD(shift[t])) - WORD(1)
        for j in range(chunk[t], chunk[t + 1]):
            while offsets[bag + 1] <= j:
                bag += 1
            if rows[j] >= 0:
                row = WORD(rows[j])
                q = row >> WORD(shift[t])
                keys[WORD(mine[q])] = ((row & low) << WORD(bits)) | WORD(bag if by_bag else j)
                mine[q] += 1


@inlined
def radix_pass(keys, out, first, last, shift, mask, heads):
    """One stable pass over keys[first:last] by the digit (key >> shift) & mask."""
    heads[:] = WORD(0)
    for i in range(first, last):
        heads[(keys[i] >> shift) & mask] += WORD(1)
    total = first
    for d in range(heads.size):
        here = heads[d]
        heads[d] = total
        total += here
    for i in range(first, last):
        key = keys[i]
        d = (key >> shift) & mask
        to = heads[d]
        heads[d] = to + WORD(1)
        out[to] = key


@parallel_kernel
def sort_groups(keys, spare, group_start, height, bits, found):
    """Sort the lookups of each group by row, in place; found[g] = its unique rows.

    Shapes: keys, spare u64[m]; group_start i64[G+1]; height i64[G]: bits of the rows in a group;
    bits i64: of the ids; found i64[G]. Order: stable.
    """
    for g in prange(found.size):
        first = WORD(group_start[g])
        last = WORD(group_start[g + 1])
        digit = 4
        while digit < DIGIT and (1 << digit) < last - first:
            digit += 1
        passes = (height[g] + digit - 1) // digit
        if passes > 0:
            digit = (height[g] + passes - 1) // passes
        heads = np.empty(1 << digit, WORD)
        mask = WORD((1 << digit) - 1)
        for p in range(passes):
            if p % 2 == 0:
                radix_pass(keys, spare, first, last, WORD(bits + p * digit), mask, heads)
            else:
                radix_pass(spare, keys, first, last, WORD(bits + p * digit), mask, heads)
        if passes % 2:
            for i in range(first, last):
                keys[i] = spare[i]
        rows = 0
        before = NO_ROW
        for i in range(first, last):
            row = keys[i] >> WORD(bits)
            rows += row != before
            before = row
        found[g] = rows


@parallel_kernel
def write_segments(
    keys, group_start, group_row, first, bits, place_of, weights, unique, starts, place, weights_out
):
    """Unique rows and their runs: lookups starts[u] .. starts[u+1] of row unique[u] have their
    gradients at place.

    Shapes: keys u64[m] sorted; group_start, first i64[G+1] (first unique row of each group);
    group_row i64[G], the first row of the group; bits i64; place_of i64[ids]; weights f32[ids] or
    f32[0]; out: unique i64[U], starts i64[U+1], place i64[m], weights_out f32[m] or f32[0]. Order:
    (shard, row).
    """
    ids = (WORD(1) << WORD(bits)) - WORD(1)
    for g in prange(group_row.size):
        u = WORD(first[g]) - WORD(1)
        before = NO_ROW
        for i in range(WORD(group_start[g]), WORD(group_start[g + 1])):
            row = keys[i] >> WORD(bits)
            number = keys[i] & ids
            if row != before:
                u += WORD(1)
                unique[u], starts[u] = group_row[g] + np.int64(row), np.int64(i)
                before = row
            place[i] = place_of[number]
            if weights.size:
                weights_out[i] = weights[number]
    starts[first[group_row.size]] = group_start[group_row.size]
