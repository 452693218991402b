"""How far may a correct fp32 kernel be from the real number? Numbers with running error bounds.

`Bounded(value, error)` stands for every fp32 result that some correct kernel may hold at this
point: |theirs - value| <= error. Each operation computes the value in fp64, pushes the errors of
its operands through, and adds what a rounding of its own may cost. So an optimizer rule is written
once, as a formula, and its bound comes with it (running error analysis: Wilkinson; Higham, Accuracy
and Stability of Numerical Algorithms, ch. 3).

Kernels may order a formula differently, use reciprocals, or divide and take roots that are not
correctly rounded: each operation may cost ULP = 2^-23 of its result, twice what IEEE rounding
costs, and the smallest subnormal. A result that may or may not overflow fp32 has an infinite error:
nothing can be said of it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]

U = 2.0**-24  # unit roundoff of fp32
ULP = 2.0**-23
TINY = 2.0**-149  # smallest subnormal of fp32
LARGEST = float(np.finfo(np.float32).max)
SLACK = 1.0 + 2.0**-40  # error terms are computed in fp64: this rounds them upward


def gamma(n: Real | int) -> Real:
    """n*u / (1 - n*u): the relative error of n fp32 roundings; infinite where n*u reaches 1."""
    nu = np.asarray(n, np.float64) * U
    with np.errstate(divide="ignore"):
        return np.where(nu < 1, nu / np.where(nu < 1, 1 - nu, 1), np.inf)


@dataclass(frozen=True)
class Bounded:
    """Real numbers, and how far a correct kernel may be from each."""

    value: Real  # f64[...]
    error: Real  # f64[...], same shape, >= 0

    @staticmethod
    def exactly(value: object) -> "Bounded":
        """Numbers that every kernel holds exactly."""
        array = np.asarray(value, np.float64)
        return Bounded(array, np.zeros(array.shape))

    @staticmethod
    def constant(value: float) -> "Bounded":
        """A hyper-parameter: kernels round it to fp32."""
        rounding = abs(float(np.float32(value)) - value)
        return Bounded(np.asarray(value, np.float64), np.asarray(rounding * SLACK))

    def __neg__(self) -> "Bounded":
        return Bounded(-self.value, self.error)

    def __add__(self, other: "Bounded") -> "Bounded":
        with np.errstate(invalid="ignore"):
            return rounded(self.value + other.value, self.error + other.error, tiny=0.0, basic=True)

    def __sub__(self, other: "Bounded") -> "Bounded":
        return self + -other

    def __mul__(self, other: "Bounded") -> "Bounded":
        a = np.abs(self.value)
        b = np.abs(other.value)
        with np.errstate(invalid="ignore", over="ignore"):
            error = _times(a, other.error) + _times(b, self.error) + _times(self.error, other.error)
            unknown = _sign_unknown(self, other) | _sign_unknown(other, self)
            error = np.where(unknown, np.inf, _unless_infinite(error, a, b))
            error = np.where(np.isinf(self.error + other.error), np.inf, error)
            return rounded(self.value * other.value, error, basic=True)

    def __truediv__(self, other: "Bounded") -> "Bounded":
        a = np.abs(self.value)
        b = np.abs(other.value)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            value = self.value / other.value
            least = b - other.error  # the divisor is at least this far from 0
            numerator = self.error + _times(np.abs(value), other.error)
            quotient = np.where(least > 0, numerator / np.where(least > 0, least, 1), np.inf)
            error = np.where(numerator == 0, 0.0, quotient)
            may_be_zero = (other.error > 0) & ~(least > 0)
            error = np.where(may_be_zero, np.inf, _unless_infinite(error, a, b))
            return rounded(value, np.where(np.isinf(self.error + other.error), np.inf, error))

    def sqrt(self) -> "Bounded":
        """Square root of sums of squares: they are at least 0, though their error may say less."""
        with np.errstate(invalid="ignore", over="ignore"):
            root = np.sqrt(self.value)
            low = np.sqrt(np.maximum(self.value - self.error, 0))
            high = np.sqrt(self.value + self.error)
            error = np.where(self.error == 0, 0.0, np.maximum(root - low, high - root))
        return rounded(root, np.where(np.isinf(self.error), np.inf, error))

    def take(self, where: Any) -> "Bounded":
        """Elements by NumPy index."""
        return Bounded(self.value[where], self.error[where])

    def column(self) -> "Bounded":
        """[U] as [U, 1]: a row scalar beside a row's elements."""
        return Bounded(self.value[..., None], self.error[..., None])


