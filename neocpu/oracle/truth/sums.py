"""What is the exact sum of each segment of rows, and how far may any fp32 sum of it be?

`math.fsum` is exact and rounds once. The bound, whatever the order, is γ_k·Σ|terms| of k roundings
(Higham, ch. 4), with one exception: where all terms are whole multiples of one unit and Σ|terms|
<= 2^24 units, every partial sum in every order is an fp32 number, so a correct kernel makes no
error at all. Cases with such numbers catch one lost lookup in a bag of thousands.
"""

import math

import numpy as np
from numpy.typing import NDArray

from neocpu.oracle.truth.numbers import LARGEST, SLACK, TINY, Bounded, Real, U, gamma

Ints = NDArray[np.int64]


def segment_sums(
    terms: Bounded, magnitude: Real, starts: Ints, products: int, divisions: Ints
) -> Bounded:
    """Sums of rows starts[s]:starts[s+1] of terms f64[m, width], over the first axis: [S, width].

    magnitude : f64[m, width], what |term| counts in the bound; larger than |term| where decoding
        the term cancels.
    products : roundings of each term by multiplications.
    divisions : i64[S] or i64[1], roundings of each term that no choice of numbers makes exact.
    """
    count = np.diff(starts)
    shape = (count.size, terms.value.shape[1])
    value = np.zeros(shape)
    size = np.zeros(shape)
    term_errors = np.zeros(shape)
    absolute = np.zeros(shape)
    unit = np.full(shape, np.inf)
    finite = np.ones(shape, bool)
    filled = np.flatnonzero(count)
    if filled.size and shape[1]:
        first = starts[filled]
        size[filled] = np.add.reduceat(magnitude, first, axis=0)
        term_errors[filled] = np.add.reduceat(terms.error, first, axis=0)
        unit[filled] = np.minimum.reduceat(_unit(terms.value), first, axis=0)
        finite[filled] = np.logical_and.reduceat(np.isfinite(terms.value), first, axis=0)
        value[filled] = _exact(terms.value, starts, filled, finite)
        with np.errstate(invalid="ignore"):
            absolute[filled] = np.abs(np.add.reduceat(terms.value, first, axis=0))
    roundings = np.where(count > 0, np.maximum(count - 1, 0) + products + divisions, 0)[:, None]
    with np.errstate(invalid="ignore", over="ignore"):
        # every partial sum in every order is an fp32 number
        whole = (term_errors == 0) & (size <= unit * 2.0**24) & (unit >= TINY)
        exact = (roundings == 0) | (whole & (divisions == 0)[:, None])
        error = np.where(exact, 0.0, gamma(roundings) * size * SLACK + count[:, None] * TINY)
        total = term_errors * (1 + gamma(roundings)) * SLACK + error
    return _with_overflow(value, total, size, absolute, finite)


def _with_overflow(
    value: Real, error: Real, size: Real, absolute: Real, finite: NDArray[np.bool_]
) -> Bounded:
    """Sums as fp32 holds them: infinite beyond its largest number, unknown where they may be.

    Partial sums cannot pass the largest number before the sum does where all terms have one sign.
    """
    with np.errstate(invalid="ignore"):
        risky = finite & (size + error > LARGEST)
        one_sign = absolute >= size * (1 - 2.0**-30)
        surely = risky & one_sign & (np.abs(value) - error > LARGEST * (1 + U))
    error = np.where(risky, np.where(surely, 0.0, np.inf), np.where(finite, error, 0.0))
    return Bounded(np.where(surely, np.copysign(np.inf, value), value), error)


def _exact(terms: Real, starts: Ints, filled: Ints, finite: NDArray[np.bool_]) -> Real:
    """Exact sums of the segments that have terms, rounded once to fp64.

    NaN and infinities as in `docs/arithmetic.md` §3.
    """
    lengths = starts[filled + 1] - starts[filled]
    with np.errstate(invalid="ignore"):
        # right as it is for one or two terms, and where a term is not finite
        out = np.add.reduceat(terms, starts[filled], axis=0)
    for i in np.flatnonzero(lengths > 2):
        s = filled[i]
        columns = np.flatnonzero(finite[s])
        out[i, columns] = [
            math.fsum(c) for c in terms[starts[s] : starts[s + 1], columns].T.tolist()
        ]
    return out + 0.0  # no -0: a sum of nothing but -0 is +0


def _unit(x: Real) -> Real:
    """The largest power of two that divides x; infinite for 0, 0 for NaN and infinities."""
    with np.errstate(invalid="ignore", over="ignore"):
        fraction, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
        whole = np.ldexp(np.abs(fraction), 53).astype(np.int64)
        lowest = (whole & -whole).astype(np.float64)
        return np.where(
            ~np.isfinite(x), 0.0, np.where(whole == 0, np.inf, np.ldexp(lowest, exponent - 53))
        )
