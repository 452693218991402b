"""Does the oracle say of wrong kernels what it said when this was recorded, word by word?"""

import numpy as np
import pytest

from neocpu.oracle.answers import Answers
from neocpu.oracle.checking import check_suite
from neocpu.oracle.suite import Question, ask
from tests import recorded
from tests.oracle_cases import all_cases
from tests.oracle_mutations import OPERATORS, answers

SMALL = 3000  # bytes of the inputs of a case
BUGS = (
    "bag ends one late",
    "mean squared",
    "pruned reads row 0",
    "sums in output format",
    "last duplicate wins",
    "eps inside root",
    "only first 1024 columns",
)


@pytest.fixture(scope="module")
def questions() -> dict[str, Question]:
    """Small cases that the mutated kernel can answer, one of five."""
    cases = [
        case
        for case in all_cases(OPERATORS)
        if sum(array.nbytes for array in case.inputs.values()) < SMALL
    ]
    return {case.name: ask(case) for case in cases[::5]}


@pytest.mark.parametrize("bug", BUGS)
def test_reports_on_wrong_kernels(questions: dict[str, Question], bug: str) -> None:
    arrays = {
        f"{name}/{output}": array
        for name, question in questions.items()
        for output, array in (answers(question.case, bug) or {}).items()
    }
    report = check_suite(questions, Answers(arrays), budget=1e9)
    recorded.check(f"report on {bug}", recorded.lines_of(str(report)))


def test_the_page_of_a_report(questions: dict[str, Question]) -> None:
    name, question = next(iter(questions.items()))
    arrays = answers(question.case, "only first 1024 columns") or {}
    arrays = {f"{name}/{output}": array + np.float32(1e-3) for output, array in arrays.items()}
    text = check_suite(questions, Answers(arrays), budget=0).to_html()
    recorded.check("page of a report", recorded.lines_of(text))
