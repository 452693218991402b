"""Is every wrong kind of stochastic rounding caught and named from one answer, and no right one?

A right kernel fails with a chance of at most 1e-9 per report: each score is the log of a likelihood
ratio whose mean is at most 1 under every right kernel, so by Markov's inequality it passes
log(TESTS / alpha) with at most the chance alpha / TESTS; there are at most TESTS scores per output.
The same tests with alpha = 1e-2 are simulated here: at most about one answer in a hundred may fail.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from neocpu import oracle
from neocpu.oracle.answers import Answers
from neocpu.oracle.cases.stochastic import COLUMNS
from neocpu.oracle.checking import check_suite
from neocpu.oracle.operator import Case, Truth
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.suite import Question, ask
from neocpu.oracle.verdicts import stochastic
from neocpu.oracle.verdicts.compare import compare
from neocpu.oracle.verdicts.stochastic import draws_of, limit, mistake_of, scores, untested
from neocpu.oracle.verdicts.stochastic_mistakes import SIZES, Draws, sequences
from tests import recorded
from tests.oracle_cases import all_cases

Bools = NDArray[np.bool_]
CASES = {case.name: case for case in all_cases(["round", "backward"])}
MANY = [name for name in CASES if "-many" in name and not name.endswith("-many-rows")]
LARGE = ("round-bf16-many", "backward-rows-fp16-stochastic-many")


@cache
def asked(name: str) -> Question:
    return ask(CASES[name])


def question(name: str) -> tuple[Case, Truth, NDArray[np.generic]]:
    """A case with the truth and the canonical bits of its only output."""
    ((_, expected),) = asked(name).outputs.items()
    assert expected.canonical is not None
    return asked(name).case, expected.truth, expected.canonical


class Kernel:
    """What a kernel may know about its elements, and its random numbers."""

    def __init__(self, truth: Truth, seed: int) -> None:
        assert truth.probability is not None
        self.p = truth.probability
        self.negative = truth.reference < 0
        self.generator = np.random.default_rng(seed)
        self.element = np.arange(self.p.size).reshape(self.p.shape)
        self.u = self.generator.random(self.p.shape)

    def shared(self, groups: NDArray[np.int64]) -> Bools:
        """One random number per group."""
        return self.generator.random(int(groups.max()) + 1)[groups] < self.p

    def bits(self, count: int) -> NDArray[np.float64]:
        """Random numbers of so many bits."""
        return np.floor(self.u * 2.0**count) / 2.0**count


WRONG: dict[str, tuple[str, Callable[[Kernel], Bools]]] = {
    "nearest": ("stochastic_rounding_ignored", lambda k: k.p > 0.5),
    "up": ("always_up", lambda k: k.p > 0),
    "down": ("always_down", lambda k: k.p < 0),
    "truncated": ("toward_zero", lambda k: k.negative),
    "inverted": ("inverted_probability", lambda k: k.u > k.p),
    "biased by 25 %": ("biased_up", lambda k: k.u < 1.25 * k.p),
    "biased by 5 %": ("biased_up", lambda k: k.u < 1.05 * k.p),
    "biased by -5 %": ("biased_down", lambda k: k.u < 0.95 * k.p),
    "one number": ("one_number", lambda k: k.shared(0 * k.element)),
    "one number per row": ("one_number_per_row", lambda k: k.shared(k.element // COLUMNS)),
    "one number per column": ("one_number_per_column", lambda k: k.shared(k.element % COLUMNS)),
    "4 bits": ("few_random_bits", lambda k: k.bits(4) < k.p),
    "4 bits, centred": ("few_random_bits", lambda k: k.bits(4) + 1 / 32 < k.p),
    "1 bit": ("few_random_bits", lambda k: k.bits(1) < k.p),
    "pairs": ("shared_by_neighbours", lambda k: k.shared(k.element // 2)),
    "repeats": ("numbers_repeat", lambda k: k.shared(k.element % 1024)),
    "of the value": ("number_of_value", lambda k: k.shared((k.p * 512).astype(np.int64))),
    "half nearest": (
        "partly_nearest",
        lambda k: np.where(k.generator.random(k.p.shape) < 0.5, k.p > 0.5, k.u < k.p),
    ),
    "triangular": (
        "noise_not_uniform",
        lambda k: (k.u + k.generator.random(k.p.shape)) / 2 < k.p,
    ),
    "golden ratio": ("correlated_numbers", lambda k: k.element * 0.6180339887 % 1 < k.p),
}

# The kinds that are tried on rows, too.
TEN = (
    "nearest",
    "up",
    "truncated",
    "inverted",
    "biased by 25 %",
    "biased by 5 %",
    "one number",
    "one number per row",
    "one number per column",
    "4 bits",
)
# How verdicts tell some of them.
SHORTLY = {
    "up": "always goes up (131,072 of 131,072 elements went up",
    "biased by 5 %": "goes up about 5 % more often than it should",
    "one number per row": "one random number serves a whole row",
    "4 bits": "uses 4 random bits only",
}


def answered(truth: Truth, up: Bools) -> NDArray[np.float64]:
    assert truth.upper is not None
    assert truth.lower is not None
    return np.where(up, truth.upper, truth.lower)


@pytest.mark.parametrize(
    ("name", "wrong"), [*((LARGE[0], w) for w in WRONG), *((LARGE[1], w) for w in TEN)]
)
def test_wrong_kinds_are_caught_and_named_from_one_answer(name: str, wrong: str) -> None:
    case, truth, _ = question(name)
    expected, kernel = WRONG[wrong]
    x = answered(truth, kernel(Kernel(truth, 7)))
    if wrong not in SHORTLY:  # verdicts and diagnoses are all made the same way
        draws = draws_of(case, truth, x)
        told = np.array([finding.score for finding in scores(draws)])
        recorded.check(f"scores of {name}, {wrong}", [("scores", recorded.summary(told))])
        finding = mistake_of(draws)
        assert finding is not None and finding.mistake.name == expected and finding.mistake.fix
        return
    verdict = compare(OPERATORS[case.op], case, "out", truth, x)
    assert verdict.status == "failed" and verdict.wrong == 0
    assert [mistake.name for mistake in verdict.mistakes] == [expected]
    assert verdict.message.startswith(f"stochastic rounding {SHORTLY[wrong]}")


def test_elements_that_a_run_misses_are_left_out() -> None:
    case, truth = small(160)
    up = truth.reference > np.inf
    runs = np.stack([answered(truth, up), answered(truth, ~up)])
    runs[1, 3, 5] = 7.0  # of 160 elements: less than MOST_OUTSIDE
    draws = draws_of(case, truth, runs)
    assert draws is not None and draws.up.shape == (2, 159) and 3 * 16 + 5 not in draws.element
    runs[0, 4, :2] = 7.0
    assert draws_of(case, truth, runs) is None


@pytest.mark.parametrize("name", MANY)
def test_our_own_bits_pass_and_every_effect_is_visible(name: str) -> None:
    case, truth, canonical = question(name)
    verdict = compare(OPERATORS[case.op], case, "out", truth, canonical)
    assert verdict.status == "passed" and verdict.elements == 131_072
    assert not verdict.untested


def right_kernels(kernel: Kernel, draw: int) -> Bools:
    """Another right kernel at each draw: PCG, Philox, 13 bits, a generator per row."""
    shape = kernel.p.shape
    kind = draw % 4
    if kind == 0:
        return kernel.u < kernel.p
    if kind == 1:
        philox = np.random.Generator(np.random.Philox(draw))
        return philox.integers(0, 1 << 32, shape) / 2.0**32 + kernel.p >= 1
    if kind == 2:
        return kernel.bits(13) < kernel.p
    rows = kernel.p.size // COLUMNS
    streams = [np.random.default_rng((draw, row)).random(COLUMNS) for row in range(rows)]
    return np.concatenate(streams).reshape(shape) < kernel.p


@pytest.mark.parametrize("name", LARGE)
def test_right_kernels_never_fail(name: str) -> None:
    case, truth, _ = question(name)
    for draw in range(4):
        up = right_kernels(Kernel(truth, draw), draw)
        draws = draws_of(case, truth, answered(truth, up))
        assert mistake_of(draws) is None, draw


def small(count: int) -> tuple[Case, Truth]:
    """Elements with any probabilities, in rows of 16."""
    chance = np.random.default_rng(count).random(count).reshape(-1, 16)
    sign = np.where(np.arange(count).reshape(-1, 16) % 3, 1.0, -1.0)
    low = np.where(sign > 0, 1.0, -1.0 - 1 / 128)
    reference = low + chance / 128
    bound = np.full(chance.shape, 1 / 128)
    truth = Truth(reference, bound, low, low + 1 / 128, chance, format="bf16")
    return Case("case", "round", {}, {}, ""), truth


def test_right_kernels_fail_as_rarely_as_stated() -> None:
    case, truth = small(160)
    assert truth.probability is not None
    generator = np.random.default_rng(3)
    ratios = []
    for _ in range(150):
        up = generator.random(truth.reference.shape) < truth.probability
        draws = draws_of(case, truth, answered(truth, up))
        assert draws is not None
        ratios.append([finding.score for finding in scores(draws)])
    tests = np.array(ratios)
    assert tests.shape[1] <= stochastic.TESTS
    failed = (tests > limit(1e-2)).any(1)
    assert failed.mean() <= 0.02
    assert (tests > math.log(1e2)).mean() <= 1e-2, "single tests, by Markov's inequality"
    # the mean ratio is at most 1; cut, so that the mean of few answers settles
    assert np.minimum(np.exp(tests), 20).mean(0).max() < 1.8


def test_what_an_answer_is_too_small_for_is_said() -> None:
    case, truth = small(48)
    assert truth.probability is not None
    fair = np.random.default_rng(5).random(truth.reference.shape) < truth.probability
    verdict = compare(OPERATORS["round"], case, "codes", truth, answered(truth, fair))
    assert verdict.status == "passed"
    (hidden,) = verdict.untested
    assert "48 elements can show no bias" in hidden
    assert "they cannot show rounding to nearest" in hidden and "4 random bits" in hidden
    case, truth = small(1600)
    assert truth.probability is not None
    fair = np.random.default_rng(6).random(truth.reference.shape) < truth.probability
    draws = draws_of(case, truth, answered(truth, fair))
    assert "a bias of 25 % or more, not 5 %" in untested(draws)
    nothing = Truth(
        np.ones(3), np.zeros(3), np.ones(3), np.ones(3), np.full(3, np.nan), format="bf16"
    )
    assert "only bounds were judged" in untested(draws_of(case, nothing, np.ones(3)))


def test_every_bias_that_is_called_visible_is_one_of_the_mistakes() -> None:
    assert set(stochastic.BIASES) <= set(SIZES)


def test_a_sequence_expects_nothing_of_an_element_from_that_or_later_ones() -> None:
    generator = np.random.default_rng(0)
    up = generator.random((2, 40)) < 0.5
    zeros = np.zeros(40, np.int64)
    rest = (np.zeros(40), zeros > 0, np.arange(40), zeros, zeros, np.arange(40) % 6)
    chance = generator.uniform(0.1, 0.9, 40)
    other = up.copy()
    other[:, 5] ^= True
    both = (sequences(Draws(seen, chance, *rest)) for seen in (up, other))
    for (mistake, p), (_, q) in zip(*both, strict=True):
        differs = (p != q).any(axis=0)
        assert not differs[:6].any() and differs[6:].any(), mistake


def test_answers_that_are_wrong_otherwise_are_not_called_unfair() -> None:
    case, truth, _ = question(LARGE[0])
    fair = answered(truth, right_kernels(Kernel(truth, 1), 0))
    wrong = np.where(np.random.default_rng(2).random(fair.shape) < 0.3, fair * 2, fair)
    verdict = compare(OPERATORS[case.op], case, "out", truth, wrong)
    assert verdict.status == "failed" and not verdict.message and not verdict.mistakes


def test_seeds_are_told_apart() -> None:
    case, truth = small(960)
    assert truth.probability is not None
    generator = np.random.default_rng(6)
    shape = (20, *truth.reference.shape)
    fair = answered(truth, generator.random(shape) < truth.probability)
    assert mistake_of(draws_of(case, truth, fair)) is None
    assert not untested(draws_of(case, truth, fair))
    same = np.broadcast_to(fair[0], shape)
    finding = mistake_of(draws_of(case, truth, same))
    assert finding is not None and finding.mistake.name == "same_numbers_for_seeds"


def test_reports_name_the_mistake_and_what_is_hidden() -> None:
    case, truth, canonical = question(LARGE[0])
    nearest = answered(truth, Kernel(truth, 0).p > 0.5)
    report = oracle.check(case.op, case.inputs, nearest, case.options)
    assert not report
    text = str(report)
    assert "stochastic rounding rounds to nearest" in text
    assert "explained by stochastic_rounding_ignored (mistake)" in text
    fair = oracle.check(case.op, case.inputs, canonical, case.options)
    assert fair and "not tested: this call/codes: stochastic rounding: no two answers" in str(fair)
    assert "no two answers show" in fair.to_html() and "no two answers show" in fair.to_json()


@pytest.mark.parametrize(
    "names",
    [
        ("round-bf16-many", "round-bf16-many-next-seed"),
        ("backward-rows-bf16-stochastic-many", "backward-rows-bf16-stochastic-many-next-step"),
    ],
)
def test_cases_that_differ_in_seed_or_step_have_other_random_numbers(
    names: tuple[str, str],
) -> None:
    suite = {name: asked(name) for name in names}
    output = next(iter(suite[names[0]].outputs))
    right = {name: question(name)[2] for name in names}
    keys = {f"{name}/{output}": bits for name, bits in right.items()}
    report = check_suite(suite, Answers(keys))
    assert report and "not tested" not in str(report)
    keys[f"{names[1]}/{output}"] = right[names[0]]
    report = check_suite(suite, Answers(keys))
    assert not report and [outcome.case.name for outcome in report.failures] == [names[1]]
    assert "explained by same_numbers_for_seeds" in str(report)


def test_a_large_answer_speaks_for_the_small_ones_of_its_format() -> None:
    names = ["round-bf16-stochastic", "round-bf16-many", "round-bf16-many-next-seed"]
    questions = {name: asked(name) for name in names}
    canonical = {
        f"{name}/codes": question.outputs["codes"].canonical for name, question in questions.items()
    }
    both = check_suite(questions, Answers(canonical))
    assert both and "not tested: round-bf16-stochastic" not in str(both)
    small = {name: array for name, array in canonical.items() if "many" not in name}
    alone = check_suite(questions, Answers(small))
    assert alone and str(alone).count("not tested: round-bf16-stochastic/codes: ") == 1
