"""Does the measure of the oracle measure? Right variants pass, some bugs are caught."""

from pathlib import Path

import pytest

from benchmarks.oracle_mutants.__main__ import right_failures
from benchmarks.oracle_mutants.judge import Told, grade, is_first_hint_right
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.mutants import MUTANTS
from benchmarks.oracle_mutants.questions import Question, read_questions
from benchmarks.oracle_mutants.summary import summary, text
from benchmarks.oracle_mutants.trial import answers_of, run_trial
from benchmarks.oracle_mutants.variants import RIGHT
from neocpu.oracle.suite import Suite, ask, write_suite
from tests.oracle_cases import all_cases

OPERATORS = ("lookup", "unique_gradient", "segment_sum", "dequantize", "index_select")
SMALL = 1 << 12  # bytes of a case's inputs, at most
CAUGHT = (
    "bag_end_one_short",
    "mean_divided_twice",
    "last_duplicate_wins",
    "segment_end_one_short",
    "scale_and_bias_swapped",
)


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Question], dict]:
    """Some small cases, as the outside implementation reads them and as the oracle does."""
    path: Path = tmp_path_factory.mktemp("mutants") / "suite.h5"
    chosen = [
        case
        for case in all_cases(OPERATORS)
        if sum(x.nbytes for x in case.inputs.values()) <= SMALL
    ]
    write_suite(path, [ask(case) for case in chosen], 0)
    questions = read_questions(path)
    with Suite(path) as stored:
        return questions, {name: stored[name] for name in stored}


def test_right_variants_pass(suite) -> None:
    questions, judged = suite
    cases, failures = right_failures(questions, judged, range(1))
    assert failures == []
    assert cases == len(RIGHT) * len(questions)


def test_bugs_are_caught_and_counted(suite) -> None:
    questions, judged = suite
    right = answers_of(Kernel(0), questions)
    trials = [
        run_trial(MUTANTS[name], questions, judged, right, seed=0, budget=0.0) for name in CAUGHT
    ]
    assert [trial.name for trial in trials if not trial.caught] == []
    outcome = summary(trials, 0, [])
    assert outcome["caught"] == len(CAUGHT) == sum(outcome["grades"].values())
    assert "5 of 5 caught (100.0 %)" in text(outcome)


def test_a_bug_is_named(suite) -> None:
    questions, judged = suite
    some = [question for question in questions if question.op == "dequantize"]
    mutant = MUTANTS["scale_and_bias_swapped"]
    trial = run_trial(mutant, some, judged, answers_of(Kernel(0), some), seed=0, budget=2.0)
    assert trial.grade == "strong and right", trial.told


def test_what_should_be_nan_is_no_matter_of_rounding(suite) -> None:
    questions, judged = suite
    some = [question for question in questions if question.op == "index_select"]
    mutant = MUTANTS["select_one_off"]
    trial = run_trial(mutant, some, judged, answers_of(Kernel(0), some), seed=0, budget=2.0)
    assert trial.caught and not any("rounding" in told.names for told in trial.told)


def test_grades_of_headlines() -> None:
    named = MUTANTS["mean_divided_twice"]
    unnamed = MUTANTS["bags_cut_at_64"]
    right = Told(("mean_divided_twice",), "mistake", True, 3)
    pattern = Told(("rounding",), "pattern", True, 3)
    facet = Told(("pooling = mean",), "facet", True, 3)
    equal = Told(("mean_not_divided",), "mistake", True, 3, equally=("mean_divided_twice",))
    assert grade((right,), 4, named) == grade((equal,), 4, named) == "strong and right"
    assert grade((right,), 4, unnamed) == grade((pattern,), 4, named) == "strong and wrong"
    assert grade((facet,), 3, named) == grade((), 3, named) == "weak or silent"
    assert grade((right,), 7, named) == "weak or silent"  # it explains less than half


def test_first_hints_are_right_by_name_or_by_what_they_say() -> None:
    named = MUTANTS["mean_divided_twice"]
    placed = MUTANTS["odd_samples_not_written"]
    right = Told(("mean_divided_twice",), "mistake", True, 3)
    pattern = Told(("rounding",), "pattern", True, 3)
    place = Told(("3 of 9 elements are wrong; only odd rows of a table",), "place", True, 0)
    assert is_first_hint_right((right, place), 4, named)
    assert not is_first_hint_right((pattern, right), 4, named)
    assert is_first_hint_right((place,), 4, placed)
    assert not is_first_hint_right((pattern, place), 4, placed)
    assert not is_first_hint_right((place,), 4, named)


def test_mutants_are_many_and_of_known_operators() -> None:
    assert len(MUTANTS) >= 220
    assert len(RIGHT) >= 9
    for mutant in MUTANTS.values():
        assert all(hasattr(Kernel, f"op_{operator}") for operator in mutant.operators)
