"""What shapes and dtypes do the operators return? Fake implementations, for torch.compile.

A fake gets tensors without numbers and returns empty ones. Where a size depends on numbers (the
sum of lengths), torch makes a symbol for it. `fake` registers one for operators of `OPERATORS`: a
function of their arguments, which have the names and defaults of the operator.
"""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from neocpu.peers.fbgemm.operators.moves import result_dtype
from neocpu.peers.fbgemm.operators.pooled import PERMUTATIONS
from neocpu.peers.fbgemm.operators.quantize import HEADER, row_bytes
from neocpu.peers.fbgemm.operators.registry import OPERATORS

Args: TypeAlias = SimpleNamespace
Fake: TypeAlias = Callable[[Args], object]
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


def implementation(name: str) -> Callable[..., object]:
    """The fake of an operator, called as the operator is."""
    signature = inspect.signature(OPERATORS[name].function)

    def fake_of(*args: object, **kwargs: object) -> object:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return FAKES[name](Args(**bound.arguments))

    return fake_of


def dynamic_size() -> Size:
    """A size that only numbers tell."""
    return torch.library.get_ctx().new_dynamic_size()


def _told(size: Size | None) -> Size:
    """A size that the caller may have told."""
    return dynamic_size() if size is None else size


def _with_rows(rows: Tensor, *axes: Size) -> Tensor:
    """Rows as those of a tensor, numbered by these axes."""
    return rows.new_empty((*axes, *rows.shape[1:]))


# ---- running sums and ranges ----


def _complete(lengths: Tensor) -> Tensor:
    return lengths.new_empty((*lengths.shape[:-1], lengths.shape[-1] + 1))


fake("asynchronous_complete_cumsum")(lambda args: _complete(args.t_in))
fake("asynchronous_batched_complete_cumsum")(lambda args: _complete(args.values))
fake("asynchronous_inclusive_cumsum", "asynchronous_exclusive_cumsum")(
    lambda args: args.t_in.new_empty(args.t_in.shape)
)
fake("invert_permute")(lambda args: args.permute.new_empty(args.permute.shape))
fake("offsets_range")(lambda args: args.offsets.new_empty((args.range_size,)))
fake("lengths_range")(lambda args: args.t_in.new_empty((dynamic_size(),)))
fake("repeat_arange")(lambda args: args.lengths.new_empty((dynamic_size(),)))
fake("expand_into_jagged_permute")(lambda args: args.permute.new_empty((args.output_size,)))


# ---- permutations and selections ----

Permuted = tuple[Tensor, Tensor, Tensor | None]


def _permuted(
    lengths: Tensor, values: Tensor, weights: Tensor | None, lookups: Size | None
) -> Permuted:
    count = _told(lookups)
    return (
        lengths,
        _with_rows(values, count),
        None if weights is None else _with_rows(weights, count),
    )


@fake("permute_1D_sparse_data")
def _permute_1d(args: Args) -> Permuted:
    lengths = args.lengths.new_empty((args.permute.numel(),))
    return _permuted(lengths, args.values, args.weights, args.permuted_lengths_sum)


def _by_sample(args: Args) -> Tensor:
    return args.lengths.new_empty((args.permute.numel(), args.lengths.shape[1]))


@fake("permute_2D_sparse_data", "permute_sparse_data")
def _permute_2d(args: Args) -> Permuted:
    return _permuted(_by_sample(args), args.values, args.weights, args.permuted_lengths_sum)


@fake("permute_sparse_features")
def _permute_features(args: Args) -> Permuted:
    return _permuted(_by_sample(args), args.indices, args.weights, None)


@fake("permute_2D_sparse_data_input1D")
def _permute_2d_flat(args: Args) -> Permuted:
    lengths = args.lengths.new_empty((args.permute.numel() * args.stride,))
    return _permuted(lengths, args.values, args.weights, args.permuted_lengths_sum)


@fake("permute_sequence_embeddings")
def _permute_sequences(args: Args) -> tuple[Tensor, Tensor]:
    return _permuted(_by_sample(args), args.embeddings, None, None)[:2]


fake("index_select_dim0")(lambda args: _with_rows(args.input, args.indices.numel()))
fake("segment_sum_csr")(lambda args: args.values.new_empty((args.csr_seg.numel() - 1,)))


# ---- bucketize ----


def _bucketized(
    args: Args, weights: Tensor | None, sequence: bool = False, mapping: bool = False
) -> tuple[Tensor | None, ...]:
    lookups = (args.indices.numel(),)
    return (
        args.lengths.new_empty((args.lengths.numel() * args.my_size,)),
        args.indices.new_empty(lookups),
        None if weights is None else weights.new_empty(weights.shape),
        args.indices.new_empty(lookups) if args.bucketize_pos else None,
        args.indices.new_empty(lookups) if sequence else None,
        args.indices.new_empty(lookups) if mapping else None,
    )


@fake("block_bucketize_sparse_features_inference")
def _bucketize_inference(args: Args) -> tuple[Tensor | None, ...]:
    return _bucketized(args, args.weights, args.sequence, args.return_bucket_mapping)


