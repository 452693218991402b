"""Bugs for a last measure of the explanations, after those of reserves.py had been looked at.

Nothing was changed for what is said of these.
"""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import Batch, Lookups
from benchmarks.oracle_mutants.gradients import Merged
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.mutants.blocks import columns, places, sums_of, tf32
from benchmarks.oracle_mutants.mutants.idioms import (
    ELSEWHERE,
    again,
    bag_lengths,
    rows_of_lookups,
    some_columns,
)
from benchmarks.oracle_mutants.mutants.numbers import bf16, narrow_sums
from benchmarks.oracle_mutants.mutants.strides import times
from benchmarks.oracle_mutants.mutants.weights import weights
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import BACKWARD, FORWARD, MERGES, STEPS, bend

# Lookups.

bend(
    "weights_at_most_1",
    FORWARD,
    ELSEWHERE,
    lookup_weights=weights(lambda w, part, b: np.minimum(w, F32(1))[part.position]),
)
bend(
    "weights_of_last_two_swapped",
    FORWARD,
    ELSEWHERE,
    lookup_weights=weights(
        lambda w, part, b: w[
            part.position
            + np.where(bag_lengths(part) > 1, 1, 0)
            * (
                (part.place == bag_lengths(part) - 2).astype(int)
                - (part.place == bag_lengths(part) - 1)
            )
        ]
    ),
)
bend(
    "lookups_beyond_3_lost",
    FORWARD,
    "sum_cut lookup_missing",
    feature_rows=times(lambda part: np.where(part.place < 3, 1, 0)),
)
bend(
    "every_fifth_lookup_twice",
    FORWARD,
    "lookup_doubled",
    feature_rows=times(lambda part: np.where(part.place % 5 == 4, 2, 1)),
)


def first_half_of_next(x: Array, part: Lookups) -> Array:
    """The first half of the columns is fetched one lookup too late."""
    half = x.shape[1] // 2
    x[:, :half] = np.roll(x, -1, 0)[:, :half]
    return x


bend(
    "first_half_of_columns_of_next_lookup",
    FORWARD,
    ELSEWHERE,
    says="first half of the columns",
    feature_rows=rows_of_lookups(first_half_of_next),
)


def low_vectors_doubled(out: Array) -> Array:
    """Of each two vectors of four columns the first is stored by addition to itself."""
    out[:, np.arange(out.shape[1]) % 8 < 4] *= 2
    return out


bend(
    "first_of_two_vectors_doubled",
    FORWARD,
    "sum_scaled",
    says="times 4 columns",
    vector=columns(low_vectors_doubled),
)


def empty_read_row_0(k: Kernel, sums: Array, lengths: Array, batch: Batch) -> Array:
    """An empty bag is what the accumulator was started with."""
    return np.where((lengths == 0)[:, None], F32(0.5), sums)


bend(
    "empty_bags_are_a_half",
    FORWARD,
    "lookup_added",
    says="0 lookups",
    stored=empty_read_row_0,
)
bend("partial_sums_in_bf16", FORWARD, "", says="bf16", add_up=narrow_sums(bf16))


def repeated_from_third(k: Kernel, sums: Array, lengths: Array, batch: Batch) -> Array:
    """Samples beyond the grid are those of its last block."""
    return sums[np.minimum(np.arange(len(sums)), 2)]


bend(
    "samples_from_3_are_the_third",
    FORWARD,
    ELSEWHERE,
    says="rows from 2 on|another sample|rows from 3",
    stored=repeated_from_third,
)


def runs_once(k: Kernel, batch: Batch, feature: int, part: Lookups) -> tuple[Array, Array]:
    """Of equal rows one after the other only the first is read."""
    row, inside = Kernel.row_numbers(k, batch, feature, part)
    same = np.append(False, row[1:] == row[:-1])[: len(row)] & (part.place > 0)
    return row, inside & ~same


bend(
    "runs_of_a_row_read_once",
    FORWARD,
    "bag_deduplicated lookup_missing",
    says="a row twice",
    row_numbers=runs_once,
)
bend(
    "mean_over_weights_that_are_positive",
    FORWARD,
    "sum_scaled",
    says="mean",
    divisor=lambda k, lengths, batch, feature, part: (
        lengths
        if batch.weights is None
        else np.maximum(
            np.bincount(part.sample, batch.weights[part.position] > 0, len(lengths)), 1
        ).astype(np.int64)
    ),
)

