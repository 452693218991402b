"""Bugs of lookups and jagged rows as users report them of kernels that are in use: grids, warps,
padding, dtypes.

These, updates.py and reserves.py were written from titles and fixes of public issues (FBGEMM,
PyTorch, TensorFlow, WholeGraph), before anybody saw what is said of them. Explanations were then
made better by these and updates.py, and measured by reserves.py.
"""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import Batch, Lookups
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.mutants.blocks import columns
from benchmarks.oracle_mutants.mutants.idioms import (
    ELSEWHERE,
    bag_lengths,
    rows_of_lookups,
)
from benchmarks.oracle_mutants.mutants.numbers import bf16, fp16
from benchmarks.oracle_mutants.mutants.strides import times
from benchmarks.oracle_mutants.mutants.weights import weights
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import FORWARD, bend

# Lookups.


def repeated_from(width: int):
    """Every pass over columns stores what the first pass has."""

    def change(out: Array) -> Array:
        for start in range(width, out.shape[1], width):
            stop = min(start + width, out.shape[1])
            out[:, start:stop] = out[:, : stop - start]
        return out

    return columns(change)


bend(
    "columns_from_64_repeat_the_first",
    FORWARD,
    "",
    says="columns from 64 on",
    vector=repeated_from(64),
)


def alive_quads(part: Lookups, row: Array) -> Array:
    """Are all lookups of an unrolled turn over four rows in the table?"""
    quad = part.sample * (1 << 32) + part.place // 4
    _, inverse = np.unique(quad, return_inverse=True)
    pruned = np.bincount(inverse, row < 0) if len(row) else np.zeros(0)
    return pruned[inverse] == 0 if len(row) else row >= 0


def quads_without_pruned(
    k: Kernel, batch: Batch, feature: int, part: Lookups
) -> tuple[Array, Array]:
    """A pruned lookup ends the turn of four lookups that it is in."""
    row, inside = Kernel.row_numbers(k, batch, feature, part)
    return row, inside & alive_quads(part, batch.of(feature, part))


bend(
    "pruned_lookup_takes_its_quad_along",
    FORWARD,
    "lookup_missing",
    says="pruned",
    row_numbers=quads_without_pruned,
)


def weights_of_kept(k: Kernel, batch: Batch, feature: int, part: Lookups) -> Array | None:
    """The place of a weight counts lookups that are not pruned."""
    if batch.weights is None:
        return None
    kept = batch.indices >= 0
    number = np.cumsum(kept) - kept
    return batch.weights[number[part.position]]


bend(
    "weights_by_place_among_kept",
    FORWARD,
    ELSEWHERE,
    says="pruned",
    lookup_weights=weights_of_kept,
)


def weights_in_format_of_table(
    k: Kernel, batch: Batch, feature: int, part: Lookups
) -> Array | None:
    """Weights are cast to the dtype of the table."""
    w = Kernel.lookup_weights(k, batch, feature, part)
    name = batch.options["weights_format"]
    if w is None or name not in ("fp16", "bf16"):
        return w
    return {"fp16": fp16, "bf16": bf16}[name](w)


bend(
    "weights_cast_to_table_bf16_or_fp16",
    FORWARD,
    "lookup_rounded",
    says="16",
    lookup_weights=weights_in_format_of_table,
)


