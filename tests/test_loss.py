"""Are losses, predictions and gradients the same bits in kernel and twin, and right?"""

import numpy as np
import pytest
from cases import assert_same
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.kernels.dense import loss
from neocpu.kernels.twins.dense import loss as twin

SETTINGS = settings(deadline=None, derandomize=True, max_examples=25)


def run(module, name, logit, label, batch):
    out = [np.full(logit.shape, np.nan, np.float32) for _ in range(3)]
    getattr(module, name)(logit, label, batch, *out)
    return out


@pytest.mark.parametrize("name", ["bce", "mse"])
@SETTINGS
@given(n=st.sampled_from([0, 1, 7, 300]), batch=st.integers(1, 2**31), seed=st.integers(0, 2**32))
def test_kernels_equal_twins(name, n, batch, seed):
    rng = np.random.default_rng(seed)
    logit = (rng.standard_normal(n) * 2.0 ** rng.integers(-40, 12, n)).astype(np.float32)
    if n > 6:
        logit[:7] = [0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38]
    label = rng.choice(np.float32([0, 1, 0.25]), n)
    for answer, expected in zip(
        run(loss, name, logit, label, batch), run(twin, name, logit, label, batch)
    ):
        assert_same(answer, expected)


def test_bce_is_the_negative_log_likelihood():
    logit = np.linspace(-20, 20, 81, dtype=np.float32)
    for y in (0.0, 1.0):
        prediction, gradient, value = run(loss, "bce", logit, np.full(81, y, np.float32), 81)
        p = 1 / (1 + np.exp(-logit.astype(np.float64)))
        np.testing.assert_allclose(prediction, p, rtol=1e-6)
        np.testing.assert_allclose(gradient * 81, p - y, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(
            value, np.logaddexp(0, -logit.astype(np.float64) if y else logit), rtol=1e-6
        )


def test_huge_logits_stay_finite():
    prediction, _, value = run(loss, "bce", np.float32([1e30, -1e30]), np.float32([1, 0]), 2)
    assert prediction.tolist() == [1, 0] and value.tolist() == [0, 0]
    _, _, value = run(loss, "bce", np.float32([100, -100]), np.float32([0, 1]), 2)
    assert value.tolist() == [100, 100]


def test_mse():
    prediction, gradient, value = run(loss, "mse", np.float32([3, 1]), np.float32([1, 1]), 4)
    assert (
        prediction.tolist() == [3, 1] and gradient.tolist() == [1, 0] and value.tolist() == [4, 0]
    )