# Merges.


def third_negative(k: Kernel, gradient: Array, inverse: Array, size: int) -> Array:
    """The third lookup of a row is subtracted."""
    sign = np.where(places(inverse) == 2, F32(-1), F32(1))[:, None]
    return Kernel.add_gradients(k, gradient * sign, inverse, size)


bend("third_lookup_of_row_subtracted", MERGES, "lookup_sign", add_gradients=third_negative)
bend(
    "last_2_of_long_segments_lost",
    MERGES,
    "sum_cut lookup_missing",
    add_gradients=sums_of(lambda place, count: (count <= 4) | (place < count - 2)),
)
bend(
    "segments_in_fours_first_twice",
    MERGES,
    "lookup_doubled",
    add_gradients=again(lambda place, count: (place % 4 == 0) & (place > 0)),
)
bend(
    "gradients_cut_to_tf32",
    MERGES,
    "lookup_rounded",
    says="TF32",
    arriving=lambda k, gradient, batch: tf32(gradient),
)
bend(
    "gradient_of_last_sample_is_that_of_first",
    BACKWARD,
    ELSEWHERE,
    gradient_rows=lambda k, grad: np.append(grad[:-1], grad[:1], 0),
)
bend(
    "gradients_take_size_of_weight",
    BACKWARD,
    f"{ELSEWHERE} lookup_sign",
    gradient_weights=weights(lambda w, part, b: np.abs(w)[part.position]),
)
bend(
    "row_takes_in_gradient_of_row_before",
    MERGES,
    "lookup_added",
    leaving=lambda k, merged, batch: merged._replace(
        gradient=merged.gradient + np.append(0 * merged.gradient[:1], merged.gradient[:-1], 0)
    ),
)

# Steps.

bend(
    "rate_halved",
    STEPS,
    "other_number divided_by_2",
    says="learning_rate over 2",
    rate=lambda k, u: F32(u.lr / 2),
)
bend(
    "momentum_without_its_square",
    "backward trajectory",
    "other_number",
    momentum=lambda k, u, m, g: k.madd(F32(np.sqrt(u.options["momentum"])), m, g),
)
bend(
    "decay_squared",
    STEPS,
    "other_number",
    says="weight_decay",
    decay_factor=lambda k, u: F32(1.0 - float(u.options["learning_rate"]) * u.decay**2),
)
bend(
    "first_beta_for_both",
    STEPS,
    "",
    says="adam|lamb",
    moment=lambda k, u, beta, old, new: Kernel.moment(k, u, "beta1", old, new),
)
bend(
    "states_three_rows_early",
    STEPS,
    "step_from_elsewhere",
    state_address=lambda k, place, rows: place.row_base + np.maximum(rows - 3, 0),
)
bend(
    "every_fourth_touched_row_not_stepped",
    STEPS,
    "step_from_elsewhere old_state",
    updated=lambda k, merged, batch, table: Merged(
        *(array[np.arange(len(array)) % 4 != 3] for array in merged)
    ),
)
bend(
    "columns_from_16_not_stepped",
    STEPS,
    "tail_of_row",
    says="columns from 16 on|after the last whole 16",
    store_rows=some_columns(lambda c: c < 16),
)

# Jagged rows, codes.

bend(
    "segment_sum_skips_every_fourth",
    "segment_sum",
    "lookup_missing",
    segment_kept=lambda k, part: np.flatnonzero(part.place % 4 != 3),
)


def odd_columns_negative(k: Kernel, out: Array, name: str) -> Array:
    """The second of two codes has the wrong sign."""
    return np.where(np.arange(out.shape[1]) % 2 == 1, -out, out)


bend(
    "odd_columns_negative",
    "dequantize",
    "",
    says="odd columns",
    dequantized=odd_columns_negative,
)
bend(
    "padded_bags_one_row_late",
    "jagged_to_padded_dense",
    "",
    says="rows|permuted",
    dense_place=lambda k, place, lengths, length: place + 1,
)
