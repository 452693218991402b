"""How does an achieved rate depend on size? As a curve through measured points.

Between two points the rate follows the straight line of a log-log plot, so a curve is monotone
wherever its points are; beyond the first and the last point it is flat.

    bytes/s |            ._____
            |         .
            |   .
            |___._________________ bytes, both axes logarithmic
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import overload

import numpy as np

from neocpu.core.types import Doubles


@dataclass(frozen=True)
class Curve:
    """Rates at sizes: `sizes` ascending, both positive and of one length, at least one point.

    Raises ValueError for points that are not so.
    """

    sizes: tuple[float, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if reason := fault(self.sizes, self.rates):
            raise ValueError(reason)

    @cached_property
    def _log_points(self) -> list[tuple[float, float]]:
        return [(math.log(size), math.log(rate)) for size, rate in zip(self.sizes, self.rates)]

    @overload
    def rate(self, size: float) -> float: ...

    @overload
    def rate(self, size: Doubles) -> Doubles: ...

    def rate(self, size: float | Doubles) -> float | Doubles:
        """The rate at a size, or at each of f64[n] sizes; 0 counts as the smallest size."""
        if isinstance(size, np.ndarray):
            return np.array([self._rate(each) for each in size.tolist()], np.float64)
        return self._rate(size)

    def _rate(self, size: float) -> float:
        index = bisect_right(self.sizes, size) - 1
        if index < 0:
            return self.rates[0]
        left = self.rates[index]
        if size == self.sizes[index] or index == len(self.sizes) - 1:
            return left
        right = self.rates[index + 1]
        log_size, log_left = self._log_points[index]
        next_size, log_right = self._log_points[index + 1]
        share = (math.log(size) - log_size) / (next_size - log_size)
        rate = math.exp(log_left + share * (log_right - log_left))
        # Rounding may leave the range of the neighbours by an ulp.
        return min(max(rate, min(left, right)), max(left, right))

    def seconds(self, size: float) -> float:
        """Seconds for so much work: size / rate."""
        return size / self.rate(size)

    def stretched(self, sizes: float = 1.0, rates: float = 1.0) -> "Curve":
        """The curve with its sizes and its rates multiplied by factors."""
        return replace(
            self,
            sizes=tuple(size * sizes for size in self.sizes),
            rates=tuple(rate * rates for rate in self.rates),
        )


def fault(sizes: Sequence[float], rates: Sequence[float]) -> str:
    """Why these are no points of a curve; "" if they are."""
    if not sizes:
        return "a curve needs at least one point"
    if len(sizes) != len(rates):
        return f"{len(sizes)} sizes but {len(rates)} rates"
    if min(sizes) <= 0 or min(rates) <= 0:
        return "sizes and rates of a curve must be above 0"
    if any(left >= right for left, right in pairwise(sizes)):
        return "sizes of a curve must be ascending, each once"
    return ""


def rate_between(curves: Sequence[tuple[float, Curve]], parameter: float, size: float) -> float:
    """The rate at (parameter, size), from curves that were measured at some parameters.

    curves : (parameter, curve) pairs, parameters positive and distinct, in any order. Between two
        parameters rates are interpolated as along a curve; beyond them the nearest curve holds.
    """
    if len(curves) == 1:
        return curves[0][1].rate(size)
    ordered = sorted(curves, key=lambda pair: pair[0])
    across = Curve(
        tuple(float(value) for value, _ in ordered), tuple(curve.rate(size) for _, curve in ordered)
    )
    return across.rate(parameter)


def true_seconds(seconds: Sequence[float]) -> tuple[float, ...]:
    """Measured seconds of ascending sizes, freed of noise that only more work can show.

    Noise makes a measurement longer, never shorter: where more work took less time, the smaller
    work cannot need more than that.
    """
    best: list[float] = []
    for value in reversed(seconds):
        best.append(min(value, best[-1]) if best else value)
    return tuple(reversed(best))
