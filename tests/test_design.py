"""Do products with a design matrix, and losses of its samples, have the bits of their twins?"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.kernels.dense import curves, design
from neocpu.kernels.records import SparseLines
from neocpu.kernels.twins.dense import curves as curves_twin
from neocpu.kernels.twins.dense import design as twin

PROFILE = settings(deadline=None, derandomize=True, max_examples=40)


def numbers(rng, *shape):
    """Numbers of many sizes, some of them -0, and some whose products are subnormal."""
    drawn = rng.standard_normal(shape) * 2.0 ** rng.integers(-540, 12, shape)
    return np.where(rng.random(shape) < 0.1, -0.0, drawn)


def sparse_rows(rng, samples, width, unit):
    lengths = rng.integers(0, 5, samples) if width else np.zeros(samples, np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    places = rng.integers(0, max(width, 1), starts[-1]).astype(np.int32)
    return SparseLines(starts, places, numbers(rng, 0 if unit else places.size))


@PROFILE
@given(
    st.integers(0, 2**32),
    st.integers(0, 40),
    st.sampled_from([0, 1, 7, 700]),
    st.integers(0, 3),
    st.integers(1, 3),
    st.booleans(),
)
def test_products_have_the_bits_of_their_twins(seed, samples, width, m, k, unit):
    rng = np.random.default_rng(seed)
    rows = sparse_rows(rng, samples, width, unit)
    dense = numbers(rng, samples, m)
    weights = numbers(rng, width + m, k)
    columns = SparseLines(
        np.empty(width + 1, np.int64), np.empty_like(rows.places), np.empty_like(rows.values)
    )
    turned = [np.empty_like(part) for part in columns]
    design.transposed(rows, *columns)
    twin.transposed(rows, *turned)
    assert [part.tobytes() for part in columns] == [part.tobytes() for part in turned]
    residual = numbers(rng, samples, k)
    # the leaves of one rank, and those of one among others
    nodes = np.array([[[0, 16]], [[0, 4], [4, 2], [6, 1], [7, 1]]][seed % 2])
    count = nodes[:, 1].sum()
    ends = np.sort(np.append(rng.integers(0, samples + 1, count - 1), samples))
    leaves = np.searchsorted(ends, np.arange(samples), side="right").astype(np.int32)
    results = []
    for module in (design, twin):
        forward = np.empty((samples, k))
        module.products(rows, dense, weights, forward)
        back = np.full((len(nodes), width * k + 3), 5.0)
        module.transposed_products(columns, residual, leaves, nodes, back)
        sums = np.empty((count, m, k))
        module.dense_transposed(dense, residual, ends, sums)
        results.append([part.tobytes() for part in (forward, back, sums)])
    assert results[0] == results[1]


def test_steps_of_vectors_have_the_bits_of_their_twins():
    x, y, penalty = numbers(np.random.default_rng(1), 3, 5000)
    outs = np.empty((2, 2, x.size))
    for module, (stepped, mean) in zip((design, twin), outs):
        module.moved(x, -0.3, y, stepped)
        module.mean_and_pull(x, 7.0, penalty, y, mean)
    assert outs[0].tobytes() == outs[1].tobytes()


@PROFILE
@given(st.integers(0, 2**32), st.sampled_from([0, 1, 9, 4095, 4096, 4100, 12_289]))
def test_inner_products_are_a_tree_of_chains(seed, size):
    x, y = numbers(np.random.default_rng(seed), 2, size)
    out, expected = np.empty((2, -(-size // 4096)))
    design.block_products(x, y, out)
    twin.block_products(x, y, expected)
    assert out.tobytes() == expected.tobytes()
    assert design.inner_product(x, y) == pytest.approx(float(np.sum(x * y)), rel=1e-9, abs=1e-300)


@PROFILE
@given(st.integers(0, 2**32), st.integers(0, 12))
def test_losses_have_the_bits_of_their_twins(seed, samples):
    rng = np.random.default_rng(seed)
    for name in ("logistic", "squares", "squared_hinge", "softmax"):
        width = 3 if name == "softmax" else 1
        score = rng.standard_normal((samples, width)) * 10.0 ** rng.integers(-3, 4)
        label = rng.integers(0, 2 + (width > 1), samples).astype(float)
        results = []
        for module in (curves, curves_twin):
            out = np.empty(samples), np.empty_like(score), np.empty_like(score)
            getattr(module, name)(score, label, *out)
            results.append([part.tobytes() for part in out])
        assert results[0] == results[1], name
    moved = rng.standard_normal(score.shape)
    changes = np.empty((2, *score.shape))
    curves.softmax_curved(out[2], moved, changes[0])
    curves_twin.softmax_curved(out[2], moved, changes[1])
    assert changes[0].tobytes() == changes[1].tobytes()


@PROFILE
@given(st.integers(0, 2**32), st.integers(0, 9), st.integers(1, 5))
def test_activations_have_the_bits_of_their_twins(seed, samples, width):
    rng = np.random.default_rng(seed)
    z = numbers(rng, samples, width)
    special = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, 1e308, -22.5], z.shape)
    z = np.where(rng.random(z.shape) < 0.3, special, z)
    for name in ("tanh_units", "relu_units"):
        results = []
        for module in (curves, curves_twin):
            out = np.empty((3, samples, width))
            getattr(module, name)(z, *out)
            results.append(out.tobytes())
        assert results[0] == results[1], name


@pytest.mark.parametrize("name", ["logistic", "squares", "squared_hinge", "softmax"])
def test_slopes_and_curvatures_are_derivatives(name):
    rng = np.random.default_rng(1)
    width = 3 if name == "softmax" else 1
    score = rng.standard_normal((20, width))
    label = rng.integers(0, 2 + (width > 1), 20).astype(float)
    moved = rng.standard_normal(score.shape)

    def at(step):
        loss, slope, curvature = np.empty(20), np.empty_like(score), np.empty_like(score)
        getattr(curves, name)(score + step * moved, label, loss, slope, curvature)
        return loss, slope, curvature

    step = 1e-6
    _, slope, curvature = at(0.0)
    change = np.empty_like(score)
    if width > 1:
        curves.softmax_curved(curvature, moved, change)
    else:
        change[:] = curvature * moved
    losses = (at(step)[0] - at(-step)[0]) / (2 * step)
    slopes = (at(step)[1] - at(-step)[1]) / (2 * step)
    assert losses == pytest.approx((slope * moved).sum(axis=1), abs=1e-8)
    assert slopes == pytest.approx(change, abs=1e-8)
