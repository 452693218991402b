"""Does an explanation have to predict, to hold everywhere, and to be found in time?"""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from neocpu import oracle
from neocpu.oracle.answers import Answers
from neocpu.oracle.checking import check_suite, judge_suite
from neocpu.oracle.diagnosis.evidence import AskedSwitches, CaseTrial, effect_of
from neocpu.oracle.diagnosis.facets import facts_of, separated, telling_cases
from neocpu.oracle.diagnosis.findings import Effect, Evidence
from neocpu.oracle.operator import Truth
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.report import Report
from neocpu.oracle.suite import Question, ask
from tests.oracle_cases import all_cases
from tests.oracle_mutations import answers
from tests.switch_examples import ADAM, STEP, SUMS

SMALL = 6000  # bytes of the inputs of a case


@pytest.fixture(scope="module")
def questions() -> dict[str, Question]:
    """Small cases that the mutated kernel of oracle_mutations.py can answer."""
    cases = [
        case
        for case in all_cases(["lookup", "backward", "unique_gradient"])
        if sum(array.nbytes for array in case.inputs.values()) < SMALL
    ]
    return {case.name: ask(case) for case in cases}


def report_of(questions: dict[str, Question], bug: str, budget: float = 1e9) -> Report:
    """What the oracle says of the mutated kernel."""
    arrays = {
        f"{name}/{output}": array
        for name, question in questions.items()
        for output, array in (answers(question.case, bug) or {}).items()
    }
    return check_suite(questions, Answers(arrays), budget=budget)


def test_the_kernel_without_a_bug_passes(questions: dict[str, Question]) -> None:
    report = report_of(questions, "")
    assert report and len(report.cases) > 40, str(report)


@pytest.mark.parametrize(
    ("bug", "name"),
    [
        ("drops last lookup", "last_lookup_dropped"),
        ("mean squared", "mean_divided_twice"),
        ("loses a middle duplicate", "duplicate_lost"),
        ("mean over D padded to 32", "mean_over_padded_32"),
        ("old state used", "update_before_state"),
        ("skips last column", "tail_of_row"),
        ("mean by length + 1", "sum_scaled"),
    ],
)
def test_mutations_are_named(questions: dict[str, Question], bug: str, name: str) -> None:
    few = dict(list(questions.items())[:: 2 if "mean" in bug else 5])
    report = report_of(few, bug, budget=20)
    assert not report
    strong = next(finding for finding in report.findings if finding.strong)
    assert strong.diagnosis.names == (name,), str(report)


def test_an_infinite_bound_predicts_nothing() -> None:
    """Adam at step 1, counted as step 0, divides by 1 - beta^0 = 0."""
    options = {**ADAM, "step": 1}
    noise = np.array([7.5], np.float32)
    report = oracle.check("backward", STEP, {"weights": noise}, options)
    assert not report.likely() and "no known mistake explains it" in str(report)
    assert "step_counted_late" not in str(report)


def test_a_wide_bound_predicts_nothing() -> None:
    plain = {"x": Truth(np.zeros(4), np.full(4, 1e-6))}
    answer = {"x": np.full(4, 0.5, np.float32)}
    for bound, explains in ((1e-6, True), (0.1, True), (0.2, False), (np.inf, False)):
        bent = {"x": Truth(np.full(4, 0.5), np.full(4, bound))}
        assert effect_of(plain, bent, answer).explains == explains


def test_truths_that_have_a_number_in_common_are_not_apart() -> None:
    def allowing(low: float, high: float) -> dict[str, Truth]:
        ends = [np.full(1, end) for end in (low, high)]
        return {"x": Truth(np.full(1, (low + high) / 2), np.full(1, high - low), *ends)}

    answer = {"x": np.ones(1, np.float32)}
    for low, apart in ((1.0, False), (1.5, True)):
        one, other = allowing(0.0, 1.0), allowing(low, low + 1)
        assert effect_of(one, other, answer).apart == apart
        assert effect_of(other, one, answer).apart == apart


def test_passed_cases_refute() -> None:
    explains = Effect(wrong=9, predicted=9, agrees=True, apart=True, contradicted=False)
    refutes = Effect(wrong=0, predicted=0, agrees=False, apart=True, contradicted=True)
    evidence = Evidence(("switch",))
    for case in "abc":
        evidence.add(case, True, explains)
    assert evidence.strong({"a", "b", "c"})
    assert not evidence.strong(set("abcdefgh")), "it explains less than half"
    evidence.add("p", False, refutes)
    assert not evidence.strong({"a", "b", "c"})


def test_one_rule_that_is_wrong_is_named_with_its_rule(questions: dict[str, Question]) -> None:
    updates = {name: q for name, q in questions.items() if q.case.op == "backward"}
    report = report_of(updates, "trust ratio inverted")
    (title, count), *more = report.likely()
    assert title.startswith("ratio_inverted (only with optimizer lamb") and not more
    assert count == report.count("failed")


def test_what_failed_has_in_common_is_told() -> None:
    cases = [case for case in all_cases(["lookup"]) if case.op == "lookup"]
    facts = facts_of((case, OPERATORS["lookup"].complete(case.options)) for case in cases)
    means = {case.name for case in cases if case.options.get("pooling") == "mean"}
    rest = {case.name for case in cases} - means
    separation = separated(means, rest, facts)
    assert separation is not None and separation.about == "pooling = mean"
    assert "none of the" in str(separation)
    assert separated({cases[0].name}, {cases[1].name}, facts) is None, "two cases show nothing"


