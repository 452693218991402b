"""What gradients have the operators on pooled embeddings and products of jagged rows?

For torch.compile, and where fbgemm_gpu is not installed: as in `gradients.py`.
Operators that only combine others are compositions of them.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from neocpu.peers.fbgemm.context import Context, Gradients, Inputs, Tensors
from neocpu.peers.fbgemm.operators.gradients import Formula

ops = torch.ops.fbgemm
Names = Sequence[Sequence[str]]
Widths = Sequence[Sequence[int]]


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


def _regrouped(pooled: Tensors, keys: Names, lengths: Widths, groups: Names) -> list[Tensor]:
    columns: dict[str, Tensor] = {}
    for tensor, names, widths in zip(pooled, keys, lengths):
        for name, part in zip(names, torch.split(tensor, list(widths), dim=1)):
            # Of a key that several tensors have the first one counts, as in `pooled.py`.
            columns.setdefault(name, part)
    return [torch.cat([columns[name] for name in names], dim=1) for names in groups]


def _dense_rows(x: Tensor, offsets: Tensors, y: Tensor) -> Tensor:
    """The dense row at the place of each jagged row; 0 where there is none."""
    return ops.dense_to_jagged_forward(y, offsets, x.shape[0])


def _two_added(x: Tensor, offsets: Tensors, y_0: Tensor, y_1: Tensor) -> Tensor:
    return x + _dense_rows(x, offsets, y_0) + _dense_rows(x, offsets, y_1)


def _multiplied(x: Tensor, offsets: Tensors, y: Tensor) -> Tensor:
    return x * _dense_rows(x, offsets, y)


def _multiplied_backward(
    grad: Tensor, offsets: Tensors, y: Tensor, x: Tensor
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
