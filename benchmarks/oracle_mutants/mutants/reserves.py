"""More bugs as users report them, kept aside to measure explanations (see reports.py)."""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import Lookups
from benchmarks.oracle_mutants.gradients import Merged
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.mutants.blocks import columns, places, sums_of
from benchmarks.oracle_mutants.mutants.idioms import (
    ELSEWHERE,
    again,
    bag_lengths,
    rows_of_lookups,
    some_columns,
)
from benchmarks.oracle_mutants.mutants.numbers import bf16, fp16, tf32
from benchmarks.oracle_mutants.mutants.reports import of_partner, repeated_from
from benchmarks.oracle_mutants.mutants.strides import times
from benchmarks.oracle_mutants.mutants.weights import weights
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import BACKWARD, FORWARD, MERGES, STEPS, bend
from benchmarks.oracle_mutants.terms import Update

# Lookups.

bend(
    "columns_from_16_repeat_the_first",
    FORWARD,
    "",
    says="columns from 16 on",
    vector=repeated_from(16),
)
bend(
    "short_bag_of_warp_reads_on",
    FORWARD,
    "lookup_added bag_ends_late",
    ends=of_partner(True),
)
bend(
    "fifth_lookup_has_row_of_fourth",
    FORWARD,
    ELSEWHERE,
    feature_rows=rows_of_lookups(lambda x, part: x[np.arange(len(x)) - (part.place == 4)]),
)
bend(
    "weights_of_turns_of_4_reversed",
    FORWARD,
    ELSEWHERE,
    lookup_weights=weights(
        lambda w, part, b: w[
            np.where(
                part.place // 4 * 4 + 4 <= bag_lengths(part),
                part.position - part.place % 4 + 3 - part.place % 4,
                part.position,
            )
        ]
    ),
)
bend(
    "weights_of_pruned_in_divisor",
    FORWARD,
    "mean_counts_kept",
    says="pruned|mean",
    divisor=lambda k, lengths, batch, feature, part: np.maximum(
        lengths - np.bincount(part.sample, batch.of(feature, part) < 0, len(lengths)), 1
    ).astype(np.int64),
)
bend(
    "products_in_bf16",
    FORWARD,
    "lookup_rounded",
    says="bf16",
    weighted=lambda k, x, w: bf16((x * w[:, None]).astype(F32)),
)
bend(
    "rows_in_tf32",
    FORWARD,
    "lookup_rounded",
    says="TF32",
    feature_rows=rows_of_lookups(lambda x, part: tf32(x)),
)


