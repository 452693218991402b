"""Are the gradient of a fit's layers, and products with their Hessian, derivatives of its
objective?
"""

import numpy as np
import pytest
from hypothesis import settings

from neocpu.kernels.dense.design import inner_product
from neocpu.kernels.records import SparseLines
from neocpu.parallel.transport.comm import SingleComm
from neocpu.train.fit.design import DesignMatrix, Leaves
from neocpu.train.fit.layers import LayeredModel
from neocpu.train.fit.losses import ACTIVATIONS, LOSSES
from neocpu.train.fit.solving import Fitting, Goal

SETTINGS = settings(deadline=None, derandomize=True, max_examples=25)
KINDS = [(loss, activation) for loss in LOSSES for activation in ACTIVATIONS]


def drawn(seed, samples, sparse, dense, loss):
    """A design matrix of one rank's 4 leaves, and as a whole f64[n, width]."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, samples) if sparse else np.zeros(samples, np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    places = [rng.choice(sparse, length, replace=False) for length in lengths if length]
    places = np.concatenate([np.empty(0), *places]).astype(np.int32)
    values = rng.normal(size=places.size if seed % 2 else 0)
    numbers = np.concatenate([rng.normal(size=(samples, dense)), np.ones((samples, 1))], axis=1)
    labels = rng.integers(0, 3 if loss == "softmax" else 2, samples).astype(float)
    _, ends = Leaves(0, 1, 4).rows(samples, 0, samples)
    design = DesignMatrix(
        SparseLines(starts, places, values), numbers, labels, sparse, ends, samples
    )
    whole = np.zeros((samples, sparse))
    np.add.at(
        whole,
        (np.repeat(np.arange(samples), lengths), places),
        values if values.size else 1.0,
    )
    return design, np.concatenate([whole, numbers], axis=1)


def problem(seed, loss, activation, hidden, shape=(30, 6, 2)):
    design, whole = drawn(seed, *shape, loss)
    model = LayeredModel(
        LOSSES[loss], (design.width, *hidden, 3 if loss == "softmax" else 1), activation
    )
    fitting = Fitting(
        model, design, model.penalised(False), Goal(0.03, 0.0), SingleComm(), Leaves(0, 1, 4)
    )
    weights = np.random.default_rng(seed + 1).normal(0, 0.7, model.parameters)
    return fitting.objective(0, design.samples), weights, whole


@pytest.mark.parametrize(("loss", "activation"), KINDS)
@pytest.mark.parametrize("hidden", [(5,), (4, 3), (3, 1, 2)])
def test_gradients_and_products_are_derivatives(loss, activation, hidden):
    for seed in range(3):
        objective, weights, _ = problem(seed, loss, activation, hidden)
        rng = np.random.default_rng(seed)
        u, v = rng.normal(size=(2, weights.size))
        point = objective.at(weights)
        step = 1e-6
        ahead, back = objective.at(weights + step * v), objective.at(weights - step * v)
        slope = (ahead.value - back.value) / (2 * step)
        assert inner_product(point.gradient, v) == pytest.approx(slope, rel=1e-7, abs=1e-8)
        curved = objective.curved(point, v)
        change = (ahead.gradient - back.gradient) / (2 * step)
        assert curved == pytest.approx(change, rel=1e-5, abs=1e-7)
        across = inner_product(u, curved)
        assert across == pytest.approx(inner_product(v, objective.curved(point, u)), rel=1e-12)


@pytest.mark.parametrize(("loss", "activation"), KINDS)
def test_layers_are_those_of_textbooks(loss, activation):
    objective, weights, whole = problem(5, loss, activation, (4, 3))
    model, design = objective.model, objective.design
    act = np.tanh if activation == "tanh" else lambda z: np.maximum(z, 0)
    first, second, last = model.matrices(weights)
    assert [each.shape for each in (first, second, last)] == model.shapes
    ones = np.ones((len(whole), 1))
    units = np.hstack([act(np.hstack([act(whole @ first), ones]) @ second), ones])
    assert model.scores(design, weights) == pytest.approx(units @ last, rel=1e-12)
    # each sample by itself: its gradient along a vector, and its length
    vector = np.random.default_rng(1).normal(size=weights.size)
    tape = model.tape(design, weights)
    along, squares = model.along(weights, tape, vector), model.squares(tape)
    for sample in (0, 7, 29):
        ends = np.array([1, 1, 1, 1])
        one = design.part(np.array([sample]), ends, 1)
        out = np.empty((1, weights.size))
        model.gradient(model.tape(one, weights), np.array([[0, 4]]), out)
        assert along[sample] == pytest.approx(out[0] @ vector, rel=1e-10)
        assert squares[sample] == pytest.approx(out[0] @ out[0], rel=1e-10)
