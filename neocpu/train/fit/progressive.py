"""How does progressive-batching L-BFGS minimise? On samples that grow when they must (Bollapragada
et al. 2018).

    p = H g_S             by the two loops over m pairs, H0 = (y^T s / y^T y) I
    enough samples?       Var_i(g_i^T H^2 g_S) / b <= theta^2 |H g_S|^4     (the IPQN test)
                          else b = ceil(Var / (theta^2 |H g_S|^4)), and S grows
    first trial           a = 1 / (1 + Var_i(g_i) / (b |g_S|^2)), then halved until, on the same S,
                          F_S(w - a p) <= F_S(w) - c1 a g_S^T p
    pair                  s = w+ - w, y = g_O(w+) - g_O(w), kept if y^T s > eps s^T B s

Samples are runs of the random order; after each step the next one begins behind S (pairs "full",
O = S), or with the last quarter of S (pairs "multi"), which is O.

The test of a pair is free of scale: with s = -a p, B s = -a g. An absolute one, y^T s > eps |s|^2,
stops learning where curvature falls below eps, and near the optimum it is about 1/N. Samples of all
data have no noise: their first trial is 1. Where gradients of samples are noise, |g_S| is
that of the noise, and in many dimensions the IPQN test does not see it: so after ten steps on one
size the sample doubles if the mean of their gradients is shorter than 0.38 |g_S| (Bollapragada,
Byrd and Nocedal's backup for tests of this kind, 2018).
"""

import math
from collections.abc import Iterator

import numpy as np

from neocpu.kernels.dense.design import inner_product
from neocpu.train.fit.design import F64
from neocpu.train.fit.objective import LeafSum, Point, length
from neocpu.train.fit.solving import FitState, FitStep, Fitting, descended

MEMORY = 10  # pairs
THETA = 0.9
ARMIJO = 1e-4
CURVED = 1e-2  # of s^T B s: the least curvature of a pair
OVERLAP = 4  # samples of a sample for each one that the next has too
WATCHED = 10  # steps whose gradients are averaged
SHORT = 0.38  # of a gradient: an average that is shorter is one of noise


def progressive(fitting: Fitting, state: FitState) -> Iterator[FitStep]:
    """Minimise, from where the state is; yields after each step. Collective."""
    return _Progressive(fitting, state).steps()


