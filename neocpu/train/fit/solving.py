"""What do solvers of a fit share? Samples, penalties, when to stop, and what survives a crash."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from neocpu.kernels.dense.design import moved
from neocpu.parallel.transport.comm import Comm
from neocpu.train.fit.design import F64, DesignMatrix, Leaves
from neocpu.train.fit.keys import FitKeys
from neocpu.train.fit.layers import LayeredModel
from neocpu.train.fit.objective import FitObjective, LeafSum, Point

HALVINGS = 40  # of a step that does not lower the value
SLACK = 2.0**-44  # of a value: what its rounding may hide


@dataclass
class FitState:
    """Where a fit is: all that a solver needs to go on.

    samples, first : size of the sample and the position where it begins. spent : samples gone
    through. steepness : of the objective where the fit began. pairs : (f64[P], f64[P]) of L-BFGS,
    oldest first. watched : its last gradients, f64[P] each. best : the weights with the least loss
    of valid samples, `least`; waited : steps on all samples since then.
    """

    weights: F64
    samples: int
    first: int = 0
    iterations: int = 0
    spent: int = 0
    steepness: float = 0.0
    pairs: list[tuple[F64, F64]] = field(default_factory=list)
    watched: list[F64] = field(default_factory=list)
    best: F64 | None = None
    least: float | None = None
    waited: int = 0

    def watch(self, loss: float, whole: bool) -> bool:
        """Take in a loss of valid samples; is it the least? whole : after a step on all samples."""
        better = self.least is None or loss < self.least
        if better:
            self.least, self.best, self.waited = loss, self.weights, 0
        elif whole:
            self.waited += 1
        return better


class FitStep(NamedTuple):
    """A step of a solver: where it went, and how many products with the Hessian, or trials, it
    took.
    """

    point: Point
    trials: int


@dataclass(frozen=True)
class Goal:
    """When a fit ends.

    penalty : on parameters, against the mean of losses. tolerance : the gradient's length over all
        samples, against that at the beginning (0: what the samples tell, `Fitting.accuracy`).
    pairs : of L-BFGS, "multi" or "full".
    """

    penalty: float
    tolerance: float
    pairs: str = "multi"


class Fitting:
    """A problem that is being solved.

    design : of all samples of this rank. Attributes: samples, of all ranks; passes over them.
    """

    def __init__(
        self,
        model: LayeredModel,
        design: DesignMatrix,
        penalised: F64,
        goal: Goal,
        comm: Comm,
        leaves: Leaves,
    ) -> None:
        self.model = model
        self.samples = design.samples
        self.goal = goal
        self.comm = comm
        self.leaves = leaves
        self.spent = 0
        self._design = design
        self._penalised = penalised
        self._sums = LeafSum(comm, leaves, model.parameters + 1)

    def first(self, keys: FitKeys) -> int:
        """Samples of the first sample."""
        # of several scores alike
        weights = self.model.parameters if keys.hidden else self.model.widths[0]
        return keys.first(self.samples, weights)

    def start(self, seed: int) -> F64:
        """The parameters that a fit begins with, f64[P]. Collective."""
        width = self.model.widths[0]
        squares = np.zeros(width)
        if len(self.model.widths) > 2:
            ones = self._design.weighed(np.ones((len(self._design.labels), 1)))
            self._design.squared.transposed_times(ones, self._sums.nodes, self._sums.out)
            squares = self._sums.total()[:width]
            squares = squares / squares[-1]  # the constant's: of all weights
        return self.model.start(seed, squares)

    def objective(self, first: int, samples: int, times: float = 1.0) -> FitObjective:
        """The objective over a run of positions, its penalty so many times the last one."""
        design = self._design
        if samples < self.samples:
            rows, ends = self.leaves.rows(self.samples, first, samples)
            design = design.part(rows, ends, samples)
        penalty = self._penalised * (self.goal.penalty * times)
        return FitObjective(self.model, design, penalty, self._sums, self._spend)

    def _spend(self, samples: int) -> None:
        self.spent += samples

    @property
    def passes(self) -> float:
        """Samples gone through, in passes over all of them."""
        return self.spent / self.samples

    def begun(self, state: FitState, point: Point) -> None:
        """Note how steep the objective is where the fit began."""
        state.steepness = state.steepness or point.steepness

    def accuracy(self, samples: int) -> float:
        """sqrt(2c) V_n: the length of a gradient that a sample of n can tell from 0."""
        return float(np.sqrt(2.0 * self.goal.penalty * self.samples)) / samples

    def reached(self, state: FitState, point: Point) -> bool:
        """Is a sample minimised as far as it should be?"""
        limit = self.accuracy(state.samples)
        if state.samples == self.samples and self.goal.tolerance:
            limit = self.goal.tolerance * state.steepness
        return point.steepness <= limit


class Descent(NamedTuple):
    """A step that was taken: trials that it took, its size, and where it leads to."""

    trials: int
    size: float
    point: Point


def descended(
    objective: FitObjective,
    point: Point,
    direction: F64,
    size: float,
    slope: float = 0.0,
) -> Descent | None:
    """A step against a direction, halved until the value falls enough; None: it does not.

    slope : what the value must fall by for a step of size 1.
    """
    for trial in range(1, HALVINGS + 1):
        weights = np.empty_like(direction)
        moved(point.weights, -size, direction, weights)
        after = objective.at(weights)
        if after.value <= point.value - size * slope + SLACK * abs(point.value):
            return Descent(trial, size, after)
        size *= 0.5
    return None
