"""How do rows of a torch tensor go through neocpu's kernels? As words of their size, without
copies; gradients come back.

A kernel that only moves rows is compiled once for each size of an element, not for each dtype: fp32
travels as int32, bf16 as int16. Segments are checked here, as kernels trust what they are given.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neocpu.embedding import layouts
from neocpu.peers.fbgemm.operators import Refused

Ints = NDArray[np.int64]
Words = NDArray[Any]
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def ints(tensor: Tensor) -> Ints:
    """int64 array of a tensor, flat."""
    return tensor.detach().to(torch.int64).contiguous().numpy().reshape(-1)


def like(values: NDArray[Any], tensor: Tensor) -> Tensor:
    """A tensor of integers in the dtype of another."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(tensor.dtype)


def words(tensor: Tensor) -> Words:
    """The bits of a tensor, as integers of the size of its elements."""
    if tensor.element_size() not in WORDS:
        raise Refused(f"{tensor.dtype} has elements of {tensor.element_size()} bytes")
    return tensor.detach().contiguous().view(WORDS[tensor.element_size()]).numpy()


class _Moved(torch.autograd.Function):
    """Rows that a kernel moved; `source()` says which row each one was, -1 for none."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, move: Callable[[Words], Words], source: Callable[[], Ints]
    ) -> Tensor:
        ctx.source = source
        ctx.shape = values.shape
        return torch.from_numpy(move(words(values))).view(values.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        source = ctx.source()
        grad = grads[0]
        row = grad.shape[source.ndim :]
        at = np.flatnonzero(source.reshape(-1) >= 0)
        to = torch.from_numpy(source.reshape(-1)[at])
        given = grad.reshape(source.size, *row)[torch.from_numpy(at)]
        whole = grad.new_zeros(ctx.shape.numel() // max(row.numel(), 1), *row)
        return whole.index_add(0, to, given).reshape(ctx.shape), None, None


def moved(values: Tensor, move: Callable[[Words], Words], source: Callable[[], Ints]) -> Tensor:
    """What `move` makes of the bits of values [n, ...]; `source()`: the row at each place of the
    result, for gradients.
    """
    found: Tensor = _Moved.apply(values, move, source)
    return found


def runs(starts: Ints, lengths: Ints) -> Ints:
    """starts[t], starts[t]+1, …: lengths[t] of them, one run after the other."""
    if lengths.size and lengths.min() < 0:
        raise ValueError(f"a length is {lengths.min()}; it may not be negative")
    return layouts.expand_into_jagged_permute(
        np.arange(starts.size), starts, layouts.complete_cumsum(lengths)
    )


def segments(values: Tensor, starts: Ints, lengths: Ints) -> Tensor:
    """Rows starts[t], starts[t]+1, … of values [n, ...]: lengths[t] of them, one segment after the
    other.
    """
    used = lengths > 0
    if lengths.size and (lengths.min() < 0 or (used.any() and starts[used].min() < 0)):
        raise Refused("lengths and offsets may not be negative")
    if used.any() and (last := int((starts + lengths)[used].max())) > values.shape[0]:
        raise Refused(f"lengths ask for {last} rows, but there are {values.shape[0]}")
    ends = layouts.complete_cumsum(lengths)
    shape = values.shape[1:]

    def move(found: Words) -> Words:
        copied = layouts.copy_segments(
            found, starts, np.arange(starts.size), ends, int(np.prod(shape))
        )
        return copied.reshape(int(ends[-1]), *shape)

    return moved(values, move, lambda: runs(starts, lengths))


def rows(values: Tensor, index: Ints) -> Tensor:
    """Rows of values [n, ...] by number."""
    return moved(values, lambda found: layouts.index_select(found, index), lambda: index)