@fake("block_bucketize_sparse_features")
def _bucketize(args: Args) -> tuple[Tensor | None, ...]:
    return _bucketized(args, args.weights, args.sequence)[:5]


@fake("block_bucketize_sparse_features_2d_weights")
def _bucketize_2d(args: Args) -> tuple[Tensor | None, ...]:
    return _bucketized(args, args.weights.reshape(-1, args.weights_dim), args.sequence)[:5]


fake("bucketize_sparse_features")(lambda args: _bucketized(args, args.weights)[:4])


@fake("populate_bucketized_permute")
def _bucketized_permute(args: Args) -> Tensor:
    return args.bucket_mapping.new_empty((args.bucket_mapping.numel(),))


# ---- reorder ----


@fake("reorder_batched_ad_lengths")
def _reorder_lengths(args: Args) -> Tensor:
    # A batch that is broadcast has one bag per table, which all of its samples share.
    batches = args.batch_offsets.numel() - 1
    samples = batches if args.broadcast_lengths else args.num_ads_in_batch
    tables = args.cat_ad_lengths.numel() // samples
    bags = args.max_batch_size if args.max_batch_size > 0 else args.num_ads_in_batch
    return args.cat_ad_lengths.new_empty((tables * bags,))


@fake("reorder_batched_ad_indices")
def _reorder_indices(args: Args) -> Tensor:
    indices = args.cat_ad_indices
    count = args.num_indices_after_broadcast if args.broadcast_indices else indices.shape[0]
    return _with_rows(indices, count)


@fake("cat_reorder_batched_ad_indices")
def _reorder_list(args: Args) -> Tensor:
    return args.cat_ad_indices[0].new_empty((args.total_num_indices,))


@fake("reorder_batched_sequence_embeddings")
def _reorder_sequences(args: Args) -> Tensor:
    return args.cat_sequence_embeddings.new_empty(args.cat_sequence_embeddings.shape)


# ---- jagged ----


@fake("jagged_to_padded_dense", "jagged_to_padded_dense_forward")
def _padded(args: Args) -> Tensor:
    return _with_rows(args.values, args.offsets[0].numel() - 1, *args.max_lengths)


@fake("jagged_to_padded_dense_backward")
def _padded_backward(args: Args) -> Tensor:
    row_shape = args.grad_output.shape[1 + len(args.offsets) :]
    return args.grad_output.new_empty((args.total_L, *row_shape))


@fake("dense_to_jagged_forward")
def _jagged(args: Args) -> Tensor:
    return args.dense.new_empty((_told(args.total_L), args.dense.shape[-1]))


@fake("jagged_2d_to_dense", "jagged_1d_to_dense")
def _padded_once(args: Args) -> Tensor:
    return _with_rows(args.values, args.offsets.numel() - 1, args.max_sequence_length)


fake("jagged_1d_to_truncated_values")(lambda args: _with_rows(args.values, dynamic_size()))


@fake("jagged_index_select")
def _jagged_select(args: Args) -> list[Tensor]:
    values = _with_rows(args.values, _told(args.num_dense_output_rows))
    return [values, args.lengths.new_empty((args.indices.numel(),))]


@fake("jagged_dense_elementwise_add")
def _jagged_add(args: Args) -> Tensor:
    return args.y.new_empty(args.y.shape, dtype=torch.result_type(args.x_values, args.y))


@fake("jagged_dense_bmm_forward")
def _dense_bmm(args: Args) -> Tensor:
    return args.x_values.new_empty((args.x_values.shape[0], args.y.shape[2]))


@fake("jagged_jagged_bmm", "jagged_jagged_bmm_forward")
def _jagged_bmm(args: Args) -> Tensor:
    bags = args.x_offsets.shape[0] - 1
    return args.x_values.new_empty((bags, args.x_values.shape[1], args.y_values.shape[1]))


