"""What shapes and gradients have the operators on pooled embeddings and products of jagged rows?

For torch.compile, and where fbgemm_gpu is not installed: as in `fakes.py` and `gradients.py`.
Operators that only combine others are compositions of them.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from neocpu.peers.fbgemm.context import Context, Gradients, Inputs
from neocpu.peers.fbgemm.operators.fakes import Size, dynamic_size, fake
from neocpu.peers.fbgemm.operators.gradients import Formula
from neocpu.peers.fbgemm.operators.moves import result_dtype
from neocpu.peers.fbgemm.operators.pooled import PERMUTATIONS
from neocpu.peers.fbgemm.operators.quantize import HEADER, row_bytes

ops = torch.ops.fbgemm
Names = Sequence[Sequence[str]]
Widths = Sequence[Sequence[int]]
Sizes = Sequence[int]


@fake(*PERMUTATIONS)
def _permuted(pooled: Tensor, *lists: Tensor) -> Tensor:
    return pooled.new_empty((pooled.shape[0], dynamic_size()))


@fake("permute_multi_embedding", "permute_multi_embedding_function")
def _multi(
    pooled: Sequence[Tensor],
    permutes: Tensor,
    ins: Tensor,
    outs: Tensor,
    widths: Sequence[int],
    reverse: bool = False,
) -> list[Tensor]:
    return [pooled[0].new_empty((pooled[0].shape[0], width)) for width in widths]


@fake("kt_regroup_arguments")
def _regrouping(
    embs: Tensor, keys: Names, lengths: Widths, groups: Names
) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    columns = {
        name: width for names, widths in zip(keys, lengths) for name, width in zip(names, widths)
    }
    blocks = sum(len(names) for names in groups)

    def int32(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32)

    widths = [sum(columns[name] for name in names) for names in groups]
    return int32(blocks, 6), int32(len(keys)), int32(len(groups)), widths


@fake("batch_index_select_dim0")
def _batch_select(
    inputs: Tensor, indices: Tensor, counts: Sizes, rows: Sizes, columns: Sizes, *_: object
) -> Tensor:
    total = sum(count * width for count, width in zip(counts, columns))
    return inputs.new_empty((total,))


@fake("batch_index_select_dim0_forward_cpu_impl")
def _batch_forward(
    inputs: Tensor, indices: Tensor, counts: Sizes, rows: Sizes, columns: Sizes, *_: object
) -> list[Tensor]:
    groups = [indices.new_empty((len(counts),), dtype=torch.int64) for _ in range(4)]
    size = indices.new_empty((1,), dtype=torch.int64)
    return [_batch_select(inputs, indices, counts, rows, columns), *groups, size]


@fake("batch_index_select_dim0_backward_cpu_impl")
def _batch_backward(grad_output: Tensor, *_: object) -> Tensor:
    return grad_output.new_empty((dynamic_size(),))


@fake("keyed_jagged_index_select_dim1")
def _keyed(
    values: Tensor,
    lengths: Tensor,
    offsets: Tensor,
    indices: Tensor,
    batch_size: int,
    weights: Tensor | None = None,
    selected_lengths_sum: Size | None = None,
) -> list[Tensor]:
    count = dynamic_size() if selected_lengths_sum is None else selected_lengths_sum
    bags = lengths.shape[0] // batch_size * indices.shape[0]
    outputs = [values.new_empty((count,)), lengths.new_empty((bags,))]
    return outputs if weights is None else [*outputs, weights.new_empty((count,))]


@fake("jagged_dense_bmm_forward")
def _dense_bmm(x: Tensor, offsets: Tensor, y: Tensor, max_L: int) -> Tensor:
    return x.new_empty((x.shape[0], y.shape[2]))


@fake("jagged_jagged_bmm", "jagged_jagged_bmm_forward")
def _jagged_bmm(x: Tensor, y: Tensor, offsets: Tensor, max_L: int) -> Tensor:
    return x.new_empty((offsets.shape[0] - 1, x.shape[1], y.shape[1]))


@fake("batched_dense_vec_jagged_2d_mul", "batched_dense_vec_jagged_2d_mul_forward")
def _vector_mul(v: Tensor, values: Tensor, offsets: Tensor) -> Tensor:
    heads = v.shape[0] // max(offsets.shape[0] - 1, 1)
    return values.new_empty((v.shape[0], values.shape[1] // max(heads, 1)))


@fake("batched_dense_vec_jagged_2d_mul_backward")
def _vector_mul_backward(
    grad: Tensor, v: Tensor, values: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(v), torch.empty_like(values)


@fake("jagged_softmax_forward")
def _softmax(values: Tensor, offsets: Tensor, max_L: int) -> Tensor:
    return values.new_empty(values.shape)


@fake("jagged_softmax_backward")
def _softmax_backward(grad: Tensor, output: Tensor, offsets: Tensor, max_L: int) -> Tensor:
    return grad.new_empty(grad.shape)


@fake("FloatToFP8RowwiseQuantized")
def _to_fp8(t: Tensor, forward: bool) -> Tensor:
    return t.new_empty((*t.shape[:-1], row_bytes(t.shape[-1])), dtype=torch.uint8)


@fake("FP8RowwiseQuantizedToFloat")
def _from_fp8(input: Tensor, forward: bool, output_dtype: int = 0) -> Tensor:
    columns = input.shape[-1] - HEADER
    return input.new_empty((*input.shape[:-1], columns), dtype=result_dtype(output_dtype))


# ---- gradients ----


def _product_context(ctx: Context, inputs: Inputs, output: Tensor) -> None:
    """Save the three tensors of a product, and the longest bag where the operator has one."""
    ctx.save_for_backward(*inputs[:3])
    ctx.longest = inputs[3] if len(inputs) > 3 else None


def _dense_bmm_gradient(ctx: Context, grad: Tensor) -> Gradients:
    x, offsets, y = ctx.saved_tensors
    x_gradient = ops.jagged_dense_bmm_forward(grad, offsets, y.transpose(1, 2), ctx.longest)
    return x_gradient, None, ops.jagged_jagged_bmm(x, grad, offsets, ctx.longest), None


def _jagged_bmm_gradient(ctx: Context, grad: Tensor) -> Gradients:
    x, y, offsets = ctx.saved_tensors
    x_gradient = ops.jagged_dense_bmm_forward(y, offsets, grad.transpose(1, 2), ctx.longest)
    return x_gradient, ops.jagged_dense_bmm_forward(x, offsets, grad, ctx.longest), None, None


def _vector_mul_gradient(ctx: Context, grad: Tensor) -> Gradients:
    return *ops.batched_dense_vec_jagged_2d_mul_backward(grad, *ctx.saved_tensors), None


def _softmax_context(ctx: Context, inputs: Inputs, output: Tensor) -> None:
    ctx.save_for_backward(output, inputs[1])
    ctx.longest = inputs[2]


def _softmax_gradient(ctx: Context, grad: Tensor) -> Gradients:
    output, offsets = ctx.saved_tensors
    return ops.jagged_softmax_backward(grad, output, offsets, ctx.longest), None, None


def _multi_context(ctx: Context, inputs: Inputs, output: list[Tensor]) -> None:
    ctx.geometry = inputs[1:4]
    ctx.widths = [tensor.shape[1] for tensor in inputs[0]]


def _multi_gradient(ctx: Context, grads: list[Tensor]) -> Gradients:
    permutes, in_shapes, out_shapes = ctx.geometry
    # The same copies the other way round: outputs are inputs there.
    reverse = (permutes, out_shapes, in_shapes, ctx.widths, True)
    return ops.permute_multi_embedding_function(grads, *reverse), None, None, None, None


def formulas() -> dict[str, Formula]:
    """(backward, setup_context) of these operators, by name."""
    return {
        "permute_multi_embedding": (_multi_gradient, _multi_context),
        "jagged_dense_bmm_forward": (_dense_bmm_gradient, _product_context),
        "jagged_jagged_bmm": (_jagged_bmm_gradient, _product_context),
        "jagged_jagged_bmm_forward": (_jagged_bmm_gradient, _product_context),
        "batched_dense_vec_jagged_2d_mul": (_vector_mul_gradient, _product_context),
        "batched_dense_vec_jagged_2d_mul_forward": (_vector_mul_gradient, _product_context),
        "jagged_softmax_forward": (_softmax_gradient, _softmax_context),
    }


# ---- compositions ----


def _regrouped(
    pooled: Sequence[Tensor], keys: Names, lengths: Widths, groups: Names
) -> list[Tensor]:
    columns: dict[str, Tensor] = {}
    for tensor, names, widths in zip(pooled, keys, lengths):
        for name, part in zip(names, torch.split(tensor, list(widths), dim=1)):
            # Of a key that several tensors have the first one counts, as in `pooled.py`.
            columns.setdefault(name, part)
    return [torch.cat([columns[name] for name in names], dim=1) for names in groups]


def _dense_rows(x: Tensor, offsets: Sequence[Tensor], y: Tensor) -> Tensor:
    """The dense row at the place of each jagged row; 0 where there is none."""
    rows: Tensor = ops.dense_to_jagged_forward(y, offsets, x.shape[0])
    return rows


def _two_added(x: Tensor, offsets: Sequence[Tensor], y_0: Tensor, y_1: Tensor) -> Tensor:
    return x + _dense_rows(x, offsets, y_0) + _dense_rows(x, offsets, y_1)


def _multiplied(x: Tensor, offsets: Sequence[Tensor], y: Tensor) -> Tensor:
    return x * _dense_rows(x, offsets, y)


def _multiplied_backward(
    grad: Tensor, offsets: Sequence[Tensor], y: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    longest = list(y.shape[1:-1])
    dense_gradient = ops.jagged_to_padded_dense_forward(grad * x, offsets, longest, 0.0)
    return _multiplied(grad, offsets, y), dense_gradient


# torch traces these, and differentiates them, through the operators that they call.
COMPOSITES: dict[str, Callable[..., object]] = {
    "regroup_keyed_tensor": _regrouped,
    "group_index_select_dim0": lambda group, indices: [
        ops.index_select_dim0(values, rows) for values, rows in zip(group, indices)
    ],
    "jagged_dense_bmm": lambda x, offsets, y, max_L: (
        ops.jagged_dense_bmm_forward(x, offsets, y, max_L),
        offsets,
    ),
    "jagged_softmax": lambda values, offsets, max_L: (
        ops.jagged_softmax_forward(values, offsets, max_L),
        offsets,
    ),
    "jagged_dense_elementwise_add_jagged_output": lambda x, offsets, y: (
        x + _dense_rows(x, offsets, y),
        offsets,
    ),
    "jagged_dense_dense_elementwise_add_jagged_output": lambda x, offsets, y_0, y_1: (
        _two_added(x, offsets, y_0, y_1),
        offsets,
    ),
    "jagged_dense_dense_elementwise_add_jagged_output_forward": _two_added,
    "jagged_dense_elementwise_mul": lambda x, offsets, y: (_multiplied(x, offsets, y), offsets),
    "jagged_dense_elementwise_mul_forward": _multiplied,
    "jagged_dense_elementwise_mul_backward": _multiplied_backward,
}
