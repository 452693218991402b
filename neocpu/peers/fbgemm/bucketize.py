"""Which rank gets which lookup? FBGEMM's bucketize operators: rows in blocks, in uneven ranges, or
dealt by remainder.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from neocpu.embedding import layouts
from neocpu.peers.fbgemm.moves import ints, like, rows
from neocpu.peers.fbgemm.operators import Refused, operator

HEAD = (
    "(Tensor lengths, Tensor indices, bool bucketize_pos, bool sequence, Tensor block_sizes, "
    "SymInt my_size, "
)
SIZES = "Tensor? batch_size_per_feature=None, SymInt max_B=-1, Tensor[]? block_bucketize_pos=None, "
TAIL = (
    "bool keep_orig_idx=False, Tensor? total_num_blocks=None, Tensor? "
    "keep_orig_idx_per_feature=None)"
)
Maybe: TypeAlias = Tensor | None


def _dealt(
    lengths: Tensor,
    indices: Tensor,
    block_sizes: Tensor,
    my_size: int,
    batch_size_per_feature: Maybe,
    block_bucketize_pos: Sequence[Tensor] | None,
    keep_orig_idx: bool,
    total_num_blocks: Maybe,
    keep_orig_idx_per_feature: Maybe,
) -> layouts.Bucketized:
    keep: Any = keep_orig_idx
    if keep_orig_idx_per_feature is not None:
        keep = keep_orig_idx_per_feature.numpy()
    for t, blocks in enumerate(
        [] if total_num_blocks is None or block_bucketize_pos else total_num_blocks.tolist()
    ):
        if blocks % my_size:
            raise Refused(
                f"total_num_blocks[{t}] = {blocks} must be a multiple of my_size, {my_size}"
            )
    return layouts.block_bucketize(
        ints(lengths),
        indices.detach().contiguous().numpy().reshape(-1),
        ints(block_sizes),
        my_size,
        None,
        None if batch_size_per_feature is None else ints(batch_size_per_feature),
        None if total_num_blocks is None else ints(total_num_blocks),
        [ints(b) for b in block_bucketize_pos] if block_bucketize_pos else None,
        keep,
    )


def _moved(weights: Maybe, found: layouts.Bucketized) -> Maybe:
    """Weights where their lookups went."""
    if weights is None:
        return None
    return rows(weights, layouts.invert_permute(found.unbucketize_permute))


@operator(
    HEAD
    + "Tensor? weights=None, "
    + SIZES
    + TAIL
    + " -> (Tensor, Tensor, Tensor?, Tensor?, Tensor?)"
)
def block_bucketize_sparse_features(
    lengths: Tensor,
    indices: Tensor,
    bucketize_pos: bool,
    sequence: bool,
    block_sizes: Tensor,
    my_size: int,
    weights: Maybe = None,
    batch_size_per_feature: Maybe = None,
    max_B: int = -1,
    block_bucketize_pos: Sequence[Tensor] | None = None,
    keep_orig_idx: bool = False,
    total_num_blocks: Maybe = None,
    keep_orig_idx_per_feature: Maybe = None,
) -> tuple[Tensor, Tensor, Maybe, Maybe, Maybe]:
    """(lengths [my_size * F * B], indices, weights, positions in bags, where each lookup went), by
    (rank, feature, sample).

    Indices count as unsigned numbers, as in FBGEMM: -1 is the largest of all, and leaves as another
    number.
    """
    return block_bucketize_sparse_features_inference(
        lengths,
        indices,
        bucketize_pos,
        sequence,
        block_sizes,
        my_size,
        weights,
        batch_size_per_feature,
        max_B,
        block_bucketize_pos,
        False,
        keep_orig_idx,
        total_num_blocks,
        keep_orig_idx_per_feature,
    )[:5]


@operator(
    HEAD
    + "Tensor? weights=None, "
    + SIZES
    + "bool return_bucket_mapping=False, "
    + TAIL
    + " -> (Tensor, Tensor, Tensor?, Tensor?, Tensor?, Tensor?)"
)
def block_bucketize_sparse_features_inference(
    lengths: Tensor,
    indices: Tensor,
    bucketize_pos: bool,
    sequence: bool,
    block_sizes: Tensor,
    my_size: int,
    weights: Maybe = None,
    batch_size_per_feature: Maybe = None,
    max_B: int = -1,
    block_bucketize_pos: Sequence[Tensor] | None = None,
    return_bucket_mapping: bool = False,
    keep_orig_idx: bool = False,
    total_num_blocks: Maybe = None,
    keep_orig_idx_per_feature: Maybe = None,
) -> tuple[Tensor, Tensor, Maybe, Maybe, Maybe, Maybe]:
    """As `block_bucketize_sparse_features`, and the rank of each lookup."""
    sizes = (
        batch_size_per_feature,
        block_bucketize_pos,
        keep_orig_idx,
        total_num_blocks,
        keep_orig_idx_per_feature,
    )
    found = _dealt(lengths, indices, block_sizes, my_size, *sizes)
    return (
        like(found.lengths, lengths),
        like(found.indices, indices),
        _moved(weights, found),
        like(found.positions, indices) if bucketize_pos else None,
        like(found.unbucketize_permute, indices) if sequence else None,
        like(found.bucket_mapping, indices) if return_bucket_mapping else None,
    )


@operator(
    HEAD
    + "Tensor weights, SymInt weights_dim=1, "
    + SIZES
    + TAIL
    + " -> (Tensor, Tensor, Tensor, Tensor?, Tensor?)"
)
def block_bucketize_sparse_features_2d_weights(
    lengths: Tensor,
    indices: Tensor,
    bucketize_pos: bool,
    sequence: bool,
    block_sizes: Tensor,
    my_size: int,
    weights: Tensor,
    weights_dim: int = 1,
    batch_size_per_feature: Maybe = None,
    max_B: int = -1,
    block_bucketize_pos: Sequence[Tensor] | None = None,
    keep_orig_idx: bool = False,
    total_num_blocks: Maybe = None,
    keep_orig_idx_per_feature: Maybe = None,
) -> tuple[Tensor, Tensor, Tensor, Maybe, Maybe]:
    """As `block_bucketize_sparse_features`, with weights [n, weights_dim]."""
    sizes = (
        batch_size_per_feature,
        block_bucketize_pos,
        keep_orig_idx,
        total_num_blocks,
        keep_orig_idx_per_feature,
    )
    found = _dealt(lengths, indices, block_sizes, my_size, *sizes)
    moved = _moved(weights.reshape(-1, weights_dim), found)
    assert moved is not None
    return (
        like(found.lengths, lengths),
        like(found.indices, indices),
        moved,
        like(found.positions, indices) if bucketize_pos else None,
        like(found.unbucketize_permute, indices) if sequence else None,
    )


@operator(
    "(Tensor lengths, Tensor indices, bool bucketize_pos, SymInt my_size, Tensor? weights=None)"
    " -> (Tensor, Tensor, Tensor?, Tensor?)"
)
def bucketize_sparse_features(
    lengths: Tensor, indices: Tensor, bucketize_pos: bool, my_size: int, weights: Maybe = None
) -> tuple[Tensor, Tensor, Maybe, Maybe]:
    """(lengths, indices, weights, positions in bags) with rank = index mod my_size, index there =
    index // my_size.
    """
    found = _dealt(
        lengths, indices, torch.zeros(1, dtype=torch.int64), my_size, None, None, False, None, None
    )
    return (
        like(found.lengths, lengths),
        like(found.indices, indices),
        _moved(weights, found),
        like(found.positions, indices) if bucketize_pos else None,
    )


@operator("(Tensor lengths, Tensor bucketized_lengths, Tensor bucket_mapping) -> Tensor")
def populate_bucketized_permute(
    lengths: Tensor, bucketized_lengths: Tensor, bucket_mapping: Tensor
) -> Tensor:
    """Where each lookup went, from its rank and the lengths by (rank, bag)."""
    found = layouts.bucketized_permute(
        ints(lengths), ints(bucketized_lengths), ints(bucket_mapping)
    )
    return like(found, bucket_mapping)
