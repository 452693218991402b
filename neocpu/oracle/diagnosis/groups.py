"""What is added up where an answer is wrong? Bags, segments and rows, each with its terms.

    lookup, segment_sum    a bag, and the weighted rows that its sum has
    unique_gradient        a row, and the gradients of its lookups
    backward               a row, whose step from the sum of these gradients is judged as a whole

`fits` says of sums whether the answer may come from them, in the columns that are wrong.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Elements, Ints
from neocpu.oracle.diagnosis.evidence import CaseTrial
from neocpu.oracle.operator import Arrays, Truth, Value
from neocpu.oracle.truth.bags import JaggedBatch, bags_of, rows_of
from neocpu.oracle.truth.lookups import MergedGradients, divisor, elements_of, gradients, merged
from neocpu.oracle.truth.numbers import Real
from neocpu.oracle.verdicts.compare import judge, malformed, numbers

MOST_TERMS = 4096
SLACK = 2.0**-20  # of the terms' size: sums of other terms have other bounds

Mask = NDArray[np.bool_]
Fits = Callable[[Real], Mask]


@dataclass
class Group:
    """One sum that is wrong.

    substitutes : what each lookup would add if it took something else, [n, D]; NaN where it cannot.
    extras : what does not belong to the sum, [D] each.
    steps : whether a step from each of two sums, one after the other, gives the answer; of updates.
    others : what the sum itself gives with other states or another row; of updates.
    """

    place: str
    terms: Real  # [n, D], in the order of the batch
    fits: Fits
    wrong: Mask  # [D]
    substitutes: dict[str, Real] = field(default_factory=dict)
    extras: dict[str, Real] = field(default_factory=dict)
    steps: Callable[[Real, Real], Mask] | None = None
    others: Mapping[str, bool] = field(default_factory=dict)


def compared_output(trial: CaseTrial, output: str) -> tuple[Truth, Real, Mask] | None:
    """Truth, numbers and wrong elements of an output; None where there is nothing to compare."""
    truth = trial.truths.get(output)
    answer = trial.answers.get(output)
    if truth is None or answer is None or malformed(truth, answer):
        return None
    x = numbers(truth, answer)
    return None if x.shape != np.shape(truth.reference) else (truth, x, ~judge(truth, x)[0])


def _sum_fits(x: Real, bound: Real, terms: Real, wrong: Mask) -> Fits:
    """Whether sums [C, D] are an answer [D] in its wrong columns."""
    tolerance = 4 * bound + SLACK * np.abs(terms).sum(0)

    def fits(totals: Real) -> Mask:
        near = np.abs(totals - x) <= tolerance
        return np.asarray(near[:, wrong].all(1))

    return fits


def wrong_segments(trial: CaseTrial) -> Iterator[Group]:
    """The segments of `segment_sum` that are wrong."""
    compared = compared_output(trial, next(iter(trial.truths)))
    if compared is None:
        return
    truth, x, wrong = compared
    values = trial.case.inputs["values"].astype(np.float64)
    offsets = trial.case.inputs["offsets"]
    for number in np.flatnonzero(wrong.any(-1)).tolist():
        begin = int(offsets[number])
        end = int(offsets[number + 1])
        terms = values[begin:end]
        extras = {}
        if end < len(values):
            extras["the first term of the next segment"] = values[end]
        if begin:
            extras["the last term of the segment before"] = values[begin - 1]
        fits = _sum_fits(x[number], truth.bound[number], terms, wrong[number])
        yield Group(f"segment {number}", terms, fits, wrong[number], extras=extras)


def wrong_bags(trial: CaseTrial) -> Iterator[Group]:
    """The bags of a pooled `lookup` that are wrong."""
    compared = compared_output(trial, "out")
    options = trial.op.complete(trial.case.options)
    if compared is None or options["pooling"] == "none":
        return
    truth, x, wrong = compared
    bags = bags_of(trial.case.inputs, options, frozenset())
    rows = rows_of(trial.case.inputs, options).value
    divisors = divisor(bags, options, frozenset())
    begins = np.append(0, np.cumsum(bags.batch_sizes))
    flat = np.append(0, np.cumsum(bags.batch_sizes * bags.dims))
    for f, width in enumerate(bags.dims.tolist()):

        def block(array: Elements, f: int = f, width: int = width) -> Elements:
            if array.ndim == 1:
                return array[flat[f] : flat[f + 1]].reshape(-1, width)
            return array[:, bags.column[f] : bags.column[f] + width]

        answers = block(x)
        bounds = block(truth.bound)
        bad = block(wrong)
        for sample in np.flatnonzero(bad.any(1)).tolist():
            bag = int(begins[f]) + sample
            lookups = np.flatnonzero(bags.bag == bag)[:MOST_TERMS]
            by = 1.0 if divisors is None else float(divisors[bag])
            weight = np.ones(lookups.size) if bags.weight is None else bags.weight[lookups]
            base = rows[elements_of(bags, lookups, width)]
            terms = base * (weight / by)[:, None]
            yield Group(
                place=f"bag of feature {f}, sample {sample}",
                terms=terms,
                fits=_sum_fits(answers[sample], bounds[sample], terms, bad[sample]),
                wrong=bad[sample],
                substitutes=_other_reads(bags, rows, lookups, weight / by)
                | _other_weights(bags, base, lookups, by),
                extras=_neighbours(bags, rows, bag, width, by),
            )


def _other_reads(bags: JaggedBatch, rows: Real, lookups: Ints, factor: Real) -> dict[str, Real]:
    """What lookups would add from rows beside their own, or of tables beside their own."""
    table = bags.table[lookups]
    width = int(bags.dims[bags.feature[bags.bag[lookups[0]]]]) if lookups.size else 1
    reads = {
        "the row after its own": (table, bags.row[lookups] + 1),
        "the row before its own": (table, bags.row[lookups] - 1),
        "row 0": (table, np.zeros(lookups.size, np.int64)),
        "the last row": (table, bags.tables.rows[table] - 1),
        "its row number of the next table": (table + 1, bags.row[lookups]),
        "its row number of the table before": (table - 1, bags.row[lookups]),
    }
    substitutes = {}
    for name, (other, row) in reads.items():
        exists = (other >= 0) & (other < bags.tables.rows.size)
        other = np.where(exists, other, 0)
        exists &= (bags.tables.dims[other] == width) & (row >= 0) & (row < bags.tables.rows[other])
        begin = bags.tables.first_element[other] + np.where(exists, row, 0) * width
        place = np.minimum(begin[:, None] + np.arange(width), max(rows.size - 1, 0))
        value = rows[place] * factor[:, None]
        substitutes[name] = np.where(exists[:, None], value, np.nan)
    return substitutes


def _other_weights(bags: JaggedBatch, base: Real, lookups: Ints, by: float) -> dict[str, Real]:
    """What lookups would add with another weight."""
    if bags.weight is None:
        return {}
    names = {"no weight": np.ones(lookups.size)}
    for name, place in (
        ("the weight of the next lookup", lookups + 1),
        ("the weight of the lookup before", lookups - 1),
    ):
        inside = (place >= 0) & (place < bags.weight.size)
        names[name] = np.where(inside, bags.weight[np.where(inside, place, 0)], np.nan)
    return {name: base * (weight / by)[:, None] for name, weight in names.items()}


def _neighbours(bags: JaggedBatch, rows: Real, bag: int, width: int, by: float) -> dict[str, Real]:
    """The lookups beside a bag, where they have its width."""
    extras = {}
    for name, place in (
        ("the first lookup of the next bag", int(np.searchsorted(bags.bag, bag, "right"))),
        ("the last lookup of the bag before", int(np.searchsorted(bags.bag, bag)) - 1),
    ):
        if 0 <= place < bags.bag.size and bags.dims[bags.feature[bags.bag[place]]] == width:
            element = elements_of(bags, np.array([place]), width)[0]
            weight = 1.0 if bags.weight is None else float(bags.weight[place])
            extras[name] = rows[element] * (weight / by)
    return extras


def terms_of_row(gradients: MergedGradients, number: int) -> tuple[Real, dict[str, Real]]:
    """The terms of a row, and those beside them once lookups are sorted by row."""
    begin, end = (int(limit) for limit in gradients.starts[number : number + 2])
    terms = gradients.terms.value
    extras = {}
    if end < len(terms):
        extras["the first lookup of the next row"] = terms[end]
    if begin:
        extras["the last lookup of the row before"] = terms[begin - 1]
    return terms[begin:end], extras


def shifted_gradients(
    bags: JaggedBatch, inputs: Arrays, options: dict[str, Value], table: int, row: int
) -> dict[str, Real]:
    """What the lookups of a row would add with the gradient of a sample beside their own."""
    lookups = np.flatnonzero((bags.table == table) & (bags.row == row))
    if options["pooling"] == "none" or not lookups.size:
        return {}
    by = divisor(bags, options, frozenset())
    factor = np.ones(lookups.size) if bags.weight is None else bags.weight[lookups]
    factor = factor if by is None else factor / by[bags.bag[lookups]]
    feature = bags.feature[bags.bag[lookups]]
    width = int(bags.dims[feature[0]])
    shifted = {}
    for name, step in (("the gradient of the next sample", 1), ("that of the one before", -1)):
        value = np.full((lookups.size, width), np.nan)
        for f in np.unique(feature).tolist():
            members = np.flatnonzero(feature == f)
            bag = bags.bag[lookups[members]] + step
            inside = (bag >= 0) & (bag < bags.feature.size)
            inside &= bags.feature[np.where(inside, bag, 0)] == f
            moved = bags.bag.copy()
            moved[lookups[members[inside]]] += step
            other = replace(bags, bag=moved)
            value[members[inside]] = gradients(other, inputs, options, f, lookups[members[inside]])
        shifted[name] = value * factor[:, None]
    return shifted


def wrong_rows(trial: CaseTrial) -> Iterator[Group]:
    """The rows of `unique_gradient` whose merged gradient is wrong."""
    compared = compared_output(trial, "values")
    if compared is None:
        return
    truth, x, wrong = compared
    options = trial.op.complete(trial.case.options)
    bags = bags_of(trial.case.inputs, options, frozenset())
    start = 0
    for table, merge in merged(bags, trial.case.inputs, options, frozenset()).items():
        shape = merge.gradient.value.shape
        end = start + shape[0] * shape[1]
        answers, bounds, bad = (
            of_all[start:end].reshape(shape) for of_all in (x, truth.bound, wrong)
        )
        start = end
        for number in np.flatnonzero(bad.any(1)).tolist():
            terms, extras = terms_of_row(merge, number)
            row = int(merge.rows[number])
            yield Group(
                place=f"row {row} of table {table}",
                terms=terms[:MOST_TERMS],
                fits=_sum_fits(answers[number], bounds[number], terms, bad[number]),
                wrong=bad[number],
                substitutes=shifted_gradients(bags, trial.case.inputs, options, table, row),
                extras=extras,
            )