def every_third_vector(out: Array) -> Array:
    """One of three vectors of four columns is not written."""
    out[:, np.arange(out.shape[1]) // 4 % 3 == 2] = 0
    return out


bend(
    "every_third_vector_of_4_not_written",
    FORWARD,
    "",
    says="every third 4 columns|of every 12 columns|columns",
    vector=columns(every_third_vector),
)


def quarter_swapped(out: Array) -> Array:
    """Halves of each eight columns change places."""
    whole = out.shape[1] // 8 * 8
    eights = out[:, :whole].reshape(len(out), -1, 2, 4)[:, :, ::-1]
    out[:, :whole] = eights.reshape(len(out), whole)
    return out


bend("vectors_of_4_swapped_in_pairs", FORWARD, "permuted", vector=columns(quarter_swapped))
bend(
    "first_lookup_weighs_double_in_long_bags",
    FORWARD,
    "lookup_doubled",
    feature_rows=times(lambda part: np.where((part.place == 0) & (bag_lengths(part) > 4), 2, 1)),
)
bend(
    "mean_forgets_odd_lookup",
    FORWARD,
    "",
    says="mean",
    divisor=lambda k, lengths, batch, feature, part: np.maximum(lengths // 2 * 2, 1),
)


def first_columns_of_first_lookup(x: Array, part: Lookups) -> Array:
    """The first vectors are fetched once for all lookups of a feature."""
    x[:, :8] = x[:1, :8]
    return x


bend(
    "first_8_columns_of_first_lookup",
    FORWARD,
    "",
    says="the first 8 columns|columns",
    feature_rows=rows_of_lookups(first_columns_of_first_lookup),
)

# Gradients of weights.

bend(
    "weight_gradient_of_sample_before",
    "weight_gradient",
    "gradient_of_next_sample lookup_from_elsewhere",
    says="sample",
    gradient_rows=lambda k, grad: np.roll(grad, 1, axis=0),
)

# Merges.

bend(
    "first_of_every_block_of_32_lost",
    MERGES,
    "lookup_missing duplicate_lost",
    add_gradients=sums_of(lambda place, count: (place % 32 != 0) | (place == 0)),
)
bend(
    "middle_of_segments_lost",
    MERGES,
    "lookup_missing duplicate_lost sum_cut",
    add_gradients=sums_of(lambda place, count: (place == 0) | (place == count - 1)),
)
bend(
    "gradients_in_bf16_before_merge",
    MERGES,
    "lookup_rounded gradients_in_bf16",
    says="bf16",
    arriving=lambda k, gradient, batch: bf16(gradient),
)
bend(
    "segment_borders_twice_of_8",
    MERGES,
    "lookup_doubled",
    add_gradients=again(lambda place, count: (place % 8 == 7) & (place < count - 1)),
)


def into_neighbour(k: Kernel, gradient: Array, inverse: Array, size: int) -> Array:
    """The last lookup of a row goes to the row after it, too, where both have several."""
    sums = Kernel.add_gradients(k, gradient, inverse, size)
    count = np.bincount(inverse, minlength=size)
    last = (places(inverse) == count[inverse] - 1) & (count[inverse] > 1)
    target = np.minimum(inverse + 1, max(size - 1, 0))
    kept = last & (target != inverse) & (count[target] > 1)
    np.add.at(sums, target[kept], gradient[kept])
    return sums


bend(
    "last_lookup_goes_to_row_after_too",
    MERGES,
    "lookup_added",
    add_gradients=into_neighbour,
)
bend(
    "gradient_over_lookups_of_feature",
    BACKWARD,
    "sum_scaled constant_factor",
    says="",
    leaving=lambda k, merged, batch: merged._replace(
        gradient=(merged.gradient / F32(len(batch.tables) + 1)).astype(F32)
    ),
)

# Steps.

bend(
    "accumulator_kept_in_fp16",
    STEPS,
    "",
    says="fp16|adagrad",
    adagrad_state=lambda k, u, s, square: fp16(Kernel.adagrad_state(k, u, s, square)),
)


def decayed_late(k: Kernel, u: Update, factor: Array, direction: Array) -> None:
    """Decay multiplies rows that have moved."""
    w = k.madd(-np.asarray(factor, F32), direction, u.w)
    keep = k.decay_factor(u) if u.mode == "decoupled" and u.decay else F32(1)
    u.w = (w * keep).astype(F32)


bend("decay_of_moved_rows", STEPS, "decay_after_step", subtract=decayed_late)
bend(
    "corrections_by_row_number_of_lookups",
    STEPS,
    "step_always_1",
    says="adam|lamb",
    step_number=lambda k, t: 1,
)


def first_vector_twice(
    k: Kernel, tables: dict, cells: Array, update: Update, options: dict
) -> None:
    """The first four columns move twice as far."""
    first = np.arange(update.columns) < 4
    update.w = np.where(first, 2 * update.w - update.old, update.w).astype(F32)
    Kernel.store_rows(k, tables, cells, update, options)


bend(
    "first_4_columns_step_twice",
    STEPS,
    "",
    says="the first 4 columns|columns",
    store_rows=first_vector_twice,
)


def whole_warps(k: Kernel, tables: dict, cells: Array, update: Update, options: dict) -> None:
    """Columns beyond the whole warps of 32 stay, but in rows that have none."""
    stop = max(update.columns // 32 * 32, 4)
    some_columns(lambda c: c < stop)(k, tables, cells, update, options)


bend(
    "columns_beyond_whole_32_not_stepped",
    STEPS,
    "",
    says="columns from|last",
    store_rows=whole_warps,
)
bend(
    "every_third_touched_row_not_stepped",
    STEPS,
    "step_from_elsewhere old_state",
    says="rows",
    updated=lambda k, merged, batch, table: Merged(
        *(array[np.arange(len(array)) % 3 != 2] for array in merged)
    ),
)
bend(
    "gradient_of_row_two_before",
    STEPS,
    "step_from_elsewhere",
    updated=lambda k, merged, batch, table: merged._replace(
        gradient=np.roll(merged.gradient, 2, 0)
    ),
)

# Jagged rows, codes.

bend(
    "segment_sum_divides_by_length",
    "segment_sum",
    "sum_scaled",
    says="length",
    add_up=lambda k, terms, group, size: (
        Kernel.add_up(k, terms, group, size)
        / np.maximum(np.bincount(group, minlength=size), 1)[:, None]
    ).astype(F32),
)


def third_codes_lost(k: Kernel, out: Array, name: str) -> Array:
    """The third of four columns is not decoded."""
    out = out.copy()
    out[:, 2::4] = 0
    return out


bend(
    "every_third_of_four_codes_lost",
    "dequantize",
    "",
    says="every fourth column|columns",
    dequantized=third_codes_lost,
)
bend(
    "softmax_powers_in_bf16",
    "jagged_softmax",
    "rounded_to_bf16",
    says="bf16",
    shifted=lambda k, values, part, bags: bf16(Kernel.shifted(k, values, part, bags)),
)
bend(
    "bags_selected_start_one_late",
    "jagged_index_select keyed_jagged_index_select",
    "",
    says="permuted|rows|bags",
    gathered=lambda k, offsets, bags: np.minimum(
        Kernel.gathered(k, offsets, bags) + 1, max(int(offsets[-1]) - 1, 0)
    ),
)
