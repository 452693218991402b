"""How do gradients of copies and products add up here? Exactly, by the kernels of lookups.

fp32, fp16 and bf16 sums are exact and rounded once to fp32, then to the dtype of the values; fp64
sums are torch's.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from neocpu.core.types import Floats, Ints
from neocpu.peers.fbgemm.context import Context
from neocpu.peers.fbgemm.operators.moves import words
from neocpu.tables.embedding import layouts
from neocpu.tables.embedding.row_sums import SumsOfRows, by_target, summed

# Of two tensors: a function of them, and their gradients from that of its result.
PairValue: TypeAlias = Callable[[Tensor, Tensor], Tensor]
PairGradients: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]


def numbers(tensor: Tensor) -> Floats:
    """A tensor as an fp32 array."""
    return tensor.detach().to(torch.float32).contiguous().numpy()


def sums(description: SumsOfRows, dtype: torch.dtype) -> Tensor:
    """Sums of rows [S, W] in a dtype."""
    from neocpu.kernels.rows import lookup

    return torch.from_numpy(summed(description, lookup)).to(dtype)


def scattered(gradient: Tensor, source: Ints, count: int) -> Tensor:
    """Gradients [count] of elements, from those of the places source i64[n] that hold them."""
    flat = gradient.reshape(-1)
    # The kernels of exact sums round to fp32, which would lose half of the digits.
    if gradient.dtype == torch.float64:
        places = np.flatnonzero(source >= 0)
        elements = torch.from_numpy(source[places])
        return flat.new_zeros(count).index_add(0, elements, flat[torch.from_numpy(places)])
    description = by_target(numbers(flat).reshape(-1, 1), source, count)
    return sums(description, gradient.dtype).reshape(-1)


class _Copied(torch.autograd.Function):
    """Elements by number; the gradient of an element copied several times is the exact sum."""

    @staticmethod
    def forward(ctx: Context, values: Tensor, source: Ints, shape: tuple[int, ...]) -> Tensor:
        ctx.source = source
        ctx.shape = values.shape
        # By bits, so that NaN and -0 stay what they are.
        elements = layouts.select_or_fill(words(values).reshape(-1), source, 0)
        return torch.from_numpy(elements).view(values.dtype).reshape(shape)

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor, None, None]:
        gradient = scattered(grads[0], ctx.source, ctx.shape.numel())
        return gradient.reshape(ctx.shape), None, None


def copied(values: Tensor, source: Ints, shape: tuple[int, ...]) -> Tensor:
    """values.reshape(-1)[source] in a shape; 0 where the source is -1. Gradients flow back."""
    return _Copied.apply(values, np.ascontiguousarray(source).reshape(-1), shape)


class _Arithmetic(torch.autograd.Function):
    """A forward and a backward function of two tensors as one differentiable operator."""

    @staticmethod
    def forward(
        ctx: Context, first: Tensor, second: Tensor, value: PairValue, gradients: PairGradients
    ) -> Tensor:
        ctx.save_for_backward(first, second)
        ctx.gradients = gradients
        return value(first, second)

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        first, second = ctx.saved_tensors
        return (*ctx.gradients(grads[0], first, second), None, None)


def differentiable(
    first: Tensor, second: Tensor, value: PairValue, gradients: PairGradients
) -> Tensor:
    """value(first, second); gradients(grad, first, second) gives their gradients."""
    return _Arithmetic.apply(first, second, value, gradients)