def _times(a: Real, b: Real) -> Real:
    """a*b with 0*inf = 0: no error is no error."""
    return np.where((a == 0) | (b == 0), 0.0, a * b)


def _sign_unknown(x: Bounded, y: Bounded) -> NDArray[np.bool_]:
    """x is infinite and y may have either sign, or be 0."""
    return np.isinf(x.value) & (y.error > 0) & (np.abs(y.value) <= y.error)


def _unless_infinite(error: Real, a: Real, b: Real) -> Real:
    """The error, but 0 where an operand is infinite or NaN: the result is then what IEEE says."""
    return np.where(np.isfinite(a) & np.isfinite(b), error, 0.0)


def rounded(
    value: Real, error: Real, tiny: float = TINY, ulps: float = 1.0, basic: bool = False
) -> Bounded:
    """The result of an operation: its value; the operands' errors plus its own rounding to fp32.

    value : f64[...], the result of the exact operands.
    error : f64[...], what the operands' errors add up to; infinite where nothing is known.
    tiny, ulps : absolute and relative error of the rounding.
    basic : a sum or product, which every machine rounds correctly: exact operands whose result is
        an fp32 number make no error.
    What surely overflows fp32 is an infinity; what perhaps does is unknown.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.isfinite(value)
        unknown = np.isinf(error)
        with_rounding = (error + np.abs(value) * (ULP * ulps)) * SLACK
        with_rounding = with_rounding + np.where(value == 0, 0.0, tiny)
        total = np.where(finite, with_rounding, 0.0)
        exact = value == 0
        if basic:
            exact = exact | ((error == 0) & (value.astype(np.float32) == value))
        total = np.where(finite & exact, error * SLACK, total)
        surely = finite & (np.abs(value) - total > LARGEST * (1 + U))
        perhaps = finite & (np.abs(value) + total > LARGEST)
        total = np.where(unknown | (perhaps & ~surely), np.inf, np.where(surely, 0.0, total))
        return Bounded(np.where(surely & ~unknown, np.copysign(np.inf, value), value), total)


def square_sum(x: Bounded) -> Bounded:
    """Sum of squares over the last axis, in any order: D products and D - 1 additions."""
    with np.errstate(invalid="ignore", over="ignore"):
        columns = x.value.shape[-1]
        value = np.square(x.value).sum(-1)
        nonzero = np.count_nonzero((x.value != 0) | (x.error != 0), axis=-1)
        error = (2 * _times(np.abs(x.value), x.error) + np.square(x.error)).sum(-1)
        error = error + TINY * nonzero
        return rounded(value, error, ulps=float(gamma(columns + 1)) / ULP)


def mean_square(x: Bounded) -> Bounded:
    """Mean of squares over the last axis (`docs/arithmetic.md` §4)."""
    return square_sum(x) / Bounded.exactly(float(x.value.shape[-1]))


def where(condition: NDArray[np.bool_], yes: Bounded, no: Bounded) -> Bounded:
    """Elements of `yes` where the condition holds, else of `no`."""
    return Bounded(
        np.where(condition, yes.value, no.value), np.where(condition, yes.error, no.error)
    )


def smaller(a: Bounded, b: Bounded) -> Bounded:
    """Elementwise minimum; a NaN loses, as in C's fmin. No rounding: errors pass through."""
    return Bounded(np.fmin(a.value, b.value), np.maximum(a.error, b.error))


def larger(a: Bounded, b: Bounded) -> Bounded:
    """Elementwise maximum; a NaN loses."""
    return Bounded(np.fmax(a.value, b.value), np.maximum(a.error, b.error))


def unsure(x: Bounded, condition: NDArray[np.bool_]) -> Bounded:
    """x, unknown where the condition holds: kernels may have taken another branch there."""
    return Bounded(x.value, np.where(condition, np.inf, x.error))
