"""Is target attention the formula of its docstring, forward and backward, and to the bit?"""

from functools import cache, partial
from itertools import pairwise

import numpy as np
import pytest
from history_runs import settings, train

from neocpu.kernels.dense import attention
from neocpu.kernels.twins.dense import attention as twin
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.model.arrays import NodeGradient
from neocpu.train.model.attention_layout import AttentionLayout
from neocpu.train.model.mlp import initialise
from neocpu.train.model.operations.attention import Attention


def histories(seed: int, samples: int = 9, dim: int = 5, longest: int = 6):
    """(rows, candidates, offsets) with empty histories, long ones and repeated rows."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest + 1, samples)
    lengths[::3] = 0
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
    rows = rng.standard_normal((int(offsets[-1]), dim)).astype(np.float32)
    rows[rng.random(len(rows)) < 0.2] = 0
    return rows, rng.standard_normal((samples, dim)).astype(np.float32), offsets


def outputs(module, rows, target, offsets, rng):
    """Every kernel's output for these histories."""
    n, dim = rows.shape
    b = len(target)
    scores = (20 * rng.standard_normal(n)).astype(np.float32)
    gradient = rng.standard_normal((b, dim)).astype(np.float32)
    inner = rng.standard_normal((n, 4 * dim)).astype(np.float32)
    shapes = {
        "inputs": (n, 4 * dim),
        "shares": n,
        "sums": (b, dim),
        "by_weight": n,
        "by_score": n,
        "by_row": (n, dim),
        "by_target": (b, dim),
    }
    out = {name: np.full(shape, np.nan, np.float32) for name, shape in shapes.items()}
    case = attention.Histories(rows, offsets, target)
    module.attention_inputs(case, out["inputs"])
    module.softmax_bags(scores, offsets, out["shares"])
    module.weighted_rows(rows, scores, offsets, out["sums"])
    module.weights_gradient(gradient, rows, offsets, out["by_weight"])
    module.softmax_gradient(out["shares"], scores, offsets, out["by_score"])
    module.attention_gradients(case, inner, scores, gradient, out["by_row"], out["by_target"])
    return out


@pytest.mark.parametrize("seed", range(6))
def test_kernels_give_the_bits_of_their_twins(seed: int) -> None:
    case = histories(seed, longest=(0, 1, 6, 6, 30, 6)[seed], dim=(5, 1, 16, 7, 8, 33)[seed])
    if seed == 5:
        case[0][-1] = np.inf, *([np.nan] * 32)
    answer = outputs(attention, *case, np.random.default_rng(seed))
    expected = outputs(twin, *case, np.random.default_rng(seed))
    for name, values in expected.items():
        np.testing.assert_array_equal(answer[name], values, err_msg=name)
        zeros = values == 0
        assert (np.signbit(answer[name][zeros]) == np.signbit(values[zeros])).all(), name


def made(normalise: str, dim: int = 5, hidden: tuple[int, ...] = (7, 3)):
    """An operation, its parameters by name."""
    layout = AttentionLayout("history", 0, dim, hidden, normalise)
    parameters = {name: np.empty(shape, np.float32) for name, shape in layout.tensors()}
    initialise(parameters, 3)
    return Attention(layout, parameters), parameters


def formula(parameters, rows, target, offsets, normalise, xp):
    """Vectors of the histories in fp64, as the docstring says; xp : numpy, or torch."""
    samples = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    a = target[samples]
    x = (xp.concatenate if xp is np else xp.cat)([rows, a, rows - a, rows * a], 1)
    layers = len(parameters) // 2
    for layer in range(layers):
        weight = parameters[f"attention.history.{layer}.weight"]
        x = x @ weight.T + parameters[f"attention.history.{layer}.bias"]
        if layer < layers - 1:
            x = x * (x > 0)
    vectors = []
    for lo, hi in pairwise(offsets):
        weights = x[lo:hi, 0]
        if normalise == "softmax":
            powers = xp.exp(weights)
            weights = powers / powers.sum()
        vectors.append((weights[:, None] * rows[lo:hi]).sum(0))
    return xp.stack(vectors)


