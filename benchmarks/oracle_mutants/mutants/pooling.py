"""Bugs in pooling: terms, sums, MEAN, weights, columns."""

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.geometry import Batch, Lookups
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.registry import BACKWARD, FORWARD, GEOMETRY, bend

TINY = np.finfo(F32).tiny


def flushed(x: Array) -> Array:
    """Numbers, subnormals as zeros."""
    return np.where(np.abs(x) < TINY, F32(0), x)


def bf16(x: Array) -> Array:
    """Numbers rounded to bf16."""
    k = Kernel()
    return k.decode_small(k.encode_small(x, "bf16", "nearest"), "bf16")


def fp16(x: Array) -> Array:
    """Numbers rounded to fp16."""
    return x.astype(np.float16).astype(F32)


def tf32(x: Array) -> Array:
    """Numbers with ten bits of mantissa."""
    bits = np.ascontiguousarray(x, F32).view(np.uint32)
    return (bits + 0x1000 & 0xFFFFE000).astype(np.uint32).view(F32)


# MEAN.


def divisor(change):
    """Another divisor: change(lengths) -> numbers."""
    return lambda k, lengths, batch, feature, part: change(lengths)


bend("mean_not_divided", GEOMETRY, "mean_not_divided", over_length=lambda k, x, lengths: x)
bend("forward_mean_not_divided", FORWARD, "mean_not_divided", mean=lambda k, sums, *geometry: sums)
bend(
    "mean_divided_twice",
    GEOMETRY,
    "mean_divided_twice",
    divisor=divisor(lambda lengths: lengths**2),
)
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
    "weighted_mean_by_weight_sum weighted_mean_by_plain_weights",
    divisor=weights_sum(lambda bag, w, size: np.bincount(bag, w, size)),
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
bend(
    "weighted_mean_not_divided",
    FORWARD,
    "weighted_mean_not_divided",
    divisor=weights_sum(lambda bag, w, size: np.ones(size)),
)

# Weights.


def weights(change):
    """Other weights: change(all weights, part, batch) -> those of the part."""

    def lookup_weights(k: Kernel, batch: Batch, feature: int, part: Lookups) -> Array | None:
        return None if batch.weights is None else change(batch.weights, part, batch)

    return lookup_weights


def place_in_feature(w: Array, part: Lookups, batch: Batch) -> Array:
    """Weights by the place among a feature's lookups."""
    return w[part.position - part.position.min(initial=len(w))]


def of_first_lookup(w: Array, part: Lookups, batch: Batch) -> Array:
    """The weight of the bag's first lookup, for all."""
    return w[part.position - part.place]


bend("weights_ignored", GEOMETRY, "weights_ignored", lookup_weights=lambda k, *geometry: None)
bend(
    "weights_by_place_in_bag",
    GEOMETRY,
    "weights_restart",
    lookup_weights=weights(lambda w, part, b: w[part.place]),
)
bend("weights_by_place_in_feature", GEOMETRY, lookup_weights=weights(place_in_feature))
bend(
    "weights_of_next_lookup",
    GEOMETRY,
    lookup_weights=weights(lambda w, part, b: np.roll(w, -1)[part.position]),
)
bend("weights_of_first_lookup", GEOMETRY, lookup_weights=weights(of_first_lookup))
bend(
    "weights_of_bag_number",
    GEOMETRY,
    lookup_weights=weights(lambda w, part, b: w[part.sample % len(w)]),
)
bend(
    "weights_squared",
    GEOMETRY,
    lookup_weights=weights(lambda w, part, b: (w**2)[part.position]),
)
bend(
    "weights_magnitudes",
    GEOMETRY,
    lookup_weights=weights(lambda w, part, b: np.abs(w)[part.position]),
)
bend(
    "weights_fp16",
    FORWARD,
    lookup_weights=weights(lambda w, part, b: fp16(w)[part.position]),
)
bend(
    "weights_bf16",
    FORWARD,
    lookup_weights=weights(lambda w, part, b: bf16(w)[part.position]),
)
bend("sequence_weights_ignored", FORWARD, "weights_ignored", sequence_weights=lambda k, *g: None)
bend(
    "weight_of_zero_skips_row",
    FORWARD,
    weighted=lambda k, x, w: np.where(w[:, None] == 0, 0, x * w[:, None]).astype(F32),
)
bend("products_tf32", FORWARD, weighted=lambda k, x, w: (tf32(x) * tf32(w)[:, None]).astype(F32))

# Sums.


def narrow_sums(rounded):
    """Sums that are rounded after every addition."""

    def add_up(k: Kernel, terms: Array, group: Array, size: int) -> Array:
        sums = np.zeros((size, terms.shape[1]), F32)
        order = np.argsort(group, kind="stable")
        counts = np.bincount(group, minlength=size)
        begins = np.cumsum(counts) - counts
        for place in range(int(counts.max(initial=0))):
            bags = np.flatnonzero(counts > place)
            sums[bags] = rounded(sums[bags] + terms[order[begins[bags] + place]])
        return sums

    return add_up


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
bend("sums_in_fp16", FORWARD, "accumulated_fp16 accumulated_narrow", add_up=narrow_sums(fp16))
bend("sums_in_bf16", FORWARD, "accumulated_bf16 accumulated_narrow", add_up=narrow_sums(bf16))
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
bend("accumulator_not_cleared", FORWARD, add_up=accumulator_kept)
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

# Columns.


def columns(change, *, operators=GEOMETRY, name, true=""):
    """A bug in the columns of a result."""
    bend(name, operators, true, vector=lambda k, out: change(out.copy()))


