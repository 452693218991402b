"""What do bags of rows add up to, and what gradients do rows and weights get back?

Exact lookups and their transposes, over bounded numbers. A lookup reads the elements of its row
from the flat array of all tables; everything is done feature by feature, because features differ in
their columns.
"""

from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Ints
from neocpu.oracle.operator import Arrays, Options, Switches
from neocpu.oracle.truth.bags import DecodedRows, JaggedBatch, in_last_run, only
from neocpu.oracle.truth.bends import flushed, flushed_bounded, kept_duplicates
from neocpu.oracle.truth.formats import FORMATS, TF32, away, nearest, toward_zero
from neocpu.oracle.truth.numbers import LARGEST, SMALL, TINY, Bounded, Real, U
from neocpu.oracle.truth.sums import FP64_ERROR, Roundings, roundings_of_division, sums_of
from neocpu.oracle.truth.underflow import losses

# of q*scale + bias: q*(w*scale) loses q times what w*scale does, and w*bias loses, too
SCALED_LOSS = 258 * TINY
# This name among the switches chooses the statistical bounds of sums, not the proven ones.
PROBABLE = "probable_bounds"


@dataclass(frozen=True)
class MergedGradients:
    """The gradients of one table, merged by row and one by one."""

    rows: Ints  # i64[U]: unique rows, ascending
    gradient: Bounded  # [U, D]: merged
    terms: Bounded  # [m, D]: of the single lookups, sorted by row
    starts: Ints  # i64[U+1]: terms of each row, in the order of the batch


def divisor(bags: JaggedBatch, options: Options, switches: Switches) -> Real | None:
    """What the sum of each bag is divided by: f64[bags], or None where nothing is divided."""
    if options["pooling"] != "mean" or "mean_not_divided" in switches:
        return None
    # Empty bags are 0, and divided by nothing.
    length: Real = np.maximum(bags.length, 1).astype(np.float64)
    if "mean_counts_kept" in switches:
        length = np.maximum(np.bincount(bags.bag, minlength=length.size), 1).astype(np.float64)
    if bags.weight is not None:
        if "weighted_mean_by_weights" in switches or "weighted_mean_by_plain_weights" in switches:
            weight_sums = np.bincount(bags.bag, bags.weight, minlength=length.size)
            length = np.asarray(weight_sums, np.float64)
            if "weighted_mean_by_weights" in switches:
                length = length + 1e-6
        if "weighted_mean_not_divided" in switches:
            return None
    elif "mean_divisor_plus_1e6" in switches:
        length = length + 1e-6
    return length * length if "mean_divided_twice" in switches else length


def _weighted(x: Real, weight: Real | None) -> Real:
    """Rows x f64[m, D] times the weights f64[m] of their lookups, if there are any."""
    with np.errstate(invalid="ignore", over="ignore"):
        return x if weight is None else x * weight[:, None]


def elements_of(bags: JaggedBatch, lookups: Ints, width: int) -> Ints:
    """Elements i64[m, width] of the rows that some lookups of one feature read."""
    table = bags.table[lookups]
    first = bags.tables.first_element[table] + bags.row[lookups] * width
    return first[:, None] + np.arange(width)


def _terms(
    bags: JaggedBatch, rows: DecodedRows, lookups: Ints, width: int, divisions: Ints
) -> tuple[Bounded, Real]:
    """The weighted rows of some lookups, not yet rounded, and their magnitudes: [m, width].

    divisions : i64[bags], roundings of the division of each bag.
    """
    elements = elements_of(bags, lookups, width)
    weight = None if bags.weight is None else bags.weight[lookups]
    size = None if weight is None else np.abs(weight)
    # A factor may go to scale and bias first, so that rows are no longer decoded exactly.
    factored = (divisions[bags.bag[lookups]] > 0) | (weight is not None)
    error = np.where(factored[:, None], rows.factored_error(elements), rows.error[elements])
    # a row of which nothing is known may be NaN: not even a weight of 0 makes it 0
    error = np.where(np.isinf(error), np.inf, _weighted(error, size))
    terms = Bounded(_weighted(rows.value[elements], weight), error)
    return terms, _weighted(rows.magnitude[elements], size)