def whole_vectors_of_8(out: Array) -> Array:
    out[:, out.shape[1] // 8 * 8 :] = 0
    return out


bend(
    "last_half_vector_of_8_not_written",
    FORWARD,
    "tail_of_row",
    says="last 4 columns|columns from|after the last whole 8",
    vector=columns(whole_vectors_of_8),
)


def overlapping_warp(out: Array) -> Array:
    """The last 32 columns are taken by one more warp, which adds what others added."""
    tail = out.shape[1] % 32
    if out.shape[1] > 32 and tail:
        out[:, -32:-tail] *= 2
    return out


bend(
    "last_warp_of_columns_overlaps",
    FORWARD,
    "sum_scaled lookup_doubled",
    vector=columns(overlapping_warp),
)


def of_partner(longest: bool):
    """Two bags of a warp loop as often as the first of them, or as the longer one."""

    def ends(k: Kernel, ends: Array, begins: Array, batch: Batch) -> Array:
        length = ends - begins
        first = length[np.arange(len(length)) // 2 * 2]
        second = length[np.minimum(np.arange(len(length)) // 2 * 2 + 1, len(length) - 1)]
        if longest:
            return begins + np.maximum(first, second)
        return begins + np.minimum(length, first)

    return ends


bend(
    "second_bag_of_warp_cut_to_first",
    FORWARD,
    "sum_cut lookup_missing",
    says="odd rows",
    ends=of_partner(False),
)


def staged(turn: int):
    """What is staged for a turn of lookups is that of the turn before, but for the first turn."""
    return weights(lambda w, part, b: w[part.position - np.where(part.place >= turn, turn, 0)])


bend("weights_of_turn_before_of_32", FORWARD, ELSEWHERE, lookup_weights=staged(32))


def first_of_turn_stale(x: Array, part: Lookups) -> Array:
    """Without a barrier the first lookup of a turn of eight has the row of eight lookups ago."""
    stale = (part.place >= 8) & (part.place % 8 == 0)
    return x[np.arange(len(x)) - np.where(stale, 8, 0)]


bend(
    "first_lookup_of_turn_of_8_is_stale",
    FORWARD,
    ELSEWHERE,
    feature_rows=rows_of_lookups(first_of_turn_stale),
)
bend(
    "buffer_of_two_never_flips",
    FORWARD,
    ELSEWHERE,
    feature_rows=rows_of_lookups(lambda x, part: x[np.arange(len(x)) - part.place % 2]),
)


def bias_kept(k: Kernel, numbers: Array, scale: Array, bias: Array) -> Array:
    k.bias = bias
    return Kernel.scaled(k, numbers, scale, bias)


def bias_without_weight(k: Kernel, x: Array, w: Array) -> Array:
    """Weights are multiplied to the codes' part only."""
    bias = getattr(k, "bias", None)
    if bias is None or len(bias) != len(x):
        return Kernel.weighted(k, x, w)
    read = x.any(axis=1)[:, None]
    return np.where(read, (x - bias) * w[:, None] + bias, 0).astype(F32)


bend(
    "bias_of_rows_not_weighted",
    FORWARD,
    "",
    says="one number is added to all columns",
    scaled=bias_kept,
    weighted=bias_without_weight,
)
bend(
    "bags_of_256_lookups_wrap",
    FORWARD,
    "sum_cut lookup_missing bag_capped_32",
    ends=lambda k, ends, begins, batch: begins + (ends - begins) % 256,
)


def first_pruned_reads_row_0(
    k: Kernel, batch: Batch, feature: int, part: Lookups
) -> tuple[Array, Array]:
    """The first lookup of a bag sets the accumulator, pruned or not."""
    row, inside = Kernel.row_numbers(k, batch, feature, part)
    return row, inside | ((part.place == 0) & (batch.of(feature, part) == -1))


bend(
    "first_lookup_read_though_pruned",
    FORWARD,
    "pruned_reads_row_0 lookup_added",
    says="pruned",
    row_numbers=first_pruned_reads_row_0,
)
bend(
    "sum_leaves_out_every_third_lookup",
    FORWARD,
    "lookup_missing",
    feature_rows=times(lambda part: np.where(part.place % 3 == 2, 0, 1)),
)
bend(
    "mean_after_bags_of_64_divides_by_64",
    FORWARD,
    "",
    says="long|length",
    divisor=lambda k, lengths, batch, feature, part: np.minimum(lengths, 64),
)

# Gradients of weights.


def tails_of_4_zero(k: Kernel, x: Array, gradient: Array, batch: Batch, part: Lookups) -> Array:
    """Lookups after the last whole four of a bag have no gradient."""
    dots = Kernel.dot(k, x, gradient, batch, part)
    whole = bag_lengths(part) // 4 * 4
    return np.where(part.place < whole, dots, F32(0))


bend(
    "weight_gradient_tail_of_4_is_0",
    "weight_gradient",
    "lookup_missing bag_tail_dropped_4",
    says="lookups",
    dot=tails_of_4_zero,
)


def padding_has_gradient(
    k: Kernel, batch: Batch, feature: int, part: Lookups
) -> tuple[Array, Array]:
    row, inside = Kernel.row_numbers(k, batch, feature, part)
    return row, inside | (batch.of(feature, part) == -1)


bend(
    "weight_gradient_of_pruned_lookups",
    "weight_gradient",
    "pruned_reads_row_0",
    row_numbers=padding_has_gradient,
)

# Jagged rows, copies, codes.


def runs_win(k: Kernel, gradient: Array, source: Array, size: int) -> Array:
    """Runs of equal numbers are added; of several runs the last one is stored."""
    begins = np.flatnonzero(np.append(True, source[1:] != source[:-1])[: len(source)])
    sums = np.add.reduceat(gradient.astype(F32), begins, axis=0) if len(begins) else gradient[:0]
    out = np.zeros((size, gradient.shape[1]), F32)
    out[source[begins]] = sums
    return out


bend(
    "last_run_of_copies_wins",
    "group_index_select_backward permute_pooled_backward permute_multi_embedding_backward",
    "last_duplicate_wins sum_cut lookup_missing",
    copies_added=runs_win,
)


def even_segments(k: Kernel, part: Lookups) -> Array:
    """The last row of segments of odd length is lost."""
    return np.flatnonzero(part.place < bag_lengths(part) // 2 * 2)


bend(
    "segment_sum_in_pairs",
    "segment_sum",
    "bag_tail_dropped_2 lookup_missing",
    segment_kept=even_segments,
)


def padded_half(k: Kernel, part: Lookups, lengths: Array, length: int) -> Lookups:
    """Bags of the second half of a batch are not written."""
    kept = part.sample < len(lengths) / 2
    return Lookups(*(column[kept] for column in part))


bend(
    "second_half_of_bags_not_padded",
    "jagged_to_padded_dense",
    "",
    says="second half of the rows",
    dense_part=padded_half,
)


def pairs_of_bytes_swapped(k: Kernel, codes: Array, name: str) -> Array:
    """Codes are loaded as big-endian words of 16 bits."""
    swapped = codes.copy()
    whole = (codes.shape[1] - 8) // 2 * 2
    if name in ("int8", "int8_gpu") and whole > 0:
        swapped[:, :whole] = (
            codes[:, :whole].reshape(len(codes), -1, 2)[:, :, ::-1].reshape(len(codes), whole)
        )
    return swapped


bend(
    "codes_swapped_in_pairs",
    "dequantize",
    "permuted",
    dequantized_input=pairs_of_bytes_swapped,
)
bend(
    "jagged_product_leaves_out_last_of_odd_bags",
    "jagged_jagged_bmm",
    "bag_tail_dropped_2 last_lookup_dropped",
    says="length|lookups",
    reached=lambda k, part, longest: (
        Kernel.reached(k, part, longest) & (part.place < bag_lengths(part) // 2 * 2)
    ),
)


def running_range(k: Kernel, x: Array, name: str) -> tuple[Array, Array]:
    """Minimum and maximum are not reset from row to row."""
    low, high = Kernel.row_range(k, x, name)
    return np.minimum.accumulate(low), np.maximum.accumulate(high)


bend(
    "quantize_range_of_rows_before",
    "quantize",
    "",
    says="rows from 1|rows",
    row_range=running_range,
)


def permuted_to_256(k: Kernel, offsets: Array, bags: Array) -> Array:
    """The grid ends after 256 lookups; the others are those of the first place."""
    found = Kernel.permuted_places(k, offsets, bags)
    return np.where(np.arange(len(found)) < 256, found, 0)


bend(
    "permute_ends_after_256_lookups",
    "permute",
    "",
    says="from 256 on",
    permuted_places=permuted_to_256,
)
