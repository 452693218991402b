"""Are the gradients of the whole model right, its parameters where they should be, and its errors
helpful?
"""

import math

import numpy as np
import pytest

from neocpu.core.errors import ConfigError
from neocpu.core.trees import leaf_cuts
from neocpu.kernels.twins.dense import model as twin
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.model.layout import ModelLayout

B = 24
DENSE = 5
SHAPES = {
    "dot": {"dims": (4, 4, 4), "bottom": (7, 4), "top": (6, 3, 1), "interaction": "dot"},
    "dot-diagonal": {
        "dims": (4, 4),
        "bottom": (4,),
        "top": (1,),
        "interaction": "dot",
        "diagonal": True,
    },
    "cat": {"dims": (2, 6, 3), "bottom": (5, 3), "top": (6, 1), "interaction": "cat"},
    "no-tables": {"dims": (), "bottom": (6, 4), "top": (3, 1), "interaction": "dot"},
}


def run(model, x, pooled, labels, cuts=None):
    """E, logits, predictions, losses, dE and the parameters' gradient of one batch."""
    E = np.empty((len(x), model.columns), np.float32)
    model.forward_bottom(x, E)
    E[:, model.first_column :] = pooled
    logits = model.forward_top(E).copy()
    prediction, loss = model.loss_gradient(labels, len(x))
    dE = model.backward()
    cuts = np.array(leaf_cuts(len(x), 16), np.int64) if cuts is None else cuts
    return (
        E,
        logits,
        prediction.copy(),
        loss.copy(),
        dE.copy(),
        model.weight_gradient_node(cuts, np.empty_like(model.flat)),
    )


def example(shape, loss, seed=1):
    rng = np.random.default_rng(seed)
    model = Dlrm(ModelLayout(DENSE, **SHAPES[shape], loss=loss), seed=3)
    x = rng.standard_normal((B, DENSE), dtype=np.float32)
    pooled = rng.standard_normal((B, model.columns - model.first_column), dtype=np.float32)
    return model, x, pooled, rng.integers(0, 2, B).astype(np.float32)


