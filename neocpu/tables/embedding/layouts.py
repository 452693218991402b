"""How are jagged batches permuted, dealt to ranks, padded and selected?

FBGEMM's operators, with plain arrays:

    lengths    [bags], or [features, samples]
    offsets    [bags + 1]
    indices    [n]
    weights    f32[n] or None

Each function returns new arrays and leaves its arguments alone. Indices of 32 bits come back as
int64. Names and meaning are those of `torch.ops.fbgemm`; what differs is said where it does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from neocpu.core.errors import ConfigError, IndexRangeError
from neocpu.core.types import Doubles, Elements, Floats, Ints
from neocpu.kernels.exchange import bucketize as jagged
from neocpu.kernels.exchange import jagged_layout as layout
from neocpu.kernels.operands import Bags, Entries, Lines
from neocpu.kernels.rows import lookup

NONE = np.empty(0, np.float32)


def _ints(values: ArrayLike) -> Ints:
    return np.ascontiguousarray(values, np.int64).reshape(-1)


def complete_cumsum(lengths: Elements) -> Ints:
    """Offsets i64[n+1]: 0, then all running sums (asynchronous_complete_cumsum)."""
    out = np.empty(np.size(lengths) + 1, np.int64)
    jagged.running_sums(_ints(lengths), 0, out)
    return out


def exclusive_cumsum(lengths: Elements) -> Ints:
    """Running sums i64[n] before each length (asynchronous_exclusive_cumsum)."""
    out = np.empty(np.size(lengths), np.int64)
    jagged.running_sums(_ints(lengths), 0, out)
    return out


def inclusive_cumsum(lengths: Elements) -> Ints:
    """Running sums i64[n] up to and with each length (asynchronous_inclusive_cumsum)."""
    out = np.empty(np.size(lengths), np.int64)
    jagged.running_sums(_ints(lengths), 1, out)
    return out


def running_sums(values: Elements, first: int, count: int) -> Doubles:
    """fp64 sums of the first `first`, `first` + 1, … fractions [n]: `count` of them, added in order
    in fp64.

    first = 0, count = n + 1: complete; 0, n: exclusive; 1, n: inclusive. FBGEMM adds in the dtype
    of the values.
    """
    out = np.empty(count, np.float64)
    jagged.running_sums(np.ascontiguousarray(values, np.float64).reshape(-1), first, out)
    return out


def offsets_range(offsets: Elements, size: int) -> Ints:
    """Position i64[size] of every lookup in its bag; offsets [B], the last bag ends at `size`
    (offsets_range).
    """
    out = np.empty(size, np.int64)
    layout.offsets_range(_ints(offsets), out)
    return out


def invert_permute(permute: Elements) -> Ints:
    """The permutation i64[n] that undoes this one (invert_permute)."""
    out = np.empty(np.size(permute), np.int64)
    layout.invert_permute(_ints(permute), out)
    return out


def expand_into_jagged_permute(
    permute: Elements, input_offsets: Elements, output_offsets: Elements
) -> Ints:
    """Where each lookup of permuted segments comes from: i64[output_offsets[-1]]
    (expand_into_jagged_permute).
    """
    ends = _ints(output_offsets)
    out = np.empty(int(ends[-1]), np.int64)
    layout.expand_into_jagged_permute(_ints(permute), _ints(input_offsets), ends, out)
    return out


def recat(features: int, ranks: int, stagger: int = 1) -> Ints:
    """Order i64[features * ranks] that makes segments by (rank, feature) feature-major (TorchRec's
    _get_recat).
    """
    out = np.empty(features * ranks, np.int64)
    layout.recat(features, ranks, stagger, out)
    return out


def copy_segments(
    values: Elements, starts: Ints, segment: Ints, offsets: Ints, width: int = 1
) -> Elements:
    """Segments by number: the t-th of the result, flat, has offsets[t+1] - offsets[t] rows of
    `width` from starts[segment[t]] on. Nothing is checked.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    out = np.empty(int(offsets[-1]) * width, flat.dtype)
    layout.copy_segments(flat, starts, segment, offsets, width, out)
    return out


def _total(offsets: Ints, values: Elements, noun: str) -> None:
    if offsets[-1] != len(values):
        raise IndexRangeError(
            f"lengths add up to {int(offsets[-1])}, but there are {len(values)} {noun}"
        )


