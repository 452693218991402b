"""Which operators lay out sparse features? Running sums, ranges, permutations, selections."""

import numpy as np
import torch
from torch import Tensor

from neocpu.core.types import Ints
from neocpu.peers.fbgemm.operators.moves import ints, like, rows, runs, segments
from neocpu.peers.fbgemm.operators.registry import Refused, operator
from neocpu.tables.embedding import layouts

# The part of a schema that several operators share.
PERMUTE = (
    "(Tensor permute, Tensor lengths, Tensor values, Tensor? weights=None, "
    "SymInt? permuted_lengths_sum=None)"
)


def _fractions(values: Tensor, first: int, count: int) -> Tensor:
    """Running sums of floats, added in fp64 and rounded once to the dtype of the values.

    FBGEMM rounds every addition.
    """
    sums = layouts.running_sums(values.detach().to(torch.float64).numpy(), first, count)
    return torch.from_numpy(sums).to(values.dtype)


def _complete(lengths: Tensor) -> Tensor:
    """0, then the running sums of the last axis, in the dtype of the lengths."""
    if lengths.dim() not in (1, 2):
        raise Refused(f"lengths have {lengths.dim()} dimensions; 1 or 2 will do")
    if lengths.dtype.is_floating_point:
        size = lengths.shape[-1] + 1
        rows_of_sums = [
            _fractions(row, 0, size) for row in (lengths if lengths.dim() == 2 else [lengths])
        ]
        return torch.cat([lengths.new_zeros(0), *rows_of_sums]).view(*lengths.shape[:-1], size)
    count = lengths.shape[-1]
    all_sums = layouts.complete_cumsum(ints(lengths))
    # One running sum over all rows, cut by subtraction: a kernel call instead of one for each row.
    starts = (
        np.arange(lengths.numel() // max(count, 1) if lengths.dim() == 2 else 1)[:, None] * count
    )
    row_sums = all_sums[starts + np.arange(count + 1)] - all_sums[starts]
    return like(row_sums.reshape(*lengths.shape[:-1], count + 1), lengths)


@operator("(Tensor t_in) -> Tensor")
def asynchronous_complete_cumsum(t_in: Tensor) -> Tensor:
    """0, then all running sums: [n] -> [n+1], or of each row."""
    return _complete(t_in)


@operator("(Tensor t_in) -> Tensor")
def asynchronous_inclusive_cumsum(t_in: Tensor) -> Tensor:
    """Running sums up to and with each element; of the elements in order, whatever the shape."""
    if t_in.dtype.is_floating_point:
        return _fractions(t_in, 1, t_in.numel()).view(t_in.shape)
    return like(layouts.inclusive_cumsum(ints(t_in)), t_in).view(t_in.shape)


@operator("(Tensor t_in) -> Tensor")
def asynchronous_exclusive_cumsum(t_in: Tensor) -> Tensor:
    """Running sums before each element; of the elements in order, whatever the shape."""
    if t_in.dtype.is_floating_point:
        return _fractions(t_in, 0, t_in.numel()).view(t_in.shape)
    return like(layouts.exclusive_cumsum(ints(t_in)), t_in).view(t_in.shape)


@operator("(Tensor values) -> Tensor")
def asynchronous_batched_complete_cumsum(values: Tensor) -> Tensor:
    """0, then all running sums, of each row: [B, n] -> [B, n+1]."""
    return _complete(values)


@operator("(Tensor offsets, SymInt range_size) -> Tensor")
def offsets_range(offsets: Tensor, range_size: int) -> Tensor:
    """Position of every lookup in its bag, [range_size]; offsets [B], without the end."""
    starts = ints(offsets)
    # Kernels trust their arguments: a wrong offset would write outside the result.
    if starts.size and (np.diff(starts, append=range_size).min() < 0 or starts[0] != 0):
        raise Refused(f"offsets must ascend from 0 to at most range_size, {range_size}")
    return like(layouts.offsets_range(starts, range_size if starts.size else 0), offsets)


def _ranges(lengths: Ints) -> Ints:
    return runs(np.zeros_like(lengths), lengths)


@operator("(Tensor t_in, SymInt[]? shape=None) -> Tensor")
def lengths_range(t_in: Tensor, shape: list[int] | None = None) -> Tensor:
    """Concatenate the ranges 0, 1, … of every length."""
    return like(_ranges(ints(t_in)), t_in)


@operator("(Tensor lengths) -> Tensor")
def repeat_arange(lengths: Tensor) -> Tensor:
    """Concatenate the ranges 0, 1, … of every length.

    Raises ValueError if the lengths add up to less than 0.
    """
    if int(lengths.sum()) < 0:
        raise ValueError(
            f"output_size {int(lengths.sum())}, the sum of the lengths, must be non-negative"
        )
    return like(_ranges(ints(lengths)), lengths)


@operator("(Tensor permute) -> Tensor")
def invert_permute(permute: Tensor) -> Tensor:
    """The permutation that undoes this one."""
    return like(layouts.invert_permute(ints(permute)), permute)


@operator(
    "(Tensor permute, Tensor input_offset, Tensor output_offset, SymInt output_size) -> Tensor"
)
def expand_into_jagged_permute(
    permute: Tensor, input_offset: Tensor, output_offset: Tensor, output_size: int
) -> Tensor:
    """The source position of each lookup of the permuted segments: [output_size]."""
    sources = layouts.expand_into_jagged_permute(
        ints(permute), ints(input_offset), ints(output_offset)
    )
    return like(sources[:output_size], permute)


def _permuted(
    bags: Ints, lengths: Tensor, values: Tensor, weights: Tensor | None
) -> tuple[Ints, Tensor, Tensor | None]:
    """(lengths, values, weights) of bags in another order."""
    bag_lengths = ints(lengths)
    # A bag out of range would read lengths outside the array.
    if bags.size and not 0 <= bags.min() <= bags.max() < bag_lengths.size:
        raise Refused(f"bag {bags.max()} is asked for; there are {bag_lengths.size}")
    permuted_lengths = layouts.index_select(bag_lengths, bags)
    starts = layouts.index_select(layouts.exclusive_cumsum(bag_lengths), bags)
    return (
        permuted_lengths,
        segments(values, starts, permuted_lengths),
        None if weights is None else segments(weights, starts, permuted_lengths),
    )


@operator(PERMUTE + " -> (Tensor, Tensor, Tensor?)")
def permute_1D_sparse_data(
    permute: Tensor,
    lengths: Tensor,
    values: Tensor,
    weights: Tensor | None = None,
    permuted_lengths_sum: int | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(lengths [P], values, weights) of the bags `permute`, which may omit and repeat bags."""
    permuted_lengths, values, permuted_weights = _permuted(ints(permute), lengths, values, weights)
    return like(permuted_lengths, lengths), values, permuted_weights


@operator(PERMUTE + " -> (Tensor, Tensor, Tensor?)")
def permute_2D_sparse_data(
    permute: Tensor,
    lengths: Tensor,
    values: Tensor,
    weights: Tensor | None = None,
    permuted_lengths_sum: int | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(lengths [P, B], values, weights) of features in another order; lengths [F, B]."""
    if lengths.dim() != 2:
        raise Refused(f"lengths have {lengths.dim()} dimensions instead of 2")
    feature_order = ints(permute)
    samples = lengths.shape[1]
    # Bags of a feature stand together, sample after sample.
    bags = (feature_order[:, None] * samples + np.arange(samples)).reshape(-1)
    permuted_lengths, values, permuted_weights = _permuted(bags, lengths, values, weights)
    return (
        like(permuted_lengths.reshape(feature_order.size, samples), lengths),
        values,
        permuted_weights,
    )


@operator(PERMUTE + " -> (Tensor, Tensor, Tensor?)")
def permute_sparse_data(
    permute: Tensor,
    lengths: Tensor,
    values: Tensor,
    weights: Tensor | None = None,
    permuted_lengths_sum: int | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """An old name of `permute_2D_sparse_data`."""
    return permute_2D_sparse_data(permute, lengths, values, weights, permuted_lengths_sum)


@operator(
    PERMUTE.replace("Tensor values,", "Tensor values, SymInt stride,")
    + " -> (Tensor, Tensor, Tensor?)"
)
def permute_2D_sparse_data_input1D(
    permute: Tensor,
    lengths: Tensor,
    values: Tensor,
    stride: int,
    weights: Tensor | None = None,
    permuted_lengths_sum: int | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """As `permute_2D_sparse_data`, with lengths flat: [F * stride] -> [P * stride]."""
    permuted_lengths, values, permuted_weights = permute_2D_sparse_data(
        permute, lengths.view(-1, stride), values, weights
    )
    return permuted_lengths.reshape(-1), values, permuted_weights


@operator(
    "(Tensor permute, Tensor lengths, Tensor indices, Tensor? weights=None) "
    "-> (Tensor, Tensor, Tensor?)"
)
def permute_sparse_features(
    permute: Tensor, lengths: Tensor, indices: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """As `permute_2D_sparse_data`."""
    return permute_2D_sparse_data(permute, lengths, indices, weights)


@operator("(Tensor permute, Tensor lengths, Tensor embeddings) -> (Tensor, Tensor)")
def permute_sequence_embeddings(
    permute: Tensor, lengths: Tensor, embeddings: Tensor
) -> tuple[Tensor, Tensor]:
    """(lengths [P, B], rows [n, D]) of features in another order."""
    permuted_lengths, permuted_rows, _ = permute_2D_sparse_data(permute, lengths, embeddings)
    return permuted_lengths, permuted_rows


@operator(
    "(Tensor input, Tensor indices, SymInt? consecutive_range_start=0, "
    "SymInt? consecutive_range_length=0, bool? skip_indices_sorting_fwd=None) -> Tensor"
)
def index_select_dim0(
    input: Tensor,
    indices: Tensor,
    consecutive_range_start: int | None = 0,
    consecutive_range_length: int | None = 0,
    skip_indices_sorting_fwd: bool | None = None,
) -> Tensor:
    """Rows of `input` by number; the other arguments are hints to a GPU."""
    return rows(input, ints(indices))


@operator("(SymInt batch_size, Tensor csr_seg, Tensor values) -> Tensor")
def segment_sum_csr(batch_size: int, csr_seg: Tensor, values: Tensor) -> Tensor:
    """Sums of segments: [S].

    csr_seg : int[S+1], segment s has batch_size * (csr_seg[s+1] - csr_seg[s]) values;
    values [csr_seg[-1] * batch_size]. Integers wrap; sums of floats are exact and rounded once,
    where FBGEMM rounds every addition. Raises Refused for fp64, as FBGEMM does, and for segments
    outside the values.
    """
    # Segments are of features; each has a value for every sample.
    segment_ends = ints(csr_seg) * batch_size
    flat = values.detach().reshape(-1)
    if flat.dtype == torch.float64:
        raise Refused("segment_sum_csr has no fp64 sums, as in FBGEMM")
    if segment_ends.size and not (
        segment_ends[0] >= 0
        and segment_ends[-1] <= flat.numel()
        and (np.diff(segment_ends) >= 0).all()
    ):
        raise Refused(f"segments must ascend within the {flat.numel()} values")
    if not flat.dtype.is_floating_point:
        # Differences of running sums wrap as sums do, and are exact otherwise.
        sums = layouts.complete_cumsum(ints(flat))[segment_ends]
        return like(np.diff(sums), values)
    segment_sums = layouts.segment_sum(
        flat.float().contiguous().numpy().reshape(-1, 1), segment_ends
    )
    return torch.from_numpy(segment_sums[:, 0]).to(values.dtype)