@pytest.mark.parametrize("loss", ["bce", "mse"])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_match_finite_differences(shape, loss):
    model, x, pooled, labels = example(shape, loss)
    _, logits, _, losses, dE, gradient = run(model, x, pooled, labels)
    wide = {name: value.astype(np.float64) for name, value in model.parameters.items()}
    rows = pooled.astype(np.float64)

    def mean_loss():
        parts = np.split(rows, np.cumsum(SHAPES[shape]["dims"])[:-1], axis=1) if rows.size else []
        z = twin.logits(
            wide, x.astype(np.float64), parts, model.layout.interaction, model.layout.diagonal
        )
        return z, twin.mean_loss(z, labels.astype(np.float64), loss)

    def slope(array, index, h=1e-6):
        kept = array[index]
        array[index] = kept + h
        up = mean_loss()[1]
        array[index] = kept - h
        down = mean_loss()[1]
        array[index] = kept
        return (up - down) / (2 * h)

    z, value = mean_loss()
    np.testing.assert_allclose(logits, z, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(losses.mean(dtype=np.float64), value, rtol=1e-6)
    for name, computed in model.layout.views(gradient).items():
        expected = np.array(
            [slope(wide[name], index) for index in np.ndindex(computed.shape)]
        ).reshape(computed.shape)
        np.testing.assert_allclose(computed, expected, rtol=2e-4, atol=2e-6, err_msg=name)
    expected = np.array([slope(rows, index) for index in np.ndindex(rows.shape)]).reshape(
        rows.shape
    )
    np.testing.assert_allclose(dE[:, model.first_column :], expected, rtol=2e-4, atol=2e-7)


def test_parameters_are_named_views_of_one_array():
    model = Dlrm(ModelLayout(13, (8, 8), (16, 8), (4, 1)), seed=1)
    assert list(model.parameters) == [
        "bottom.0.weight",
        "bottom.0.bias",
        "bottom.1.weight",
        "bottom.1.bias",
        "top.0.weight",
        "top.0.bias",
        "top.1.weight",
        "top.1.bias",
    ]
    assert model.parameters["top.0.weight"].shape == (4, 8 + 3)
    assert sum(p.size for p in model.parameters.values()) == model.flat.size
    assert all(np.shares_memory(p, model.flat) for p in model.parameters.values())
    model.flat[:] = np.arange(model.flat.size)
    assert (
        np.concatenate([p.ravel() for p in model.parameters.values()]).tolist()
        == model.flat.tolist()
    )


def test_initial_values_are_bounded_reproducible_and_differ_by_seed():
    layout = ModelLayout(13, (8,), (16, 8), (4, 1))
    model, again, another_seed = (Dlrm(layout, seed) for seed in (1, 1, 2))
    assert model.flat.tobytes() == again.flat.tobytes() != another_seed.flat.tobytes()
    for name, tensor in model.parameters.items():
        fan = 1 / tensor.shape[0] if tensor.ndim == 1 else 6 / sum(tensor.shape)
        assert np.abs(tensor).max() <= np.float32(math.sqrt(fan)), name
        assert tensor.size < 4 or np.abs(tensor).max() > 0.5 * math.sqrt(fan), name


@pytest.mark.parametrize("shape", ["dot", "cat"])
def test_ranks_of_samples_give_the_bits_of_the_whole_batch(shape):
    """Two halves of a batch, each run alone: same rows, and their nodes add up to the root."""
    model, x, pooled, labels = example(shape, "bce")
    _, logits, prediction, loss, dE, gradient = run(model, x, pooled, labels)
    cuts = np.array(leaf_cuts(B, 16), np.int64)
    parts = []
    for half in (0, 1):
        first = cuts[8 * half]
        last = cuts[8 * half + 8]
        e = np.empty((last - first, model.columns), np.float32)
        model.forward_bottom(x[first:last], e)
        e[:, model.first_column :] = pooled[first:last]
        assert model.forward_top(e).tobytes() == logits[first:last].tobytes()
        part = model.loss_gradient(labels[first:last], B)
        assert [a.tobytes() for a in part] == [a[first:last].tobytes() for a in (prediction, loss)]
        assert model.backward().tobytes() == dE[first:last].tobytes()
        node = cuts[8 * half : 8 * half + 9] - first
        parts.append(model.weight_gradient_node(node, np.empty_like(model.flat)))
    assert (parts[0] + parts[1]).tobytes() == gradient.tobytes()


def test_batches_of_any_size_reuse_the_buffers():
    model, x, pooled, labels = example("dot", "bce")
    whole = run(model, x, pooled, labels)
    for count in (0, 1, 7, B):
        part = run(model, x[:count], pooled[:count], labels[:count])
        assert part[1].tobytes() == whole[1][:count].tobytes()
    assert run(model, x, pooled, labels)[5].tobytes() == whole[5].tobytes()
    nothing = run(model, x[:0], pooled[:0], labels[:0])
    assert not nothing[5].any() and not np.signbit(nothing[5]).any()


@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_predict_equals_training_predictions(loss):
    model, x, pooled, labels = example("dot", loss)
    prediction = run(model, x, pooled, labels)[2]
    assert model.predict().tobytes() == prediction.tobytes()


def test_without_dense_features_the_bottom_learns_a_constant():
    model = Dlrm(ModelLayout(0, **SHAPES["dot"]))
    pooled = np.ones((B, model.columns - model.first_column), np.float32)
    E, _, _, _, dE, gradient = run(
        model, np.empty((B, 0), np.float32), pooled, np.ones(B, np.float32)
    )
    bottom = np.maximum(model.parameters["bottom.0.bias"], 0)
    hidden = np.maximum(
        model.parameters["bottom.1.weight"] @ bottom + model.parameters["bottom.1.bias"], 0
    )
    np.testing.assert_allclose(E[:, :4], np.tile(hidden, (B, 1)), rtol=1e-6)
    assert np.isfinite(dE).all() and np.isfinite(gradient).all() and gradient.any()


def test_inputs_are_left_alone():
    model, x, pooled, labels = example("cat", "bce")
    before = [a.tobytes() for a in (x, pooled, labels, model.flat)]
    run(model, x, pooled, labels)
    assert [a.tobytes() for a in (x, pooled, labels, model.flat)] == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dims": [4, 8]}, "dims [4, 8]"),
        ({"bottom": [7, 5]}, "embedding dim 4"),
        ({"top": [6, 2]}, "must be 1"),
        ({"top": []}, "model.top"),
        ({"bottom": [0]}, "model.bottom"),
        ({"interaction": "sum"}, "dot, cat"),
        ({"loss": "hinge"}, "bce, mse"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_words(change, words):
    with pytest.raises(ConfigError) as error:
        ModelLayout(DENSE, **(SHAPES["dot"] | change))
    assert words in str(error.value)