def _within(permute: Ints, count: int) -> None:
    if permute.size and not 0 <= permute.min() <= permute.max() < count:
        raise IndexRangeError(
            f"segments {int(permute.min())} to {int(permute.max())} are asked for; there are "
            f"{count}"
        )


def permute_1d(
    permute: Elements, lengths: Elements, indices: Elements, weights: Elements | None = None
) -> tuple[Ints, Ints, Floats | None]:
    """(lengths, indices, weights) of bags in another order, some perhaps missing or repeated
    (permute_1D_sparse_data).
    """
    order = _ints(permute)
    sizes = _ints(lengths)
    starts = complete_cumsum(sizes)
    permuted = np.empty(order.size, np.int64)
    _total(starts, indices, "indices")
    _within(order, sizes.size)
    layout.index_select(sizes, order, 1, permuted)
    ends = complete_cumsum(permuted)
    permuted_indices = copy_segments(_ints(indices), starts, order, ends)
    if weights is None:
        return permuted, permuted_indices, None
    scale = np.asarray(weights, np.float32)
    return permuted, permuted_indices, copy_segments(scale, starts, order, ends)


def permute_2d(
    permute: Elements, lengths: Elements, indices: Elements, weights: Elements | None = None
) -> tuple[Ints, Ints, Floats | None]:
    """(lengths [P, B], indices, weights) of features in another order; lengths [F, B]
    (permute_2D_sparse_data).
    """
    order = _ints(permute)
    samples = lengths.shape[1]
    _within(order, lengths.shape[0])
    bags = (order[:, None] * samples + np.arange(samples)).reshape(-1)
    permuted, moved, scale = permute_1d(bags, lengths, indices, weights)
    return permuted.reshape(order.size, samples), moved, scale


@dataclass(frozen=True)
class Bucketized:
    """Lookups dealt to ranks, by (rank, bag): FBGEMM's results, all of them.

    lengths : i64[ranks * bags].
    indices, positions : i64[n]; positions are FBGEMM's bucketize_pos.
    weights : f32[n], or None.
    unbucketize_permute, bucket_mapping : i64[n], where lookup j went, and to which rank.
    """

    lengths: Ints
    indices: Ints
    weights: Floats | None
    positions: Ints
    unbucketize_permute: Ints
    bucket_mapping: Ints