def _underflow(
    bags: JaggedBatch, rows: DecodedRows, lookups: Ints, width: int, divisors: Real | None
) -> Real:
    """What the terms of some lookups of one feature lose below the normal range: [m, width].

    In units of the terms before their sum is divided.
    """
    elements = elements_of(bags, lookups, width)
    y = None if bags.weight is None else bags.weight[lookups, None]
    by = None if divisors is None else divisors[bags.bag[lookups], None]
    lost = losses(rows.value[elements], y, by, _coarse(rows))
    if rows.parts is not None and (y is not None or by is not None):
        weight = np.ones((lookups.size, 1)) if y is None else np.abs(y)
        smallest, largest = (part[elements] for part in rows.parts)
        with np.errstate(invalid="ignore", over="ignore"):
            small = smallest * weight < SMALL * (1.0 if by is None else np.abs(by))
            lost = np.maximum(lost, np.where(small & (weight != 0), SCALED_LOSS, 0.0))
            # A part may overflow where the decoded number would not.
            lost = np.where(largest * weight > LARGEST / 2, np.inf, lost)
    return lost if by is None else lost * np.abs(by)


def _coarse(rows: DecodedRows) -> float:
    """What a product of a decoded element loses below the normal range, if it loses anything."""
    return SCALED_LOSS if rows.scaled else 0.0


def _products(bags: JaggedBatch, rows: DecodedRows) -> int:
    """Roundings of a product with a per-sample weight.

    Two for row-scaled rows: kernels may multiply scale and bias by the weight instead of the row.
    """
    return (1 + rows.scaled) if bags.weight is not None else 0


def pooled(
    bags: JaggedBatch, rows: DecodedRows, options: Options, switches: Switches
) -> list[Bounded]:
    """Pooled rows of every feature, [B_f, D_f] each, before they are rounded to the output."""
    divisors = divisor(bags, options, switches)
    divisions = np.broadcast_to(roundings_of_division(divisors), bags.length.shape)
    if "weighted_mean_by_weights" in switches or "weighted_mean_by_plain_weights" in switches:
        divisions = divisions + bags.length  # the divisor is a sum, too
    bag_limits = np.append(0, np.cumsum(bags.batch_sizes))
    features = []
    for f, first_bag in enumerate(bag_limits[:-1]):
        end_bag = bag_limits[f + 1]
        # Lookups are sorted by bag, and bags by feature.
        lookups = np.arange(*np.searchsorted(bags.bag, (first_bag, end_bag)))
        width = int(bags.dims[f])
        terms, magnitude = _terms(bags, rows, lookups, width, divisions)
        terms = flushed_bounded(terms, switches)
        starts = np.searchsorted(bags.bag[lookups], np.arange(first_bag, end_bag + 1))
        by = Roundings(
            products=_products(bags, rows),
            additions=1 + rows.scaled,
            underflow=_underflow(bags, rows, lookups, width, divisors),
            divisors=None if divisors is None else divisors[first_bag:end_bag],
            divisions=divisions[first_bag:end_bag],
        )
        sums = sums_of(terms, magnitude, starts, by, PROBABLE in switches)
        if "accumulated_narrow" in switches:
            sums = _summed_narrow(terms.value, starts, str(options["output_format"]))
            if by.divisors is not None:
                sums = sums / Bounded.exactly(by.divisors[:, None])
        if "accumulator_kept" in switches:
            count = np.ones((1, 1)) if by.divisors is None else by.divisors[:, None]
            kept = np.cumsum(sums.value * count, 0) / count
            sums = Bounded(kept, np.cumsum(sums.error * count, 0) / count + U * np.abs(kept))
        if options["pooling"] == "mean" and "mean_empty_is_nan" in switches:
            empty = bags.length[first_bag:end_bag, None] == 0
            sums = Bounded(np.where(empty, np.nan, sums.value), sums.error)
        features.append(sums)
    return features


def _summed_narrow(terms: Real, starts: Ints, name: str) -> Bounded:
    """Bags summed in a narrow format, rounded after each of their lookups in turn."""
    out = np.zeros((starts.size - 1, terms.shape[1]))
    count = np.diff(starts)
    for k in range(int(count.max(initial=0))):
        longer = np.flatnonzero(count > k)
        with np.errstate(invalid="ignore"):
            out[longer] = nearest(out[longer] + terms[starts[longer] + k], FORMATS[name])
    return Bounded.exactly(out)


