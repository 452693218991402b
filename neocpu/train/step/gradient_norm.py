"""How long is the gradient of all dense parameters? A norm that is the same on every rank.

    S_k = sum of g*g over parameter k (a matrix or a vector), in fp64: products are exact, a binary
          tree over its elements, adjacent pairs first; absent ones up to a power of two are 0
    norm = sqrt(S_0 + S_1 + ...), added one after the other in the order of the flat array

Where it exceeds the limit, every gradient is multiplied by limit / norm, computed in fp64 and
rounded to fp32 once (`docs/arithmetic.md` §5). Gradients are reduced before, so all ranks have the
same ones; nothing travels, but for towers that only their node trains.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Floats
from neocpu.train.step.turn import DenseGradient

Doubles = NDArray[np.float64]
PIECE = 1 << 15  # elements, a power of two: subtrees of so many stay in the cache


def square_sum(gradient: Floats) -> float:
    """Sum of squares of a flat gradient f32[n] in fp64, over the binary tree."""
    whole = gradient.size // PIECE * PIECE
    sums = [_tree(piece) for piece in gradient[:whole].reshape(-1, PIECE)]
    if whole < gradient.size:
        sums.append(_tree(gradient[whole:]))
    return _climb(np.array(sums, np.float64))


def _tree(x: Floats) -> float:
    """Sum of squares of up to PIECE elements."""
    wide = x.astype(np.float64)
    # the product of two fp32 numbers is exact in fp64
    wide *= wide
    return _climb(wide)


def _climb(level: Doubles) -> float:
    """Root of the tree over numbers f64[n], which absent zeros do not change."""
    while level.size > 1:
        pairs = level[:-1:2] + level[1::2]
        # x + 0 is x, so an odd number goes up as it is
        level = pairs if level.size % 2 == 0 else np.append(pairs, level[-1])
    return float(level[0]) if level.size else 0.0


class GradientClip:
    """Scales the gradient of all dense parameters down to a norm.

    sizes : numbers of each parameter, in the order of the flat array. limit : of the norm.
    """

    def __init__(self, sizes: Sequence[int], limit: float) -> None:
        self._limit = limit
        self._cuts = np.append(0, np.cumsum(np.array(sizes, np.int64))).tolist()

    def scaled(
        self,
        gradients: Sequence[DenseGradient],
        exchange: Callable[[Doubles], Doubles] | None = None,
    ) -> Iterator[DenseGradient]:
        """The gradients, scaled where their norm exceeds the limit.

        gradients : of whole parameters, in any order. exchange : gives all sums S f64[K] from those
        known here, the others being NaN; None: all are known here.
        """
        squares = np.full(len(self._cuts) - 1, np.nan)
        for first, gradient in gradients:
            end = first + gradient.size
            for number, (lo, hi) in enumerate(zip(self._cuts, self._cuts[1:])):
                # buckets and towers hold whole parameters
                if first <= lo and hi <= end:
                    squares[number] = square_sum(gradient[lo - first : hi - first])
        if exchange is not None:
            squares = exchange(squares)
        factor = self._factor(squares)
        for first, gradient in gradients:
            yield DenseGradient(first, gradient if factor is None else factor * gradient)

    def _factor(self, squares: Doubles) -> np.float32 | None:
        """What gradients are multiplied by; None: they are short enough, or not finite."""
        total = 0.0
        # one after the other: NumPy's sum is pairwise, in blocks of its own choosing
        for square in squares.tolist():
            total += square
        norm = math.sqrt(total)
        # not finite: scaling would hide it from the loss that ends the run
        if not math.isfinite(norm) or norm <= self._limit:
            return None
        return np.float32(self._limit / norm)
