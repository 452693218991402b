"""Do the strided block kernels move and add exactly what their twins do?"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.kernels.exchange import blocks as kernels
from neocpu.kernels.twins.exchange import blocks as twins

PROFILE = settings(deadline=None, derandomize=True, max_examples=30)


def make_jobs(rng: np.random.Generator, count: int) -> tuple[np.ndarray, int, int]:
    """Jobs over disjoint rectangles, side by side in the source and one below the other in the
    target.
    """
    rows = int(rng.integers(0, 6))
    widths = rng.integers(0, 9, count)
    stride = int(widths.sum()) + int(rng.integers(0, 3))
    jobs = []
    at = 0
    column = 0
    for width in widths.tolist():
        to_stride = width + int(rng.integers(0, 4))
        jobs.append((column, stride, at, to_stride, rows, width))
        column += width
        at += to_stride * rows
    return np.array(jobs, np.int64).reshape(-1, 6), stride * rows, at


@PROFILE
@given(
    st.integers(0, 2**32), st.integers(0, 6), st.sampled_from([np.float32, np.float64, np.int64])
)
def test_copy_blocks_matches_its_twin(seed: int, count: int, dtype: type) -> None:
    rng = np.random.default_rng(seed)
    jobs, n, m = make_jobs(rng, count)
    source = rng.integers(0, 1000, n).astype(dtype)
    target = np.full(m, 7, dtype)
    twin = target.copy()
    kernels.copy_blocks(source, target, jobs)
    twins.copy_blocks(source, twin, jobs)
    assert target.tobytes() == twin.tobytes()


def adversarial(rng: np.random.Generator, size: int) -> np.ndarray:
    """Words of very different magnitude that cancel, tie and vanish."""
    values = rng.integers(-(2**52), 2**52, size) * 2.0 ** rng.integers(-160, 60, size)
    values[rng.random(size) < 0.2] = 0.0
    values[rng.random(size) < 0.1] *= -0.0
    return values


@PROFILE
@given(st.integers(0, 2**32), st.integers(1, 6), st.booleans())
def test_add_blocks_matches_its_twin_and_loses_nothing(
    seed: int, count: int, special: bool
) -> None:
    rng = np.random.default_rng(seed)
    jobs, n, m = make_jobs(rng, count)
    source = adversarial(rng, n)
    target = adversarial(rng, m)
    if special and n and m:
        source[rng.integers(0, n)], target[rng.integers(0, m)] = rng.choice(
            [np.inf, -np.inf, np.nan], 2
        )
    before = [source.copy(), target.copy()]
    twin = [source.copy(), target.copy()]
    lost = kernels.add_blocks(source, target, jobs)
    assert lost == twins.add_blocks(*twin, jobs)
    for answer, expected in zip((source, target), twin):
        assert np.array_equal(answer, expected, equal_nan=True)
    if not special:  # jobs are disjoint here: word by word, nothing is lost
        for start, stride, to, to_stride, rows, width in jobs.tolist():
            for i in range(rows):
                for c in range(width):
                    a = start + i * stride + c
                    b = to + i * to_stride + c
                    total = Fraction(before[0][a]) + Fraction(before[1][b])
                    assert Fraction(source[a]) + Fraction(target[b]) == total


@pytest.mark.parametrize("module", [kernels, twins])
def test_an_infinity_leaves_no_error_behind(module) -> None:
    source = np.array([np.inf, 1.0, -np.inf])
    target = np.array([1.0, np.inf, np.inf])
    assert not module.add_blocks(source, target, np.array([[0, 3, 0, 3, 1, 3]]))
    assert (
        source.tolist() == [0, 0, 0]
        and target[:2].tolist() == [np.inf, np.inf]
        and np.isnan(target[2])
    )