@fake("batched_dense_vec_jagged_2d_mul", "batched_dense_vec_jagged_2d_mul_forward")
def _vector_mul(args: Args) -> Tensor:
    heads = args.v.shape[0] // max(args.a_offsets.shape[0] - 1, 1)
    return args.a_values.new_empty((args.v.shape[0], args.a_values.shape[1] // max(heads, 1)))


@fake("batched_dense_vec_jagged_2d_mul_backward")
def _vector_mul_backward(args: Args) -> tuple[Tensor, Tensor]:
    return torch.empty_like(args.v), torch.empty_like(args.a_values)


fake("jagged_softmax_forward")(lambda args: args.values.new_empty(args.values.shape))
fake("jagged_softmax_backward")(lambda args: args.grad_output.new_empty(args.grad_output.shape))


# ---- pooled embeddings and selections ----


@fake(*PERMUTATIONS)
def _permuted_columns(args: Args) -> Tensor:
    return args.pooled_embs.new_empty((args.pooled_embs.shape[0], dynamic_size()))


@fake("permute_multi_embedding", "permute_multi_embedding_function")
def _multi(args: Args) -> list[Tensor]:
    first = args.pooled_embs[0]
    return [first.new_empty((first.shape[0], width)) for width in args.out_lengths]


@fake("kt_regroup_arguments")
def _regrouping(args: Args) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    columns = {
        name: width
        for names, widths in zip(args.keys, args.lengths)
        for name, width in zip(names, widths)
    }
    blocks = sum(len(names) for names in args.groups)

    def int32(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32)

    widths = [sum(columns[name] for name in names) for names in args.groups]
    return int32(blocks, 6), int32(len(args.keys)), int32(len(args.groups)), widths


@fake("batch_index_select_dim0")
def _batch_select(args: Args) -> Tensor:
    counts = zip(args.input_num_indices, args.input_columns)
    return args.inputs.new_empty((sum(count * width for count, width in counts),))


@fake("batch_index_select_dim0_forward_cpu_impl")
def _batch_forward(args: Args) -> list[Tensor]:
    inputs = len(args.input_num_indices)
    groups = [args.indices.new_empty((inputs,), dtype=torch.int64) for _ in range(4)]
    return [_batch_select(args), *groups, args.indices.new_empty((1,), dtype=torch.int64)]


@fake("batch_index_select_dim0_backward_cpu_impl")
def _batch_backward(args: Args) -> Tensor:
    return args.grad_output.new_empty((dynamic_size(),))


@fake("keyed_jagged_index_select_dim1")
def _keyed(args: Args) -> list[Tensor]:
    count = _told(args.selected_lengths_sum)
    bags = args.lengths.shape[0] // args.batch_size * args.indices.shape[0]
    outputs = [args.values.new_empty((count,)), args.lengths.new_empty((bags,))]
    return outputs if args.weights is None else [*outputs, args.weights.new_empty((count,))]


# ---- row formats ----


def _rows(rows: Tensor, columns: Size, dtype: torch.dtype) -> Tensor:
    """Rows of so many columns in the place of others."""
    return rows.new_empty((*rows.shape[:-1], columns), dtype=dtype)


@fake(
    "FloatToFused8BitRowwiseQuantized",
    "HalfToFused8BitRowwiseQuantized",
    "FloatOrHalfToFused8BitRowwiseQuantized",
)
def _to_int8(args: Args) -> Tensor:
    return _rows(args.t, args.t.shape[-1] + 8, torch.uint8)


def _from_int8(dtype: torch.dtype) -> Fake:
    return lambda args: _rows(args.input, args.input.shape[-1] - 8, dtype)


fake("Fused8BitRowwiseQuantizedToFloat")(_from_int8(torch.float32))
fake("Fused8BitRowwiseQuantizedToHalf")(_from_int8(torch.float16))
fake("Fused8BitRowwiseQuantizedToBfloat16")(_from_int8(torch.bfloat16))


@fake("Fused8BitRowwiseQuantizedToFloatOrHalf")
def _from_headed_int8(args: Args) -> Tensor:
    columns = args.input.shape[-1] - (8 if args.quant_padding_float_type else 4)
    return _rows(args.input, columns, result_dtype(args.output_dtype))


@fake(
    "FloatToFusedNBitRowwiseQuantizedSBHalf",
    "HalfToFusedNBitRowwiseQuantizedSBHalf",
    "FloatOrHalfToFusedNBitRowwiseQuantizedSBHalf",
)
def _to_nbit(args: Args) -> Tensor:
    return _rows(args.input, (args.input.shape[-1] * args.bit_rate + 7) // 8 + 4, torch.uint8)


def _from_nbit(args: Args, dtype: torch.dtype) -> Tensor:
    return _rows(args.input, (args.input.shape[-1] - 4) * 8 // args.bit_rate, dtype)


fake("FusedNBitRowwiseQuantizedSBHalfToFloatOrHalf")(
    lambda args: _from_nbit(args, result_dtype(args.output_dtype))
)
fake("FusedNBitRowwiseQuantizedSBHalfToFloat")(lambda args: _from_nbit(args, torch.float32))
fake("FusedNBitRowwiseQuantizedSBHalfToHalf")(lambda args: _from_nbit(args, torch.float16))


def _converted(dtype: torch.dtype) -> Fake:
    return lambda args: args.input.new_empty(args.input.shape, dtype=dtype)


fake("FloatToBfloat16Quantized")(_converted(torch.bfloat16))
fake("Bfloat16QuantizedToFloat", "HFP8QuantizedToFloat")(_converted(torch.float32))
fake("FloatToHFP8Quantized")(_converted(torch.uint8))


@fake("FloatToFP8RowwiseQuantized")
def _to_fp8(args: Args) -> Tensor:
    return _rows(args.t, row_bytes(args.t.shape[-1]), torch.uint8)


@fake("FP8RowwiseQuantizedToFloat")
def _from_fp8(args: Args) -> Tensor:
    return _rows(args.input, args.input.shape[-1] - HEADER, result_dtype(args.output_dtype))


fake("bounds_check_indices")(lambda args: None)
