"""Bugs of strides and tiles: every so many lookups, rows or columns; what stands a tile away.

Written when those of idioms.py had been looked at, and before anybody saw what is said of these.
"""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import Batch, Lookups
from benchmarks.oracle_mutants.gradients import Merged
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.mutants.blocks import columns, places, sums_of
from benchmarks.oracle_mutants.mutants.idioms import ELSEWHERE, again, bag_lengths, rows_of_lookups
from benchmarks.oracle_mutants.mutants.numbers import bf16, fp16
from benchmarks.oracle_mutants.mutants.weights import weights
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import FORWARD, MERGES, STEPS, bend


def times(factor):
    """Rows of lookups times factor(part)."""
    return rows_of_lookups(lambda x, part: (x * factor(part)[:, None]).astype(F32))


bend(
    "third_lookup_counts_twice",
    FORWARD,
    "lookup_doubled",
    feature_rows=times(lambda part: np.where(part.place == 2, 2, 1)),
)
bend(
    "last_lookup_of_bag_subtracted",
    FORWARD,
    "lookup_sign",
    feature_rows=times(lambda part: np.where(part.place == bag_lengths(part) - 1, -1, 1)),
)
bend(
    "only_every_fourth_lookup",
    FORWARD,
    "lookup_missing",
    feature_rows=times(lambda part: np.where(part.place % 4 == 0, 1, 0)),
)
bend(
    "only_the_last_two_lookups",
    FORWARD,
    "sum_cut",
    feature_rows=times(lambda part: np.where(part.place >= bag_lengths(part) - 2, 1, 0)),
)


def even_rows(k: Kernel, batch: Batch, feature: int, part: Lookups) -> tuple[Array, Array]:
    """The lowest bit of a row's number is lost."""
    row, inside = Kernel.row_numbers(k, batch, feature, part)
    return row & ~1, inside


bend("odd_rows_read_the_row_before", FORWARD, ELSEWHERE, row_numbers=even_rows)
bend(
    "weights_of_first_of_two",
    FORWARD,
    ELSEWHERE,
    lookup_weights=weights(lambda w, part, b: w[part.position - part.place % 2]),
)
bend(
    "rows_in_bf16_before_weights",
    FORWARD,
    "lookup_rounded",
    feature_rows=rows_of_lookups(lambda x, part: bf16(x)),
)
bend("columns_a_vector_late", FORWARD, "permuted", vector=columns(lambda x: np.roll(x, 4, 1)))
bend(
    "gradients_in_fp16_before_merge",
    "backward unique_gradient",
    "lookup_rounded gradients_in_fp16",
    arriving=lambda k, gradient, batch: fp16(gradient),
)
bend(
    "second_half_of_segment_lost",
    MERGES,
    "sum_cut lookup_missing",
    add_gradients=sums_of(lambda place, count: place < (count + 1) // 2),
)
bend(
    "second_half_of_segment_twice",
    MERGES,
    "lookup_doubled",
    add_gradients=again(lambda place, count: (place >= (count + 1) // 2) & (count > 1)),
)


def second_of_row_before(k: Kernel, gradient: Array, inverse: Array, size: int) -> Array:
    """The second lookup of a row is added to the row before."""
    into = np.where(places(inverse) == 1, np.maximum(inverse - 1, 0), inverse)
    return Kernel.add_gradients(k, gradient, into, size)


bend(
    "second_lookup_goes_to_row_before",
    MERGES,
    "lookup_missing lookup_added duplicate_lost",
    add_gradients=second_of_row_before,
)


def odd_rows_rest(k: Kernel, merged: Merged, batch: Batch, table: int) -> Merged:
    """Only rows of even numbers step."""
    return Merged(*(array[merged.rows % 2 == 0] for array in merged))


bend(
    "odd_rows_not_stepped",
    STEPS,
    "step_from_elsewhere old_state",
    says="odd rows",
    updated=odd_rows_rest,
)
bend(
    "states_two_rows_late",
    STEPS,
    "step_from_elsewhere",
    state_address=lambda k, place, rows: place.row_base + np.maximum(rows - 2, 0),
)
