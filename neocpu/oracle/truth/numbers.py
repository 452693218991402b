"""How far may a correct fp32 kernel be from the real number? Numbers with running error bounds.

`Bounded(value, error)` stands for every fp32 result that some correct kernel may hold at this
point: |theirs - value| <= error. Each operation computes the value in fp64, pushes the errors of
its operands through, and adds what a rounding of its own may cost. So an optimizer rule is written
once, as a formula, and its bound comes with it (running error analysis: Wilkinson; Higham, Accuracy
and Stability of Numerical Algorithms, ch. 3).

Kernels may order a formula differently, fuse multiplications with additions, compute in a wider
format, use reciprocals, or divide and take roots that are not correctly rounded: each operation may
cost ULP = 2^-23 of its result, twice what IEEE rounding costs (a division half as much again, for
an approximate reciprocal and the product with it), and the smallest subnormal. `product` also
counts what orders of a product lose below fp32's normal range. What passes fp32's largest number on
the way is infinite in one kernel and not in another: what is computed from it has an infinite
error, nothing can be said of it; a result that is stored is infinite (`settled`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from neocpu.core.types import Bools, Ints
from neocpu.tables.specs.optimizers import power

Real = NDArray[np.float64]
Index = slice | Bools | Ints | tuple[Ints, ...]

U = 2.0**-24  # unit roundoff of fp32
ULP = 2.0**-23
DIVISION = 1.5  # ULP that a division may cost: a reciprocal within one, rounded products
TINY = 2.0**-149  # smallest subnormal of fp32
LARGEST = float(np.finfo(np.float32).max)
SMALL = 2.0**-125  # what is rounded to at least this is not subnormal
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
            total = self.value + other.value
            # fp64 rounds, too: what it loses may be most of a sum that nearly cancels.
            error = self.error + other.error + _lost_in_fp64(self.value, other.value, total)
            result = rounded(total, error, tiny=0.0, basic=True)
            # inf - inf is NaN, whatever the difference
            opposite = np.signbit(self.value) != np.signbit(other.value)
            opposite_infinities = _overflow(self) & _overflow(other) & opposite
            return unsure(_known_beyond(result, self, other), opposite_infinities)

    def __sub__(self, other: "Bounded") -> "Bounded":
        return self + -other

    def __mul__(self, other: "Bounded") -> "Bounded":
        a = np.abs(self.value)
        b = np.abs(other.value)
        with np.errstate(invalid="ignore", over="ignore"):
            # The last part is of second order, but all there is where both values are 0.
            error = _times(a, other.error) + _times(b, self.error) + _times(self.error, other.error)
            unknown = _sign_unknown(self, other) | _sign_unknown(other, self)
            # An infinity times what may be 0 may be NaN, or infinite of either sign.
            error = np.where(unknown, np.inf, _unless_infinite(error, a, b))
            error = np.where(np.isinf(self.error + other.error), np.inf, error)
            result = rounded(self.value * other.value, error, basic=True)
            return _known_beyond(result, self, other)

    def __truediv__(self, other: "Bounded") -> "Bounded":
        a = np.abs(self.value)
        b = np.abs(other.value)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            value = self.value / other.value
            least = b - other.error  # the divisor is at least this far from 0
            numerator = self.error + _times(np.abs(value), other.error)
            # By the least divisor: a bound must hold for all of them.
            quotient = np.where(least > 0, numerator / np.where(least > 0, least, 1), np.inf)
            # Exact operands: x/0 is what IEEE says, and no error.
            error = np.where(numerator == 0, 0.0, quotient)
            may_be_zero = (other.error > 0) & ~(least > 0)
            error = np.where(may_be_zero, np.inf, _unless_infinite(error, a, b))
            # A divisor that may be infinite makes 0 of a quotient.
            unknown = np.isinf(self.error + other.error) | _overflow(other)
            result = rounded(value, np.where(unknown, np.inf, error), ulps=DIVISION)
            return _known_beyond(result, self)

    def sqrt(self) -> "Bounded":
        """Square root of sums of squares: they are at least 0, though their error may say less."""
        with np.errstate(invalid="ignore", over="ignore"):
            root = np.sqrt(self.value)
            # The derivative is infinite at 0, so the root is taken at both ends instead.
            low = np.sqrt(np.maximum(self.value - self.error, 0))
            high = np.sqrt(self.value + self.error)
            error = np.where(self.error == 0, 0.0, np.maximum(root - low, high - root))
        return _known_beyond(rounded(root, np.where(np.isinf(self.error), np.inf, error)), self)

    def take(self, where: Index) -> "Bounded":
        """Elements by NumPy index."""
        return Bounded(self.value[where], self.error[where])

    def put(self, where: Index, x: "Bounded") -> None:
        """Write x into these elements, by NumPy index, in place."""
        self.value[where] = x.value
        self.error[where] = x.error

    def copy(self) -> "Bounded":
        """The same numbers in arrays of their own."""
        return Bounded(self.value.copy(), self.error.copy())

    def reshape(self, *shape: int) -> "Bounded":
        """The same elements in another shape."""
        return Bounded(self.value.reshape(shape), self.error.reshape(shape))

    def column(self) -> "Bounded":
        """[U] as [U, 1]: a row scalar beside a row's elements."""
        return Bounded(self.value[..., None], self.error[..., None])


