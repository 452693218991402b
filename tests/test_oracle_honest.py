"""Does the oracle accept right kernels, whatever their arithmetic, and three that it refused?"""

import numpy as np
import pytest

from neocpu import oracle
from neocpu.oracle.cases import long
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.suite import ask
from neocpu.oracle.truth.numbers import Bounded
from neocpu.oracle.truth.sums import Roundings, sums_of
from tests.honest import Tally, answer_one
from tests.honest_arithmetic import ORDERS, Arithmetic
from tests.honest_kernels import lookup

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


CASES = {case.name: case for case in long.cases(0, 4)}


@pytest.mark.parametrize("name", ["lookup-long-sum-1000", "lookup-long-sum-10000"])
def test_a_lookup_lost_in_a_long_bag_is_warned_of_and_honest_sums_are_not(name: str) -> None:
    case = CASES[name]
    options = OPERATORS[case.op].complete(case.options)
    for order in ORDERS:
        if order == "kahan":
            continue  # slow in Python, and more exact than all others
        arithmetic = Arithmetic(np.random.default_rng(1))
        arithmetic.order = order
        out = lookup(arithmetic, case.inputs, options)["out"]
        report = oracle.check(case.op, case.inputs, out, options, strict=True)
        assert report and not report.warned, f"{order}: {report}"
    lost = {**case.inputs, "indices": case.inputs["indices"].copy()}
    lost["indices"][case.inputs["offsets"][2] + 500] = -1
    without = lookup(Arithmetic(np.random.default_rng(2)), lost, options)["out"]
    report = oracle.check(case.op, case.inputs, without, options)
    if name.endswith("10000"):
        assert report and "4 of 12 elements are within the proven bound" in str(report)
        assert "sample 2" in str(report) and "1 with warnings" in str(report)
        assert '"warnings": [\n' in report.to_json()
        assert "times farther off than rounding" in report.to_html()
        strict = oracle.check(case.op, case.inputs, without, options, strict=True)
        assert not strict and str(strict).startswith("FAILED")
    else:
        assert not report, "of a thousand lookups one shows in the proven bound"


@pytest.mark.parametrize("name", sorted(CASES))
def test_long_cases_have_a_statistical_bound_that_is_passed_with_ease(name: str) -> None:
    question = ask(CASES[name])
    with_bound = 0
    for expected in question.outputs.values():
        truth = expected.truth
        if truth.typical is None:
            continue
        known = np.isfinite(truth.typical)
        with_bound += int(known.sum())
        error = np.abs(np.asarray(expected.canonical).reshape(known.shape) - truth.reference)
        assert (error <= truth.typical).all()
        assert (truth.typical[known] * 10 < truth.bound[known]).all()
    assert with_bound


LENGTH = 2000
LONG_BAGS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "positive": lambda rng, shape: rng.random(shape),
    "drifting": lambda rng, shape: np.linspace(-1, 1, LENGTH)[:, None] + rng.normal(0, 0.1, shape),
    "one row": lambda rng, shape: np.repeat(rng.random((1, shape[1])), LENGTH, axis=0),
    "a few rows": lambda rng, shape: rng.standard_normal((20, 4))[rng.integers(0, 20, LENGTH)],
    "nearly one number": lambda rng, shape: 1 + 1e-4 * rng.random(shape),
    "one large, others small": lambda rng, shape: np.where(
        np.arange(LENGTH)[:, None] == 0, 1e6, 1e-2 * rng.random(shape)
    ),
    "codes": lambda rng, shape: rng.integers(0, 256, shape) * F(0.0123) + F(-1.5),
}


@pytest.mark.parametrize("kind", LONG_BAGS)
def test_honest_sums_of_long_bags_are_within_the_statistical_bound(kind: str) -> None:
    rows = LONG_BAGS[kind](np.random.default_rng(7), (LENGTH, 4)).astype(F)
    terms = Bounded.exactly(rows)
    starts = np.array([0, LENGTH])
    usual = sums_of(terms, np.abs(terms.value), starts, Roundings(), probable=True)
    for order in ORDERS:
        if order == "kahan":
            continue
        arithmetic = Arithmetic(np.random.default_rng(1))
        arithmetic.order = order
        error = np.abs(arithmetic.sums(rows) - usual.value[0])
        assert (error <= usual.error[0]).all(), order
    if kind in ("normal", "positive", "drifting", "codes"):
        assert np.median(np.abs(rows)) > 3 * usual.error.max(), "a lost row is seen"
