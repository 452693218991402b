"""Is an answer right, element by element, and where is it first wrong?

An element passes where |theirs - reference| <= bound. A NaN reference accepts any NaN, an infinity
itself, an infinite bound anything. Exact outputs must be equal. Stochastically rounded ones must be
in [lower, upper], and be `upper` as often as its probability says, independently (stochastic.py;
also over seeds: an answer with one more leading axis is one answer per seed). With `bits` the
canonical bits must be met; a NaN equals any NaN.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.oracle import stochastic
from neocpu.oracle.adapters import Array, codes_of, format_of
from neocpu.oracle.operator import Case, Operator, Truth
from neocpu.oracle.truth.formats import FORMATS, decode, quantum


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
    ratio: NDArray[np.float64] | None = None  # |error| / bound of every element, if it failed
    warnings: tuple[str, ...] = ()  # what is within the bound and yet unlikely
    untested: tuple[str, ...] = ()  # what this answer cannot show, such as the bias of a rounding


def malformed(truth: Truth, answer: Array) -> str:
    """Why an answer cannot be compared with the truth ("" if it can)."""
    shape = answer.shape
    expected = np.shape(truth.reference)
    per_seed = truth.probability is not None and shape[1:] == expected
    flat = len(expected) == 1 and answer.size == expected[0]
    if shape != expected and not per_seed and not flat:
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
    if code.kind == "u" and answer.dtype == code:
        return ""
    return f"{answer.dtype} elements, expected {truth.format}"


def numbers(truth: Truth, answer: Array) -> Array:
    """An answer as numbers: f64, or integers where the output is exact.

    Shaped as the reference; an answer per seed has one more leading axis.
    """
    if truth.exact:
        values = codes_of(answer)
    else:
        values = decode(answer, format_of(answer) or truth.format)
    expected = np.shape(truth.reference)
    per_seed = values.ndim > len(expected) and values.shape[1:] == expected
    return values if per_seed else values.reshape(expected)


def judge(truth: Truth, x: Array) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
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
) -> Verdict:
    """The verdict on one output. `canonical`: bits that must be met; None: within the bound."""
    problem = malformed(truth, answer)
    if problem:
        return Verdict(output, "malformed", problem)
    x = numbers(truth, answer)
    right, ratio = judge(truth, x)
    message = ""
    untested: tuple[str, ...] = ()
    expected = truth.reference
    if canonical is None:
        message, untested = stochastic.judged(case, truth, x)
    else:
        problem, right = _equal_bits(truth, canonical, x)
        if problem:
            return Verdict(output, "malformed", problem)
        expected = numbers(truth, canonical)
    worst_ratio = float(ratio.max(initial=0.0))
    if right.all() and not message:
        return Verdict(
            output, "passed", elements=x.size, worst_ratio=worst_ratio, untested=untested
        )
    wrong = np.flatnonzero(~right)
    first = worst = None
    if wrong.size:
        place = _Place(op, case, output, truth, expected, x)
        first = _wrong_element(place, int(wrong[0]))
        worst = _wrong_element(place, int(wrong[np.argmax(ratio.reshape(-1)[wrong])]))
    return Verdict(
        output=output,
        status="failed",
        message=message,
        elements=x.size,
        wrong=wrong.size,
        first=first,
        worst=worst,
        worst_ratio=worst_ratio,
        ratio=np.where(right, 0.0, ratio),
        untested=untested,
    )


def _equal_bits(truth: Truth, canonical: Array, x: Array) -> tuple[str, NDArray[np.bool_]]:
    """Why bits cannot be compared ("" if they can), and which elements have the canonical ones."""
    expected = numbers(truth, canonical)
    if x.shape != expected.shape:
        return "one answer per seed has no canonical bits", np.zeros(0, bool)
    if truth.exact:
        return "", np.asarray(x == expected)
    both_nan = np.isnan(x) & np.isnan(expected)
    return "", both_nan | ((x == expected) & (np.signbit(x) == np.signbit(expected)))


def same_bits(truth: Truth, bits: Array, answer: Array) -> bool:
    """Does an answer have these bits in every element? Any NaN equals any NaN."""
    problem, right = _equal_bits(truth, bits, numbers(truth, answer))
    return not problem and bool(right.all())


class _Place(NamedTuple):
    """Where wrong elements of an output are looked up."""

    op: Operator
    case: Case
    output: str
    truth: Truth
    expected: Array  # the reference, or the canonical bits as numbers
    answer: Array


def _wrong_element(place: _Place, flat_index: int) -> WrongElement:
    """The record of one element of the answer."""
    truth = place.truth
    index = tuple(int(i) for i in np.unravel_index(flat_index, place.answer.shape))
    inner = index[place.answer.ndim - np.ndim(truth.reference) :]  # without the axis of seeds
    theirs = float(place.answer[index])
    reference = float(place.expected[inner])
    ulps = None
    if not truth.exact and math.isfinite(theirs) and math.isfinite(reference):
        unit = quantum(np.asarray(reference, np.float64), FORMATS[truth.format])
        ulps = abs(theirs - reference) / float(unit)
    located = place.op.locate(place.case, place.output, inner)
    if len(inner) < len(index):
        located = {"seed": index[0], **located}
    return WrongElement(
        index=index,
        place={name: int(number) for name, number in located.items()},
        theirs=theirs,
        reference=reference,
        bound=float(truth.bound[inner]),
        ulps=ulps,
    )


def as_text(value: Any) -> str:
    """A number for people: shortest digits that tell fp32 numbers apart."""
    return f"{value:.9g}" if isinstance(value, float) else str(value)