def sequence(bags: JaggedBatch, rows: DecodedRows, lookups: int) -> Bounded:
    """Rows of all n lookups of the inputs, unpooled: [n, D]; +0 for lookups that read nothing."""
    width = int(bags.dims[0]) if bags.dims.size else 0
    value = np.zeros((lookups, width))
    error = np.zeros((lookups, width))
    for f in np.unique(bags.feature[bags.bag]):
        in_feature = np.flatnonzero(bags.feature[bags.bag] == f)
        terms, magnitude = _terms(
            bags, rows, in_feature, width, np.zeros(bags.length.size, np.int64)
        )
        position = bags.position[in_feature]
        starts = np.arange(in_feature.size + 1)
        by = Roundings(
            products=_products(bags, rows),
            underflow=_underflow(bags, rows, in_feature, width, None),
        )
        single = sums_of(terms, magnitude, starts, by)
        # A copied row keeps its -0, which a sum would lose.
        minus_zero = (terms.value == 0) & np.signbit(terms.value)
        value[position] = np.where(minus_zero, -0.0, single.value)
        error[position] = single.error
    return Bounded(value, error)


def gradients(
    bags: JaggedBatch,
    inputs: Arrays,
    options: Options,
    f: int,
    lookups: Ints,
    switches: Switches = frozenset(),
) -> Real:
    """Gradient rows [m, D] that reach some lookups of feature f, not yet divided or weighted."""
    gradient = np.asarray(inputs["grad_output"], np.float64)
    limit = float(np.float32(options.get("max_gradient", 0.0)))
    if limit:
        gradient = np.clip(gradient, -limit, limit)
    columns = np.arange(bags.dims[f])
    if options["pooling"] == "none":
        return gradient[bags.position[lookups, None], columns]
    sample = bags.sample[bags.bag[lookups]]
    if "gradient_of_next_sample" in switches:
        sample = np.minimum(sample + 1, bags.batch_sizes[f] - 1)
    if gradient.ndim == 1:  # variable batches: one flat array, feature-major
        first = int((bags.batch_sizes * bags.dims)[:f].sum())
        rows = gradient[first + sample[:, None] * bags.dims[f] + columns]
    else:
        rows = gradient[sample[:, None], bags.column[f] + columns]
    return rows


def merged(
    bags: JaggedBatch, inputs: Arrays, options: Options, switches: Switches
) -> dict[int, MergedGradients]:
    """Merged gradients of every table that has a lookup."""
    if "last_run_wins" in switches:
        bags = only(bags, in_last_run(bags))
    tables = {}
    for table in np.unique(bags.table).tolist():
        in_table = np.flatnonzero(bags.table == table)
        # Stable: switches that drop the first or last duplicate go by the batch's order.
        by_row = in_table[np.argsort(bags.row[in_table], kind="stable")]
        tables[table] = _merged_table(bags, inputs, options, by_row, switches)
    return tables


def _backward_divisor(bags: JaggedBatch, options: Options, switches: Switches) -> Real | None:
    """What the gradient of each bag is divided by."""
    if "weighted_mean_backward_not_divided" in switches and bags.weight is not None:
        return None
    return divisor(bags, options, switches)


def _lookup_gradients(
    bags: JaggedBatch, inputs: Arrays, options: Options, lookups: Ints, switches: Switches
) -> tuple[Real, Real]:
    """Gradients [m, D] of the single lookups of one table, weighted and divided.

    And what they lose below the normal range.
    """
    feature = bags.feature[bags.bag[lookups]]
    terms = np.empty((lookups.size, int(bags.dims[feature[0]])))
    clips = bool(options.get("max_gradient", 0.0))
    if clips and ("clip_after_merge" in switches or "clip_ignored" in switches):
        options = {**options, "max_gradient": 0.0}
    for f in np.unique(feature).tolist():
        in_feature = feature == f
        terms[in_feature] = gradients(bags, inputs, options, f, lookups[in_feature], switches)
    divisors = _backward_divisor(bags, options, switches)
    weight = None
    if bags.weight is not None and "gradient_without_weights" not in switches:
        weight = bags.weight[lookups, None]
    by = None if divisors is None else divisors[bags.bag[lookups], None]
    underflow = losses(terms, weight, by)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        if weight is not None:
            terms *= weight
        if by is not None:
            terms /= by
        for ranks in (2, 4, 8):
            if f"divided_by_{ranks}" in switches:
                terms /= ranks
    return terms, underflow


