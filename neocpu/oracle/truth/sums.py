"""What is the exact sum of each segment of rows, and how far may fp32 sums of it be, in any order?

`math.fsum` is exact and rounds once. The bound is γ_k·Σ|terms|, k roundings (Higham, ch. 4), with
one way out: where all terms are whole multiples of one unit and Σ|terms| <= 2^24 units, every
partial sum in every order is an fp32 number, so a correct kernel makes no error at all. Cases with
such numbers catch one lost lookup in a bag of thousands.
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

    magnitude : f64[m, width], what |term| counts in the bound (larger than |term| where decoding it
        cancels).
    products, divisions : roundings of each term besides the additions; divisions i64[S] or i64[1]
    are those that no choice of numbers makes exact.
    """
    count = np.diff(starts)
    shape = (count.size, terms.value.shape[1])
    value, size, inherited, largest = (np.zeros(shape) for _ in range(4))
    unit = np.full(shape, np.inf)
    finite = np.ones(shape, bool)
    full = np.flatnonzero(count)
    if full.size and shape[1]:
        at = starts[full]
        size[full], inherited[full] = (
            np.add.reduceat(magnitude, at, axis=0),
            np.add.reduceat(terms.error, at, axis=0),
        )
        unit[full] = np.minimum.reduceat(_unit(terms.value), at, axis=0)
        finite[full] = np.logical_and.reduceat(np.isfinite(terms.value), at, axis=0)
        value[full] = _exact(terms.value, starts, full, finite)
        with np.errstate(invalid="ignore"):
            largest[full] = np.abs(np.add.reduceat(terms.value, at, axis=0))
    steps = np.where(count > 0, np.maximum(count - 1, 0) + products + divisions, 0)[:, None]
    with np.errstate(invalid="ignore", over="ignore"):
        whole = (inherited == 0) & (size <= unit * 2.0**24) & (unit >= TINY)
        plain = (steps == 0) | (whole & (divisions == 0)[:, None])
        error = np.where(plain, 0.0, _upward(gamma(steps) * size) + count[:, None] * TINY)
        total = inherited * (1 + gamma(steps)) * SLACK + error
    return _with_the_end(value, total, size, largest, finite)


def _upward(x: Real) -> Real:
    return x * SLACK


def _with_the_end(
    value: Real, error: Real, size: Real, plain: Real, finite: NDArray[np.bool_]
) -> Bounded:
    """Overflow: sums whose partial sums may pass the largest fp32 number are unknown, unless all
    terms agree on the sign.
    """
    with np.errstate(invalid="ignore"):
        risky = finite & (size + error > LARGEST)
        one_sign = plain >= size * (1 - 2.0**-30)
        surely = risky & one_sign & (np.abs(value) - error > LARGEST * (1 + U))
    error = np.where(risky, np.where(surely, 0.0, np.inf), np.where(finite, error, 0.0))
    return Bounded(np.where(surely, np.copysign(np.inf, value), value), error)


def _exact(terms: Real, starts: Ints, full: Ints, finite: NDArray[np.bool_]) -> Real:
    """Exact sums of the segments `full`, rounded once to fp64; NaN and infinities as in
    `docs/arithmetic.md` §3.
    """
    lengths = starts[full + 1] - starts[full]
    with np.errstate(invalid="ignore"):
        out = np.add.reduceat(
            terms, starts[full], axis=0
        )  # exactly that for one or two terms, and for what is not finite
    for i in np.flatnonzero(lengths > 2):
        s = full[i]
        columns = np.flatnonzero(finite[s])
        out[i, columns] = [
            math.fsum(c) for c in terms[starts[s] : starts[s + 1], columns].T.tolist()
        ]
    return out + 0.0  # no -0: a sum of nothing but -0 is +0


def _unit(x: Real) -> Real:
    """The largest power of two that x is a multiple of; infinite for 0, 0 for NaN and infinities."""
    with np.errstate(invalid="ignore", over="ignore"):
        fraction, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
        whole = np.ldexp(np.abs(fraction), 53).astype(np.int64)
        lowest = (whole & -whole).astype(np.float64)
        return np.where(
            ~np.isfinite(x), 0.0, np.where(whole == 0, np.inf, np.ldexp(lowest, exponent - 53))
        )
