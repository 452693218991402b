"""What shapes and dtypes do the operators return? Fake implementations, for torch.compile.

A fake gets tensors without numbers and returns empty ones. Where a size depends on numbers (the
sum of lengths), torch makes a symbol for it. `fake` registers one for an operator of `OPERATORS`.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from neocpu.peers.fbgemm.operators.moves import result_dtype

Fake = Callable[..., object]
F = TypeVar("F", bound=Fake)
# A size; while torch.compile traces, maybe a symbol of one.
Size: TypeAlias = int | torch.SymInt
# Fake implementations by the operator's name.
FAKES: dict[str, Fake] = {}


def fake(*names: str) -> Callable[[F], F]:
    """Register a function as the fake implementation of operators."""

    def register(function: F) -> F:
        FAKES.update(dict.fromkeys(names, function))
        return function

    return register


def dynamic_size() -> Size:
    """A size that only numbers tell."""
    size: Size = torch.library.get_ctx().new_dynamic_size()
    return size


# ---- running sums and ranges ----


@fake("asynchronous_complete_cumsum", "asynchronous_batched_complete_cumsum")
def _complete(t_in: Tensor) -> Tensor:
    return t_in.new_empty((*t_in.shape[:-1], t_in.shape[-1] + 1))


@fake("asynchronous_inclusive_cumsum", "asynchronous_exclusive_cumsum", "invert_permute")
def _same(t_in: Tensor) -> Tensor:
    return t_in.new_empty(t_in.shape)


@fake("offsets_range")
def _offsets_range(offsets: Tensor, range_size: Size) -> Tensor:
    return offsets.new_empty((range_size,))


@fake("lengths_range")
def _lengths_range(t_in: Tensor, shape: Size | None = None) -> Tensor:
    return t_in.new_empty((dynamic_size(),))


@fake("repeat_arange")
def _repeat_arange(lengths: Tensor) -> Tensor:
    return lengths.new_empty((dynamic_size(),))


@fake("expand_into_jagged_permute")
def _expand(permute: Tensor, input_offset: Tensor, output_offset: Tensor, size: Size) -> Tensor:
    return permute.new_empty((size,))


# ---- permutations and selections ----

Permuted = tuple[Tensor, Tensor, Tensor | None]


def _permuted(
    lengths: Tensor, values: Tensor, weights: Tensor | None, lookups: Size | None
) -> Permuted:
    count = dynamic_size() if lookups is None else lookups
    return (
        lengths,
        values.new_empty((count, *values.shape[1:])),
        None if weights is None else weights.new_empty((count, *weights.shape[1:])),
    )


@fake("permute_1D_sparse_data")
def _permute_1d(
    permute: Tensor,
    lengths: Tensor,
    values: Tensor,
    weights: Tensor | None = None,
    permuted_lengths_sum: Size | None = None,
) -> Permuted:
    return _permuted(lengths.new_empty((permute.numel(),)), values, weights, permuted_lengths_sum)


@fake("permute_2D_sparse_data", "permute_sparse_data", "permute_sparse_features")
def _permute_2d(
    permute: Tensor,
    lengths: Tensor,
    values: Tensor,
    weights: Tensor | None = None,
    permuted_lengths_sum: Size | None = None,
) -> Permuted:
    shape = (permute.numel(), lengths.shape[1])
    return _permuted(lengths.new_empty(shape), values, weights, permuted_lengths_sum)


@fake("permute_2D_sparse_data_input1D")
def _permute_2d_flat(
    permute: Tensor,
    lengths: Tensor,
    values: Tensor,
    stride: Size,
    weights: Tensor | None = None,
    permuted_lengths_sum: Size | None = None,
) -> Permuted:
    shape = (permute.numel() * stride,)
    return _permuted(lengths.new_empty(shape), values, weights, permuted_lengths_sum)


@fake("permute_sequence_embeddings")
def _permute_sequences(
    permute: Tensor, lengths: Tensor, embeddings: Tensor
) -> tuple[Tensor, Tensor]:
    return _permute_2d(permute, lengths, embeddings)[:2]


@fake("index_select_dim0")
def _index_select(input: Tensor, indices: Tensor, *hints: object, **named_hints: object) -> Tensor:
    return input.new_empty((indices.numel(), *input.shape[1:]))


@fake("segment_sum_csr")
def _segment_sum(batch_size: Size, csr_seg: Tensor, values: Tensor) -> Tensor:
    return values.new_empty((csr_seg.numel() - 1,))


# ---- bucketize ----


@fake("block_bucketize_sparse_features_inference")
def _bucketize_inference(
    lengths: Tensor,
    indices: Tensor,
    bucketize_pos: bool,
    sequence: bool,
    block_sizes: Tensor,
    my_size: Size,
    weights: Tensor | None = None,
    batch_size_per_feature: Tensor | None = None,
    max_B: Size = -1,
    block_bucketize_pos: Sequence[Tensor] | None = None,
    return_bucket_mapping: bool = False,
    *options: object,
    **named_options: object,
) -> tuple[Tensor | None, ...]:
    lookups = (indices.numel(),)
    return (
        lengths.new_empty((lengths.numel() * my_size,)),
        indices.new_empty(lookups),
        None if weights is None else weights.new_empty(weights.shape),
        indices.new_empty(lookups) if bucketize_pos else None,
        indices.new_empty(lookups) if sequence else None,
        indices.new_empty(lookups) if return_bucket_mapping else None,
    )


@fake("block_bucketize_sparse_features")
def _bucketize(
    lengths: Tensor,
    indices: Tensor,
    bucketize_pos: bool,
    sequence: bool,
    block_sizes: Tensor,
    my_size: Size,
    weights: Tensor | None = None,
    *options: object,
    **named_options: object,
) -> tuple[Tensor | None, ...]:
    return _bucketize_inference(
        lengths, indices, bucketize_pos, sequence, block_sizes, my_size, weights
    )[:5]


@fake("block_bucketize_sparse_features_2d_weights")
def _bucketize_2d(
    lengths: Tensor,
    indices: Tensor,
    bucketize_pos: bool,
    sequence: bool,
    block_sizes: Tensor,
    my_size: Size,
    weights: Tensor,
    weights_dim: Size = 1,
    *options: object,
    **named_options: object,
) -> tuple[Tensor | None, ...]:
    matrix = weights.reshape(-1, weights_dim)
    return _bucketize(lengths, indices, bucketize_pos, sequence, block_sizes, my_size, matrix)


@fake("bucketize_sparse_features")
def _bucketize_by_remainder(
    lengths: Tensor,
    indices: Tensor,
    bucketize_pos: bool,
    my_size: Size,
    weights: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    return _bucketize(lengths, indices, bucketize_pos, False, lengths, my_size, weights)[:4]


@fake("populate_bucketized_permute")
def _bucketized_permute(
    lengths: Tensor, bucketized_lengths: Tensor, bucket_mapping: Tensor
) -> Tensor:
    return bucket_mapping.new_empty((bucket_mapping.numel(),))


# ---- reorder ----


@fake("reorder_batched_ad_lengths")
def _reorder_lengths(
    cat_ad_lengths: Tensor,
    batch_offsets: Tensor,
    num_ads_in_batch: Size,
    broadcast_lengths: bool = False,
    max_batch_size: Size = 0,
) -> Tensor:
    # A batch that is broadcast has one bag per table, which all of its samples share.
    samples = batch_offsets.numel() - 1 if broadcast_lengths else num_ads_in_batch
    tables = cat_ad_lengths.numel() // samples
    bags = max_batch_size if max_batch_size > 0 else num_ads_in_batch
    return cat_ad_lengths.new_empty((tables * bags,))


@fake("reorder_batched_ad_indices")
def _reorder_indices(
    cat_ad_offsets: Tensor,
    cat_ad_indices: Tensor,
    reordered_cat_ad_offsets: Tensor,
    batch_offsets: Tensor,
    num_ads_in_batch: Size,
    broadcast_indices: bool = False,
    num_indices_after_broadcast: Size = -1,
) -> Tensor:
    count = num_indices_after_broadcast if broadcast_indices else cat_ad_indices.shape[0]
    return cat_ad_indices.new_empty((count, *cat_ad_indices.shape[1:]))


@fake("cat_reorder_batched_ad_indices")
def _reorder_list(
    cat_ad_offsets: Tensor,
    cat_ad_indices: Sequence[Tensor],
    reordered_cat_ad_offsets: Tensor,
    batch_offsets: Tensor,
    num_ads_in_batch: Size,
    broadcast_indices: bool,
    total_num_indices: Size,
    pinned_memory: bool = False,
    max_batch_size: Size = 0,
) -> Tensor:
    return cat_ad_indices[0].new_empty((total_num_indices,))


@fake("reorder_batched_sequence_embeddings")
def _reorder_sequences(cat_offsets: Tensor, cat_embeddings: Tensor, *layout: object) -> Tensor:
    return cat_embeddings.new_empty(cat_embeddings.shape)


# ---- jagged ----


@fake("jagged_to_padded_dense", "jagged_to_padded_dense_forward")
def _padded(
    values: Tensor,
    offsets: Sequence[Tensor],
    max_lengths: Sequence[Size],
    padding_value: float = 0.0,
) -> Tensor:
    return values.new_empty((offsets[0].numel() - 1, *max_lengths, *values.shape[1:]))


@fake("jagged_to_padded_dense_backward")
def _padded_backward(grad_output: Tensor, offsets: Sequence[Tensor], total_L: Size) -> Tensor:
    return grad_output.new_empty((total_L, *grad_output.shape[1 + len(offsets) :]))


@fake("dense_to_jagged_forward")
def _jagged(dense: Tensor, x_offsets: Sequence[Tensor], total_L: Size | None = None) -> Tensor:
    count = dynamic_size() if total_L is None else total_L
    return dense.new_empty((count, dense.shape[-1]))


@fake("jagged_2d_to_dense", "jagged_1d_to_dense")
def _padded_once(values: Tensor, offsets: Tensor, longest: Size, padding: int = 0) -> Tensor:
    return values.new_empty((offsets.numel() - 1, longest, *values.shape[1:]))


@fake("jagged_1d_to_truncated_values")
def _truncated(values: Tensor, lengths: Tensor, max_truncated_length: int) -> Tensor:
    return values.new_empty((dynamic_size(), *values.shape[1:]))


@fake("jagged_index_select")
def _jagged_select(
    values: Tensor, lengths: Tensor, indices: Tensor, num_dense_output_rows: Size | None = None
) -> list[Tensor]:
    count = dynamic_size() if num_dense_output_rows is None else num_dense_output_rows
    return [values.new_empty((count, *values.shape[1:])), lengths.new_empty((indices.numel(),))]


@fake("jagged_dense_elementwise_add")
def _jagged_add(x_values: Tensor, x_offsets: Sequence[Tensor], y: Tensor) -> Tensor:
    return y.new_empty(y.shape, dtype=torch.result_type(x_values, y))


# ---- row formats ----


@fake(
    "FloatToFused8BitRowwiseQuantized",
    "HalfToFused8BitRowwiseQuantized",
    "FloatOrHalfToFused8BitRowwiseQuantized",
)
def _to_int8(t: Tensor) -> Tensor:
    return t.new_empty((*t.shape[:-1], t.shape[-1] + 8), dtype=torch.uint8)


def _from_int8(dtype: torch.dtype) -> Fake:
    def read(input: Tensor) -> Tensor:
        return input.new_empty((*input.shape[:-1], input.shape[-1] - 8), dtype=dtype)

    return read


fake("Fused8BitRowwiseQuantizedToFloat")(_from_int8(torch.float32))
fake("Fused8BitRowwiseQuantizedToHalf")(_from_int8(torch.float16))
fake("Fused8BitRowwiseQuantizedToBfloat16")(_from_int8(torch.bfloat16))


@fake("Fused8BitRowwiseQuantizedToFloatOrHalf")
def _from_headed_int8(
    input: Tensor,
    output_dtype: int = 0,
    scale_bias_last: bool = True,
    quant_padding_float_type: bool = True,
) -> Tensor:
    columns = input.shape[-1] - (8 if quant_padding_float_type else 4)
    return input.new_empty((*input.shape[:-1], columns), dtype=result_dtype(output_dtype))


@fake(
    "FloatToFusedNBitRowwiseQuantizedSBHalf",
    "HalfToFusedNBitRowwiseQuantizedSBHalf",
    "FloatOrHalfToFusedNBitRowwiseQuantizedSBHalf",
)
def _to_nbit(input: Tensor, bit_rate: int) -> Tensor:
    size = (input.shape[-1] * bit_rate + 7) // 8 + 4
    return input.new_empty((*input.shape[:-1], size), dtype=torch.uint8)


@fake("FusedNBitRowwiseQuantizedSBHalfToFloatOrHalf", "FusedNBitRowwiseQuantizedSBHalfToFloat")
def _from_nbit(
    input: Tensor, bit_rate: int, output_dtype: int = 0, scale_bias_last: bool = True
) -> Tensor:
    columns = (input.shape[-1] - 4) * 8 // bit_rate
    return input.new_empty((*input.shape[:-1], columns), dtype=result_dtype(output_dtype))


@fake("FusedNBitRowwiseQuantizedSBHalfToHalf")
def _from_nbit_half(input: Tensor, bit_rate: int) -> Tensor:
    return _from_nbit(input, bit_rate, 1)


def _converted(dtype: torch.dtype) -> Fake:
    def convert(input: Tensor, *options: object) -> Tensor:
        return input.new_empty(input.shape, dtype=dtype)

    return convert


fake("FloatToBfloat16Quantized")(_converted(torch.bfloat16))
fake("Bfloat16QuantizedToFloat", "HFP8QuantizedToFloat")(_converted(torch.float32))
fake("FloatToHFP8Quantized")(_converted(torch.uint8))


@fake("bounds_check_indices")
def _bounds_check(*arguments: object, **named_arguments: object) -> None:
    return None