def _lost_in_fp64(a: Real, b: Real, total: Real) -> Real:
    """|a + b - total|, exactly (Knuth's TwoSum)."""
    back = total - a
    lost = np.abs((a - (total - back)) + (b - back))
    return np.where(np.isfinite(lost), lost, 0.0)


def _times(a: Real, b: Real) -> Real:
    """a*b with 0*inf = 0: no error is no error."""
    return np.where((a == 0) | (b == 0), 0.0, a * b)


def _sign_unknown(x: Bounded, y: Bounded) -> Bools:
    """x is infinite and y may have either sign, or be 0."""
    return np.isinf(x.value) & (y.error > 0) & (np.abs(y.value) <= y.error)


def _unless_infinite(error: Real, a: Real, b: Real) -> Real:
    """The error, but 0 where an operand is infinite or NaN: the result is then what IEEE says."""
    return np.where(np.isfinite(a) & np.isfinite(b), error, 0.0)


def _overflow(x: Bounded) -> Bools:
    """x may be infinite in a kernel that rounds it to fp32, and finite in one that does not."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.isfinite(x.value) & (np.abs(x.value) + x.error > LARGEST)


def _beyond(x: Bounded) -> Bools:
    """x surely passes fp32's largest number: infinite in a kernel that rounds it."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.isfinite(x.value) & (np.abs(x.value) - x.error > LARGEST * (1 + U))


def _known_beyond(result: Bounded, *operands: Bounded) -> Bounded:
    """A result, unknown where operands may be infinite, unless it surely is infinite itself."""
    overflow = np.logical_or.reduce(np.broadcast_arrays(*map(_overflow, operands)))
    return unsure(result, overflow & ~_beyond(result))


def settled(x: Bounded) -> Bounded:
    """x once it is stored as fp32: infinite if it surely passes the largest number.

    What perhaps passes it is unknown.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        surely = _beyond(x)
        error = np.where(surely, 0.0, np.where(_overflow(x), np.inf, x.error))
    return Bounded(np.where(surely, np.copysign(np.inf, x.value), x.value), error)


def powers(base: float, exponents: ArrayLike) -> Real:
    """base^n of whole n >= 0; the machine's pow would give another last bit elsewhere."""
    different, number = np.unique(np.asarray(exponents, np.int64), return_inverse=True)
    values = np.array([power(base, n) for n in different.tolist()])
    return values[number].reshape(np.shape(exponents))


