"""What is added up where an answer is wrong? Bags, segments and rows, each with its terms.

    lookup             a bag, and the weighted rows that its sum has (bags.py)
    segment_sum        a segment
    unique_gradient    a row, and the gradients of its lookups
    backward           a row, whose step from the sum of these gradients is judged whole (steps.py)

`fits` says of sums whether the answer may come from them, in the columns that are wrong.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Ints
from neocpu.oracle.diagnosis.evidence import CaseTrial
from neocpu.oracle.operator import Arrays, Options, Truth
from neocpu.oracle.truth.bags import JaggedBatch, bags_of
from neocpu.oracle.truth.formats import FORMATS, TF32, away, nearest, quantum, toward_zero
from neocpu.oracle.truth.lookups import MergedGradients, divisor, gradients, merged
from neocpu.oracle.truth.numbers import Real
from neocpu.oracle.verdicts.compare import judge, malformed, numbers

MOST_TERMS = 4096
MOST_BESIDE = 16  # terms on each side of a sum
MOST_RIVALS = 64  # other sums that a sum is compared with
SLACK = 2.0**-20  # of the terms' size: sums of other terms have other bounds
NEAR = 4.0  # tolerances
SMALLEST = 2.0**-149  # what a product or quotient loses below the normal range, at most

Mask = NDArray[np.bool_]
Fits = Callable[[Real], Mask]
Sums = dict[tuple[str, str], Real]  # [D] each, by hint and words


ROUNDINGS: dict[str, Callable[[Real], Real]] = {
    "rounded to TF32": partial(away, form=TF32),
    "cut to TF32": partial(toward_zero, form=TF32),
    "rounded to bf16": partial(nearest, form=FORMATS["bf16"]),
    "rounded to fp16": partial(nearest, form=FORMATS["fp16"]),
}


@dataclass
class Group:
    """One sum that is wrong.

    substitutes : what each lookup would add if it took something else, [n, D]; NaN where it cannot.
    extras : what does not belong to the sum, [D] each.
    beside : terms after its end and before its beginning, [K, D] each, the nearest first.
    rivals : sums of other rows or samples, [R, D].
    steps : whether a step from each of two sums, one after the other, gives the answer; of updates.
    others : what the sum itself gives with other states or another row; of updates.
    sums : sums that the answer may be instead, by hint and words, [D] each.
    answer : the numbers themselves, [D], where they are a sum.
    table, factors : all rows of the table that is read, [R, D], and what each lookup multiplies
        them by, [n].
    begin : the place of the first lookup among those that a kernel has sorted.
    """

    place: str
    terms: Real  # [n, D], in the order of the batch
    fits: Fits
    wrong: Mask  # [D]
    substitutes: dict[str, Real] = field(default_factory=dict)
    extras: dict[str, Real] = field(default_factory=dict)
    beside: tuple[Real, Real] | None = None
    rivals: Real | None = None
    steps: Callable[[Real, Real], Mask] | None = None
    others: Mapping[str, bool] = field(default_factory=dict)
    sums: Sums = field(default_factory=dict)
    answer: Real | None = None
    table: Real | None = None
    factors: Real | None = None
    begin: int | None = None

    def known(self) -> dict[str, Real]:
        """Substitutes, with a lookup's own term where it cannot take something else."""
        return {
            source: np.where(np.isnan(other), self.terms, other)
            for source, other in self.substitutes.items()
        }


def compared_output(trial: CaseTrial, output: str) -> tuple[Truth, Real, Mask] | None:
    """Truth, numbers and wrong elements of an output; None where there is nothing to compare."""
    truth = trial.truths.get(output)
    answer = trial.answers.get(output)
    if truth is None or answer is None or malformed(truth, answer):
        return None
    x = numbers(truth, answer)
    return None if x.shape != np.shape(truth.reference) else (truth, x, ~judge(truth, x)[0])


def sum_fits(x: Real, bound: Real, terms: Real, wrong: Mask, form: str = "fp32") -> Fits:
    """Whether sums [C, D] are an answer [D] of a format in its wrong columns."""
    # Other sums are rounded to other numbers of a narrow format.
    rounding = quantum(x, FORMATS[form]) if form != "fp32" else 0.0
    tolerance = 4 * bound + SLACK * np.abs(terms).sum(0) + rounding + SMALLEST
    # So near its own sum an answer is wrong by rounding, and near other sums as well.
    is_far = (np.abs(terms.sum(0) - x) > NEAR * tolerance)[wrong].any()

    def fits(totals: Real) -> Mask:
        near = np.abs(totals - x) <= tolerance
        return np.asarray(near[:, wrong].all(1)) & is_far

    return fits


def numbers_at(numbers: Real, place: Ints) -> Real:
    """Numbers [n] at some places; NaN where there is none."""
    inside = (place >= 0) & (place < numbers.size)
    return np.where(inside, numbers[np.where(inside, place, 0)], np.nan)


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
        fits = sum_fits(x[number], truth.bound[number], terms, wrong[number])
        place = f"segment {number}"
        sides = beside(values, begin, end)
        yield Group(place, terms, fits, wrong[number], beside=sides, answer=x[number], begin=begin)