@pytest.mark.parametrize("normalise", ["none", "softmax"])
def test_gradients_are_those_of_finite_differences(normalise: str) -> None:
    rows, target, offsets = histories(1)
    operation, parameters = made(normalise)
    out = np.full(target.shape, np.nan, np.float32)
    operation.forward(rows, offsets, target, out)
    wide = {name: values.astype(np.float64) for name, values in parameters.items()}
    inputs = {"rows": rows.astype(np.float64), "target": target.astype(np.float64)}
    outer = np.random.default_rng(2).standard_normal(out.shape).astype(np.float32)

    def value() -> float:
        vectors = formula(wide, inputs["rows"], inputs["target"], offsets, normalise, np)
        return float((vectors * outer).sum())

    np.testing.assert_allclose(
        out, formula(wide, inputs["rows"], inputs["target"], offsets, normalise, np), atol=2e-6
    )
    by_target = np.ones_like(target)
    gradients = {"rows": operation.backward(outer, by_target), "target": by_target - 1}
    into = {name: np.empty_like(values) for name, values in parameters.items()}
    operation.weight_gradients([NodeGradient(np.array([0, 4, 9]), into)])
    rng = np.random.default_rng(3)
    for name, values in {**inputs, **wide}.items():
        gradient = {**gradients, **into}[name]
        for at in rng.integers(0, values.size, 12).tolist():
            before = values.flat[at]
            values.flat[at] = before + 1e-6
            up = value()
            values.flat[at] = before - 1e-6
            slope = (up - value()) / 2e-6
            values.flat[at] = before
            assert abs(slope - gradient.flat[at]) < 2e-5 * (1 + abs(slope)), (name, at)


@pytest.mark.parametrize("normalise", ["none", "softmax"])
def test_gradients_are_those_of_torch(normalise: str) -> None:
    torch = pytest.importorskip("torch")
    rows, target, offsets = histories(4, samples=30, dim=8)
    operation, parameters = made(normalise, dim=8)
    out = np.empty_like(target)
    operation.forward(rows, offsets, target, out)
    leaf = {
        name: torch.tensor(values.astype(np.float64), requires_grad=True)
        for name, values in {**parameters, "rows": rows, "target": target}.items()
    }
    shapes = {name: leaf[name] for name in parameters}
    vectors = formula(shapes, leaf["rows"], leaf["target"], offsets, normalise, torch)
    np.testing.assert_allclose(out, vectors.detach().numpy(), atol=5e-6)
    outer = np.random.default_rng(5).standard_normal(out.shape).astype(np.float32)
    vectors.backward(torch.tensor(outer.astype(np.float64)))
    by_target = np.zeros_like(target)
    by_row = operation.backward(outer, by_target)
    np.testing.assert_allclose(by_row, leaf["rows"].grad.numpy(), atol=2e-5)
    np.testing.assert_allclose(by_target, leaf["target"].grad.numpy(), atol=2e-5)
    into = {name: np.empty_like(values) for name, values in parameters.items()}
    operation.weight_gradients([NodeGradient(np.array([0, 30]), into)])
    for name, gradient in into.items():
        np.testing.assert_allclose(gradient, leaf[name].grad.numpy(), atol=1e-4, err_msg=name)


# ---- in a model ----

PLANS = ("table_wise", "row_wise", "data_parallel", "column_wise,grid_shard,row_wise,data_parallel")


@cache
def answer(*sets: str) -> str:
    return train(settings(*sets), SingleComm())


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_model_with_histories_has_one_digest(plan: str, ranks: int) -> None:
    for pipeline in ("off", "input", "full"):
        options = settings(f'training.pipeline="{pipeline}"')
        digests = run_threads(ranks, partial(train, options, plan=plan))
        assert set(digests) == {answer()}, pipeline
