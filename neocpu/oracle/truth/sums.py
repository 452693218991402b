"""What is the exact sum of each segment of rows, and how far may any fp32 sum of it be?

`math.fsum` is exact and rounds once. The bound, whatever the order, is γ_k·Σ|terms| of k roundings
(Higham, ch. 4), and what products and divisions of single terms lose below fp32's normal range
(`underflow.py`; additions lose nothing there). There is one exception: where all terms are whole
multiples of one unit, Σ|terms| <= 2^24 units and nothing is lost below the normal range, every
partial sum in every order is an fp32 number, so a correct kernel makes no error at all. Cases with
such numbers catch one lost lookup in a bag of thousands.

`chance.py` has the statistical bound of long sums.
"""

import math
from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Bools, Elements, Ints
from neocpu.oracle.truth.chance import usual_error_of_additions
from neocpu.oracle.truth.numbers import LARGEST, SLACK, SMALL, TINY, Bounded, Real, U, gamma

FP64_ERROR = 2.0**-51  # a quotient or a product of three factors in fp64, twice


@dataclass(frozen=True)
class Roundings:
    """What each term of a sum goes through, and what becomes of the sum.

    products : multiplications of each term.
    additions : of each term but the first; two of a row-scaled row, whose bias may be added by
        itself.
    underflow : f64[m, width], what products and divisions of a term lose below the normal range;
        infinite where they may overflow. None: what a product may lose.
    divisors : f64[S], what sums are divided by, before or after terms are added up; None: nothing.
    divisions : i64[S], roundings of each term by a division that no choice of numbers makes exact.
        None: those of the divisors.
    """

    products: int = 0
    additions: int = 1
    underflow: Real | None = None
    divisors: Real | None = None
    divisions: Ints | None = None


def roundings_of_division(divisors: Real | None) -> Ints:
    """Roundings that a division by each of these costs.

    None by a power of two; else three, for kernels that take a reciprocal, which need not be
    correctly rounded, and multiply.
    """
    if divisors is None:
        return np.zeros(1, np.int64)
    return np.where(power_of_two(divisors), 0, 3)


def power_of_two(x: Real) -> Bools:
    """Which numbers are whole powers of two."""
    # 3 stands for NaN and infinity: a number that is no power of two.
    fraction = np.frexp(np.where(np.isfinite(x), x, 3.0))[0]
    return (fraction == 0.5) & (x >= 1)


def segment_sums(
    terms: Bounded,
    magnitude: Real,
    starts: Ints,
    products: int,
    divisions: Ints,
    probable: bool = False,
) -> Bounded:
    """`sums_of` with these products and divisions of each term."""
    by = Roundings(products=products, divisions=divisions)
    return sums_of(terms, magnitude, starts, by, probable)


def sums_of(
    terms: Bounded, magnitude: Real, starts: Ints, by: Roundings, probable: bool = False
) -> Bounded:
    """Sums of rows starts[s]:starts[s+1] of terms f64[m, width], over the first axis: [S, width].

    magnitude : f64[m, width], what |term| counts in the bound; larger than |term| where decoding
        the term cancels.
    probable : the statistical bound of additions, where it is smaller than the proven one.
    """
    segments = _Segments(starts, terms.value.shape[1])
    underflow = by.underflow
    if underflow is None:
        # Only a product that is no multiple of 2^-149 loses anything, half of that at most.
        underflow = np.where((unit(terms.value) < TINY) & bool(by.products), TINY / 2, 0.0)
    divisions = by.divisions if by.divisions is not None else roundings_of_division(by.divisors)
    count = np.diff(starts)
    # The first term is copied, not added.
    additions = by.additions * np.maximum(count - 1, 0)[:, None]
    other_roundings = np.where(count > 0, by.products + divisions, 0)[:, None]
    # NaN and infinities are kept out of magnitudes, which must stay numbers.
    number = np.isfinite(terms.value)
    signed = np.where(number, terms.value, 0.0)
    size = segments.reduced(np.add, np.where(number, magnitude, 0.0), 0.0)
    unknown = np.isinf(terms.error)
    no_nan = np.where(np.isnan(terms.error), 0.0, terms.error)  # no error times an infinity is none
    first_errors = segments.reduced(np.add, no_nan + underflow, 0.0)
    smallest = segments.reduced(np.minimum, unit(terms.value), np.inf)
    all_numbers = segments.reduced(np.logical_and, number, True)
    value = _exact(terms.value, segments, all_numbers)
    with np.errstate(invalid="ignore", over="ignore"):
        # every partial sum in every order is an fp32 number
        whole = (size <= smallest * 2.0**24) & (smallest >= TINY)
        one_number = (additions == 0) & (by.products == 0)
        exact = (first_errors == 0) & (divisions == 0)[:, None] & (whole | one_number)
        rounding = gamma(additions + other_roundings)
        error = rounding * size + first_errors * (1 + rounding)
        if probable:
            rounding = gamma(other_roundings + 1)
            usual = rounding * size + first_errors * (1 + rounding)
            usual += usual_error_of_additions(terms.value, starts, by.additions)
            # fmin: the usual error is unknown (infinite or NaN) for short segments.
            error = np.fmin(error, usual)
        error = np.where(exact, 0.0, (error + np.abs(value) * FP64_ERROR) * SLACK)
        # one of both parts: without the other, no partial sum has the wrong infinity
        of_both = [segments.reduced(np.add, np.fmax(x, 0.0), 0.0) for x in (signed, -signed)]
        one_sign = np.minimum(*of_both) < LARGEST / 4
        unsettled = (np.isinf(first_errors) | (size > LARGEST)) & ~np.isnan(value)
        unsettled = ~all_numbers & (unsettled | segments.reduced(np.logical_or, unknown, False))
        # By magnitudes: partial sums may pass the largest number where the sum does not.
        overflow = all_numbers & (size + error > LARGEST)
        quotient, error = _over(value, error, by.divisors)
        surely = overflow & one_sign & (np.abs(quotient) - error > LARGEST * (1 + U))
        error = np.where(all_numbers, error, 0.0)
        error = np.where((overflow | unsettled) & ~surely, np.inf, np.where(surely, 0.0, error))
    return Bounded(np.where(surely, np.copysign(np.inf, quotient), quotient), error)


