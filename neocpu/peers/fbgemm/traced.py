"""What shapes and gradients have the operators on pooled embeddings and products of jagged rows?

For torch.compile, and where fbgemm_gpu is not installed: as in `fakes.py` and `gradients.py`.
Operators that only combine others are compositions of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neocpu.peers.fbgemm.fakes import dynamic_size, fake

PERMUTATIONS = tuple(
    f"permute_{duplicate}pooled_embs{gradient}{split}"
    for duplicate in ("", "duplicate_")
    for gradient in ("", "_auto_grad")
    for split in ("", "_split")
)
ops = torch.ops.fbgemm
Formula = tuple[Callable[..., Any], Callable[..., Any]]


@fake(*PERMUTATIONS)
def _permuted(pooled: Tensor, *lists: Tensor) -> Tensor:
    return pooled.new_empty((pooled.shape[0], dynamic_size()))


@fake("permute_multi_embedding", "permute_multi_embedding_function")
def _multi(
    pooled: Sequence[Tensor], permutes: Any, ins: Any, outs: Any, widths: Any, reverse: bool = False
) -> list[Tensor]:
    return [pooled[0].new_empty((pooled[0].shape[0], width)) for width in widths]


@fake("kt_regroup_arguments")
def _regrouping(
    embs: Tensor, keys: Any, lengths: Any, groups: Any
) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    columns = {name: width for k, w in zip(keys, lengths) for name, width in zip(k, w)}
    blocks = sum(len(names) for names in groups)

    def whole(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32)

    widths = [sum(columns[name] for name in names) for names in groups]
    return whole(blocks, 6), whole(len(keys)), whole(len(groups)), widths


@fake("batch_index_select_dim0")
def _batch_select(
    inputs: Tensor, indices: Tensor, counts: Any, rows: Any, columns: Any, *_: Any
) -> Tensor:
    total = sum(count * width for count, width in zip(counts, columns))
    return inputs.new_empty((total,))


@fake("batch_index_select_dim0_forward_cpu_impl")
def _batch_forward(
    inputs: Tensor, indices: Tensor, counts: Any, rows: Any, columns: Any, *_: Any
) -> list[Tensor]:
    groups = [indices.new_empty((len(counts),), dtype=torch.int64) for _ in range(4)]
    size = indices.new_empty((1,), dtype=torch.int64)
    return [_batch_select(inputs, indices, counts, rows, columns), *groups, size]


@fake("batch_index_select_dim0_backward_cpu_impl")
def _batch_backward(grad_output: Tensor, *_: Any) -> Tensor:
    return grad_output.new_empty((dynamic_size(),))


@fake("keyed_jagged_index_select_dim1")
def _keyed(
    values: Tensor,
    lengths: Tensor,
    offsets: Tensor,
    indices: Tensor,
    batch_size: Any,
    weights: Tensor | None = None,
    selected_lengths_sum: Any = None,
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
    width = (t.shape[-1] + 3) // 4 * 4 + 8
    return t.new_empty((*t.shape[:-1], width), dtype=torch.uint8)


@fake("FP8RowwiseQuantizedToFloat")
def _from_fp8(input: Tensor, forward: bool, output_dtype: int = 0) -> Tensor:
    dtype = {0: torch.float32, 1: torch.float16, 5: torch.bfloat16}[output_dtype]
    return input.new_empty((*input.shape[:-1], input.shape[-1] - 8), dtype=dtype)


# ---- gradients ----


def _elements(name: str, outputs: dict[int, int]) -> Formula:
    """Gradients of an operator that copies single elements.

    outputs : by place of an argument, the place of its copies among the results; -1: one result.
    The operator applied to the numbers 1, 2, 3, … says where each copy came from.
    """

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.inputs = inputs

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        grad_list = grads[0] if isinstance(grads[0], list) else grads
        # Trailing arguments that equal their defaults are not among the inputs.
        count_of_inputs = min(len(ctx.inputs), len(ctx.needs_input_grad))
        gradients: list[Any] = [None] * count_of_inputs
        for argument, place in outputs.items():
            if argument >= count_of_inputs or not ctx.needs_input_grad[argument]:
                continue
            values = ctx.inputs[argument]
            count = values.numel()
            arguments = list(ctx.inputs)
            numbers = torch.arange(1, count + 1, device=values.device)
            arguments[argument] = numbers.reshape(values.shape)
            result = getattr(ops, name)(*arguments)
            source = (result if place < 0 else result[place]).reshape(-1)
            grad = grad_list[max(place, 0)].reshape(-1)
            summed = grad.new_zeros(count + 1).index_add(0, source, grad)
            gradients[argument] = summed[1:].reshape(values.shape)
        return tuple(gradients)

    return backward, setup_context


def _saved(*places: int) -> Callable[..., None]:
    """A setup_context that keeps inputs as `ctx.inputs`, tensors at these places saved."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*(inputs[place] for place in places))
        ctx.longest = inputs[-1]
        ctx.output = output

    return setup_context