class _Progressive:
    """The solver: its sample, where it is, and its pairs."""

    def __init__(self, fitting: Fitting, state: FitState) -> None:
        self._fitting = fitting
        self._state = state
        self._sums = LeafSum(fitting.comm, fitting.leaves, 2)
        self._objective = fitting.objective(state.first, state.samples)
        self._point = self._objective.at(state.weights)
        fitting.begun(state, self._point)

    @property
    def _whole(self) -> bool:
        return self._state.samples == self._fitting.samples

    def steps(self) -> Iterator[FitStep]:
        state = self._state
        while not (self._whole and self._fitting.reached(state, self._point)):
            if not self._whole and not self._point.steepness > 0.0:
                self._grow(2 * state.samples)  # this sample has nothing more to tell
                continue
            direction = inverse_hessian_times(self._point.gradient, state.pairs)
            size = 1.0
            if not self._whole:
                direction, size = self._enough(direction)
            before = self._point
            slope = ARMIJO * inner_product(before.gradient, direction)
            found = descended(self._objective, before, direction, size, slope)
            if found is None:
                if not self._again():
                    return
                continue
            trials, size, after = found
            state.weights = after.weights
            state.iterations += 1
            self._next_sample(before, after, size * size * slope / ARMIJO)
            yield FitStep(after, trials)

    def _again(self) -> bool:
        """No step lowers the value: forget the pairs, or take more samples; False: both is done."""
        if self._state.pairs:
            self._state.pairs = []
        elif self._whole:
            return False
        else:
            self._grow(2 * self._state.samples)
        return True

    def _grow(self, samples: int) -> None:
        state = self._state
        state.watched = []
        state.samples = min(samples, self._fitting.samples)
        self._objective = self._fitting.objective(state.first, state.samples)
        self._point = self._objective.at(state.weights)

    def _enough(self, direction: F64) -> tuple[F64, float]:
        """Let the sample grow if it is too small; the direction then, and the first trial."""
        state = self._state
        twice = inverse_hessian_times(direction, state.pairs)
        along, _ = self._spread(twice)
        limit = THETA * THETA * inner_product(direction, direction) ** 2
        if along > limit * state.samples:
            needed = along / limit if limit > 0 else math.inf
            self._grow(math.ceil(min(needed, float(self._fitting.samples))))
            direction = inverse_hessian_times(self._point.gradient, state.pairs)
        if self._whole or not self._point.steepness > 0.0:
            return direction, 1.0
        _, all_of_it = self._spread(direction)
        square = inner_product(self._point.gradient, self._point.gradient)
        return direction, 1.0 / (1.0 + all_of_it / (state.samples * square))

    def _spread(self, vector: F64) -> tuple[float, float]:
        """Variances over the sample: of g_i^T vector, and of g_i. Collective, one exchange."""
        design = self._objective.design
        model = self._objective.model
        point = self._point
        along = model.along(point.weights, point.tape, vector)
        squares = model.squares(point.tape)
        # the penalty is part of every g_i, and moves all of them alike
        free = point.gradient - self._objective.penalty * point.weights
        away = along - inner_product(free, vector)
        numbers = np.stack([away * away, squares], axis=1)
        self._sums.out[:] = design.sums(numbers, self._sums.nodes)
        along_total, squares_total = self._sums.total().tolist()
        others = max(design.samples - 1, 1)
        rest = squares_total - design.samples * inner_product(free, free)
        return along_total / others, max(rest, 0.0) / others

    def _next_sample(self, before: Point, after: Point, curvature: float) -> None:
        """Take the pair of a step, and go on to the next sample. curvature : s^T B s."""
        state = self._state
        fitting = self._fitting
        step = after.weights - before.weights
        change = after.gradient - before.gradient
        if self._whole:
            self._point = after
        else:
            shared = -(-state.samples // OVERLAP) if fitting.goal.pairs == "multi" else 0
            state.first = (state.first + state.samples - shared) % fitting.samples
            if shared:
                overlap = fitting.objective(state.first, shared)
                change = overlap.at(after.weights).gradient - overlap.at(before.weights).gradient
            self._objective = fitting.objective(state.first, state.samples)
            self._point = self._objective.at(after.weights)
            self._watch(before.gradient)
        if inner_product(change, step) > CURVED * curvature:
            state.pairs = [*state.pairs[1 - MEMORY :], (step, change)]

    def _watch(self, gradient: F64) -> None:
        """Double a sample whose gradients, step after step, are noise."""
        state = self._state
        state.watched = [*state.watched, gradient][-WATCHED:]
        if len(state.watched) < WATCHED:
            return
        mean = np.zeros_like(gradient)
        for each in state.watched:
            mean += each
        if length(mean / WATCHED) < SHORT * length(gradient):
            self._grow(2 * state.samples)


def inverse_hessian_times(gradient: F64, pairs: list[tuple[F64, F64]]) -> F64:
    """H gradient, by the two loops (Nocedal 1980); pairs : (s, y), oldest first."""
    result = gradient.copy()
    shares = []
    for step, change in reversed(pairs):
        share = inner_product(step, result) / inner_product(step, change)
        result -= share * change
        shares.append(share)
    if pairs:
        step, change = pairs[-1]
        result *= inner_product(step, change) / inner_product(change, change)
    for (step, change), share in zip(pairs, reversed(shares)):
        back = inner_product(change, result) / inner_product(step, change)
        result += (share - back) * step
    return result
