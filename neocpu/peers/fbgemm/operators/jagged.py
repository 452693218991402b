"""How do jagged rows become dense ones and back? By FBGEMM's jagged operators.

They take any number of jagged dimensions.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from neocpu.core.types import Ints
from neocpu.peers.fbgemm.context import Tensors
from neocpu.peers.fbgemm.operators.moves import Words, ints, moved, rows, segments, words
from neocpu.peers.fbgemm.operators.registry import Refused, operator
from neocpu.tables.embedding import layouts


def _places(offsets: Tensors, longest: Sequence[int]) -> Ints:
    """The row of the values at each place of [B, *longest]; -1 is padding."""
    if len(offsets) != len(longest):
        raise Refused(
            f"max_lengths has {len(longest)} entries for {len(offsets)} jagged dimensions"
        )
    return layouts.jagged_places(
        [ints(dimension_offsets) for dimension_offsets in offsets],
        [max(int(length), 0) for length in longest],
    )


@operator(
    "(Tensor values, Tensor[] offsets, SymInt[] max_lengths, float padding_value=0.) -> Tensor"
)
def jagged_to_padded_dense(
    values: Tensor, offsets: Tensors, max_lengths: Sequence[int], padding_value: float = 0.0
) -> Tensor:
    """Values [n] or [n, D] as [B, *max_lengths] or [B, *max_lengths, D], cut off or padded."""
    # Kernels move bits, so the padding is given as bits of the dtype.
    filler = words(torch.full((1,), padding_value, dtype=values.dtype))[0]
    # The common case has a kernel that copies whole bags.
    if (bag_offsets := _one_dimension(offsets, max_lengths, values.shape[0])) is not None:
        longest = int(max_lengths[0])
        last = int(bag_offsets[-1])

        def move(elements: Words) -> Words:
            # Rows behind the last bag belong to none.
            return layouts.jagged_to_padded_dense(elements[:last], bag_offsets, longest, filler)

        return moved(values, move, lambda: _places(offsets, max_lengths))
    place = _places(offsets, max_lengths)
    # FBGEMM pads everything if there are no values, whatever the offsets say.
    if values.shape[0] == 0:
        place = np.full_like(place, -1)
    return moved(
        values, lambda elements: layouts.select_or_fill(elements, place, filler), lambda: place
    )


@operator(
    "(Tensor values, Tensor[] offsets, SymInt[] max_lengths, float padding_value=0.) -> Tensor"
)
def jagged_to_padded_dense_forward(
    values: Tensor, offsets: Tensors, max_lengths: Sequence[int], padding_value: float = 0.0
) -> Tensor:
    """`jagged_to_padded_dense`, as FBGEMM's differentiation calls it."""
    return jagged_to_padded_dense(values, offsets, max_lengths, padding_value)


def _one_dimension(offsets: Tensors, longest: Sequence[int], count: int) -> Ints | None:
    """The offsets if the faster kernel can use them, else None.

    It takes one jagged dimension with ascending offsets within `count` rows.
    """
    if len(offsets) != 1 or len(longest) != 1 or offsets[0].numel() < 2 or int(longest[0]) < 0:
        return None
    bag_offsets = ints(offsets[0])
    return (
        bag_offsets
        if bag_offsets[0] >= 0
        and (np.diff(bag_offsets) >= 0).all()
        and 0 < bag_offsets[-1] <= count
        else None
    )


def _gathered(dense: Tensor, offsets: Tensors, longest: Sequence[int], count: int) -> Tensor:
    """Jagged rows [count, …] out of the dense tensor; zeros for rows that it does not hold."""
    bag_offsets = _one_dimension(offsets, longest, count)
    if (
        bag_offsets is not None
        and bag_offsets[0] == 0
        and bag_offsets[-1] == count
        and dense.shape[0] == bag_offsets.size - 1
    ):
        # Whole bags in their order: a kernel copies them.
        padded_length = dense.shape[1]

        def source() -> Ints:
            # Rows beyond the dense tensor have no place there, and no gradient.
            position = layouts.offsets_range(bag_offsets[:-1], count)
            return np.where(
                position < padded_length,
                np.repeat(np.arange(bag_offsets.size - 1) * padded_length, np.diff(bag_offsets))
                + position,
                -1,
            )

        return moved(dense, lambda elements: layouts.dense_to_jagged(elements, bag_offsets), source)
    places = _places(offsets, longest)
    value_places = layouts.invert_places(places, count)
    flat = dense.reshape(places.size, *dense.shape[places.ndim :])
    return moved(
        flat,
        lambda elements: layouts.select_or_fill(elements, value_places, 0),
        lambda: value_places,
    )