def beside(terms: Real, begin: int, end: int) -> tuple[Real, Real]:
    """The terms after those from begin to end, and before them."""
    return terms[end : end + MOST_BESIDE], terms[max(begin - MOST_BESIDE, 0) : begin][::-1]


def sums_beside(gradients: MergedGradients, number: int) -> Sums:
    """The sums of the touched rows beside a row, and those of its own terms, rounded first."""
    begin, end = (int(limit) for limit in gradients.starts[number : number + 2])
    values = gradients.gradient.value
    sums: Sums = {}
    for name, other in (("next", number + 1), ("previous", number - 1)):
        if 0 <= other < len(values):
            sums["lookup_from_elsewhere", f"the sum is the {name} touched row's"] = values[other]
    terms = gradients.terms.value[begin:end]
    return sums | of_rounded(lambda rounded: {"gradients are": rounded(terms).sum(0)})


def of_rounded(sums: Callable[[Callable[[Real], Real]], dict[str, Real]]) -> Sums:
    """Sums [D] of numbers that were rounded first, by hint and words.

    sums : by what is rounded, for a way to round. fp16 has the bits of TF32, but fewer exponents:
        where no number tells them apart, both are named.
    """
    by_format = {name: sums(rounded) for name, rounded in ROUNDINGS.items()}
    hints: Sums = {}
    for what, total in by_format["rounded to TF32"].items():
        if np.array_equal(total, by_format["rounded to fp16"][what]):
            hints["lookup_rounded", f"{what} rounded to TF32 or fp16"] = total
    for name, totals in by_format.items():
        hints |= {("lookup_rounded", f"{what} {name}"): total for what, total in totals.items()}
    return hints


def group_of_row(
    merges: Mapping[int, MergedGradients], table: int, number: int, fits: Fits, wrong: Mask
) -> Group:
    """The terms of a touched row, and what is beside them: once lookups are sorted by row, and in
    the tables beside its own.
    """
    gradients = merges[table]
    begin, end = (int(limit) for limit in gradients.starts[number : number + 2])
    terms = gradients.terms.value
    row = int(gradients.rows[number])
    extras = {}
    for name, other in (("next", table + 1), ("previous", table - 1)):
        if other in merges and merges[other].gradient.value.shape[1] == terms.shape[1]:
            for place in np.flatnonzero(merges[other].rows == row):
                total = merges[other].gradient.value[place]
                extras[f"the gradient of the same row of the {name} table"] = total
    return Group(
        place=f"row {row} of table {table}",
        terms=terms[begin:end][:MOST_TERMS],
        fits=fits,
        wrong=wrong,
        extras=extras,
        beside=beside(terms, begin, end),
        rivals=gradients.gradient.value[:MOST_RIVALS],
        sums=sums_beside(gradients, number),
        begin=begin,
    )


def shifted_gradients(
    bags: JaggedBatch, inputs: Arrays, options: Options, table: int, row: int
) -> dict[str, Real]:
    """What the lookups of a row would add with another sample's gradient, or another weight."""
    lookups = np.flatnonzero((bags.table == table) & (bags.row == row))
    if options["pooling"] == "none" or not lookups.size:
        return {}
    by = divisor(bags, options, frozenset())
    share = np.ones(lookups.size) if by is None else 1 / by[bags.bag[lookups]]
    weight = np.ones(lookups.size) if bags.weight is None else bags.weight[lookups]
    feature = bags.feature[bags.bag[lookups]]
    width = int(bags.dims[feature[0]])

    def of_sample(step: int) -> Real:
        """Gradients of the samples so many places beside the lookups' own."""
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
        return value

    shifted = {
        "the gradient of the next sample": of_sample(1) * (weight * share)[:, None],
        "that of the one before": of_sample(-1) * (weight * share)[:, None],
    }
    if bags.weight is not None:
        all_weights = inputs["per_sample_weights"].astype(np.float64)
        own = of_sample(0)
        shifted["no weight"] = own * share[:, None]
        for name, step in (("next lookup", 1), ("lookup before", -1)):
            other_weight = numbers_at(all_weights, bags.position[lookups] + step)
            shifted[f"the weight of the {name}"] = own * (other_weight * share)[:, None]
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
    merges = merged(bags, trial.case.inputs, options, frozenset())
    for table, merge in merges.items():
        shape = merge.gradient.value.shape
        end = start + shape[0] * shape[1]
        answers, bounds, bad = (
            of_all[start:end].reshape(shape) for of_all in (x, truth.bound, wrong)
        )
        start = end
        for number in np.flatnonzero(bad.any(1)).tolist():
            row = int(merge.rows[number])
            terms = merge.terms.value[merge.starts[number] : merge.starts[number + 1]]
            fits = sum_fits(answers[number], bounds[number], terms, bad[number])
            yield replace(
                group_of_row(merges, table, number, fits, bad[number]),
                substitutes=shifted_gradients(bags, trial.case.inputs, options, table, row),
                answer=answers[number],
            )
