"""Is an answer right, element by element, and where is it first wrong?

An element passes where |theirs - reference| <= bound. A NaN reference accepts any NaN, an infinity
itself, an infinite bound anything. Exact outputs must be equal. Stochastically rounded ones must be
in [lower, upper], and be `upper` as often as its probability says, independently (stochastic.py).
An answer with one more leading axis has several runs, of stochastic outputs one per seed; all must
be right (runs.py). With `bits` the canonical bits must be met; a NaN equals any NaN.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Bools, Doubles
from neocpu.oracle.adapters import Array, codes_of, format_of
from neocpu.oracle.operator import Case, Operator, Truth
from neocpu.oracle.semantics import Mistake
from neocpu.oracle.truth.formats import FORMATS, decode, quantum
from neocpu.oracle.verdicts import stochastic
from neocpu.oracle.verdicts.runs import RunDifferences, differences, has_runs
from neocpu.oracle.verdicts.stochastic_mistakes import Draws
from neocpu.oracle.verdicts.typical import warnings


@dataclass(frozen=True)
class WrongElement:
    """One wrong element: its index, its table, row, column, sample, …, and the numbers."""

    index: tuple[int, ...]
    place: dict[str, int]
    theirs: float
    reference: float
    bound: float
    ulps: float | None  # |theirs - reference| in units in the last place of the output's format


@dataclass(frozen=True)
class Verdict:
    """The judgement of one output."""

    output: str
    status: str  # passed, failed, malformed (shape or dtype) or missing
    message: str = ""
    elements: int = 0
    wrong: int = 0
    first: WrongElement | None = None
    worst: WrongElement | None = None
    worst_ratio: float = 0.0
    ratio: Doubles | None = None  # |error| / bound of every element, if it failed
    warnings: tuple[str, ...] = ()  # what is within the bound and yet unlikely
    untested: tuple[str, ...] = ()  # what this answer cannot show, such as the bias of a rounding
    # what the numbers prove without a model of the operator: unfair rounding, races between runs
    mistakes: tuple[Mistake, ...] = ()
    draws: Draws | None = None  # stochastic roundings, to compare with other seeds


def malformed(truth: Truth, answer: Array) -> str:
    """Why an answer cannot be compared with the truth ("" if it can)."""
    shape = answer.shape
    expected = np.shape(truth.reference)
    # Tables may be given as matrices: only the order of elements counts.
    flat = len(expected) == 1 and answer.size == expected[0]
    if shape != expected and not has_runs(expected, shape) and not flat:
        hint = "; it is transposed" if len(expected) > 1 and shape == expected[::-1] else ""
        return f"shape {list(shape)}, expected {list(expected)}{hint}"
    kind = answer.dtype.kind
    form = format_of(answer)
    if truth.exact:
        if kind in "iub":
            return ""
        return (
            f"{form or answer.dtype} elements, expected integers "
            f"({np.asarray(truth.reference).dtype})"
        )
    if kind == "f" or (form and form in FORMATS):
        return ""
    code = np.dtype(FORMATS[truth.format].dtype)
    # Bare codes, from programs that have no such dtype.
    if code.kind == "u" and answer.dtype == code:
        return ""
    return f"{answer.dtype} elements, expected {truth.format}"


def numbers(truth: Truth, answer: Array) -> Array:
    """An answer as numbers: f64, or integers where the output is exact.

    Shaped as the reference; several runs have one more leading axis.
    """
    if truth.exact:
        values = codes_of(answer)
    else:
        values = decode(answer, format_of(answer) or truth.format)
    expected = np.shape(truth.reference)
    runs = (len(values),) if has_runs(expected, values.shape) else ()
    return values.reshape(*runs, *expected)


def judge(truth: Truth, x: Array) -> tuple[Bools, Doubles]:
    """Which elements of x are right, bool[...], and |error| / bound of each, f64[...].

    The ratio is 0 where x is the reference, infinite where the bound is 0.
    """
    ref = np.broadcast_to(truth.reference, x.shape)
    if truth.exact:
        right = np.asarray(x == ref)
        return right, np.where(right, 0.0, np.inf)
    bound = np.broadcast_to(truth.bound, x.shape)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.abs(x - ref)
        same = (x == ref) | (np.isnan(x) & np.isnan(ref)) | np.isposinf(bound)
        right = same | (error <= bound)
        ratio = np.where(same, 0.0, np.where(bound > 0, error / bound, np.inf))
        if truth.lower is not None and truth.upper is not None:
            inside = ~((x < truth.lower) | (x > truth.upper))
            # outside, though within the bound: shown as wrong on the map
            ratio = np.where(right & ~inside, np.maximum(ratio, 1.5), ratio)
            right &= inside
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    return right, ratio


def agrees(truth: Truth, answer: Array) -> bool:
    """True when every element is right; shapes must fit."""
    return not malformed(truth, answer) and bool(judge(truth, numbers(truth, answer))[0].all())


def compare(
    op: Operator,
    case: Case,
    output: str,
    truth: Truth,
    answer: Array,
    canonical: Array | None = None,
    repeats: bool = False,
) -> Verdict:
    """The verdict on one output.

    canonical : bits that must be met, in every run; None: within the bound.
    repeats : several runs of a stochastic output have one seed, not each its own.
    """
    problem = malformed(truth, answer)
    if problem:
        return Verdict(output, "malformed", problem)
    x = numbers(truth, answer)
    right, ratio = judge(truth, x)
    has_seeds = truth.probability is not None and not repeats
    several = x.ndim > np.ndim(truth.reference)
    between = RunDifferences()
    if several and not has_seeds:
        between = differences(op, case, output, truth, x, right)
    messages = [between.message]
    rounding = stochastic.Judgement()
    expected = truth.reference
    if canonical is None:
        rounding = stochastic.judged(case, truth, x[0] if several and repeats else x)
        messages.append(rounding.message)
    elif several and has_seeds:
        return Verdict(output, "malformed", "one answer per seed has no canonical bits")
    else:
        right = _equal_bits(truth, canonical, x)
        expected = numbers(truth, canonical)
    unlikely = warnings(op, case, output, truth, x, right)
    message = "; ".join(filter(None, messages))
    passed = bool(right.all()) and not message
    place = _Place(op, case, output, truth, expected, x)
    first, worst = _extremes(place, right, ratio)
    shown = None if passed else _of_worst_run(np.where(right, 0.0, ratio), np.ndim(expected))
    return Verdict(
        output=output,
        status="passed" if passed else "failed",
        message=message,
        elements=x.size,
        wrong=int((~right).sum()),
        first=first,
        worst=worst,
        worst_ratio=float(ratio.max(initial=0.0)),
        ratio=shown,
        warnings=tuple(filter(None, (between.warning, *unlikely))),
        untested=rounding.untested,
        mistakes=tuple(m for m in (between.race, rounding.mistake) if m is not None),
        draws=rounding.sample,
    )


def _of_worst_run(ratio: Doubles, dimensions: int) -> Doubles:
    """The largest of all runs, element by element."""
    return ratio.max(0) if ratio.ndim > dimensions else ratio


def _equal_bits(truth: Truth, canonical: Array, x: Array) -> Bools:
    """Which elements have the canonical bits, in every run."""
    expected = numbers(truth, canonical)
    if truth.exact:
        return np.asarray(x == expected)
    both_nan = np.isnan(x) & np.isnan(expected)
    return both_nan | ((x == expected) & (np.signbit(x) == np.signbit(expected)))


def same_bits(truth: Truth, bits: Array, answer: Array) -> bool:
    """Does an answer have these bits in every element? Any NaN equals any NaN."""
    return bool(_equal_bits(truth, bits, numbers(truth, answer)).all())


def one_run(truths: Mapping[str, Truth], answers: Mapping[str, Array]) -> dict[str, Array]:
    """One run of each answer: the first in which an output is wrong, of all outputs the same."""
    several = {
        output: numbers(truths[output], answer)
        for output, answer in answers.items()
        if has_runs(np.shape(truths[output].reference), answer.shape)
        and not malformed(truths[output], answer)
    }
    wrong = []
    for output, x in several.items():
        runs = ~judge(truths[output], x)[0].reshape(len(x), -1).all(1)
        wrong += np.flatnonzero(runs)[:1].tolist()
    # Of all outputs the same run, as one mistake must explain them together.
    run = min(wrong, default=0)
    return {**answers, **{output: x[min(run, len(x) - 1)] for output, x in several.items()}}


class _Place(NamedTuple):
    """Where wrong elements of an output are looked up."""

    op: Operator
    case: Case
    output: str
    truth: Truth
    expected: Array  # the reference, or the canonical bits as numbers
    answer: Array


def _extremes(
    place: _Place, right: Bools, ratio: Doubles
) -> tuple[WrongElement | None, WrongElement | None]:
    """The first wrong element and the worst one; None where all are right."""
    wrong = np.flatnonzero(~right)
    if not wrong.size:
        return None, None
    worst = wrong[np.argmax(ratio.reshape(-1)[wrong])]
    return _wrong_element(place, int(wrong[0])), _wrong_element(place, int(worst))


def _wrong_element(place: _Place, flat_index: int) -> WrongElement:
    """The record of one element of the answer."""
    truth = place.truth
    index = tuple(int(i) for i in np.unravel_index(flat_index, place.answer.shape))
    inner = index[place.answer.ndim - np.ndim(truth.reference) :]  # without the axis of runs
    theirs = float(place.answer[index])
    reference = float(place.expected[inner])
    ulps = None
    if not truth.exact and math.isfinite(theirs) and math.isfinite(reference):
        unit = quantum(np.asarray(reference, np.float64), FORMATS[truth.format])
        ulps = abs(theirs - reference) / float(unit)
    located = place.op.locate(place.case, place.output, inner)
    if len(inner) < len(index):
        located = {"run": index[0], **located}
    return WrongElement(
        index=index,
        place={name: int(number) for name, number in located.items()},
        theirs=theirs,
        reference=reference,
        bound=float(truth.bound[inner]),
        ulps=ulps,
    )


def as_text(value: float) -> str:
    """A number for people: shortest digits that tell fp32 numbers apart."""
    return f"{value:.9g}" if isinstance(value, float) else str(value)
