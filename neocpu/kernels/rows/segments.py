"""Which lookups touch the same row? Deal them to groups by (shard, high bits of the row), sort
each, see where rows change.

    chunks   runs of lookups, none across two shards
             count_groups -> place_chunks -> deal_lookups       parallel by chunk
    groups   lookups of one shard whose rows share high bits
             sort_groups                                        parallel by group
    result   unique rows by (shard, row), the lookups of each
             write_segments                                     parallel by group

A lookup travels as one number, (low bits of its row) << bits | id: a radix sort by the upper part
carries the id along. So one huge table is sorted by all threads, as many tables are. Source: Neo's
exact backward (sort, run-length encode; FBGEMM `transpose_embedding_input`). Indices are
unsigned here: for a signed one, Numba tests at each use whether it counts from the end.
"""

import numpy as np
from numba import prange

from neocpu.kernels.compile.jit import inlined, kernel, parallel_kernel
from neocpu.kernels.scratch import task_body

WORD = np.uint64
NO_ROW = WORD(0xFFFFFFFFFFFFFFFF)
DIGIT = 11  # bits of a pass, at most: its counters stay in the first-level cache


@parallel_kernel
def count_groups(rows, chunks, counts):
    """counts[t, q] = lookups of chunk t in group q of its shard.

    Shapes: rows i64[n], -1 skipped; chunks `records.LookupChunks`; counts i64[C, Q]. Order: none.
    """
    start = chunks.start
    shift = chunks.shift
    for t in prange(shift.size):
        group_counts = counts[t]
        group_counts[:] = 0
        for j in range(start[t], start[t + 1]):
            # pruned lookups touch no row: they end here
            if rows[j] >= 0:
                group_counts[WORD(rows[j]) >> WORD(shift[t])] += 1


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
        # group, then chunk: lookups of one group stay in the order of the batch
        for q in range(groups[h]):
            group_start[g] = total
            g += 1
            for t in range(shard_chunk[h], shard_chunk[h + 1]):
                count = counts[t, q]
                counts[t, q] = total
                total += count
    group_start[g] = total


@parallel_kernel
def deal_lookups(rows, offsets, by_bag, chunks, bits, places, keys):
    """keys[...] = (row - first row of its group) << bits | id, the id being the number of the
    lookup's bag if `by_bag`, else of the lookup.

    Shapes: rows i64[n]; offsets i64[N+1]; by_bag bool; chunks `records.LookupChunks`; bits i64;
    places i64[C, Q] from `place_chunks` (counted up); keys u64[m], m the rows >= 0. Order: lookups
    ascending in each group.
    """
    start = chunks.start
    first_bag = chunks.bag
    shift = chunks.shift
    for t in prange(shift.size):
        group_places = places[t]
        bag = first_bag[t]
        low = (WORD(1) << WORD(shift[t])) - WORD(1)
        for j in range(start[t], start[t + 1]):
            while offsets[bag + 1] <= j:
                bag += 1
            if rows[j] >= 0:
                row = WORD(rows[j])
                q = row >> WORD(shift[t])
                number = WORD(bag if by_bag else j)
                keys[WORD(group_places[q])] = ((row & low) << WORD(bits)) | number
                group_places[q] += 1


@inlined
def radix_pass(keys, out, first, last, shift, mask, heads):
    """One stable pass over keys[first:last] by the digit (key >> shift) & mask."""
    heads[:] = WORD(0)
    for i in range(first, last):
        heads[(keys[i] >> shift) & mask] += WORD(1)
    total = first
    for d in range(heads.size):
        count = heads[d]
        heads[d] = total
        total += count
    for i in range(first, last):
        key = keys[i]
        d = (key >> shift) & mask
        to = heads[d]
        heads[d] = to + WORD(1)
        out[to] = key


@parallel_kernel
def sort_groups(keys, spare, groups, bits, unique_counts):
    """Sort the lookups of each group by row, in place; unique_counts[g] = its unique rows.

    Shapes: keys, spare u64[m]; groups `records.RowGroups`; bits i64: of the ids; unique_counts
    i64[G]. Order: stable.
    """
    start = groups.start
    row_bits = groups.bits
    for g in prange(unique_counts.size):
        first = WORD(start[g])
        last = WORD(start[g + 1])
        # Small groups get small digits: clearing and adding up the counters may not cost more than
        # the keys.
        digit = 4
        while digit < DIGIT and (1 << digit) < last - first:
            digit += 1
        passes = (row_bits[g] + digit - 1) // digit
        if passes > 0:
            # the same number of passes with fewer bits each: smaller counters
            digit = (row_bits[g] + passes - 1) // passes
        heads = np.empty(1 << digit, WORD)
        mask = WORD((1 << digit) - 1)
        for p in range(passes):
            if p % 2 == 0:
                radix_pass(keys, spare, first, last, WORD(bits + p * digit), mask, heads)
            else:
                radix_pass(spare, keys, first, last, WORD(bits + p * digit), mask, heads)
        # an odd number of passes ends in the other array
        if passes % 2:
            for i in range(first, last):
                keys[i] = spare[i]
        unique_rows = 0
        previous = NO_ROW
        for i in range(first, last):
            row = keys[i] >> WORD(bits)
            # no branch: repeated rows come at random
            unique_rows += row != previous
            previous = row
        unique_counts[g] = unique_rows


@task_body
def write_group(g, keys, groups, first, bits, place_of, weights, segments):
    """The segments of one group; the starts end with that of the lookups after it."""
    ids = (WORD(1) << WORD(bits)) - WORD(1)
    # -1 as a word: the first row counts it up, whatever it is
    u = WORD(first[g]) - WORD(1)
    previous = NO_ROW
    for i in range(WORD(groups.start[g]), WORD(groups.start[g + 1])):
        row = keys[i] >> WORD(bits)
        number = keys[i] & ids
        if row != previous:
            u += WORD(1)
            segments.unique[u] = groups.row[g] + np.int64(row)
            segments.starts[u] = np.int64(i)
            previous = row
        segments.place[i] = place_of[number]
        if weights.size:
            segments.weights[i] = weights[number]


@task_body
def end_segments(groups, first, segments):
    """starts[U] = number of lookups."""
    count = groups.row.size
    segments.starts[first[count]] = groups.start[count]


@parallel_kernel
def write_segments(keys, groups, first, bits, place_of, weights, segments):
    """Unique rows and the runs of their lookups, into the arrays of `segments`.

    Shapes: keys u64[m] sorted; groups `records.RowGroups`; first i64[G+1], the first unique row of
    each group; bits i64: of the ids; place_of i64[ids]; weights f32[ids] or f32[0]; segments
    `records.Segments`, of which unique i64[U], starts i64[U+1], place i64[m] and weights (f32[m] or
    f32[0]) are written. Order: (shard, row).
    """
    for g in prange(groups.row.size):
        write_group(g, keys, groups, first, bits, place_of, weights, segments)
    end_segments(groups, first, segments)
