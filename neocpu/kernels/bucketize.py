"""How are the lookups of a batch dealt out to shards? Bag by bag, by row: the bucketize of the
input distribution.

    an entry e asks for the lookups of key[e] whose row is in [lo[e], hi[e])        (pruned lookups, -1, go nowhere)
    out: for entry after entry, sample after sample, their rows counted from lo[e], in their order
    in the bag

Two passes: the first counts, so that messages can be sized; the second copies. Before either,
`first_outside` looks for lookups that no shard could answer.

`block_bucketize` deals as FBGEMM does, by blocks of rows or uneven boundaries, with the way back.
Training does not need it.
"""

import numpy as np

from neocpu.kernels._jit import inlined, kernel


@kernel
def bucketize_lengths(offsets, values, key, lo, hi, samples, lengths):
    """lengths[e*S + s] = lookups of bag (key[e], s) with lo[e] <= row < hi[e].

    Shapes: offsets i64[F*S+1], values i64[n] of a KJT; key, lo, hi i64[E]; samples = S; lengths
    i32[E*S].
    Source: FBGEMM block_bucketize_sparse_features; Neo. Order: none.
    """
    for e in range(key.size):
        for s in range(samples):
            bag = key[e] * samples + s
            count = 0
            for j in range(offsets[bag], offsets[bag + 1]):
                count += (lo[e] <= values[j]) & (values[j] < hi[e])
            lengths[e * samples + s] = count


@kernel
def bucketize(offsets, values, weights, key, lo, hi, samples, rows, row_weights):
    """Rows (counted from lo[e]) and weights of the lookups that `bucketize_lengths` counted, one
    after the other.

    Shapes: as there; weights f32[n] or f32[0]; rows i64[m+1], m the sum of the lengths, the last
    one for scratch; row_weights f32[m+1], or f32[0] with empty weights. Source: FBGEMM
    block_bucketize_sparse_features. Order: entries, samples, lookups ascending.
    """
    at = 0
    for e in range(key.size):
        first = lo[e]
        end = hi[e]
        for j in range(offsets[key[e] * samples], offsets[(key[e] + 1) * samples]):
            row = values[j]
            # written over unless it counts: which shard holds a row is no branch to predict
            rows[at] = row - first
            if weights.size > 0:
                row_weights[at] = weights[j]
            at += (first <= row) & (row < end)


@kernel
def first_outside(offsets, values, limit, samples):
    """Position of the first lookup whose row is not in [-1, limit[f]), f its key; -1 if there is
    none.

    Shapes: offsets i64[F*S+1], values i64[n] of a KJT; limit i64[F]; samples = S. Source: FBGEMM
    bounds_check_indices.
    """
    for f in range(limit.size):
        for j in range(offsets[f * samples], offsets[(f + 1) * samples]):
            if values[j] < -1 or values[j] >= limit[f]:
                return j
    return -1


@kernel
def lengths_to_offsets(lengths, offsets):
    """offsets[i] = sum of lengths[:i].

    Shapes: lengths i32[N], offsets i64[N+1]. Source: FBGEMM asynchronous_complete_cumsum. Order:
    exact integers.
    """
    total = 0
    for i in range(lengths.size):
        offsets[i] = total
        total += lengths[i]
    offsets[lengths.size] = total


@kernel
def running_sums(lengths, first, out):
    """out[i] = sum of lengths[: first + i]: exclusive sums from first = 0 on, inclusive ones from 1
    on.

    Shapes: lengths i64[N]; out i64[M], first + M <= N + 1. Complete sums are M = N + 1. Source:
    FBGEMM asynchronous_{complete,exclusive,inclusive}_cumsum. Order: exact integers.
    """
    total = 0
    for i in range(first):
        total += lengths[i]
    for i in range(out.size):
        out[i] = total
        if first + i < lengths.size:
            total += lengths[first + i]


