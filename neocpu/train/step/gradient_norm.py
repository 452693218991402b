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
from itertools import pairwise

import numpy as np

from neocpu.core.types import Doubles, Floats
from neocpu.kernels.numbers.squares import pair_sum, square_sum
from neocpu.parallel.transport.comm import Comm
from neocpu.train.step.turn import DenseGradient


def pooled_norm(gradient: Floats, leaves: Sequence[int], comm: Comm) -> float:
    """Norm of the gradient f32[b, columns] of the pooled vectors of all ranks. Collective.

    leaves : first sample of each of this rank's leaves, and the end. Squares are added inside each
    leaf, then over the tree of leaves, which no number of ranks changes.
    """
    cuts = pairwise(leaves)
    squares = np.array([square_sum(gradient[lo:hi].reshape(-1)) for lo, hi in cuts], np.float64)
    sizes = np.empty(comm.size, np.int64)
    comm.allgatherv(np.array([squares.size], np.int64), sizes, np.ones(comm.size, np.int64), "log")
    all_squares = np.empty(int(sizes.sum()))
    comm.allgatherv(squares, all_squares, sizes, "log")
    return math.sqrt(pair_sum(all_squares))


class GradientNorm:
    """The norm of the gradient of all dense parameters.

    sizes : numbers of each parameter, in the order of the flat array.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._cuts = np.append(0, np.cumsum(np.array(sizes, np.int64))).tolist()

    def of(
        self,
        gradients: Sequence[DenseGradient],
        exchange: Callable[[Doubles], Doubles] | None = None,
    ) -> float:
        """The norm; gradients, exchange : as for `GradientClip.scaled`."""
        squares = np.full(len(self._cuts) - 1, np.nan)
        for first, gradient in gradients:
            end = first + gradient.size
            for number, (lo, hi) in enumerate(zip(self._cuts, self._cuts[1:])):
                # buckets and towers hold whole parameters
                if first <= lo and hi <= end:
                    squares[number] = square_sum(gradient[lo - first : hi - first])
        if exchange is not None:
            squares = exchange(squares)
        total = 0.0
        # one after the other: NumPy's sum is pairwise, in blocks of its own choosing
        for square in squares.tolist():
            total += square
        return math.sqrt(total)


class GradientClip(GradientNorm):
    """Scales the gradient of all dense parameters down to a norm.

    sizes : as of `GradientNorm`. limit : of the norm.
    """

    def __init__(self, sizes: Sequence[int], limit: float) -> None:
        super().__init__(sizes)
        self._limit = limit

    def scaled(
        self,
        gradients: Sequence[DenseGradient],
        exchange: Callable[[Doubles], Doubles] | None = None,
    ) -> Iterator[DenseGradient]:
        """The gradients, scaled where their norm exceeds the limit.

        gradients : of whole parameters, in any order. exchange : gives all sums S f64[K] from those
        known here, the others being NaN; None: all are known here.
        """
        factor = self._factor(self.of(gradients, exchange))
        for first, gradient in gradients:
            yield DenseGradient(first, gradient if factor is None else factor * gradient)

    def _factor(self, norm: float) -> np.float32 | None:
        """What gradients are multiplied by; None: they are short enough, or not finite."""
        # not finite: scaling would hide it from the check that ends the run
        if not math.isfinite(norm) or norm <= self._limit:
            return None
        return np.float32(self._limit / norm)
