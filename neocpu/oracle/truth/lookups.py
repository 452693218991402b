"""What do bags of rows add up to, and what gradients do rows and weights get back? Exact lookups
and their transposes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neocpu.oracle.operator import Arrays, Value
from neocpu.oracle.truth.bags import CaseBags, Ints
from neocpu.oracle.truth.formats import FORMATS, nearest
from neocpu.oracle.truth.numbers import TINY, Bounded, Real, U
from neocpu.oracle.truth.sums import segment_sums

FP64 = 2.0**-51  # a quotient or a product of three factors in fp64, twice


@dataclass(frozen=True)
class MergedTruth:
    """Unique rows of one table (ascending), their merged gradients [U, D], and the lookups' own,
    sorted by row.
    """

    rows: Ints
    gradient: Bounded
    terms: Bounded  # [m, D]
    starts: Ints  # i64[U+1]: lookups of each row among the terms, in the order of the batch


def _power_of_two(x: Ints) -> NDArray[np.bool_]:
    return (x & (x - 1)) == 0


def divisor(bags: CaseBags, options: dict[str, Value], switches: frozenset[str]) -> Real | None:
    """What each bag's sum is divided by: f64[bags], or None where nothing is divided."""
    if options["pooling"] != "mean" or "mean_not_divided" in switches:
        return None
    length: Real = np.maximum(bags.length, 1).astype(np.float64)
    if "mean_counts_kept" in switches:
        length = np.maximum(np.bincount(bags.bag, minlength=length.size), 1).astype(np.float64)
    if bags.weight is not None:
        if "weighted_mean_by_weights" in switches:
            length = np.asarray(
                np.bincount(bags.bag, bags.weight, minlength=length.size) + 1e-6, np.float64
            )
        if "weighted_mean_not_divided" in switches:
            return None
    elif "mean_divisor_plus_1e6" in switches:
        length = length + 1e-6
    return length * length if "mean_divided_twice" in switches else length


def _roundings(d: Real | None) -> Ints:
    """Roundings that the division of each bag costs: none by a power of two, else a reciprocal and
    a product.
    """
    if d is None:
        return np.zeros(1, np.int64)
    whole = d == np.rint(d)
    return np.where(whole & _power_of_two(np.where(whole, d, 3).astype(np.int64)), 0, 2)


def _product(a: Real, b: Real | None) -> Real:
    with np.errstate(invalid="ignore", over="ignore"):
        return a if b is None else a * b[:, None]


def pooled(
    bags: CaseBags,
    rows: tuple[Real, Real, Real],
    options: dict[str, Value],
    switches: frozenset[str],
) -> list[Bounded]:
    """Pooled rows of every feature: [B_f, D_f] each, before they are rounded to the output's
    format.
    """
    by = divisor(bags, options, switches)
    cost = np.broadcast_to(_roundings(by), bags.length.shape)
    if "weighted_mean_by_weights" in switches:
        cost = cost + bags.length  # the divisor is a sum, too
    ends = np.append(0, np.cumsum(bags.batch))
    found = []
    for f, first in enumerate(ends[:-1]):
        last = ends[f + 1]
        lo, hi = np.searchsorted(bags.bag, (first, last))
        table = int(bags.table[lo]) if hi > lo else -1
        at = _elements(bags, lo, hi, table, int(bags.dims[f]))
        weight = None if bags.weight is None else bags.weight[lo:hi]
        terms = Bounded(
            _product(rows[0][at], weight),
            _product(rows[1][at], None if weight is None else np.abs(weight)),
        )
        size = _product(rows[2][at], None if weight is None else np.abs(weight))
        if "subnormals_flushed" in switches:
            terms = Bounded(flushed(terms.value), terms.error)
        starts = np.searchsorted(bags.bag[lo:hi], np.arange(first, last + 1))
        sums = segment_sums(terms, size, starts, int(weight is not None), cost[first:last])
        if "accumulated_narrow" in switches:
            sums = _one_by_one(terms.value, starts, str(options["output_format"]))
        found.append(sums if by is None else _divided(sums, by[first:last, None]))
    return found


