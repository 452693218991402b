"""Does the oracle accept right kernels, whatever their arithmetic, and three that it refused?"""

import numpy as np
import pytest

from neocpu import oracle
from neocpu.oracle.ops import OPERATORS
from tests.honest import Tally, answer_one

F = np.float32
TINY = F(2.0**-149)


def one_table(rows: np.ndarray, lookups: int) -> dict[str, np.ndarray]:
    """One bag of the first rows of a table."""
    return {
        "weights": rows.reshape(-1),
        "rows": np.array([len(rows)]),
        "dims": np.array([rows.shape[1]]),
        "feature_table": np.array([0]),
        "indices": np.arange(lookups),
        "offsets": np.array([0, lookups]),
    }


MEAN = {"pooling": "mean"}


@pytest.mark.parametrize("seed", range(3))
def test_right_kernels_pass(seed: int) -> None:
    tally = Tally()
    for number in range(60):
        answer_one(seed, number, tally)
    assert not tally.failed, "\n".join(tally.failed)


def test_half_a_subnormal_gradient_is_rounded() -> None:
    inputs = one_table(np.zeros((4, 2), F), 2)
    inputs["grad_output"] = np.array([[3, 5]], F) * TINY
    for up, down in ((2, 2), (1, 3)):
        values = np.array([up, down, up, down], F) * TINY
        answer = {"rows": np.array([0, 1]), "values": values}
        assert oracle.check("unique_gradient", inputs, answer, MEAN)
    wrong = np.array([3, 5, 3, 5], F) * TINY
    assert not oracle.check("unique_gradient", inputs, {"values": wrong}, MEAN)
    ours = oracle.run("unique_gradient", inputs, MEAN, backend="reference")
    assert oracle.check("unique_gradient", inputs, ours, MEAN)


@pytest.mark.parametrize("length", [8, 64])
def test_means_of_subnormals_may_multiply_each_row_by_the_reciprocal(length: int) -> None:
    rows = np.full((64, 1), TINY, F)
    total = F(0)
    for row in rows[:length, 0]:
        total += row * F(1 / length)
    inputs = one_table(rows, length)
    assert total == 0, "each product is rounded to 0, though their sum is not"
    assert oracle.check("lookup", inputs, np.array([[total]]), MEAN)
    not_divided = rows[:length].sum(keepdims=True)
    assert not oracle.check("lookup", inputs, not_divided, MEAN)


def test_weight_gradients_of_tiny_means_may_divide_first_or_last() -> None:
    inputs = one_table(np.full((3, 2), 1000, F), 3)
    inputs["per_sample_weights"] = np.ones(3, F)
    inputs["grad_output"] = np.array([[1, 4]], F) * TINY
    first = (F(1000) * (inputs["grad_output"] / F(3))).sum()
    last = (F(1000) * inputs["grad_output"]).sum() / F(3)
    assert first != last
    for gradient in (first, last):
        assert oracle.check("weight_gradient", inputs, np.full(3, gradient), MEAN)
    assert not oracle.check("weight_gradient", inputs, np.full(3, 3 * last), MEAN)


def test_where_nothing_is_lost_bounds_are_zero() -> None:
    rows = (np.arange(1, 65, dtype=F) / 16).reshape(-1, 1)
    for inputs in (one_table(rows, 64), one_table(rows * F(2.0**-120), 64)):
        truth = OPERATORS["lookup"].truth(inputs, MEAN)["out"]
        assert truth.bound == 0