def zeroed(first):
    """Columns from first(D) on stay 0."""

    def change(out: Array) -> Array:
        out[:, first(out.shape[1]) :] = 0
        return out

    return change


columns(zeroed(lambda d: d // 4 * 4), name="tail_of_4_columns_lost")
columns(zeroed(lambda d: d // 8 * 8 if d > 8 else d), name="tail_of_8_columns_lost")
columns(zeroed(lambda d: d // 32 * 32 if d > 32 else d), name="tail_of_32_columns_lost")
columns(zeroed(lambda d: 128), name="columns_beyond_128_lost")
columns(zeroed(lambda d: 256), name="columns_beyond_256_lost")
columns(zeroed(lambda d: 1024), name="columns_beyond_1024_lost")
columns(zeroed(lambda d: max(d - 1, 0)), name="last_column_lost")
columns(lambda out: out[:, ::-1], name="columns_backwards")
columns(lambda out: np.roll(out, 1, axis=1), name="columns_rotated")


def pairs_swapped(out: Array) -> Array:
    """Columns 2c and 2c + 1 change places."""
    even = out.shape[1] // 2 * 2
    swapped = np.arange(even) ^ 1
    out[:, :even] = out[:, swapped]
    return out


columns(pairs_swapped, name="pairs_of_columns_swapped")
columns(lambda out: out[::-1], operators=FORWARD, name="samples_backwards")
columns(lambda out: -out, operators=FORWARD, name="lookup_sign_flipped")
bend(
    "columns_in_table_order",
    "lookup weight_gradient backward unique_gradient trajectory",
    "columns_in_table_order",
    column_starts=lambda k, batch: starts_by_table(batch),
)


def starts_by_table(batch: Batch) -> Array:
    """First columns of features, ordered by table."""
    order = np.argsort(batch.tables, kind="stable")
    widths = batch.dims[batch.tables][order]
    starts = np.empty_like(widths)
    starts[order] = np.cumsum(widths) - widths
    return starts


bend(
    "columns_by_width_of_feature",
    GEOMETRY,
    column_starts=lambda k, batch: np.arange(len(batch.tables)) * batch.dims[batch.tables],
)
bend(
    "columns_by_greatest_width",
    FORWARD,
    column_starts=lambda k, batch: np.arange(len(batch.tables)) * int(batch.dims.max()),
)


def by_sample(k: Kernel, parts: list[Array], batch: Batch) -> Array:
    """A flat output, sample by sample where all batches are of one size."""
    if not batch.variable:
        return Kernel.side_by_side(k, parts, batch)
    return np.concatenate([part.T.reshape(-1) for part in parts])


bend("flat_output_column_major", FORWARD, side_by_side=by_sample)
bend(
    "flat_output_features_backwards",
    FORWARD,
    side_by_side=lambda k, parts, batch: Kernel.side_by_side(
        k, parts[::-1] if batch.variable else parts, batch
    ),
)
bend(
    "flat_gradient_backwards",
    "backward unique_gradient weight_gradient",
    gradient_starts=lambda k, sizes: (np.cumsum(sizes[::-1]) - sizes[::-1])[::-1],
)
bend(
    "flat_gradient_by_first_size",
    "backward unique_gradient weight_gradient",
    gradient_starts=lambda k, sizes: np.arange(len(sizes)) * sizes[:1].sum(),
)

# The gradient of weights.

bend(
    "weight_gradient_times_weight",
    "weight_gradient",
    "weight_gradient_times_weight",
    dot=lambda k, x, gradient, batch, part: (
        Kernel.dot(k, x, gradient, batch, part) * batch.weights[part.position]
    ),
)
bend(
    "weight_gradient_without_gradient",
    "weight_gradient",
    "gradient_without_grad_output",
    dot=lambda k, x, gradient, batch, part: x.sum(axis=1, dtype=F32),
)
bend(
    "weight_gradient_without_row",
    "weight_gradient",
    dot=lambda k, x, gradient, batch, part: gradient.sum(axis=1, dtype=F32),
)
bend(
    "weight_gradient_first_32_columns",
    "weight_gradient",
    dot=lambda k, x, gradient, b, part: k.column_sum((x * gradient)[:, :32].astype(F32)),
)
bend(
    "weight_gradient_first_1024_columns",
    "weight_gradient",
    dot=lambda k, x, gradient, b, part: k.column_sum((x * gradient)[:, :1024].astype(F32)),
)
bend(
    "weight_gradient_bf16_products",
    "weight_gradient",
    dot=lambda k, x, gradient, b, part: k.column_sum(bf16(x) * bf16(gradient)),
)
bend(
    "weight_gradient_over_D",
    "weight_gradient",
    dot=lambda k, x, gradient, b, part: k.column_sum((x * gradient).astype(F32)) / F32(x.shape[1]),
)
bend(
    "weight_gradient_of_bag",
    "weight_gradient",
    dot=lambda k, x, gradient, b, part: np.bincount(
        part.sample, k.column_sum((x * gradient).astype(F32)).astype(np.float64)
    )[part.sample].astype(F32),
)
bend(
    "weight_gradient_mean_not_divided",
    "weight_gradient",
    "mean_not_divided",
    mean_gradient=lambda k, gradient, *geometry: gradient,
)
bend(
    "backward_mean_not_divided",
    BACKWARD,
    "mean_not_divided",
    mean_gradient=lambda k, gradient, *geometry: gradient,
)
bend(
    "backward_weighted_mean_not_divided",
    BACKWARD,
    "weighted_mean_backward_not_divided",
    mean_gradient=lambda k, gradient, batch, f, part: (
        gradient if batch.weights is not None else Kernel.mean_gradient(k, gradient, batch, f, part)
    ),
)
