"""How are the lookups of a batch dealt out to shards? Bag by bag, by row: the bucketize of the
input distribution.

    an entry e asks for the lookups of key[e] whose row is in [lo[e], hi[e]); pruned lookups (-1) go
    nowhere
    out: for entry after entry, sample after sample, their rows counted from lo[e], in their order
    in the bag

Two passes: the first counts, so that messages can be sized; the second copies. Before either,
`first_outside` looks for lookups that no shard could answer.

`block_bucketize` deals as FBGEMM does, by blocks of rows or uneven boundaries, with the way back.
Training does not need it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.kernels.compile.jit import inlined, kernel

Ints = NDArray[np.int64]


class RowRanges(NamedTuple):
    """What entries ask for: entry e lookups of key[e] with lo[e] <= row < hi[e]; i64[E] each."""

    key: Ints
    lo: Ints
    hi: Ints


class RowBlocks(NamedTuple):
    """How the rows of features are dealt to ranks.

    first_bag   : i64[F+1], feature f has the bags first_bag[f] .. first_bag[f+1]
    size        : i64[F], rows of a block; 0: rows are hashed, rank = row mod total
    total       : i64[F], blocks in all, a multiple of the ranks; rows beyond go to row mod total
    bounds      : u64[m], uneven boundaries instead of blocks, each feature's ascending from 0
    bound_start : i64[F+1], those of feature f are bounds[bound_start[f] : bound_start[f+1]]
    """

    first_bag: Ints
    size: Ints
    total: Ints
    bounds: NDArray[np.uint64]
    bound_start: Ints


class DealtLookups(NamedTuple):
    """Lookups by (rank, bag), and the way back.

    rows      : i64[n], their rows there
    weights   : f32[n], or f32[0] without any
    positions : i64[n], their positions in their bags
    place     : i64[n], where lookup j went
    rank      : i64[n], the rank of lookup j
    """

    rows: Ints
    weights: NDArray[np.float32]
    positions: Ints
    place: Ints
    rank: Ints


@kernel
def bucketize_lengths(offsets, values, ranges, samples, lengths):
    """lengths[e*S + s] = lookups of bag (key[e], s) with lo[e] <= row < hi[e].

    Shapes: offsets i64[F*S+1], values i64[n] of a KJT; ranges `RowRanges`; samples = S; lengths
    i32[E*S].
    Source: FBGEMM block_bucketize_sparse_features; Neo. Order: none.
    """
    key, lo, hi = ranges
    for e in range(key.size):
        for s in range(samples):
            bag = key[e] * samples + s
            count = 0
            for j in range(offsets[bag], offsets[bag + 1]):
                # `&`, not `and`: no branch on rows that come at random
                count += (lo[e] <= values[j]) & (values[j] < hi[e])
            lengths[e * samples + s] = count


@kernel
def bucketize(bags, ranges, samples, rows, row_weights):
    """Rows (counted from lo[e]) and weights of the lookups that `bucketize_lengths` counted, one
    after the other.

    Shapes: bags `operands.Bags` of a KJT; ranges, samples as there; rows i64[m+1], m the sum of the
    lengths, the last one for scratch; row_weights f32[m+1], or f32[0] with empty weights.
    Source: FBGEMM block_bucketize_sparse_features. Order: entries, samples, lookups ascending.
    """
    offsets, values, weights = bags
    key, lo, hi = ranges
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
            # a branch, since it is never taken in a run that goes on
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
    for i in range(min(first, lengths.size)):  # of no lengths, there is no first one
        total += lengths[i]
    for i in range(out.size):
        out[i] = total
        if first + i < lengths.size:
            total += lengths[first + i]


@inlined
def bucket_of(row, f, blocks, bounds, ranks):
    """(rank, row there) of an unsigned row of feature f, whose uneven boundaries are bounds u64[m],
    or none.
    """
    spread = np.uint64(ranks)
    size = np.uint64(blocks.size[f])
    count = np.uint64(blocks.total[f])
    hashed = blocks.size[f] == 0
    if bounds.size:
        where = row
        if hashed:  # rows are hashed: their remainder, stretched over the boundaries
            where = row % count * bounds[bounds.size - 1] // count
        part = np.uint64(np.searchsorted(bounds, where, "right") - 1)
        inside = part < spread
        rank = part if inside else row % spread
        local = row // count if hashed else (row - bounds[part] if inside else row // spread)
    else:
        share = count // spread  # blocks of a rank
        if row < size * count:
            rank = row // (size * share)
            local = row % (size * share)
        else:
            rank = row % count // share
            local = row // count
    return np.int64(rank), np.int64(local)


@kernel
def block_bucketize_lengths(offsets, rows, blocks, ranks, pruned, lengths):
    """lengths[p*bags + b] = lookups of bag b that go to rank p.

    Shapes: offsets i64[bags+1]; rows i64[n]; blocks `RowBlocks`; lengths i64[ranks*bags]. Rows
    count as unsigned: -1 is 2^64 - 1, unless `pruned` >= 0 names the rank that gets -1 as it is.
    Source: FBGEMM block_bucketize_sparse_features, and bucketize_sparse_features (size 0). Order:
    none.
    """
    bags = offsets.size - 1
    first_bag = blocks.first_bag
    lengths[:] = 0
    for f in range(blocks.size.size):
        # once for a feature: a slice counts references
        bounds = blocks.bounds[blocks.bound_start[f] : blocks.bound_start[f + 1]]
        for b in range(first_bag[f], first_bag[f + 1]):
            for j in range(offsets[b], offsets[b + 1]):
                # else -1 is 2^64 - 1, as in FBGEMM, and goes where its remainder says
                if rows[j] == -1 and pruned >= 0:
                    rank = pruned
                else:
                    rank, _ = bucket_of(np.uint64(rows[j]), f, blocks, bounds, ranks)
                lengths[rank * bags + b] += 1


@kernel
def block_bucketize(bags, blocks, ranks, pruned, keep, lengths, dealt):
    """Lookups by (rank, bag): their rows there, weights, positions in their bags, and the way back.

    Shapes: as `block_bucketize_lengths`, which counted `lengths`; bags `operands.Bags`; keep
    bool[F]: rows stay as they are; dealt `DealtLookups`.
    Source: FBGEMM block_bucketize_sparse_features (bucketize_pos, unbucketize_permute,
    bucket_mapping, keep_orig_idx).
    Order: rank, bag, lookups ascending.
    """
    offsets, rows, weights = bags
    bag_count = offsets.size - 1
    first_bag = blocks.first_bag
    heads = np.empty(lengths.size, np.int64)
    total = 0
    for i in range(lengths.size):
        heads[i] = total
        total += lengths[i]
    for f in range(blocks.size.size):
        bounds = blocks.bounds[blocks.bound_start[f] : blocks.bound_start[f + 1]]
        for b in range(first_bag[f], first_bag[f + 1]):
            for j in range(offsets[b], offsets[b + 1]):
                if rows[j] == -1 and pruned >= 0:
                    rank = pruned
                    local = rows[j]
                else:
                    rank, local = bucket_of(np.uint64(rows[j]), f, blocks, bounds, ranks)
                    if keep[f]:
                        local = rows[j]
                # a counting sort, stable: lookups of a bag keep their order on each rank
                to = heads[rank * bag_count + b]
                heads[rank * bag_count + b] = to + 1
                dealt.rows[to] = local
                dealt.positions[to] = j - offsets[b]
                dealt.place[j] = to
                dealt.rank[j] = rank
                if weights.size:
                    dealt.weights[to] = weights[j]