def _dense_bmm_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, offsets, y = ctx.saved_tensors
    of_x = ops.jagged_dense_bmm_forward(grad, offsets, y.transpose(1, 2), ctx.longest)
    return of_x, None, ops.jagged_jagged_bmm(x, grad, offsets, ctx.longest), None


def _jagged_bmm_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, y, offsets = ctx.saved_tensors
    of_x = ops.jagged_dense_bmm_forward(y, offsets, grad.transpose(1, 2), ctx.longest)
    return of_x, ops.jagged_dense_bmm_forward(x, offsets, grad, ctx.longest), None, None


def _vector_mul_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return *ops.batched_dense_vec_jagged_2d_mul_backward(grad, *ctx.saved_tensors), None


def _softmax_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, inputs[1])
    ctx.longest = inputs[2]


def _softmax_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    output, offsets = ctx.saved_tensors
    return ops.jagged_softmax_backward(grad, output, offsets, ctx.longest), None, None


def _multi_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.geometry = inputs[1:4]
    ctx.widths = [tensor.shape[1] for tensor in inputs[0]]


def _multi_gradient(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    permutes, in_shapes, out_shapes = ctx.geometry
    reverse = (permutes, out_shapes, in_shapes, ctx.widths, True)
    return ops.permute_multi_embedding_function(grads, *reverse), None, None, None, None


def formulas() -> dict[str, Formula]:
    """(backward, setup_context) of these operators, by name."""
    return {
        **{name: _elements(name, {0: -1}) for name in PERMUTATIONS},
        "batch_index_select_dim0": _elements("batch_index_select_dim0", {0: -1}),
        "keyed_jagged_index_select_dim1": _elements("keyed_jagged_index_select_dim1", {0: 0, 5: 2}),
        "permute_multi_embedding": (_multi_gradient, _multi_context),
        "jagged_dense_bmm_forward": (_dense_bmm_gradient, _saved(0, 1, 2)),
        "jagged_jagged_bmm": (_jagged_bmm_gradient, _saved(0, 1, 2)),
        "jagged_jagged_bmm_forward": (_jagged_bmm_gradient, _saved(0, 1, 2)),
        "batched_dense_vec_jagged_2d_mul": (_vector_mul_gradient, _saved(0, 1, 2)),
        "batched_dense_vec_jagged_2d_mul_forward": (_vector_mul_gradient, _saved(0, 1, 2)),
        "jagged_softmax_forward": (_softmax_gradient, _softmax_context),
    }


# ---- compositions ----


def _regrouped(pooled: Sequence[Tensor], keys: Any, lengths: Any, groups: Any) -> list[Tensor]:
    columns: dict[str, Tensor] = {}
    for tensor, names, widths in zip(pooled, keys, lengths):
        for name, part in zip(names, torch.split(tensor, list(widths), dim=1)):
            columns.setdefault(name, part)
    return [torch.cat([columns[name] for name in names], dim=1) for names in groups]


def _beside(x: Tensor, offsets: Sequence[Tensor], y: Tensor) -> Tensor:
    """The dense rows that stand beside jagged ones; 0 where there is none."""
    rows: Tensor = ops.dense_to_jagged_forward(y, offsets, x.shape[0])
    return rows


def _two_added(x: Tensor, offsets: Sequence[Tensor], y_0: Tensor, y_1: Tensor) -> Tensor:
    return x + _beside(x, offsets, y_0) + _beside(x, offsets, y_1)


def _multiplied(x: Tensor, offsets: Sequence[Tensor], y: Tensor) -> Tensor:
    return x * _beside(x, offsets, y)


def _multiplied_backward(
    grad: Tensor, offsets: Sequence[Tensor], y: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    longest = list(y.shape[1:-1])
    of_dense = ops.jagged_to_padded_dense_forward(grad * x, offsets, longest, 0.0)
    return _multiplied(grad, offsets, y), of_dense


COMPOSITES: dict[str, Callable[..., Any]] = {
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
        x + _beside(x, offsets, y),
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
