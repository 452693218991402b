"""Bugs in pooling: MEAN and sums."""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import Batch, Lookups
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.mutants.numbers import bf16, flushed, fp16, narrow_sums, tf32
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import FORWARD, GEOMETRY, bend, named_mistake

# MEAN.


def divisor(change):
    """Another divisor: change(lengths) -> numbers."""
    return lambda k, lengths, batch, feature, part: change(lengths)


named_mistake("mean_not_divided", GEOMETRY, over_length=lambda k, x, lengths: x)
bend("forward_mean_not_divided", FORWARD, "mean_not_divided", mean=lambda k, sums, *geometry: sums)
named_mistake("mean_divided_twice", GEOMETRY, divisor=divisor(lambda lengths: lengths**2))
bend("mean_over_one_more", GEOMETRY, divisor=divisor(lambda lengths: lengths + 1))
bend("mean_over_one_less", GEOMETRY, divisor=divisor(lambda lengths: np.maximum(lengths - 1, 1)))
bend(
    "mean_over_longest_bag",
    GEOMETRY,
    divisor=divisor(lambda lengths: np.full_like(lengths, lengths.max(initial=0))),
)
bend("mean_over_next_length", GEOMETRY, divisor=divisor(lambda lengths: np.roll(lengths, -1)))
bend("mean_over_previous_length", GEOMETRY, divisor=divisor(lambda lengths: np.roll(lengths, 1)))
bend(
    "mean_over_batch",
    GEOMETRY,
    divisor=divisor(lambda lengths: np.full_like(lengths, len(lengths))),
)
bend(
    "mean_plus_1e6",
    FORWARD,
    "mean_divisor_plus_1e6",
    divisor=lambda k, lengths, b, f, part: lengths + (1e-6 if b.weights is None else 0),
)
bend("mean_root_of_length", GEOMETRY, divisor=divisor(np.sqrt))


def kept_lookups(k: Kernel, lengths: Array, batch: Batch, feature: int, part: Lookups) -> Array:
    """Lookups that are not pruned."""
    _, inside = k.row_numbers(batch, feature, part)
    return np.bincount(part.sample[inside], minlength=len(lengths))


def different_rows(k: Kernel, lengths: Array, batch: Batch, feature: int, part: Lookups) -> Array:
    """Different rows of each bag."""
    keys = np.unique(np.stack([part.sample, batch.of(feature, part)]), axis=1)
    return np.bincount(keys[0], minlength=len(lengths))


bend("mean_over_kept_lookups", GEOMETRY, "mean_counts_kept", divisor=kept_lookups)
bend("mean_over_different_rows", GEOMETRY, divisor=different_rows)
bend(
    "mean_times_fp16_reciprocal",
    GEOMETRY,
    over_length=lambda k, x, lengths: (
        x * fp16(1 / np.maximum(lengths, 1).astype(F32))[:, None]
    ).astype(F32),
)
bend(
    "mean_of_empty_bag_nan",
    FORWARD,
    "mean_empty_is_nan",
    over_length=lambda k, x, lengths: x / lengths.astype(F32)[:, None],
)


def weights_sum(kind):
    """MEAN divides by a sum over the bag's weights."""

    def over(k: Kernel, lengths: Array, batch: Batch, feature: int, part: Lookups) -> Array:
        if batch.weights is None:
            return lengths
        return kind(part.sample, batch.weights[part.position], len(lengths))

    return over


bend(
    "weighted_mean_over_weights",
    FORWARD,
    "weighted_mean_by_plain_weights",
    divisor=weights_sum(np.bincount),
)
bend(
    "weighted_mean_over_weights_plus_1e6",
    FORWARD,
    "weighted_mean_by_weights",
    divisor=weights_sum(lambda bag, w, size: np.bincount(bag, w, size) + 1e-6),
)
bend(
    "weighted_mean_over_magnitudes",
    FORWARD,
    divisor=weights_sum(lambda bag, w, size: np.bincount(bag, np.abs(w), size)),
)
named_mistake(
    "weighted_mean_not_divided", FORWARD, divisor=weights_sum(lambda bag, w, size: np.ones(size))
)

# Sums.


def in_output_format(k: Kernel, *arguments) -> Array:
    """Sums kept in the narrow format of the output."""
    rounded = {"fp16": fp16, "bf16": bf16}
    batch = arguments[-1]
    name = batch.options.get("output_format", "fp32")
    terms = arguments[0] if arguments[1] is None else k.weighted(arguments[0], arguments[1])
    if name not in rounded:
        return k.add_up(terms, arguments[2].sample, arguments[3])
    return narrow_sums(rounded[name])(k, terms, arguments[2].sample, arguments[3])


bend("sums_in_output_format", FORWARD, "accumulated_narrow", bag_sums=in_output_format)
bend("sums_in_fp16", FORWARD, "accumulated_narrow", add_up=narrow_sums(fp16))
bend("sums_in_bf16", FORWARD, "accumulated_narrow", add_up=narrow_sums(bf16))
bend("sums_tf32", FORWARD, add_up=narrow_sums(tf32))


def maxima(k: Kernel, terms: Array, group: Array, size: int) -> Array:
    """The largest term."""
    sums = np.full((size, terms.shape[1]), -np.inf, F32)
    np.maximum.at(sums, group, terms)
    return np.where(np.isinf(sums), 0, sums).astype(F32)


def accumulator_kept(k: Kernel, terms: Array, group: Array, size: int) -> Array:
    """A bag begins with the sum of the one before."""
    sums = Kernel.add_up(k, terms, group, size)
    sums[1:] += sums[:-1].copy()
    return sums


def first_row_doubled(k: Kernel, terms: Array, group: Array, size: int) -> Array:
    """The accumulator begins with the first row, which is then added."""
    _, first = np.unique(group, return_index=True)
    return Kernel.add_up(
        k, np.concatenate([terms, terms[first]]), np.concatenate([group, group[first]]), size
    )


bend("maximum_in_place_of_sum", FORWARD, add_up=maxima)
bend("accumulator_not_cleared", FORWARD, "accumulator_kept", add_up=accumulator_kept)
bend("first_row_added_twice", FORWARD, add_up=first_row_doubled)
bend(
    "subnormal_rows_and_sums_flushed",
    FORWARD,
    "subnormals_flushed",
    loaded=lambda k, x, batch: flushed(x),
    stored=lambda k, sums, lengths, b: flushed(sums),
)
bend(
    "subnormal_results_flushed",
    FORWARD,
    "subnormals_flushed",
    stored=lambda k, sums, lengths, b: flushed(sums),
)
bend(
    "specials_replaced",
    FORWARD,
    loaded=lambda k, x, batch: np.nan_to_num(x, nan=0.0),
)
bend(
    "infinity_clamped",
    FORWARD,
    stored=lambda k, sums, lengths, b: np.clip(sums, np.finfo(F32).min, np.finfo(F32).max),
)
bend(
    "empty_bag_not_written",
    FORWARD,
    stored=lambda k, sums, lengths, b: np.where(lengths[:, None] == 0, F32(np.nan), sums),
)


def last_result(k: Kernel, sums: Array, lengths: Array, batch: Batch) -> Array:
    """An empty bag keeps the registers of the bag before."""
    last = np.maximum.accumulate(np.where(lengths > 0, np.arange(len(lengths)), 0))
    return sums[last] if len(sums) else sums


bend("empty_bag_repeats_last", FORWARD, stored=last_result)
