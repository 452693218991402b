"""What may a term of a sum lose below fp32's normal range, whatever is multiplied first?

A term is x, x*y, x/d or x*y/d. Kernels multiply and divide in any order: (x*y)/d, (x/d)*y, x*(y/d),
or the sum of x*y by d at the end. A result below 2^-126 is rounded to a multiple of 2^-149: half of
that is lost at most, all of it by a division that is not correctly rounded. So a division by a
power of two is exact only above that range. What was lost is multiplied by the other factor: that
of y/d by x.
"""

import numpy as np

from neocpu.oracle.truth.numbers import LARGEST, SMALL, TINY, Real
from neocpu.oracle.truth.sums import power_of_two, unit


def losses(x: Real, y: Real | None, divisors: Real | None, coarse: float = 0.0) -> Real:
    """What each term x*y/d loses at most: f64[m, width], in the order that loses most.

    x : f64[m, width]; y : factors that broadcast to it, None: 1; divisors : d of each term,
    broadcasting too, None: nothing is divided.
    coarse : what x*y or x/d lose at least where they are inexact, for an x that is computed itself.
    Infinite where one order overflows, or makes 0 of a factor of an infinity, and another does not.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        if divisors is None:
            if y is None:
                return np.zeros(x.shape)
            # fp64 holds the product of two fp32 numbers exactly, so its unit is the true one.
            return np.where(unit(x * y) < TINY, np.maximum(TINY / 2, coarse), 0.0)
        of_x = np.maximum(_lost_in_quotient(x, divisors), np.where(x == 0, 0.0, coarse))
        if y is None:
            return np.broadcast_to(of_x, x.shape)
        term = x * y / divisors
        of_y = _lost_in_quotient(y, divisors)
        of_term = np.where(unit(term) < TINY, np.maximum(TINY / 2, coarse), 0.0)
        at_the_end = np.maximum(_lost_in_quotient(x * y, divisors), of_term)
        lost = of_term + np.maximum(at_the_end, np.maximum(_times(of_x, y), _times(of_y, x)))
        # x*y first may be infinite where (x/d)*y is a number.
        overflow = np.isfinite(x) & np.isfinite(y) & (np.abs(x * y) > LARGEST) & (divisors != 1)
        return np.where(overflow | _zero_of_infinity(x, y, divisors), np.inf, lost)


def _lost_in_quotient(x: Real, divisors: Real) -> Real:
    """What x / d loses below the normal range."""
    quotient = x / divisors
    small = (np.abs(quotient) < SMALL) & (x != 0) & (divisors != 1)
    inexact = unit(quotient) < TINY
    by_power = np.where(inexact, TINY / 2, 0.0)
    return np.where(small, np.where(power_of_two(divisors), by_power, TINY), 0.0)


def _times(lost: Real, factor: Real) -> Real:
    """What is lost times a factor; nothing is nothing, even times an infinity."""
    return np.where(lost == 0, 0.0, lost * np.abs(factor))


def _zero_of_infinity(x: Real, y: Real, divisors: Real) -> Real:
    """May one factor over d be 0 where the other one is infinite?"""
    x_to_zero = (np.abs(x / divisors) < TINY) & (x != 0) & np.isinf(y)
    y_to_zero = (np.abs(y / divisors) < TINY) & (y != 0) & np.isinf(x)
    return x_to_zero | y_to_zero