def test_logic_is_not_called_rounding(questions: dict[str, Question]) -> None:
    """Weights that are 2^-22 too small everywhere are not rounded another way."""
    question = next(
        q
        for q in questions.values()
        if q.case.options == OPERATORS["lookup"].complete({}) and q.outputs["out"].truth.bound.any()
    )
    out = question.outputs["out"].canonical
    assert out is not None
    low = (out * np.float32(1 - 2.0**-19)).astype(np.float32)
    assert "rounding" not in str(oracle.check("lookup", question.case.inputs, low))
    noise = np.where(np.arange(out.size).reshape(out.shape) % 2, 1, -1)
    noisy = (out * (1 + noise * 2.0**-19)).astype(np.float32)
    report = oracle.check("lookup", question.case.inputs, noisy)
    assert report.likely() == [("rounding", 1)]


def test_a_truth_tells_which_switches_it_asks_for() -> None:
    op = OPERATORS["unique_gradient"]
    case = next(case for case in all_cases(["unique_gradient"]))
    trial = CaseTrial(op, case, op.truth(case.inputs, case.options), {}, failed=True)
    assert "last_duplicate_wins" in trial.asked() and "eps_missing" not in trial.asked()
    switches = AskedSwitches({"a"}) | {"b"}
    assert "b" in switches and switches.asked == {"b"}


def test_a_budget_is_asked_once_for_each_truth() -> None:
    op = OPERATORS["unique_gradient"]
    case = next(case for case in all_cases(["unique_gradient"]))
    answers = op.run(case.inputs, case.options, "reference")
    trial = CaseTrial(op, case, op.truth(case.inputs, case.options), answers, failed=True)
    # duplicates are lost in ten ways
    for switch, truths in (("weights_twice", 1), ("weights_twice", 1), ("duplicate_lost", 11)):
        trial.effect((switch,))
        assert trial.bent == truths, switch


def test_answers_of_a_bent_truth_equal_it_everywhere() -> None:
    op = OPERATORS["unique_gradient"]
    case = next(case for case in all_cases(["unique_gradient"]))
    truths = op.truth(case.inputs, case.options)
    bent = op.truth(case.inputs, case.options, frozenset({"last_duplicate_wins"}))
    answers = {
        "rows": np.asarray(bent["rows"].reference),
        "values": np.asarray(bent["values"].reference, np.float32),
    }
    effect = CaseTrial(op, case, truths, answers, failed=True).effect(("last_duplicate_wins",))
    assert effect is not None and effect.agrees and effect.equal == 1.0
    assert 0 < effect.predicted == effect.wrong


def test_without_a_budget_the_report_says_what_was_not_tried(
    questions: dict[str, Question],
) -> None:
    lookups = {name: q for name, q in questions.items() if q.case.op == "lookup"}
    report = report_of(lookups, "drops last lookup", budget=1e-9)
    assert report.untried and "not tried" in str(report)
    arrays = {"lookup-sum/out": np.zeros((1, 1), np.float32)}
    judgement = judge_suite(questions, Answers(arrays))
    assert not judgement.report.findings and "no known mistake" not in str(judgement.report)


def test_a_slow_machine_prints_the_same(
    questions: dict[str, Question], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = dict(list(questions.items())[::9])
    quick = str(report_of(few, "mean by length + 1", budget=0.05))
    plain = CaseTrial.truth_under

    def slow(trial: CaseTrial, switches: frozenset[str]) -> object:
        time.sleep(0.002)
        return plain(trial, switches)

    monkeypatch.setattr(CaseTrial, "truth_under", slow)
    assert str(report_of(few, "mean by length + 1", budget=0.05)) == quick
    assert "not tried" in quick, "the budget ended the search"


def test_json_and_page_have_the_evidence(questions: dict[str, Question], tmp_path: Path) -> None:
    report = report_of(dict(list(questions.items())[::2]), "mean squared")
    data = json.loads(report.to_json())
    strong = [finding for finding in data["findings"] if finding["strength"] == "strong"]
    assert strong[0]["names"] == ["mean_divided_twice"] and not strong[0]["refuted_by"]
    assert len(strong[0]["explains"]) == data["likely"][0]["explains"]
    assert data["unexplained"] == [] and data["not_tried"] == []
    assert "mean_divided_twice" in report.to_html()


def test_a_lost_duplicate_may_be_any() -> None:
    for lost in range(3):
        values = np.array([7 - SUMS["grad_output"][lost, 0]], np.float32)
        report = oracle.check("unique_gradient", SUMS, {"rows": np.array([0]), "values": values})
        names = report.failures[0].diagnoses
        assert any("duplicate_lost" in diagnosis.names for diagnosis in names), str(report)


def test_a_quick_suite_has_every_option() -> None:
    cases = list(all_cases(["lookup"]))
    complete = {case.name: OPERATORS[case.op].complete(case.options) for case in cases}
    few = telling_cases(cases, lambda case: complete[case.name], lambda case: False)
    assert 5 < len(few) < len(cases)
    assert {case.options.get("pooling") for case in few} == {
        case.options.get("pooling") for case in cases
    }
