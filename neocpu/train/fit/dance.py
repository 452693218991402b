"""How does DANCE minimise? By Newton steps on a sample that doubles (Jahani et al. 2018).

    R_n(w) = L_n(w) + (c V_n / 2) |w|^2,   V_n = 1/n
    n = m0
    loop:  while |grad R_n(w)| > sqrt(2c) V_n:
               H v = grad R_n(w), by conjugate gradients, to a residual of 0.05 |grad R_n(w)|
               w -= v / (1 + sqrt(v^T H v))
           stop if n = N; n = min(2n, N), the old samples among the new ones

A sample of n tells the expected loss to about V_n, so a small one is not minimised further than
that, and the next, larger one begins near its own minimum. c is such that the last penalty, c V_N,
is the one that was asked for. What is ours: the first sample is all of them where columns are more,
since a small one tells nothing of most columns; the last sample may be minimised to a tolerance of
one's own; a step that does not lower R_n is halved; and where the loss is not convex, conjugate
gradients end at the first direction of negative curvature, and the step goes as far as they came.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from neocpu.kernels.dense.design import inner_product, moved
from neocpu.train.fit.design import F64
from neocpu.train.fit.objective import FitObjective, Point
from neocpu.train.fit.solving import FitState, FitStep, Fitting, descended

FORCING = 0.05  # of the gradient: the residual that conjugate gradients leave
MOST_PRODUCTS = 250  # of a step


@dataclass(frozen=True)
class NewtonStep:
    """v with H v nearly the gradient, its length sqrt(v^T H v), and the products that it took."""

    direction: F64
    size: float
    products: int


def dance(fitting: Fitting, state: FitState) -> Iterator[FitStep]:
    """Minimise, from where the state is; yields after each step. Collective."""
    samples = fitting.samples
    while True:
        # c V_n, with c V_N = the penalty
        objective = fitting.objective(0, state.samples, samples / state.samples)
        point = objective.at(state.weights)
        fitting.begun(state, point)
        while not fitting.reached(state, point):
            step = newton_step(objective, point)
            descent = descended(objective, point, step.direction, 1.0 / (1.0 + step.size))
            if descent is None:
                break  # as near as fp64 comes
            point = descent.point
            state.weights = point.weights
            state.iterations += 1
            yield FitStep(point, step.products)
        if state.samples == samples:
            return
        state.samples = min(2 * state.samples, samples)


def newton_step(objective: FitObjective, point: Point) -> NewtonStep:
    """Conjugate gradients on H v = gradient, from 0. Collective, one exchange a product."""
    v = np.zeros_like(point.gradient)
    residual = point.gradient.copy()
    p = residual.copy()
    rho = inner_product(residual, residual)
    limit = FORCING * point.steepness
    for product in range(1, MOST_PRODUCTS + 1):
        curved = objective.curved(point, p)
        bend = inner_product(p, curved)
        if not bend > 0.0:
            # downhill all the same: what there is, or the gradient itself
            if product == 1:
                return NewtonStep(p, 0.0, product)
            break
        share = rho / bend
        moved(v, share, p, v)
        moved(residual, -share, curved, residual)
        following = inner_product(residual, residual)
        if np.sqrt(following) <= limit:
            break
        moved(residual, following / rho, p, p)
        rho = following
    return NewtonStep(v, _size(v, point.gradient, residual), product)


def _size(v: F64, gradient: F64, residual: F64) -> float:
    """sqrt(v^T H v), of H v = gradient - residual."""
    return float(np.sqrt(max(inner_product(v, gradient - residual), 0.0)))