def _merged_table(
    bags: JaggedBatch, inputs: Arrays, options: Options, lookups: Ints, switches: Switches
) -> MergedGradients:
    """The gradients of one table, whose lookups come sorted by row."""
    terms, underflow = _lookup_gradients(bags, inputs, options, lookups, switches)
    divisors = _backward_divisor(bags, options, switches)
    roundings = np.broadcast_to(roundings_of_division(divisors), bags.length.shape)
    roundings = roundings[bags.bag[lookups]]
    inexact = (roundings[:, None] > 0) & np.isfinite(terms)
    # The quotient itself is rounded in fp64.
    error = np.where(inexact, np.abs(terms) * FP64_ERROR, 0.0)
    rows, first = np.unique(bags.row[lookups], return_index=True)
    starts = np.append(first, lookups.size)
    # A row's lookups are in bags of several lengths: the worst counts for all.
    divisions = np.maximum.reduceat(roundings, first)
    kept = kept_duplicates(starts, switches)
    if kept is not None:
        segment = np.repeat(np.arange(rows.size), np.diff(starts))[kept]
        terms = terms[kept]
        error = error[kept]
        underflow = underflow[kept]
        roundings = roundings[kept]
        starts = np.append(0, np.cumsum(np.bincount(segment, minlength=rows.size)))
    terms = flushed(terms, switches)
    for name in ("fp16", "bf16"):
        if f"gradients_in_{name}" in switches:
            terms = nearest(terms, FORMATS[name])
    if "gradients_cut_to_bf16" in switches:
        terms = toward_zero(terms, FORMATS["bf16"])
    if "gradients_in_tf32" in switches:
        terms = away(terms, TF32)  # as PTX's cvt.rna
    weighted = bags.weight is not None and "gradient_without_weights" not in switches
    by = Roundings(products=int(weighted), underflow=underflow, divisions=divisions)
    exact_terms = Bounded(terms, error)
    total = sums_of(exact_terms, np.abs(terms), starts, by, PROBABLE in switches)
    per_term = Roundings(products=int(weighted), underflow=underflow, divisions=roundings)
    single = sums_of(exact_terms, np.abs(terms), np.arange(len(terms) + 1), per_term)
    for name in ("fp16", "bf16"):
        if f"merged_in_{name}" in switches:
            total = _summed_narrow(terms, starts, name)
    if "duplicates_averaged" in switches:
        count = np.diff(starts)[:, None]
        total = Bounded(total.value / count, total.error / count + np.abs(total.value) * U)
    limit = float(np.float32(options.get("max_gradient", 0.0)))
    if "clip_after_merge" in switches and limit:
        total = Bounded(np.clip(total.value, -limit, limit), total.error)
    return MergedGradients(rows, total, single, starts)


def weight_gradients(
    bags: JaggedBatch, inputs: Arrays, rows: DecodedRows, options: Options, switches: Switches
) -> Bounded:
    """Gradient of the per-sample weights [n], over L for MEAN.

    Each is the dot product of the lookup's row and its bag's gradient.
    """
    count = inputs["indices"].size
    value = np.zeros(count)
    error = np.zeros(count)
    # no look at the weights: without them nobody asks for their gradient
    undivided = "weighted_mean_backward_not_divided" in switches
    divisors = None if undivided else divisor(bags, options, switches)
    for f in np.unique(bags.feature[bags.bag]).tolist():
        lookups = np.flatnonzero(bags.feature[bags.bag] == f)
        bag = bags.bag[lookups]
        elements = elements_of(bags, lookups, int(bags.dims[f]))
        gradient = gradients(bags, inputs, options, f, lookups, switches)
        if "gradient_without_grad_output" in switches:
            gradient = np.ones_like(gradient)
        with np.errstate(invalid="ignore", over="ignore"):
            product = rows.value[elements] * gradient
            product_error = rows.factored_error(elements) * np.abs(gradient)
            magnitude = rows.magnitude[elements] * np.abs(gradient)
        of_bag = None if divisors is None else divisors[bag]
        column = None if of_bag is None else of_bag[:, None]
        underflow = losses(rows.value[elements], gradient, column, _coarse(rows))
        if column is not None:
            underflow = underflow * np.abs(column)
        # every dot product is one segment of a flat array
        flat = Bounded(product.reshape(-1, 1), product_error.reshape(-1, 1))
        starts = np.arange(lookups.size + 1) * product.shape[1]
        by = Roundings(
            products=1,
            additions=1 + rows.scaled,
            underflow=underflow.reshape(-1, 1),
            divisors=of_bag,
        )
        sums = sums_of(flat, magnitude.reshape(-1, 1), starts, by, PROBABLE in switches)
        if "weight_gradient_times_weight" in switches and bags.weight is not None:
            weight = bags.weight[lookups, None]
            times = sums.value * weight
            sums = Bounded(times, sums.error * np.abs(weight) + U * np.abs(times))
        value[bags.position[lookups]] = sums.value[:, 0]
        error[bags.position[lookups]] = sums.error[:, 0]
    return Bounded(value, error)
