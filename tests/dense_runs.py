"""One pass of a model's dense half, forth and back, and what holds of any model's."""

from collections.abc import Callable

import numpy as np
from cases import assert_same
from slopes import slopes

from neocpu.core.trees import leaf_cuts
from neocpu.kernels.twins.dense import model as twin
from neocpu.train.model.dlrm import Dlrm

LEAVES = 16


def example(model: Dlrm, samples: int, dense: int, seed: int = 1) -> tuple[np.ndarray, ...]:
    """Dense features, the vectors that tables give, and labels."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, dense), dtype=np.float32)
    pooled = rng.standard_normal((samples, model.columns - model.first_column), dtype=np.float32)
    return x, pooled, rng.integers(0, 2, samples).astype(np.float32)


def cuts_of(samples: int) -> np.ndarray:
    """The leaves of a batch."""
    return np.array(leaf_cuts(samples, LEAVES), np.int64)


def run(
    model: Dlrm, x: np.ndarray, pooled: np.ndarray, labels: np.ndarray, cuts: np.ndarray, batch: int
) -> tuple[np.ndarray, ...]:
    """Logits, dE and the gradient of all parameters, of a loss that is a mean over `batch`."""
    E = np.empty((len(x), model.columns), np.float32)
    model.forward_bottom(x, E)
    E[:, model.first_column :] = pooled
    logits = model.forward_top(E).copy()
    model.loss_gradient(labels, batch)
    dE = model.backward().copy()
    return logits, dE, model.weight_gradient_node(cuts, np.empty_like(model.flat))


def check_gradients(
    model: Dlrm,
    samples: int,
    dense: int,
    formula: Callable[[dict[str, np.ndarray], np.ndarray, np.ndarray], np.ndarray],
    only: str = "",
    tolerance: float = 2e-4,
) -> None:
    """Logits are those of a formula of parameters, dense features and vectors, all f64; gradients
    are its slopes. only : parameters whose names begin so.
    """
    x, pooled, labels = example(model, samples, dense)
    logits, dE, gradient = run(model, x, pooled, labels, cuts_of(samples), samples)
    wide = {name: value.astype(np.float64) for name, value in model.parameters.items()}
    pooled64 = pooled.astype(np.float64)

    def logits64() -> np.ndarray:
        return formula(wide, x.astype(np.float64), pooled64)

    def loss() -> float:
        return twin.mean_loss(logits64(), labels.astype(np.float64), "bce")

    np.testing.assert_allclose(logits, logits64(), rtol=tolerance / 5, atol=1e-5)
    for name, computed in model.layout.views(gradient).items():
        if name.startswith(only):
            np.testing.assert_allclose(
                computed, slopes(loss, wide[name]), rtol=tolerance, atol=4e-6, err_msg=name
            )
    slope = slopes(loss, pooled64)
    np.testing.assert_allclose(dE[:, model.first_column :], slope, rtol=tolerance, atol=1e-6)


def check_halves(model: Dlrm, samples: int, dense: int) -> None:
    """Halves of a batch have the bits of the whole, and no samples have no gradient."""
    x, pooled, labels = example(model, samples, dense)
    cuts = cuts_of(samples)
    logits, dE, gradient = run(model, x, pooled, labels, cuts, samples)
    nodes = []
    for half in (0, 1):
        node = cuts[8 * half : 8 * half + 9]
        span = slice(node[0], node[-1])
        part = run(model, x[span], pooled[span], labels[span], node - node[0], samples)
        assert_same(part[0], logits[span])
        assert_same(part[1], dE[span])
        nodes.append(part[2])
    assert_same(nodes[0] + nodes[1], gradient)
    assert not run(model, x[:0], pooled[:0], labels[:0], cuts * 0, samples)[2].any()