def _over(value: Real, error: Real, divisors: Real | None) -> tuple[Real, Real]:
    """Sums and their errors over the divisors.

    The quotient's own rounding is among those of the terms already; its underflow is not.
    """
    if divisors is None:
        return value, error
    by = divisors[:, None]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        quotient = value / by
        exact = power_of_two(by)
        own_error = np.where(exact, 0.0, np.abs(quotient) * FP64_ERROR)
        # Near the edge too, as a kernel's quotient may be below it.
        small = (np.abs(quotient) < SMALL + error / np.abs(by)) & (np.abs(by) != 1)
        inexact = ~exact | (error > 0)
        underflow = np.where(small & inexact & (quotient != 0), np.where(exact, TINY / 2, TINY), 0)
        return quotient, (error / np.abs(by) + own_error + underflow) * SLACK


class _Segments:
    """Reductions over the segments of an array of rows."""

    def __init__(self, starts: Ints, width: int) -> None:
        self.starts = starts
        self.shape = (starts.size - 1, width)
        self.filled = np.flatnonzero(np.diff(starts))

    def reduced(self, by: np.ufunc, rows: Elements, nothing: object) -> Elements:
        """Each segment reduced over its rows; `nothing` for those without a row."""
        out = np.full(self.shape, nothing)
        if self.filled.size and self.shape[1]:
            with np.errstate(invalid="ignore", over="ignore"):
                out[self.filled] = by.reduceat(rows, self.starts[self.filled], axis=0)
        return out


def _exact(terms: Real, segments: _Segments, all_numbers: Bools) -> Real:
    """Exact sums of the segments, rounded once to fp64.

    NaN and infinities as in `docs/arithmetic.md` §3.
    """
    # right as it is for one or two terms, and where a term is not finite
    out: Real = segments.reduced(np.add, terms, 0.0)
    for s in np.flatnonzero(np.diff(segments.starts) > 2).tolist():
        rows = terms[segments.starts[s] : segments.starts[s + 1]]
        columns = np.flatnonzero(all_numbers[s])
        out[s, columns] = [math.fsum(column) for column in rows[:, columns].T.tolist()]
    return out + 0.0  # no -0: a sum of nothing but -0 is +0


def unit(x: Real) -> Real:
    """The largest power of two that divides x; infinite for 0, 0 for NaN and infinities."""
    with np.errstate(invalid="ignore", over="ignore"):
        fraction, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
        # An fp64 number has 53 bits: as a whole number its lowest set bit is the unit.
        whole = np.ldexp(np.abs(fraction), 53).astype(np.int64)
        lowest = (whole & -whole).astype(np.float64)
        return np.where(
            ~np.isfinite(x), 0.0, np.where(whole == 0, np.inf, np.ldexp(lowest, exponent - 53))
        )
