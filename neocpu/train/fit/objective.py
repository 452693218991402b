"""What is minimised over a sample, and how do ranks agree on it?

    F(w) = (1/n) sum_i weight_i loss_i(w) + (1/2) sum_j penalty_j w_j^2

Each rank sums over its leaves of the sample; one exchange gives all ranks the whole sum, the same
bits on any number of them (`parallel/exchange/dense_reduction.py`, in fp64). All else is vectors
that every rank holds whole and computes alike. So a gradient with its value is one exchange, and so
is a product with the Hessian; conjugate gradients and line searches need no other.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from neocpu.kernels.dense.design import inner_product, mean_and_pull
from neocpu.parallel.exchange.dense_reduction import DenseReduction
from neocpu.parallel.transport.comm import Comm
from neocpu.train.fit.design import F64, DesignMatrix, Leaves
from neocpu.train.fit.layers import LayeredModel, Tape


class Point(NamedTuple):
    """A function at some weights: value, gradient f64[P], and the tape of this rank's samples."""

    weights: F64
    value: float
    gradient: F64
    tape: Tape

    @property
    def steepness(self) -> float:
        """The length of the gradient."""
        return length(self.gradient)


def length(vector: F64) -> float:
    """The Euclidean length of a vector."""
    return float(np.sqrt(inner_product(vector, vector)))


class LeafSum:
    """Sums over all samples of vectors f64[size], on all ranks; collective.

    leaves : of this rank. The last sum is overwritten by the next.
    """

    def __init__(self, comm: Comm, leaves: Leaves, size: int) -> None:
        first = leaves.span[0]
        self._keys = leaves.nodes()
        # numbered from this rank's first leaf on
        self.nodes = np.array(self._keys, np.int64).reshape(-1, 2) - np.array([first, 0])
        self.out = np.empty((len(self._keys), size))
        self._reduction = DenseReduction(comm, size, leaves.count, dtype=np.float64)

    def total(self) -> F64:
        """The sum of `out` over all nodes of all ranks."""
        return self._reduction.reduce(dict(zip(self._keys, self.out)))


class FitObjective:
    """F over one sample of the data.

    sums : of P + 1 numbers. penalty : f64[P], of each parameter. spend : is told how many samples
    are gone through.
    """

    def __init__(
        self,
        model: LayeredModel,
        design: DesignMatrix,
        penalty: F64,
        sums: LeafSum,
        spend: Callable[[int], None],
    ) -> None:
        self.model = model
        self.design = design
        self.penalty = penalty
        self._sums = sums
        self._spend = spend

    def at(self, weights: F64) -> Point:
        """Value and gradient at some weights. Collective, one exchange."""
        out = self._sums.out
        nodes = self._sums.nodes
        tape = self.model.tape(self.design, weights)
        self.model.gradient(tape, nodes, out)
        out[:, -1:] = self.design.sums(tape.loss[:, None], nodes)
        total = self._sums.total()
        self._spend(self.design.samples)
        pull = inner_product(self.penalty * weights, weights)
        value = float(total[-1]) / self.design.samples + 0.5 * pull
        return Point(weights, value, self._mean(total, weights), tape)

    def curved(self, point: Point, vector: F64) -> F64:
        """The Hessian at a point times a vector f64[P]. Collective, one exchange."""
        out = self._sums.out
        out[:, -1] = 0.0
        self.model.curved(point.weights, point.tape, vector, self._sums.nodes, out)
        self._spend(self.design.samples)
        return self._mean(self._sums.total(), vector)

    def _mean(self, total: F64, vector: F64) -> F64:
        """The mean over samples of a total of P + 1 numbers, and the penalty times a vector."""
        out = np.empty(self.penalty.size)
        mean_and_pull(total[:-1], float(self.design.samples), self.penalty, vector, out)
        return out