@inlined
def bucket_of(row, block, blocks, ranks, bounds, keep):
    """(rank, row there) of a row, as an unsigned number; bounds u64[n] are uneven boundaries, or
    none.
    """
    spread = np.uint64(ranks)
    each = np.uint64(blocks)
    if bounds.size:
        where = row
        if block == 0:  # rows are hashed: their remainder, stretched over the boundaries
            where = row % each * bounds[bounds.size - 1] // each
        part = np.uint64(np.searchsorted(bounds, where, "right") - 1)
        inside = part < spread
        rank = part if inside else row % spread
        local = row // each if block == 0 else (row - bounds[part] if inside else row // spread)
    else:
        share = each // spread  # blocks of a rank
        if row < np.uint64(block) * each:
            rank = row // (np.uint64(block) * share)
            local = row % (np.uint64(block) * share)
        else:
            rank = row % each // share
            local = row // each
    return np.int64(rank), np.int64(row if keep else local)


@kernel
def block_bucketize_lengths(
    offsets, rows, first_bag, block, blocks, ranks, bounds, bound_start, pruned, lengths
):
    """lengths[p*bags + b] = lookups of bag b that go to rank p.

    Shapes: offsets i64[bags+1]; rows i64[n]; by feature f: bags [first_bag[f], first_bag[f+1])
    (i64[F+1]); block i64[F]: rows of a block (0: rows are hashed, rank = row mod blocks); blocks
    i64[F]: how many there are in all, a multiple of ranks; or boundaries u64 bounds[bound_start[f]
    : bound_start[f+1]] (i64[F+1]) that begin with 0. Rows beyond go to row mod blocks. Rows count
    as unsigned: -1 is 2^64 - 1, unless `pruned` >= 0 names the rank that gets -1 as it is. lengths
    i64[ranks*bags].
    Source: FBGEMM block_bucketize_sparse_features, and bucketize_sparse_features (block 0). Order:
    none.
    """
    bags = offsets.size - 1
    lengths[:] = 0
    for f in range(block.size):
        mine = bounds[bound_start[f] : bound_start[f + 1]]
        for b in range(first_bag[f], first_bag[f + 1]):
            for j in range(offsets[b], offsets[b + 1]):
                if rows[j] == -1 and pruned >= 0:
                    rank = pruned
                else:
                    rank, _ = bucket_of(np.uint64(rows[j]), block[f], blocks[f], ranks, mine, False)
                lengths[rank * bags + b] += 1


@kernel
def block_bucketize(
    offsets,
    rows,
    weights,
    first_bag,
    block,
    blocks,
    ranks,
    bounds,
    bound_start,
    pruned,
    keep,
    lengths,
    rows_out,
    weights_out,
    positions,
    place,
    bucket,
):
    """Lookups by (rank, bag): their rows there, weights, positions in their bags, and the way back.

    Shapes: as `block_bucketize_lengths`, which counted `lengths`; weights, weights_out f32[n] or
    f32[0]; keep bool[F]: rows stay as they are; rows_out, positions i64[n]; place, bucket i64[n]:
    where lookup j went, and its rank.
    Source: FBGEMM block_bucketize_sparse_features (bucketize_pos, unbucketize_permute,
    bucket_mapping, keep_orig_idx).
    Order: rank, bag, lookups ascending.
    """
    bags = offsets.size - 1
    heads = np.empty(lengths.size, np.int64)
    total = 0
    for i in range(lengths.size):
        heads[i] = total
        total += lengths[i]
    for f in range(block.size):
        mine = bounds[bound_start[f] : bound_start[f + 1]]
        for b in range(first_bag[f], first_bag[f + 1]):
            for j in range(offsets[b], offsets[b + 1]):
                if rows[j] == -1 and pruned >= 0:
                    rank = pruned
                    local = rows[j]
                else:
                    rank, local = bucket_of(
                        np.uint64(rows[j]), block[f], blocks[f], ranks, mine, keep[f]
                    )
                to = heads[rank * bags + b]
                heads[rank * bags + b] = to + 1
                rows_out[to] = local
                positions[to] = j - offsets[b]
                place[j] = to
                bucket[j] = rank
                if weights.size:
                    weights_out[to] = weights[j]
