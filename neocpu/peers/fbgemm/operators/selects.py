"""How are rows of several matrices, or bags of several keys, selected in one call?"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from neocpu.core.types import Ints
from neocpu.peers.fbgemm.context import Tensors
from neocpu.peers.fbgemm.operators.exact_sums import copied, scattered
from neocpu.peers.fbgemm.operators.moves import ints, runs
from neocpu.peers.fbgemm.operators.registry import Refused, operator
from neocpu.tables.embedding.row_sums import segment_starts

# The part of a schema that several operators share.
GROUPS = "SymInt[] input_num_indices, SymInt[] input_rows, SymInt[] input_columns, "


def _selected_rows(rows: Ints, columns: Ints, counts: Ints, indices: Ints, order: Ints) -> Ints:
    """Elements of flat matrices that the selected rows hold, row after row in an order."""
    if counts.sum() != indices.size:
        raise Refused(f"{indices.size} indices: input_num_indices add up to {counts.sum()}")
    matrix = np.repeat(np.arange(rows.size), counts)
    # One matrix follows the other in memory: an index outside would read the next.
    outside = (indices < 0) | (indices >= rows[matrix])
    if outside.any():
        number = int(np.flatnonzero(outside)[0])
        raise Refused(f"index {indices[number]} is outside a matrix of {rows[matrix[number]]} rows")
    first = segment_starts(rows * columns)[matrix] + indices * columns[matrix]
    return runs(first[order], columns[matrix[order]])


@operator("(Tensor[] input_group, Tensor[] indices_group) -> Tensor[]")
def group_index_select_dim0(input_group: Tensors, indices_group: Tensors) -> list[Tensor]:
    """Rows of each input [R, …] by its own indices."""
    outputs = []
    for values, indices in zip(input_group, indices_group, strict=True):
        row_shape = values.shape[1:]
        numbers = ints(indices)
        source = _selected_rows(
            np.array([values.shape[0]]),
            np.array([row_shape.numel()]),
            np.array([numbers.size]),
            numbers,
            np.arange(numbers.size),
        )
        outputs.append(copied(values, source, (numbers.size, *row_shape)))
    return outputs


def _batch_source(
    indices: Tensor,
    input_num_indices: Sequence[int],
    input_rows: Sequence[int],
    input_columns: Sequence[int],
    permute_output_dim_0_1: bool,
) -> Ints:
    """Elements of the flat inputs, in the order of the flat output."""
    counts = np.array(input_num_indices, np.int64).reshape(-1)
    order = np.arange(int(counts.sum()))
    if permute_output_dim_0_1:
        # Otherwise the output would be no table of samples by matrices.
        if counts.size and (counts != counts[0]).any():
            raise Refused("permute_output_dim_0_1: give as many indices for every input")
        # Index by index instead of matrix by matrix.
        order = order.reshape(counts.size, -1).T.reshape(-1)
    rows = np.array(input_rows, np.int64).reshape(-1)
    columns = np.array(input_columns, np.int64).reshape(-1)
    return _selected_rows(rows, columns, counts, ints(indices), order)


@operator(f"(Tensor inputs, Tensor indices, {GROUPS}bool permute_output_dim_0_1=False) -> Tensor")
def batch_index_select_dim0(
    inputs: Tensor,
    indices: Tensor,
    input_num_indices: Sequence[int],
    input_rows: Sequence[int],
    input_columns: Sequence[int],
    permute_output_dim_0_1: bool = False,
) -> Tensor:
    """Rows of flat matrices [input_rows[g], input_columns[g]], flat.

    permute_output_dim_0_1 : the first row of every matrix, then the second, and so on.
    """
    geometry = (input_num_indices, input_rows, input_columns)
    source = _batch_source(indices, *geometry, permute_output_dim_0_1)
    return copied(inputs, source, (source.size,))


@operator(f"(Tensor inputs, Tensor indices, {GROUPS}bool permute_output_dim_0_1) -> Tensor[]")
def batch_index_select_dim0_forward_cpu_impl(
    inputs: Tensor,
    indices: Tensor,
    input_num_indices: Sequence[int],
    input_rows: Sequence[int],
    input_columns: Sequence[int],
    permute_output_dim_0_1: bool,
) -> list[Tensor]:
    """[`batch_index_select_dim0`, what FBGEMM's backward wants]."""
    geometry = (input_num_indices, input_rows, input_columns)
    output = batch_index_select_dim0(inputs, indices, *geometry, permute_output_dim_0_1)
    counts = torch.tensor([int(count) for count in input_num_indices])
    rows = torch.tensor([int(height) for height in input_rows])
    columns = torch.tensor([int(width) for width in input_columns])
    # FBGEMM's own autograd hands the others on to its backward.
    return [output, counts, rows, columns, counts.clone(), torch.tensor([output.numel()])]


@operator(
    "(Tensor grad_output, Tensor indices, Tensor indices_numels, Tensor input_num_indices, "
    "Tensor input_rows, Tensor input_columns, bool permute_output_dim_0_1, Tensor saved_tensor) "
    "-> Tensor"
)
def batch_index_select_dim0_backward_cpu_impl(
    grad_output: Tensor,
    indices: Tensor,
    indices_numels: Tensor,
    input_num_indices: Tensor,
    input_rows: Tensor,
    input_columns: Tensor,
    permute_output_dim_0_1: bool,
    saved_tensor: Tensor,
) -> Tensor:
    """Gradient of the flat inputs: those of a row selected several times add up."""
    counts = ints(input_num_indices).tolist()
    rows = ints(input_rows)
    columns = ints(input_columns)
    source = _batch_source(indices, counts, rows.tolist(), columns.tolist(), permute_output_dim_0_1)
    return scattered(grad_output, source, int((rows * columns).sum()))


@operator(
    "(Tensor values, Tensor lengths, Tensor offsets, Tensor indices, SymInt batch_size, "
    "Tensor? weights=None, SymInt? selected_lengths_sum=None) -> Tensor[]"
)
def keyed_jagged_index_select_dim1(
    values: Tensor,
    lengths: Tensor,
    offsets: Tensor,
    indices: Tensor,
    batch_size: int,
    weights: Tensor | None = None,
    selected_lengths_sum: int | None = None,
) -> list[Tensor]:
    """[values, lengths, weights if given] of the samples `indices`, key by key.

    lengths [F * batch_size], offsets [F * batch_size + 1], values and weights [n].
    """
    bag_lengths = ints(lengths)
    samples = ints(indices)
    if batch_size < 1 or bag_lengths.size % batch_size:
        raise Refused(
            f"{bag_lengths.size} lengths: give a multiple of the batch size, {batch_size}"
        )
    if samples.size and not 0 <= samples.min() <= samples.max() < batch_size:
        raise Refused(f"indices must be below the batch size, {batch_size}, and not negative")
    keys = bag_lengths.size // batch_size
    bags = (np.arange(keys)[:, None] * batch_size + samples).reshape(-1)
    source = runs(ints(offsets)[bags], bag_lengths[bags])
    outputs = [copied(values, source, (source.size,)), lengths[torch.from_numpy(bags)]]
    return outputs if weights is None else [*outputs, copied(weights, source, (source.size,))]
