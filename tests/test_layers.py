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


def test_a_linear_model_is_the_one_without_hidden_units():
    # squares, and relu units that all samples open: the same scores, gradients and curvature
    objective, weights, whole = problem(3, "squares", "relu", (2,), (30, 0, 3))
    model, design = objective.model, objective.design
    linear = LayeredModel(LOSSES["squares"], (design.width, 1))
    first, last = model.matrices(weights)
    first[:] = np.abs(first)
    first[-1] = 1e3
    product = first @ last[:-1]
    product[-1] += last[-1]
    assert model.scores(design, weights) == pytest.approx(whole @ product, rel=1e-12)
    tape, plain = model.tape(design, weights), linear.tape(design, product[:, 0].copy())
    nodes = np.array([[0, 4]])
    gradients = np.empty((1, model.parameters)), np.empty((1, linear.parameters))
    model.gradient(tape, nodes, gradients[0])
    linear.gradient(plain, nodes, gradients[1])
    by_first = model.matrices(gradients[0][0])[0]
    assert by_first == pytest.approx(np.outer(gradients[1][0], last[:-1]), rel=1e-9)


@pytest.mark.parametrize("samples", [0, 1])
def test_no_samples_and_one_have_sums(samples):
    for shape in ((samples, 0, 0), (samples, 6, 0), (samples, 6, 2)):
        design, _ = drawn(1, *shape, "logistic")
        model = LayeredModel(LOSSES["logistic"], (design.width, 3, 1))
        weights = np.ones(model.parameters)
        tape = model.tape(design, weights)
        out = np.full((1, model.parameters), np.nan)
        model.gradient(tape, np.array([[0, 4]]), out)
        assert np.isfinite(out).all()
        assert samples or not out.any()
        out[:] = np.nan
        model.curved(weights, tape, weights, np.array([[0, 4]]), out)
        assert np.isfinite(out).all()


def test_initial_weights_are_as_large_as_columns_are_frequent():
    model = LayeredModel(LOSSES["squares"], (5, 7, 4, 1))
    squares = np.array([1.0, 0.25, 0.0, 1.0, 1.0])
    weights = model.start(1, squares)
    first, second, last = model.matrices(weights)
    for matrix, inputs in ((first, 3.25), (second, 7.0), (last, 4.0)):
        limit = np.sqrt(6 / (inputs + matrix.shape[1]))
        assert 0.5 * limit < np.abs(matrix).max() <= limit * (1 + 1e-6)
        assert not matrix[-1].any()
    assert np.abs(first[1]).max() <= 0.5 * np.sqrt(6 / 10.25) * (1 + 1e-6)
    assert not first[2].any()
    assert (
        weights.tobytes() == model.start(1, squares).tobytes() != model.start(2, squares).tobytes()
    )
    assert not LayeredModel(LOSSES["squares"], (5, 1)).start(1, squares).any()


def test_the_penalty_is_on_all_weights_but_intercepts():
    model = LayeredModel(LOSSES["squares"], (5, 3, 2))
    first, second = model.matrices(model.penalised(False))
    assert first.all(axis=1).tolist() == [True] * 4 + [False]
    assert second.all(axis=1).tolist() == [True] * 3 + [False]
    assert model.penalised(True).all()


def test_units_of_any_size_have_finite_derivatives():
    z = np.array([[1e308, -1e308, 5e-324, -0.0, 800.0]])
    for kernel in ACTIVATIONS.values():
        out = np.empty((3, *z.shape))
        kernel(z, *out)
        assert np.isfinite(out).all()
