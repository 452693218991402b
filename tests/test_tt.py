"""Do the tensor-train kernels give the bits of their twins, and the gradients of the product?"""

from typing import Any, NamedTuple

import numpy as np
import pytest

from neocpu.kernels.dense import tt
from neocpu.kernels.twins.dense import tt as twin


class Case(NamedTuple):
    """A batch of `pairs` pairs; factors (q1, q2, q3), rank, rows of the cores."""

    factors: tuple[int, int, int]
    rank: int
    pairs: int
    rows: tuple[int, int, int] = (7, 5, 9)


CASES = (
    Case((2, 2, 4), 32, 50),
    Case((3, 1, 5), 16, 21),
    Case((1, 4, 3), 48, 33),
    Case((2, 3, 9), 64, 13),
    Case((5, 2, 2), 16, 1),
    Case((2, 2, 4), 16, 0),
)


def groups(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places by ascending key, and where each key's begin."""
    order = np.argsort(keys, kind="stable")
    bounds = np.diff(keys[order], prepend=-1) != 0
    return order, np.append(np.flatnonzero(bounds), keys.size)


def all_kernels(module: Any, case: Case, fill: str) -> list[np.ndarray]:
    """What the six functions give on the same made-up batch."""
    rng = np.random.default_rng(case.pairs)
    q1, q2, q3 = case.factors
    n1, n2, n3 = case.rows
    R = case.rank

    def numbers(*shape: int) -> np.ndarray:
        values = rng.standard_normal(shape)
        if fill == "wild":
            values = values * 2.0 ** rng.integers(-60, 30, shape)
        return values.astype(np.float32)

    def empty(*shape: int) -> np.ndarray:
        return np.full(shape, np.nan, np.float32)

    cores = numbers(n1, q1 * R), numbers(n2, R * q2 * R), numbers(n3, q3 * R)
    prefixes = (case.pairs + 1) // 2
    first = rng.integers(0, n1, prefixes)
    second = rng.integers(0, n2, prefixes)
    P = empty(prefixes, q1 * q2 * R)
    module.prefixes(cores[0], cores[1], first, second, *groups(second), q1, P)
    lines = np.arange(case.pairs) // 2
    third = rng.integers(0, n3, case.pairs)
    E = empty(case.pairs, q1 * q2 * q3)
    module.rows(P, cores[2], lines, third, R, E)
    gradient = numbers(*E.shape)
    starts = np.searchsorted(lines, np.arange(prefixes + 1))
    dP = empty(*P.shape)
    module.prefix_gradients(gradient, cores[2], third, starts, R, dP)
    order, cuts = groups(third)
    dG3 = empty(cuts.size - 1, q3 * R)
    module.third_gradients(gradient, P, lines, order, cuts, R, dG3)
    order, cuts = groups(second)
    dG2 = empty(cuts.size - 1, R * q2 * R)
    module.second_gradients(cores[0], first, dP, order, cuts, q1, dG2)
    runs = np.append(np.arange(0, prefixes, 3), prefixes)
    dG1 = empty(runs.size - 1, q1 * R)
    module.first_gradients(cores[1], second, dP, order, cuts, runs, q1, dG1)
    return [P, E, dP, dG3, dG2, dG1]


@pytest.mark.parametrize("fill", ["normal", "wild"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels_equal_twins(case: Case, fill: str) -> None:
    for answer, expected in zip(all_kernels(tt, case, fill), all_kernels(twin, case, fill)):
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(answer), nan)
        assert answer[~nan].tobytes() == expected[~nan].tobytes()


def test_rows_are_products_of_matrices() -> None:
    q1, q2, q3 = 2, 3, 4
    R = 16
    rng = np.random.default_rng(0)
    cores = [rng.standard_normal((4, n)).astype(np.float32) for n in (q1 * R, R * q2 * R, q3 * R)]
    first = np.array([0, 3, 2, 2])
    second = np.array([1, 1, 2, 0])
    third = np.array([3, 0, 1, 1])
    P = np.empty((4, q1 * q2 * R), np.float32)
    tt.prefixes(cores[0], cores[1], first, second, *groups(second), q1, P)
    E = np.empty((4, q1 * q2 * q3), np.float32)
    tt.rows(P, cores[2], np.arange(4), third, R, E)
    for row in range(4):
        left = cores[0][first[row]].reshape(q1, R).astype(np.float64)
        middle = cores[1][second[row]].reshape(R, q2 * R)
        right = cores[2][third[row]].reshape(q3, R)
        expected = (left @ middle).reshape(q1 * q2, R) @ right.T
        np.testing.assert_allclose(E[row], expected.reshape(-1), rtol=1e-4, atol=1e-4)
