"""Is an answer right, element by element, and where is it first wrong? Pass means |theirs -
reference| <= bound.

NaN accepts any NaN, an infinity itself, an infinite bound anything; exact outputs must be equal;
stochastically rounded ones must be in [lower, upper], and as often `upper` as its probability says
(χ², also over seeds: an answer with one more leading axis is one answer per seed). With `bits` the
canonical bits must be met; a NaN equals any NaN.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.oracle.adapters import Array, codes_of, format_of
from neocpu.oracle.operator import Case, Operator, Truth
from neocpu.oracle.truth.formats import FORMATS, decode, quantum

UNLIKELY = 1e-6  # a χ² rarer than this is no accident
FEW = 5.0  # variance that a group needs before χ² is asked


@dataclass(frozen=True)
class Wrong:
    """One wrong element: its index, what it belongs to (table, row, column, sample, …), and the
    numbers.
    """

    index: tuple[int, ...]
    place: dict[str, int]
    theirs: float
    reference: float
    bound: float
    ulps: float | None  # |theirs - reference| in units in the last place of the output's format


@dataclass(frozen=True)
class Verdict:
    """What came of one output. status: passed, failed, malformed (shape or dtype) or missing;
    `ratio` = |error| / bound.
    """

    output: str
    status: str
    message: str = ""
    elements: int = 0
    wrong: int = 0
    first: Wrong | None = None
    worst: Wrong | None = None
    worst_ratio: float = 0.0
    # of every element, for the map; only of failed outputs
    ratio: NDArray[np.float64] | None = None


def malformed(truth: Truth, answer: Array) -> str:
    """Why an answer cannot be compared with the truth ("" if it can)."""
    shape, want = answer.shape, np.shape(truth.reference)
    seeds = truth.probability is not None and shape[1:] == want
    flat = len(want) == 1 and answer.size == want[0]
    if shape != want and not seeds and not flat:
        turned = "; it is transposed" if len(want) > 1 and shape == want[::-1] else ""
        return f"shape {list(shape)}, expected {list(want)}{turned}"
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
    """An answer as numbers shaped as the reference (one more axis for seeds): f64, or integers of
    exact outputs.
    """
    found = codes_of(answer) if truth.exact else decode(answer, format_of(answer) or truth.format)
    want = np.shape(truth.reference)
    return (
        found if found.shape[1:] == want and len(found.shape) > len(want) else found.reshape(want)
    )


def judge(truth: Truth, x: Array) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which elements are right, and |error| / bound of each (0 where nothing is wrong, inf where
    the bound is 0).
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
    """The verdict on one output; `canonical` given: its bits must be met."""
    why = malformed(truth, answer)
    if why:
        return Verdict(output, "malformed", why)
    x = numbers(truth, answer)
    right, ratio = judge(truth, x)
    message = "" if canonical is not None else unlikely(truth, x)
    if canonical is not None:
        why, right = _same_bits(truth, canonical, answer, x)
        if why:
            return Verdict(output, "malformed", why)
    if right.all() and not message:
        return Verdict(output, "passed", elements=x.size, worst_ratio=float(ratio.max(initial=0.0)))
    want = truth.reference if canonical is None else numbers(truth, canonical)
    flat = np.flatnonzero(~right)
    first = worst = None
    if flat.size:
        first = _wrong(op, case, output, truth, want, x, int(flat[0]))
        worst = _wrong(
            op, case, output, truth, want, x, int(flat[np.argmax(ratio.reshape(-1)[flat])])
        )
    top = float(ratio.max(initial=0.0))
    return Verdict(
        output, "failed", message, x.size, flat.size, first, worst, top, np.where(right, 0.0, ratio)
    )


def _same_bits(
    truth: Truth, canonical: Array, answer: Array, x: Array
) -> tuple[str, NDArray[np.bool_]]:
    """Why bits cannot be compared, or which elements have the canonical ones."""
    want = numbers(truth, canonical)
    if x.shape != want.shape:
        return "one answer per seed has no canonical bits", np.zeros(0, bool)
    if truth.exact:
        return "", np.asarray(x == want)
    nan = np.isnan(x) & np.isnan(want)
    return "", nan | ((x == want) & (np.signbit(x) == np.signbit(want)))


def same_bits(truth: Truth, bits: Array, answer: Array) -> bool:
    """Does an answer have these bits in every element? Any NaN equals any NaN."""
    why, right = _same_bits(truth, bits, answer, numbers(truth, answer))
    return not why and bool(right.all())


def _wrong(
    op: Operator, case: Case, output: str, truth: Truth, want: Array, x: Array, at: int
) -> Wrong:
    index = tuple(int(i) for i in np.unravel_index(at, x.shape))
    inner = index[x.ndim - np.ndim(truth.reference) :]
    theirs = float(x[index])
    ref = float(want[inner])
    ulps = None
    if not truth.exact and math.isfinite(theirs) and math.isfinite(ref):
        ulps = abs(theirs - ref) / float(
            quantum(np.asarray(ref, np.float64), FORMATS[truth.format])
        )
    place = {} if op is None else op.locate(case, output, inner)
    if len(inner) < len(index):
        place = {"seed": index[0], **place}
    return Wrong(
        index, {k: int(v) for k, v in place.items()}, theirs, ref, float(truth.bound[inner]), ulps
    )


def unlikely(truth: Truth, x: Array) -> str:
    """What is wrong with how often stochastic rounding went up ("" if nothing): χ² over groups of
    equal probability.

    Elements are grouped by probability into tenths; each group with enough variance is one normal
    number, squared.
    """
    if truth.probability is None or truth.upper is None:
        return ""
    p = np.broadcast_to(truth.probability, x.shape)
    known = np.isfinite(p) & (p > 0) & (p < 1)
    up = (x == np.broadcast_to(truth.upper, x.shape))[known]
    p = p[known]
    group = np.minimum((p * 10).astype(np.int64), 9)
    count, mean, variance = (np.bincount(group, w, 10) for w in (up.astype(float), p, p * (1 - p)))
    enough = variance >= FEW
    if not enough.any():
        return ""
    square = float(((count - mean)[enough] ** 2 / variance[enough]).sum())
    chance = chi_square_tail(square, int(enough.sum()))
    if chance >= UNLIKELY:
        return ""
    return (
        f"stochastic rounding is biased: {int(up.sum())} of {up.size} elements were rounded up, "
        f"{p.sum():.1f} expected (χ² = {square:.1f} on {int(enough.sum())} groups, chance "
        f"{chance:.1g})"
    )


def chi_square_tail(x: float, freedom: int) -> float:
    """Chance of a χ² of `freedom` degrees beyond x: the recurrence of the incomplete gamma function
    from erfc and exp.
    """
    if x <= 0:
        return 1.0
    half = x / 2
    if freedom % 2:
        tail = math.erfc(math.sqrt(half))
        term = math.exp(-half) * math.sqrt(half) / math.gamma(1.5)
        k = 1.5
    else:
        tail = math.exp(-half)
        term = math.exp(-half) * half
        k = 2.0
    while k <= freedom / 2 + 1e-9:
        tail += term
        term *= half / k
        k += 1
    return min(tail, 1.0)


def as_text(value: Any) -> str:
    """A number for people: shortest digits that tell fp32 numbers apart."""
    return f"{value:.9g}" if isinstance(value, float) else str(value)
