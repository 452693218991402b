"""Do the vectorised dot interaction and its gradient give the bits of one chain per element?"""

import numpy as np
import pytest
from cases import assert_same, matrix
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.kernels.dense import interaction
from neocpu.kernels.twins.dense import interaction as twin

SETTINGS = settings(deadline=None, derandomize=True, max_examples=30)


def both_directions(module, e, g, dim, diagonal):
    out = np.full(g.shape, np.nan, np.float32)
    back = np.full(e.shape, np.nan, np.float32)
    module.dot_forward(e, dim, diagonal, out)
    module.dot_backward(e, g, dim, diagonal, back)
    return out, back


def check(samples, count, dim, diagonal, fill, seed):
    rng = np.random.default_rng(seed)
    pairs = count * (count - 1) // 2 + (count if diagonal else 0)
    e = matrix(rng, (samples, count * dim), fill)
    g = matrix(rng, (samples, dim + pairs), fill)
    for answer, expected in zip(
        both_directions(interaction, e, g, dim, diagonal),
        both_directions(twin, e, g, dim, diagonal),
    ):
        assert_same(answer, expected)


@SETTINGS
@given(
    samples=st.sampled_from([0, 1, 2, 33]),
    count=st.sampled_from([1, 2, 3, 12, 13, 16, 17, 27, 33]),
    dim=st.sampled_from([1, 2, 4, 7, 15, 16, 17, 32, 36, 48]),
    diagonal=st.booleans(),
    fill=st.sampled_from(["normal", "wild", "special"]),
    seed=st.integers(0, 2**32),
)
def test_kernels_equal_twins(samples, count, dim, diagonal, fill, seed):
    check(samples, count, dim, diagonal, fill, seed)


@pytest.mark.parametrize(("count", "dim"), [(27, 128), (105, 12), (3, 1024), (65, 33)])
@pytest.mark.parametrize("diagonal", [False, True])
def test_large_shapes(count, dim, diagonal):
    check(3, count, dim, diagonal, "normal", count)


def test_an_infinite_row_does_not_meet_itself():
    """Without the diagonal, row i never multiplies its own coefficient (0 * inf would be NaN)."""
    e = np.float32([[1, 2, np.inf, -np.inf]])
    g = np.float32([[0, 0, 3]])
    out = np.empty_like(e)
    interaction.dot_backward(e, g, 2, False, out)
    assert out.tolist() == [[np.inf, -np.inf, 3, 6]]


def test_inputs_are_left_alone_and_order_is_the_lower_triangle():
    e = np.float32([[1, 10, 100, 1000]])
    before = e.copy()
    out = np.empty((1, 7), np.float32)
    interaction.dot_forward(e, 1, False, out)
    assert out.tolist() == [[1, 10, 100, 1000, 1000, 10000, 100000]]
    assert e.tobytes() == before.tobytes()
