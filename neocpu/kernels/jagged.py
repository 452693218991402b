"""How are the lookups of a batch dealt out to shards? Bag by bag, by row: the bucketize of the input distribution.

    an entry e asks for the lookups of key[e] whose row is in [lo[e], hi[e])        (pruned lookups, -1, go nowhere)
    out: for entry after entry, sample after sample, their rows counted from lo[e], in their order in the bag

Two passes: the first counts, so that messages can be sized; the second copies. Before either, `first_outside` looks for
lookups that no shard could answer.
"""

from neocpu.kernels._jit import kernel


@kernel
def bucketize_lengths(offsets, values, key, lo, hi, samples, lengths):
    """lengths[e*S + s] = lookups of bag (key[e], s) with lo[e] <= row < hi[e].

    Shapes: offsets i64[F*S+1], values i64[n] of a KJT; key, lo, hi i64[E]; samples = S; lengths i32[E*S].
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
    """Rows (counted from lo[e]) and weights of the lookups that `bucketize_lengths` counted, one after the other.

    Shapes: as there; weights f32[n] or f32[0]; rows i64[m+1], m the sum of the lengths, the last one for scratch;
    row_weights f32[m+1], or f32[0] with empty weights. Source: FBGEMM block_bucketize_sparse_features. Order: entries,
    samples, lookups ascending.
    """
    at = 0
    for e in range(key.size):
        first, end = lo[e], hi[e]
        for j in range(offsets[key[e] * samples], offsets[(key[e] + 1) * samples]):
            row = values[j]
            rows[at] = row - first  # written over unless it counts: which shard holds a row is no branch to predict
            if weights.size > 0:
                row_weights[at] = weights[j]
            at += (first <= row) & (row < end)


@kernel
def first_outside(offsets, values, limit, samples):
    """Position of the first lookup whose row is not in [-1, limit[f]), f its key; -1 if there is none.

    Shapes: offsets i64[F*S+1], values i64[n] of a KJT; limit i64[F]; samples = S. Source: FBGEMM bounds_check_indices.
    """
    for f in range(limit.size):
        for j in range(offsets[f * samples], offsets[(f + 1) * samples]):
            if values[j] < -1 or values[j] >= limit[f]:
                return j
    return -1


@kernel
def lengths_to_offsets(lengths, offsets):
    """offsets[i] = sum of lengths[:i].

    Shapes: lengths i32[N], offsets i64[N+1]. Source: FBGEMM asynchronous_complete_cumsum. Order: exact integers.
    """
    total = 0
    for i in range(lengths.size):
        offsets[i] = total
        total += lengths[i]
    offsets[lengths.size] = total
