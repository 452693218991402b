"""Does the oracle say of wrong kernels what it said when this was recorded, word by word?"""

from collections.abc import Callable

import numpy as np
import pytest

from neocpu.oracle import report as reports
from neocpu.oracle.answers import Answers
from neocpu.oracle.cases.covers.rules import shows_rule
from neocpu.oracle.checking import check_suite
from neocpu.oracle.diagnosis.facets import facets_of, facts_of, separated, telling_cases
from neocpu.oracle.diagnosis.patterns import patterns_of, rounding_of_all
from neocpu.oracle.ops import OPERATORS as ORACLES
from neocpu.oracle.suite import Question, ask
from neocpu.oracle.truth.formats import FORMATS, nearest
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


F = np.float32
DISTORTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "zero": lambda x: 0 * x,
    "nan": lambda x: np.nan * x,
    "twice": lambda x: 2 * x,
    "a third": lambda x: x / F(3),
    "1/128": lambda x: x / F(128),
    "1/129": lambda x: x * F(1 / 129),
    "1.5 times": lambda x: F(1.5) * x,
    "negative": lambda x: -x,
    "reversed samples": lambda x: x[::-1],
    "reversed columns": lambda x: x[..., ::-1],
    "column by column": lambda x: x.T.reshape(x.shape),
    "without the last column": lambda x: _without(x, x.shape[-1] - 1),
    "without a tail of 4": lambda x: _without(x, x.shape[-1] // 4 * 4),
    "from column 4 on": lambda x: _without(x, 4),
    "bf16": lambda x: nearest(x, FORMATS["bf16"]),
    "fp16": lambda x: nearest(x, FORMATS["fp16"]),
    "some ulps up": lambda x: x * F(1 + 2.0**-19),
    "some ulps": lambda x: x * F(1 + 2.0**-19 * (-1) ** np.arange(x.shape[-1])),
    "65 ulps": lambda x: x * F(1 + 2.0**-17 * (-1) ** np.arange(x.shape[-1])),
}


def _without(x: np.ndarray, column: int) -> np.ndarray:
    x = x.copy()
    x[..., column:] = 0
    return x


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


def test_maps_of_errors() -> None:
    """A small one, one with more rows and columns than a map has cells, and a long line."""
    maps = []
    for shape in ((3, 5), (70, 129), (1, 128), (1, 300)):
        ratio = np.zeros(shape)
        ratio.flat[::7] = 2.0 ** np.linspace(-9, 9, ratio.flat[::7].size)
        maps.append((str(reports._map("out", ratio)), []))
    recorded.check("maps of errors", maps)


@pytest.mark.parametrize("name", DISTORTIONS)
def test_patterns_of_distorted_answers(questions: dict[str, Question], name: str) -> None:
    entries: list[recorded.Entry] = []
    failed = []
    for case_name, question in [*questions.items()][::2]:
        truths = {output: expected.truth for output, expected in question.outputs.items()}
        outputs = answers(question.case) or {}
        right = {output: x for output, x in outputs.items() if not x.dtype.names}
        with np.errstate(all="ignore"):
            wrong = {o: np.asarray(DISTORTIONS[name](x), x.dtype) for o, x in right.items()}
        entries.append((f"{case_name} {patterns_of(question.case, truths, wrong)}", []))
        failed.append((question.case, truths, wrong))
    entries.append((str(rounding_of_all(failed)), []))
    entries.append((str([rounding_of_all([one]) for one in failed]), []))
    recorded.check(f"patterns of {name}", entries)


def test_facts_of_all_cases() -> None:
    cases = [(case, ORACLES[case.op].complete(case.options)) for case in all_cases()]
    entries = [(f"{case.name} {facets_of(case, options)}", []) for case, options in cases]
    facts = facts_of(cases)
    entries += [(f"{fact} {sorted(names)}", []) for fact, names in facts.items()]
    chosen = telling_cases(all_cases(), lambda case: dict(case.options), shows_rule)
    entries.append((str([case.name for case in chosen]), []))
    names = [case.name for case, _ in cases]
    for step in (7, 31, 101):
        failed = facts[[*facts][step]] & {*names[::2]}
        entries.append((str(separated({*failed}, {*names} - failed, facts)), []))
    recorded.check("facts of all cases", entries)
