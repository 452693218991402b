"""How do gradients flow through the operators? By formulas that torch.compile can trace.

An operator that moves rows, or single elements, is applied to their numbers 1, 2, 3, …; the result
says where each row of it came from (0: from none, it is padding). Gradients are added up there, so
such an operator needs no backward of its own. `MOVES` names the arguments that are moved.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from neocpu.peers.fbgemm.context import Context, Gradients, Inputs
from neocpu.peers.fbgemm.operators.pooled import PERMUTATIONS

# (backward, setup_context) of an operator.
Formula: TypeAlias = tuple[Callable[..., Gradients], Callable[..., None]]


class RowMove(NamedTuple):
    """An argument whose rows an operator moves.

    argument : its place among the operator's arguments.
    output : the place of the moved rows among the results; -1: the operator has one result.
    options : (place, value) of arguments that are changed when row numbers are moved.
    axes : how many leading axes of the argument number what is moved: 1: rows; -1: vectors along
        the last axis; None: single elements.
    """

    argument: int
    output: int
    options: tuple[tuple[int, float | None], ...] = ()
    axes: int | None = 1


_PERMUTED = (RowMove(2, 1, ((3, None),)), RowMove(3, 2))
_BUCKETIZED = (RowMove(6, 2),)
# Arguments that each operator moves.
MOVES: dict[str, tuple[RowMove, ...]] = {
    "permute_1D_sparse_data": _PERMUTED,
    "permute_2D_sparse_data": _PERMUTED,
    "permute_sparse_data": _PERMUTED,
    "permute_sparse_features": _PERMUTED,
    "permute_2D_sparse_data_input1D": (RowMove(2, 1, ((4, None),)), RowMove(4, 2)),
    "permute_sequence_embeddings": (RowMove(2, 1),),
    "index_select_dim0": (RowMove(0, -1),),
    "block_bucketize_sparse_features": _BUCKETIZED,
    "block_bucketize_sparse_features_inference": _BUCKETIZED,
    "block_bucketize_sparse_features_2d_weights": (RowMove(6, 2, ((7, 1),)),),
    "bucketize_sparse_features": (RowMove(4, 2),),
    "reorder_batched_ad_indices": (RowMove(1, -1),),
    "reorder_batched_sequence_embeddings": (RowMove(1, -1),),
    "jagged_to_padded_dense": (RowMove(0, -1, ((3, 0.0),)),),
    "jagged_to_padded_dense_forward": (RowMove(0, -1, ((3, 0.0),)),),
    "dense_to_jagged_forward": (RowMove(0, -1, axes=-1),),
    "jagged_2d_to_dense": (RowMove(0, -1),),
    "jagged_1d_to_dense": (RowMove(0, -1, ((3, 0),)),),
    "jagged_1d_to_truncated_values": (RowMove(0, -1),),
    "jagged_index_select": (RowMove(0, 0),),
    **dict.fromkeys(PERMUTATIONS, (RowMove(0, -1, axes=None),)),
    "batch_index_select_dim0": (RowMove(0, -1, axes=None),),
    "keyed_jagged_index_select_dim1": (RowMove(0, 0, axes=None), RowMove(5, 2, axes=None)),
}


def _source_rows(
    operator: Callable[..., Tensor], inputs: Inputs, move: RowMove, count: int
) -> Tensor:
    """For each moved row of the result, 1 + the row that it came from; 0: none. Flat, int64."""
    values = inputs[move.argument]
    # From 1, as operators pad with 0.
    numbers = torch.arange(1, count + 1, device=values.device)
    shape = (*values.shape[:-1], 1) if move.axes == -1 else values.shape[: move.axes]
    arguments = list(inputs)
    arguments[move.argument] = numbers.reshape(shape)
    # Weights need not move along, and padding must be 0: it comes from no row.
    for place, option in move.options:
        arguments[place] = option
    result = operator(*arguments)
    moved: Tensor = result if move.output < 0 else result[move.output]
    return moved.reshape(-1)


def _gradient(
    operator: Callable[..., Tensor], inputs: Inputs, move: RowMove, grad: Tensor
) -> Tensor:
    """The gradient of a moved argument: of each row, the sum of its copies' gradients."""
    values = inputs[move.argument]
    axes = values.shape[: move.axes]
    row_shape = values.shape[len(axes) :]
    count = axes.numel()
    source = _source_rows(operator, inputs, move, count)
    rows = grad.reshape(source.shape[0], *row_shape)
    # Row 0 gathers the gradients of padding, which nobody wants.
    summed = grad.new_zeros(count + 1, *row_shape).index_add(0, source, rows)
    return summed[1:].reshape(values.shape)


def _moving(name: str, moves: tuple[RowMove, ...]) -> Formula:
    """(backward, setup_context) of an operator that moves rows."""

    def setup_context(ctx: Context, inputs: Inputs, output: object) -> None:
        ctx.inputs = inputs

    def backward(ctx: Context, *grads: Tensor) -> Gradients:
        # Through the dispatcher, so that torch.compile sees an operator and no Python.
        operator = getattr(torch.ops.fbgemm, name)
        # An operator that returns a list gets the list of its gradients as one argument.
        grad_list = grads[0] if isinstance(grads[0], list) else grads
        # Trailing arguments that equal their defaults are not among the inputs.
        needed = ctx.needs_input_grad
        gradients: list[Tensor | Sequence[None] | None] = [
            # torch wants a list for a list of tensors, even where none of them has a gradient.
            [None] * len(argument) if isinstance(flag, list) else None
            for flag, argument in zip(needed, ctx.inputs)
        ]
        for move in moves:
            grad = grad_list[max(move.output, 0)]
            if move.argument < len(needed) and needed[move.argument] and grad is not None:
                gradients[move.argument] = _gradient(operator, ctx.inputs, move, grad)
        return tuple(gradients)

    return backward, setup_context


def _add_context(ctx: Context, inputs: Inputs, output: object) -> None:
    x_values, x_offsets, _ = inputs
    ctx.offsets = x_offsets
    ctx.count = x_values.shape[0]


def _add_backward(ctx: Context, grad: Tensor) -> Gradients:
    values_gradient = None
    if ctx.needs_input_grad[0]:
        backward = torch.ops.fbgemm.jagged_to_padded_dense_backward
        values_gradient = backward(grad, ctx.offsets, ctx.count)
    return values_gradient, [None] * len(ctx.offsets), grad


def _padding_context(ctx: Context, inputs: Inputs, output: object) -> None:
    grad_output, offsets, _ = inputs
    ctx.offsets = offsets
    ctx.longest = grad_output.shape[1 : 1 + len(offsets)]


def _padding_backward(ctx: Context, grad: Tensor) -> Gradients:
    padded = torch.ops.fbgemm.jagged_to_padded_dense_forward(grad, ctx.offsets, ctx.longest, 0.0)
    return padded, [None] * len(ctx.offsets), None


def formulas() -> dict[str, Formula]:
    """(backward, setup_context) of every operator with a gradient, by name."""
    moving = {name: _moving(name, moves) for name, moves in MOVES.items()}
    return {
        **moving,
        "jagged_dense_elementwise_add": (_add_backward, _add_context),
        "jagged_to_padded_dense_backward": (_padding_backward, _padding_context),
    }