def block_bucketize(
    lengths: Elements,
    indices: Elements,
    block_sizes: Elements,
    ranks: int,
    weights: Elements | None = None,
    batch_sizes: Elements | None = None,
    total_blocks: Elements | None = None,
    boundaries: Sequence[Elements] | None = None,
    keep: bool | Elements = False,
    pruned: int = -1,
) -> Bucketized:
    """Deal lookups to the ranks that own their blocks of rows (block_bucketize_sparse_features).

    lengths : [F*B].
    block_sizes : [F], 0: rows are hashed.
    batch_sizes : [F], where they differ (batch_size_per_feature).
    total_blocks : [F] (total_num_blocks), default: one per rank.
    boundaries : for each feature ascending, the first 0 (block_bucketize_pos).
    keep : indices stay as they are (keep_orig_idx), for all features or [F].
    pruned : rank that gets -1 as -1. Below 0, indices count as unsigned numbers of their width, of
        which -1 is the largest.

    Raises IndexRangeError, ConfigError for what does not fit together.
    """
    sizes = _ints(lengths)
    block = _ints(block_sizes)
    offsets = complete_cumsum(sizes)
    features = block.size
    _total(offsets, indices, "indices")
    if batch_sizes is None and sizes.size % max(features, 1):
        raise IndexRangeError(f"{sizes.size} lengths for {features} features")
    batch = (
        np.full(features, sizes.size // max(features, 1))
        if batch_sizes is None
        else _ints(batch_sizes)
    )
    first = complete_cumsum(batch)
    _total(first, sizes, "lengths")
    blocks = np.full(features, ranks, np.int64) if total_blocks is None else _ints(total_blocks)
    if ranks < 1 or (blocks % ranks).any() or (blocks < ranks).any():
        raise ConfigError(f"{blocks.tolist()} blocks cannot be shared by {ranks} ranks")
    bounds, starts = _bucket_bounds(boundaries, features)
    rows = _unsigned_rows(np.asarray(indices), pruned)
    scale = NONE if weights is None else np.ascontiguousarray(weights, np.float32)
    row_blocks = jagged.RowBlocks(
        first_bag=first, size=block, total=blocks, bounds=bounds, bound_start=starts
    )
    dealt_lengths = np.empty(ranks * sizes.size, np.int64)
    jagged.block_bucketize_lengths(offsets, rows, row_blocks, ranks, pruned, dealt_lengths)
    dealt_rows, positions, unbucketize, bucket = np.empty((4, rows.size), np.int64)
    dealt = jagged.DealtLookups(
        rows=dealt_rows,
        weights=np.empty_like(scale),
        positions=positions,
        place=unbucketize,
        rank=bucket,
    )
    # a copy: Numba would compile everything again for a read-only array
    kept = np.broadcast_to(np.asarray(keep, np.bool_), features).copy()
    bags = Bags(offsets, rows, scale)
    jagged.block_bucketize(bags, row_blocks, ranks, pruned, kept, dealt_lengths, dealt)
    return Bucketized(
        lengths=dealt_lengths,
        indices=dealt_rows,
        weights=None if weights is None else dealt.weights,
        positions=positions,
        unbucketize_permute=unbucketize,
        bucket_mapping=bucket,
    )


def _bucket_bounds(
    boundaries: Sequence[Elements] | None, features: int
) -> tuple[NDArray[np.uint64], Ints]:
    """The boundaries of all features, one after the other, and where each feature's begin,
    i64[features + 1].

    Raises ConfigError where some features have none, or boundaries do not begin with 0.
    """
    # unsigned, like the indices that they part
    bounds = [np.asarray(b, np.uint64).reshape(-1) for b in boundaries or ()]
    if any(b.size < 2 or b[0] != 0 for b in bounds) or (bounds and len(bounds) != features):
        raise ConfigError(
            "every feature needs boundaries that begin with 0, or none of them has any"
        )
    if not bounds:
        return np.empty(0, np.uint64), np.zeros(features + 1, np.int64)
    return np.concatenate(bounds), complete_cumsum(np.array([b.size for b in bounds]))


def _unsigned_rows(indices: Elements, pruned: int) -> Ints:
    """Row numbers i64[n] as unsigned numbers of their width; -1 stays where `pruned` >= 0."""
    rows = _ints(indices)
    if indices.dtype != np.int32:
        return rows
    unsigned = rows & 0xFFFFFFFF
    return np.where(rows == -1, rows, unsigned) if pruned >= 0 else unsigned


def bucketized_permute(
    lengths: Elements, bucketized_lengths: Elements, bucket_mapping: Elements
) -> Ints:
    """Where each lookup went i64[n], from its rank [n] and the lengths [ranks * bags] of all
    (populate_bucketized_permute).
    """
    ends = complete_cumsum(lengths)
    dealt = _ints(bucketized_lengths)
    bucket = _ints(bucket_mapping)
    _total(ends, bucket, "ranks of lookups")
    _within(bucket, dealt.size // max(ends.size - 1, 1))
    out = np.empty(bucket.size, np.int64)
    layout.bucketized_permute(ends, bucket, exclusive_cumsum(dealt), out)
    return out


def index_select(values: Elements, index: Elements) -> Elements:
    """Rows of values [n, ...] by number, [m, ...] (index_select_dim0)."""
    chosen = _ints(index)
    width = int(np.prod(values.shape[1:]))
    _within(chosen, len(values))
    out = np.empty((chosen.size, *values.shape[1:]), values.dtype)
    layout.index_select(np.ascontiguousarray(values).reshape(-1), chosen, width, out.reshape(-1))
    return out


def jagged_index_select(
    values: Elements, lengths: Elements, index: Elements
) -> tuple[Elements, Ints]:
    """(values, lengths) of some bags of rows [n, ...], in any order, with repeats
    (jagged_index_select).
    """
    sizes = _ints(lengths)
    chosen = _ints(index)
    width = int(np.prod(values.shape[1:]))
    starts = complete_cumsum(sizes)
    _total(starts, values, "rows")
    _within(chosen, sizes.size)
    chosen_sizes = sizes[chosen]
    out = copy_segments(values, starts, chosen, complete_cumsum(chosen_sizes), width)
    return out.reshape(-1, *values.shape[1:]), chosen_sizes


def jagged_to_padded_dense(
    values: Elements, offsets: Elements, longest: int, padding: float = 0.0
) -> Elements:
    """Bags of numbers [n] or rows [n, D] as [B, longest] or [B, longest, D]
    (jagged_to_padded_dense, one jagged dimension).
    """
    ends = _ints(offsets)
    width = int(np.prod(values.shape[1:]))
    _total(ends, values, "rows")
    out = np.empty((ends.size - 1, longest, *values.shape[1:]), values.dtype)
    flat = np.ascontiguousarray(values).reshape(-1)
    layout.jagged_to_padded_dense(
        flat, ends, width, longest, values.dtype.type(padding), out.reshape(-1)
    )
    return out


def jagged_places(offsets: Sequence[Elements], longest: Sequence[int]) -> Ints:
    """Which row of the values stands at each place of [B, *longest], -1: none; one array of offsets
    per jagged dimension.
    """
    rows = np.arange(np.size(offsets[0]) - 1)
    shape = (rows.size, *longest)
    for ends, most in zip(offsets, longest, strict=True):
        bags = rows
        rows = np.empty(bags.size * most, np.int64)
        layout.jagged_places(bags, _ints(ends), most, rows)
    return rows.reshape(shape)


def invert_places(places: Elements, count: int) -> Ints:
    """Which place leads to each of `count` rows: i64[count], -1: none."""
    rows = _ints(places)
    out = np.empty(count, np.int64)
    _within(rows[rows >= 0], count)
    layout.invert_places(rows, out)
    return out


def select_or_fill(values: Elements, index: Elements, filler: float) -> Elements:
    """Rows of values [n, ...] by number, [*index.shape, ...]; rows of `filler` where the number is
    -1.
    """
    chosen = _ints(index)
    row = values.shape[1:]
    _within(chosen[chosen >= 0], len(values))
    out = np.empty((*np.shape(index), *row), values.dtype)
    flat = np.ascontiguousarray(values).reshape(-1)
    layout.select_or_fill(
        flat, chosen, int(np.prod(row)), values.dtype.type(filler), out.reshape(-1)
    )
    return out


def dense_to_jagged(dense: Elements, offsets: Elements) -> Elements:
    """Rows of bags out of [B, longest] or [B, longest, D]; zeros beyond it (dense_to_jagged)."""
    ends = _ints(offsets)
    longest = dense.shape[1]
    width = int(np.prod(dense.shape[2:]))
    if ends.size - 1 != dense.shape[0]:
        raise IndexRangeError(f"{ends.size - 1} bags, but {dense.shape[0]} rows of the dense array")
    out = np.empty((int(ends[-1]), *dense.shape[2:]), dense.dtype)
    layout.padded_dense_to_jagged(
        np.ascontiguousarray(dense).reshape(-1), ends, width, longest, out.reshape(-1)
    )
    return out


def unique(indices: Elements) -> tuple[Ints, Ints, Ints]:
    """(different values ascending, which of them each is [n], how often each occurs)
    (jagged_unique_indices, torch.unique).
    """
    values = _ints(indices)
    distinct, inverse, counts = np.empty((3, values.size), np.int64)
    # a stable sort gives one order on every machine
    n = layout.mark_unique(values, np.argsort(values, kind="stable"), distinct, inverse, counts)
    return distinct[:n].copy(), inverse, counts[:n].copy()


def segment_sum(values: Elements, offsets: Elements) -> Floats:
    """Exact sums f32[segments, D] of rows f32[n, D], rounded once (segment_sum_csr;
    docs/arithmetic.md §3).
    """
    ends = _ints(offsets)
    rows = np.ascontiguousarray(values, np.float32)
    out = np.empty((ends.size - 1, rows.shape[1]), np.float32)
    # segments are bags of one table whose lookups are all its rows
    zero = np.zeros(1, np.int64)
    width = np.array([rows.shape[1]], np.int64)
    entries = Entries(zero, width, width, np.array([0, len(out)], np.int64))
    bags = Bags(ends, np.arange(len(rows)), NONE)
    lines = Lines(zero, width)
    lookup.pooled_rows(rows.reshape(-1), entries, bags, False, lines, out.reshape(-1))
    return out


def reordered_bags(batch_offsets: Elements, tables: int, broadcast: bool) -> Ints:
    """Which bag of table-major batches stands at each place i64[tables * samples] of the
    table-major whole.
    """
    ends = _ints(batch_offsets)
    out = np.empty(tables * int(ends[-1]), np.int64)
    layout.reordered_bags(ends, tables, broadcast, out)
    return out
