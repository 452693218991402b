"""Do the blocked, threaded products give the bits of one fused multiply-add chain per element?"""

import math
import os
import sys
from fractions import Fraction

import numba
import numpy as np
import pytest
from cases import assert_same, matrix
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.kernels.dense import gemm
from neocpu.kernels.simd import tiles
from neocpu.kernels.twins.dense import gemm as twin
from neocpu.kernels.twins.numbers.fma import fma
from tests.jobs import ran

SETTINGS = settings(deadline=None, derandomize=True, max_examples=30)
SIZES = st.sampled_from([0, 1, 2, 3, 11, 12, 13, 16, 31, 32, 33, 47, 65])
FILLS = ("normal", "wild", "integers", "special")


def all_three(module, x, w, bias, relu, g, gate, cuts):
    b, k = x.shape
    n = w.shape[0]
    forward = np.full((b, n), np.nan, np.float32)
    backward = np.full((b, k), np.nan, np.float32)
    weights = np.full((n, k), np.nan, np.float32)
    biases = np.full(n, np.nan, np.float32)
    module.layer(x, w, bias, relu, forward)
    module.input_gradient(g, w, gate, backward)
    module.weight_gradient(g, x, cuts, weights, biases)
    return forward, backward, weights, biases


@SETTINGS
@given(
    b=SIZES,
    k=SIZES,
    n=SIZES,
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    levels=st.integers(0, 5),
)
def test_kernels_equal_twins(b, k, n, seed, fill, levels):
    rng = np.random.default_rng(seed)
    x, w, bias, g = (matrix(rng, shape, fill) for shape in [(b, k), (n, k), (n,), (b, n)])
    gate = matrix(rng, (b, k), "integers") if seed % 3 else np.empty((0, 0), np.float32)
    leaves = 1 << levels
    cuts = np.array([leaf * b // leaves for leaf in range(leaves + 1)])
    arguments = (x, w, bias, bool(seed % 2), g, gate, cuts)
    for answer, expected in zip(all_three(gemm, *arguments), all_three(twin, *arguments)):
        assert_same(answer, expected)


@pytest.mark.parametrize(
    ("b", "k", "n", "leaves"),
    [(300, 600, 5, 1), (700, 40, 70, 2), (257, 3, 300, 16), (5, 40, 513, 4)],
)
def test_long_chains_cross_cache_blocks(b, k, n, leaves):
    rng = np.random.default_rng(b)
    x, w, bias, g = (matrix(rng, shape, "normal") for shape in [(b, k), (n, k), (n,), (b, n)])
    cuts = np.array([leaf * b // leaves for leaf in range(leaves + 1)])
    arguments = (x, w, bias, True, g, x, cuts)
    expected = all_three(twin, *arguments)
    before = numba.get_num_threads()
    try:
        for threads in {1, before}:
            numba.set_num_threads(threads)
            for a, c in zip(all_three(gemm, *arguments), expected):
                assert_same(a, c)
    finally:
        numba.set_num_threads(before)


@SETTINGS
@given(
    n=st.sampled_from([0, 1, 5, 16, 31, 33, 65, 130]),
    k=SIZES,
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    first=st.booleans(),
)
def test_a_symmetric_product_is_the_lower_half_of_the_whole(n, k, seed, fill, first):
    rng = np.random.default_rng(seed)
    x, w = (matrix(rng, (k, n) if first else (n, k), fill) for _ in range(2))
    for other in (x, w):
        answer, expected, whole = (np.full((n, n), np.nan, np.float32) for _ in range(3))
        gemm.symmetric(x, other, first, answer)
        twin.symmetric(x, other, first, expected)
        assert_same(answer, expected)
    twin.symmetric(x, x, first, answer)
    twin.input_gradient(x.T if first else x, x if first else x.T, np.empty((0, 0)), whole)
    assert_same(answer, whole)


def test_cuts_may_start_inside_the_batch():
    rng = np.random.default_rng(0)
    g = matrix(rng, (50, 7), "normal")
    x = matrix(rng, (50, 9), "normal")
    cuts = np.array([20, 20, 31, 40, 50])
    gradients, expected = [
        [np.empty((7, 9), np.float32), np.empty(7, np.float32)] for _ in range(2)
    ]
    gemm.weight_gradient(g, x, cuts, *gradients)
    twin.weight_gradient(g, x, cuts, *expected)
    for a, c in zip(gradients, expected):
        assert_same(a, c)


def test_nodes_add_up_to_the_root():
    """Leaves summed as two nodes and added give the bits of the whole: what ranks rely on."""
    rng = np.random.default_rng(1)
    g = matrix(rng, (64, 5), "wild")
    x = matrix(rng, (64, 6), "wild")
    cuts = np.arange(0, 65, 8)
    parts = [np.empty((5, 6), np.float32) for _ in range(3)]
    for part, node in zip(parts, (cuts, cuts[:5], cuts[4:])):
        gemm.weight_gradient(g, x, node, part, np.empty(5, np.float32))
    with np.errstate(all="ignore"):
        assert_same(parts[0], parts[1] + parts[2])


def test_relu_keeps_nan_and_turns_minus_zero_into_zero():
    x = np.float32([[np.nan], [0.0], [-1.0], [2.0]])
    w = np.float32([[1.0]])
    out = np.empty((4, 1), np.float32)
    gemm.layer(x, w, np.float32([-0.0]), True, out)
    assert math.isnan(out[0, 0]) and out[1:].tobytes() == np.float32([0, 0, 2]).tobytes()


def test_a_nan_gate_is_open():
    out = np.empty((3, 1), np.float32)
    gemm.input_gradient(
        np.float32([[1], [1], [1]]), np.float32([[5]]), np.float32([[np.nan], [0], [1]]), out
    )
    assert out.ravel().tolist() == [5, 0, 5]


def round_fraction(value: Fraction) -> float:
    """Nearest fp32, ties to even, of an exact value (within range)."""
    if value == 0:
        return 0.0
    exponent = max(math.frexp(float(value))[1] - 24, -149)
    return float(round(value / Fraction(2) ** exponent) * Fraction(2) ** exponent)


def test_fma_of_the_twin_is_rounded_once():
    rng = np.random.default_rng(2)
    x, y = (matrix(rng, 3000, "wild") for _ in range(2))
    z = np.where(
        rng.random(3000) < 0.5, -x.astype(np.float64) * y, matrix(rng, 3000, "wild")
    ).astype(np.float32)
    ties = np.float32([1 + 2.0**-12, 1 + 2.0**-23, 3, 2.0**-75, 2.0**-100])
    x = np.append(x, ties)
    y = np.append(y, ties)
    z = np.append(z, np.float32([2.0**-60, -(2.0**-70), 2.0**-30, 0, 1]))
    for a, b, c, got in zip(x.tolist(), y.tolist(), z.tolist(), fma(x, y, z).tolist()):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        if math.isfinite(got) and abs(exact) < Fraction(2) ** 127:
            assert got == round_fraction(exact), (a, b, c)


PROGRAM = """
import hashlib, numpy as np
from neocpu.kernels.dense import gemm
from neocpu.kernels.simd import tiles
rng = np.random.default_rng(7)
x, w, g = (rng.standard_normal(s, dtype=np.float32) for s in [(130, 70), (45, 70), (130, 45)])
out, dx, dw, db = (np.empty(s, np.float32) for s in [(130, 45), (130, 70), (45, 70), 45])
gemm.layer(x, w, g[0].copy(), True, out)
gemm.input_gradient(g, w, x, dx)
gemm.weight_gradient(g, x, np.array([leaf * 130 // 16 for leaf in range(17)]), dw, db)
print(tiles.MR, tiles.NV, tiles.LANES)
print(hashlib.sha256(b"".join(a.tobytes() for a in (out, dx, dw, db))).hexdigest())
"""


def test_the_tile_follows_the_processor():
    if tiles.target()[0].startswith(("x86", "skylake", "sapphire", "haswell", "znver")):
        assert tiles.tile_shape("x86-64-v4", "") == (12, 2, 16)
        assert tiles.tile_shape("x86-64-v3", "") == (6, 2, 8)
        assert tiles.tile_shape("x86-64", "") == (4, 2, 4)


@pytest.mark.skipif(
    "x86_64" not in os.uname().machine, reason="the processors named here are x86-64"
)
def test_bits_do_not_depend_on_the_vector_width():
    seen = []
    for name in (None, "x86-64-v3"):
        environment = dict(os.environ)
        if name:
            environment |= {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": ""}
        run = ran([sys.executable, "-c", PROGRAM], env=environment, check=True)
        seen.append(run.stdout.split("\n"))
    assert seen[1][0] == "6 2 8"
    assert seen[0][1] == seen[1][1]