def rounded(
    value: Real, error: Real, tiny: float = TINY, ulps: float = 1.0, basic: bool = False
) -> Bounded:
    """The result of an operation: its value; the operands' errors plus its own rounding to fp32.

    value : f64[...], the result of the exact operands.
    error : f64[...], what the operands' errors add up to; infinite where nothing is known.
    tiny, ulps : absolute and relative error of the rounding.
    basic : a sum or product, which every machine rounds correctly: exact operands whose result is
        an fp32 number make no error.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.isfinite(value)
        # what is rounded is not the value, but what a kernel has of it: up to |value| + error
        total = (error * (1 + ULP * ulps) + np.abs(value) * (ULP * ulps)) * SLACK + tiny
        exact = (value == 0) & (error == 0)
        if basic:
            exact = exact | ((error == 0) & (value.astype(np.float32) == value))
        # NaN and infinities are compared by class, so they need no bound.
        total = np.where(np.isinf(error), np.inf, np.where(exact | ~finite, 0.0, total))
        return Bounded(value, total)


def product(*factors: Bounded, over: tuple[Bounded, ...] = ()) -> Bounded:
    """Product of factors, divided by those of `over`, whatever is multiplied or divided first.

    The relative errors are those of one order. Below the normal range orders differ: where the
    product of some of the factors is subnormal, up to TINY of it is lost, times all other factors.
    Where the product of some may overflow, nothing is known.
    """
    result = factors[0]
    for factor in factors[1:]:
        result = result * factor
    for divisor in over:
        result = result / divisor
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        least = [np.maximum(np.abs(x.value) - x.error, 0.0) for x in factors]
        most = [np.abs(x.value) + x.error for x in factors]
        least += [1 / (np.abs(x.value) + x.error) for x in over]
        most += [1 / np.maximum(np.abs(x.value) - x.error, 0.0) for x in over]
        lost = np.zeros(result.value.shape)
        overflow = np.zeros(result.value.shape, bool)
        for part in _parts(len(factors), len(over)):
            rest = [most[i] for i in range(len(most)) if i not in part]
            # By the smallest that it may be: some kernel's intermediate is subnormal then.
            small = math.prod(least[i] for i in part) < SMALL
            # fmax: 0 times infinity is NaN, and no loss.
            lost = np.fmax(lost, np.where(small, TINY * math.prod(rest), 0.0))
            overflow = overflow | (math.prod(most[i] for i in part) > LARGEST)
        steps = len(most) - 1
        # Of a product with a factor 0 nothing can be lost.
        zero = np.logical_or.reduce(np.broadcast_arrays(*(high == 0 for high in most)))
        error = result.error + np.where(zero, 0.0, steps * lost * SLACK)
        # What surely overflows does so in every order.
        overflow &= np.isfinite(result.value) & ~_beyond(result)
        error = np.where(overflow, np.inf, error)
    return Bounded(result.value, error)


def _parts(factors: int, divisors: int) -> Iterator[tuple[int, ...]]:
    """The choices of some of the factors (numbers) that are multiplied on the way to a product.

    Divisors are numbered behind the factors; one alone is a reciprocal.
    """
    count = factors + divisors
    for size in range(1, count):
        for part in combinations(range(count), size):
            if size > 1 or part[0] >= factors:
                yield part


def square_sum(x: Bounded) -> Bounded:
    """Sum of squares over the last axis, in any order: D products and D - 1 additions."""
    with np.errstate(invalid="ignore", over="ignore"):
        unknown = np.isinf(x.error).any(-1)
        overflow = _overflow(x).any(-1)
        columns = x.value.shape[-1]
        value = np.square(x.value).sum(-1)
        nonzero = np.count_nonzero((x.value != 0) | (x.error != 0), axis=-1)
        error = (2 * _times(np.abs(x.value), x.error) + np.square(x.error)).sum(-1)
        error = np.where(unknown, np.inf, error + TINY * nonzero)
        # A term is rounded as a product, and in at most D - 1 additions, in any order.
        result = rounded(value, error, ulps=float(gamma(columns + 1)) / ULP)
        return unsure(result, overflow & ~_beyond(result))


def mean_square(x: Bounded) -> Bounded:
    """Mean of squares over the last axis (`docs/arithmetic.md` §4)."""
    return square_sum(x) / Bounded.exactly(float(x.value.shape[-1]))


def where(condition: Bools, yes: Bounded, no: Bounded) -> Bounded:
    """Elements of `yes` where the condition holds, else of `no`."""
    return Bounded(
        np.where(condition, yes.value, no.value), np.where(condition, yes.error, no.error)
    )


def smaller(a: Bounded, b: Bounded) -> Bounded:
    """Elementwise minimum; a NaN loses, as in C's fmin. No rounding: errors pass through."""
    return Bounded(np.fmin(a.value, b.value), _error_of_smaller(a, b))


def larger(a: Bounded, b: Bounded) -> Bounded:
    """Elementwise maximum; a NaN loses."""
    return Bounded(np.fmax(a.value, b.value), _error_of_smaller(-a, -b))


def _error_of_smaller(a: Bounded, b: Bounded) -> Real:
    """The error of the surely smaller one, the larger of both errors where either may be it."""
    with np.errstate(invalid="ignore"):
        a_surely = a.value + a.error < b.value - b.error
        b_surely = b.value + b.error < a.value - a.error
    either = np.maximum(a.error, b.error)
    return np.where(a_surely, a.error, np.where(b_surely, b.error, either))


def unsure(x: Bounded, condition: Bools) -> Bounded:
    """x, unknown where the condition holds: kernels may have taken another branch there."""
    return Bounded(x.value, np.where(condition, np.inf, x.error))
