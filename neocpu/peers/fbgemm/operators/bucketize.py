"""Which rank gets which lookup? FBGEMM's bucketize operators say.

Rows are split over ranks in blocks of one size, in uneven ranges, or by remainder.
"""

from typing import TypeAlias

import torch
from torch import Tensor

from neocpu.core.types import Bools
from neocpu.peers.fbgemm.context import Tensors
from neocpu.peers.fbgemm.operators.moves import ints, like, rows
from neocpu.peers.fbgemm.operators.registry import Refused, operator
from neocpu.tables.embedding import layouts

# Parts of schemas that several operators share.
HEAD = (
    "(Tensor lengths, Tensor indices, bool bucketize_pos, bool sequence, Tensor block_sizes, "
    "SymInt my_size, "
)
SIZES = "Tensor? batch_size_per_feature=None, SymInt max_B=-1, Tensor[]? block_bucketize_pos=None, "
TAIL = (
    "bool keep_orig_idx=False, Tensor? total_num_blocks=None, "
    "Tensor? keep_orig_idx_per_feature=None)"
)
OptionalTensor: TypeAlias = Tensor | None


def _bucketized(
    lengths: Tensor,
    indices: Tensor,
    block_sizes: Tensor,
    my_size: int,
    batch_size_per_feature: OptionalTensor,
    block_bucketize_pos: Tensors | None,
    keep_orig_idx: bool,
    total_num_blocks: OptionalTensor,
    keep_orig_idx_per_feature: OptionalTensor,
) -> layouts.Bucketized:
    keep: bool | Bools = keep_orig_idx
    if keep_orig_idx_per_feature is not None:
        keep = keep_orig_idx_per_feature.numpy()
    block_counts: list[int] = []
    # Uneven blocks have their own boundaries, and the count of blocks no meaning.
    if total_num_blocks is not None and not block_bucketize_pos:
        block_counts = total_num_blocks.tolist()
    for feature, blocks in enumerate(block_counts):
        if blocks % my_size:
            raise Refused(
                f"total_num_blocks[{feature}] = {blocks} must be a multiple of my_size, {my_size}"
            )
    return layouts.block_bucketize(
        ints(lengths),
        # In their own dtype: as unsigned numbers, -1 is another one of 32 bits than of 64.
        indices.detach().contiguous().numpy().reshape(-1),
        ints(block_sizes),
        my_size,
        None,
        None if batch_size_per_feature is None else ints(batch_size_per_feature),
        None if total_num_blocks is None else ints(total_num_blocks),
        [ints(b) for b in block_bucketize_pos] if block_bucketize_pos else None,
        keep,
    )


def _moved(weights: OptionalTensor, bucketized: layouts.Bucketized) -> OptionalTensor:
    """Weights in the order of the bucketized lookups."""
    if weights is None:
        return None
    # `unbucketize_permute` says where each lookup went; weights need where each comes from.
    return rows(weights, layouts.invert_permute(bucketized.unbucketize_permute))


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
    weights: OptionalTensor = None,
    batch_size_per_feature: OptionalTensor = None,
    max_B: int = -1,
    block_bucketize_pos: Tensors | None = None,
    keep_orig_idx: bool = False,
    total_num_blocks: OptionalTensor = None,
    keep_orig_idx_per_feature: OptionalTensor = None,
) -> tuple[Tensor, Tensor, OptionalTensor, OptionalTensor, OptionalTensor]:
    """Lookups by (rank, feature, sample), with indices local to their rank.

    Returns (lengths [my_size * F * B], indices, weights, positions in bags, where each lookup
    went). Indices count as unsigned numbers, as in FBGEMM: -1 is the largest of all, and becomes
    another number.
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
    weights: OptionalTensor = None,
    batch_size_per_feature: OptionalTensor = None,
    max_B: int = -1,
    block_bucketize_pos: Tensors | None = None,
    return_bucket_mapping: bool = False,
    keep_orig_idx: bool = False,
    total_num_blocks: OptionalTensor = None,
    keep_orig_idx_per_feature: OptionalTensor = None,
) -> tuple[Tensor, Tensor, OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor]:
    """As `block_bucketize_sparse_features`, and the rank of each lookup."""
    block_options = (
        batch_size_per_feature,
        block_bucketize_pos,
        keep_orig_idx,
        total_num_blocks,
        keep_orig_idx_per_feature,
    )
    bucketized = _bucketized(lengths, indices, block_sizes, my_size, *block_options)
    return (
        like(bucketized.lengths, lengths),
        like(bucketized.indices, indices),
        _moved(weights, bucketized),
        like(bucketized.positions, indices) if bucketize_pos else None,
        like(bucketized.unbucketize_permute, indices) if sequence else None,
        like(bucketized.bucket_mapping, indices) if return_bucket_mapping else None,
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
    batch_size_per_feature: OptionalTensor = None,
    max_B: int = -1,
    block_bucketize_pos: Tensors | None = None,
    keep_orig_idx: bool = False,
    total_num_blocks: OptionalTensor = None,
    keep_orig_idx_per_feature: OptionalTensor = None,
) -> tuple[Tensor, Tensor, Tensor, OptionalTensor, OptionalTensor]:
    """As `block_bucketize_sparse_features`, with weights [n, weights_dim]."""
    block_options = (
        batch_size_per_feature,
        block_bucketize_pos,
        keep_orig_idx,
        total_num_blocks,
        keep_orig_idx_per_feature,
    )
    bucketized = _bucketized(lengths, indices, block_sizes, my_size, *block_options)
    bucketized_weights = _moved(weights.reshape(-1, weights_dim), bucketized)
    assert bucketized_weights is not None
    return (
        like(bucketized.lengths, lengths),
        like(bucketized.indices, indices),
        bucketized_weights,
        like(bucketized.positions, indices) if bucketize_pos else None,
        like(bucketized.unbucketize_permute, indices) if sequence else None,
    )


@operator(
    "(Tensor lengths, Tensor indices, bool bucketize_pos, SymInt my_size, Tensor? weights=None)"
    " -> (Tensor, Tensor, Tensor?, Tensor?)"
)
def bucketize_sparse_features(
    lengths: Tensor,
    indices: Tensor,
    bucketize_pos: bool,
    my_size: int,
    weights: OptionalTensor = None,
) -> tuple[Tensor, Tensor, OptionalTensor, OptionalTensor]:
    """Lookups of row i go to rank i mod my_size, as its row i // my_size.

    Returns (lengths, indices, weights, positions in bags).
    """
    # A block size of 0 asks for remainders instead of blocks.
    bucketized = _bucketized(
        lengths, indices, torch.zeros(1, dtype=torch.int64), my_size, None, None, False, None, None
    )
    return (
        like(bucketized.lengths, lengths),
        like(bucketized.indices, indices),
        _moved(weights, bucketized),
        like(bucketized.positions, indices) if bucketize_pos else None,
    )


@operator("(Tensor lengths, Tensor bucketized_lengths, Tensor bucket_mapping) -> Tensor")
def populate_bucketized_permute(
    lengths: Tensor, bucketized_lengths: Tensor, bucket_mapping: Tensor
) -> Tensor:
    """The bucketized position of each lookup, from its rank and the lengths by (rank, bag)."""
    permute = layouts.bucketized_permute(
        ints(lengths), ints(bucketized_lengths), ints(bucket_mapping)
    )
    return like(permute, bucket_mapping)
