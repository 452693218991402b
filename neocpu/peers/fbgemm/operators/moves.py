"""How do rows of a torch tensor go through neocpu's kernels? As integers of the elements' size.

A kernel that only moves rows is compiled once for each size of an element, not for each dtype: fp32
travels as int32, bf16 as int16, without copies. Gradients flow back. Segments are checked here,
because kernels trust their arguments.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from neocpu.core.types import Elements, Ints
from neocpu.peers.fbgemm.context import Context
from neocpu.peers.fbgemm.operators.registry import Refused
from neocpu.tables.embedding import layouts

Words = Elements
# Dtypes that operators may return, by SparseType's numbers.
RESULT_DTYPES = {0: torch.float32, 1: torch.float16, 5: torch.bfloat16}
# The integer dtype of each element size in bytes.
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def ints(tensor: Tensor) -> Ints:
    """A tensor as an int64 array, flat."""
    return tensor.detach().to(torch.int64).contiguous().numpy().reshape(-1)


def result_dtype(number: int) -> torch.dtype:
    """The dtype that an argument `output_dtype` asks for. Raises Refused for other numbers."""
    if number not in RESULT_DTYPES:
        raise Refused(f"output_dtype {number}: choose one of {sorted(RESULT_DTYPES)}")
    return RESULT_DTYPES[number]


def like(values: Elements, tensor: Tensor) -> Tensor:
    """A tensor of integers in the dtype of another."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(tensor.dtype)


def words(tensor: Tensor) -> Words:
    """The bits of a tensor, as integers of the size of its elements."""
    if tensor.element_size() not in WORDS:
        raise Refused(f"{tensor.dtype} has elements of {tensor.element_size()} bytes")
    return tensor.detach().contiguous().view(WORDS[tensor.element_size()]).numpy()


class _Moved(torch.autograd.Function):
    """Rows moved by a kernel; `source()` gives the input row of each output row, -1: none."""

    @staticmethod
    def forward(
        ctx: Context, values: Tensor, move: Callable[[Words], Words], source: Callable[[], Ints]
    ) -> Tensor:
        ctx.source = source
        ctx.shape = values.shape
        return torch.from_numpy(move(words(values))).view(values.dtype)

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor, None, None]:
        source = ctx.source()
        grad = grads[0]
        # Padding has no source, and its gradient goes nowhere.
        row_shape = grad.shape[source.ndim :]
        places = np.flatnonzero(source.reshape(-1) >= 0)
        source_rows = torch.from_numpy(source.reshape(-1)[places])
        gradient = grad.reshape(source.size, *row_shape)[torch.from_numpy(places)]
        value_gradient = grad.new_zeros(ctx.shape.numel() // max(row_shape.numel(), 1), *row_shape)
        return value_gradient.index_add(0, source_rows, gradient).reshape(ctx.shape), None, None


def moved(values: Tensor, move: Callable[[Words], Words], source: Callable[[], Ints]) -> Tensor:
    """Apply `move` to the bits of values [n, ...].

    source : called for gradients only; returns the row of `values` at each place of the result, or
        -1.
    """
    return _Moved.apply(values, move, source)


def runs(starts: Ints, lengths: Ints) -> Ints:
    """Concatenate the ranges [starts[t], starts[t] + lengths[t]).

    Raises ValueError for a negative length.
    """
    if lengths.size and lengths.min() < 0:
        raise ValueError(f"a length is {lengths.min()}; it may not be negative")
    return layouts.expand_into_jagged_permute(
        np.arange(starts.size), starts, layouts.complete_cumsum(lengths)
    )


def segments(values: Tensor, starts: Ints, lengths: Ints) -> Tensor:
    """Concatenate the segments values[starts[t] : starts[t] + lengths[t]] of values [n, ...].

    Raises Refused for segments that are not within the values.
    """
    # An empty segment reads nothing, so it may begin anywhere.
    nonempty = lengths > 0
    if lengths.size and (lengths.min() < 0 or (nonempty.any() and starts[nonempty].min() < 0)):
        raise Refused("lengths and offsets may not be negative")
    if nonempty.any() and (last := int((starts + lengths)[nonempty].max())) > values.shape[0]:
        raise Refused(f"lengths ask for {last} rows, but there are {values.shape[0]}")
    ends = layouts.complete_cumsum(lengths)
    row_shape = values.shape[1:]

    def move(elements: Words) -> Words:
        copied = layouts.copy_segments(
            elements, starts, np.arange(starts.size), ends, int(np.prod(row_shape))
        )
        return copied.reshape(int(ends[-1]), *row_shape)

    return moved(values, move, lambda: runs(starts, lengths))


def rows(values: Tensor, index: Ints) -> Tensor:
    """Rows of values [n, ...] by number."""
    return moved(values, lambda elements: layouts.index_select(elements, index), lambda: index)