@operator("(Tensor grad_output, Tensor[] offsets, SymInt total_L) -> Tensor")
def jagged_to_padded_dense_backward(grad_output: Tensor, offsets: Tensors, total_L: int) -> Tensor:
    """Gradient of the values from that of the padded tensor."""
    return _gathered(grad_output, offsets, grad_output.shape[1 : 1 + len(offsets)], total_L)


@operator("(Tensor dense, Tensor[] x_offsets, SymInt? total_L=None) -> Tensor")
def dense_to_jagged_forward(
    dense: Tensor, x_offsets: Tensors, total_L: int | None = None
) -> Tensor:
    """Rows [n, D] out of [B, …, D]; zeros where a bag is longer than the dense tensor."""
    # Of several jagged dimensions the last one numbers the rows.
    count = int(x_offsets[-1].max()) if total_L is None else int(total_L)
    if count < 0:
        raise ValueError(f"total_L is {count}; it must be >= 0")
    return _gathered(dense, x_offsets, dense.shape[1:-1], count)


@operator("(Tensor dense, Tensor[] x_offsets, SymInt? total_L=None) -> (Tensor, Tensor[])")
def dense_to_jagged(
    dense: Tensor, x_offsets: Tensors, total_L: int | None = None
) -> tuple[Tensor, Tensors]:
    """(`dense_to_jagged_forward`, the offsets)."""
    return dense_to_jagged_forward(dense, x_offsets, total_L), list(x_offsets)


@operator("(Tensor values, Tensor offsets, SymInt max_sequence_length) -> Tensor")
def jagged_2d_to_dense(values: Tensor, offsets: Tensor, max_sequence_length: int) -> Tensor:
    """[B, max_sequence_length, D] of rows [n, D], zeros behind."""
    return jagged_to_padded_dense(values, [offsets], [max_sequence_length])


@operator(
    "(Tensor values, Tensor offsets, SymInt max_sequence_length, int padding_value) -> Tensor"
)
def jagged_1d_to_dense(
    values: Tensor, offsets: Tensor, max_sequence_length: int, padding_value: int
) -> Tensor:
    """[B, max_sequence_length] of numbers [n], padding behind."""
    return jagged_to_padded_dense(values, [offsets], [max_sequence_length], padding_value)


@operator("(Tensor values, Tensor lengths, int max_truncated_length) -> Tensor")
def jagged_1d_to_truncated_values(
    values: Tensor, lengths: Tensor, max_truncated_length: int
) -> Tensor:
    """The first numbers of each bag, at most max_truncated_length."""
    bag_lengths = ints(lengths)
    return segments(
        values, layouts.exclusive_cumsum(bag_lengths), np.minimum(bag_lengths, max_truncated_length)
    )


@operator(
    "(Tensor values, Tensor lengths, Tensor indices, int? num_dense_output_rows=None) -> Tensor[]"
)
def jagged_index_select(
    values: Tensor, lengths: Tensor, indices: Tensor, num_dense_output_rows: int | None = None
) -> list[Tensor]:
    """[values, lengths] of the bags `indices`, in any order, with repeats; values [n, D]."""
    bag_lengths = ints(lengths)
    bags = ints(indices)
    starts = layouts.index_select(layouts.exclusive_cumsum(bag_lengths), bags)
    return [segments(values, starts, layouts.index_select(bag_lengths, bags)), rows(lengths, bags)]


@operator("(Tensor x_values, Tensor[] x_offsets, Tensor y) -> Tensor")
def jagged_dense_elementwise_add(x_values: Tensor, x_offsets: Tensors, y: Tensor) -> Tensor:
    """Jagged rows, padded with zeros, plus a dense tensor."""
    return jagged_to_padded_dense(x_values, x_offsets, y.shape[1:-1]) + y