def _one_by_one(terms: Real, starts: Ints, name: str) -> Bounded:
    """Bags summed in a narrow format, in the order of their lookups."""
    out = np.zeros((starts.size - 1, terms.shape[1]))
    count = np.diff(starts)
    for k in range(int(count.max(initial=0))):
        live = np.flatnonzero(count > k)
        with np.errstate(invalid="ignore"):
            out[live] = nearest(out[live] + terms[starts[live] + k], FORMATS[name])
    return Bounded.exactly(out)


def flushed(x: Real) -> Real:
    """x with subnormals (of fp32) as 0."""
    return np.where(np.abs(x) < 2.0**-126, 0.0, x)


def _elements(bags: CaseBags, lo: int, hi: int, table: int, width: int) -> Ints:
    """Elements [m, width] of the rows that some lookups of one table read."""
    start = bags.tables.element[table] if table >= 0 else 0
    step = bags.tables.dims[table] if table >= 0 else width
    return start + bags.at[lo:hi, None] * step + np.arange(width)


def _divided(x: Bounded, by: Real) -> Bounded:
    """x / by; the division's own rounding is among the roundings of the terms already, its
    underflow is not.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        value = x.value / by
        exact = _roundings(by) == 0
        error = np.where(
            np.isfinite(value),
            x.error / np.abs(by) + np.where(exact, 0.0, np.abs(value) * FP64),
            0.0,
        )
        small = (np.abs(value) < 2.0**-125) & (value != 0) & np.isfinite(value) & (np.abs(by) != 1)
        error = np.where(np.isinf(x.error), np.inf, error + np.where(small, TINY, 0.0))
    return Bounded(value, error)


def sequence(bags: CaseBags, rows: tuple[Real, Real, Real], lookups: int) -> Bounded:
    """Rows of all lookups, unpooled: [n, D]; +0 for lookups that read nothing."""
    width = int(bags.dims[0]) if bags.dims.size else 0
    value = np.zeros((lookups, width))
    error = np.zeros((lookups, width))
    for f in np.unique(bags.feature[bags.bag]):
        mine = np.flatnonzero(bags.feature[bags.bag] == f)
        at = (
            bags.tables.element[bags.table[mine], None]
            + bags.at[mine, None] * bags.dims[f]
            + np.arange(width)
        )
        weight = None if bags.weight is None else bags.weight[mine]
        value[bags.place[mine]] = _product(rows[0][at], weight)
        size = _product(rows[2][at], None if weight is None else np.abs(weight))
        error[bags.place[mine]] = _product(rows[1][at], None if weight is None else np.abs(weight))
        if weight is not None:
            error[bags.place[mine]] += U * size + TINY
    return Bounded(value, np.where(np.isfinite(value), error, 0.0))


def gradients(
    bags: CaseBags, inputs: Arrays, options: dict[str, Value], f: int, mine: Ints
) -> Real:
    """Gradient rows [m, D] that flow into some lookups of feature f, before division and weights."""
    given = np.asarray(inputs["grad_output"], np.float64)
    most = float(options.get("max_gradient", 0.0))
    if most:
        given = np.clip(given, -most, most)
    width = np.arange(bags.dims[f])
    if options["pooling"] == "none":
        return given[bags.place[mine, None], width]
    sample = bags.sample[bags.bag[mine]]
    if given.ndim == 1:  # variable batches: one flat array, feature-major
        start = int((bags.batch * bags.dims)[:f].sum())
        return given[start + sample[:, None] * bags.dims[f] + width]
    return given[sample[:, None], bags.column[f] + width]


def merged(
    bags: CaseBags, inputs: Arrays, options: dict[str, Value], switches: frozenset[str]
) -> dict[int, MergedTruth]:
    """Merged gradients of every table that has a lookup."""
    undivided = "weighted_mean_backward_not_divided" in switches and bags.weight is not None
    by = None if undivided else divisor(bags, options, switches)
    cost = np.broadcast_to(_roundings(by), bags.length.shape)
    found = {}
    for table in np.unique(bags.table).tolist():
        mine = np.flatnonzero(bags.table == table)
        order = mine[np.argsort(bags.at[mine], kind="stable")]
        found[table] = _merge(bags, inputs, options, order, by, cost, switches)
    return found


def _merge(
    bags: CaseBags,
    inputs: Arrays,
    options: dict[str, Value],
    order: Ints,
    by: Real | None,
    cost: Ints,
    switches: frozenset[str],
) -> MergedTruth:
    feature = bags.feature[bags.bag[order]]
    bag = bags.bag[order]
    terms = np.empty((order.size, int(bags.dims[feature[0]])))
    given = {**options, "max_gradient": 0.0} if "clip_after_merge" in switches else options
    for f in np.unique(feature).tolist():
        terms[feature == f] = gradients(bags, inputs, given, f, order[feature == f])
    weighted = bags.weight is not None and "gradient_without_weights" not in switches
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        if weighted:
            terms *= bags.weight[order, None]  # type: ignore[index]
        if by is not None:
            terms /= by[bag, None]
        for count in (2, 4, 8):
            if f"divided_by_{count}" in switches:
                terms /= count
    error = np.where((cost[bag, None] > 0) & np.isfinite(terms), np.abs(terms) * FP64, 0.0)
    rows, first = np.unique(bags.at[order], return_index=True)
    starts = np.append(first, order.size)
    divisions = np.maximum.reduceat(cost[bag], first)
    last = {"last_duplicate_wins": starts[1:] - 1, "first_duplicate_wins": first}
    for name, kept in last.items():
        if name in switches:
            terms = terms[kept]
            error = error[kept]
            starts = np.arange(rows.size + 1)
    if "subnormals_flushed" in switches:
        terms = flushed(terms)
    single = Bounded(terms, error)
    total = segment_sums(single, np.abs(terms), starts, int(weighted), divisions)
    if "duplicates_averaged" in switches:
        times = np.diff(starts)[:, None]
        total = Bounded(total.value / times, total.error / times + np.abs(total.value) * U)
    if "clip_after_merge" in switches:
        most = float(options["max_gradient"])
        total = Bounded(np.clip(total.value, -most, most) if most else total.value, total.error)
    return MergedTruth(rows, total, single, starts)


def weight_gradients(
    bags: CaseBags,
    inputs: Arrays,
    rows: tuple[Real, Real, Real],
    options: dict[str, Value],
    switches: frozenset[str],
) -> Bounded:
    """Gradient of the per-sample weights [n]: the dot product of each lookup's row and its bag's
    gradient, over L for MEAN.
    """
    count = inputs["indices"].size
    value = np.zeros(count)
    error = np.zeros(count)
    # without weights there is no gradient of weights
    undivided = "weighted_mean_backward_not_divided" in switches
    by = None if undivided else divisor(bags, options, switches)
    cost = np.broadcast_to(_roundings(by), bags.length.shape)
    for f in np.unique(bags.feature[bags.bag]).tolist():
        mine = np.flatnonzero(bags.feature[bags.bag] == f)
        at = (
            bags.tables.element[bags.table[mine], None]
            + bags.at[mine, None] * bags.dims[f]
            + np.arange(bags.dims[f])
        )
        given = gradients(bags, inputs, options, f, mine)
        if "gradient_without_grad_output" in switches:
            given = np.ones_like(given)
        with np.errstate(invalid="ignore", over="ignore"):
            product = Bounded(rows[0][at] * given, rows[1][at] * np.abs(given))
            size = rows[2][at] * np.abs(given)
        m, d = product.value.shape
        flat = Bounded(product.value.reshape(-1, 1), product.error.reshape(-1, 1))
        sums = segment_sums(
            flat, size.reshape(-1, 1), np.arange(m + 1) * d, 1, cost[bags.bag[mine]]
        )
        if by is not None:
            sums = _divided(sums, by[bags.bag[mine], None])
        if "weight_gradient_times_weight" in switches and bags.weight is not None:
            sums = Bounded(
                sums.value * bags.weight[mine, None], sums.error * np.abs(bags.weight[mine, None])
            )
        value[bags.place[mine]] = sums.value[:, 0]
        error[bags.place[mine]] = sums.error[:, 0]
    return Bounded(value, error)
