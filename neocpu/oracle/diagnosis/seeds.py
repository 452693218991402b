"""Have other seeds and other steps random numbers of their own? Two cases, compared.

Some cases ask the same question as another one with another seed or step. Where both were answered,
their roundings are judged as two runs (stochastic.py).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from neocpu.oracle.diagnosis.findings import Diagnosis
from neocpu.oracle.operator import Case, Options, Value
from neocpu.oracle.outcome import CaseOutcome
from neocpu.oracle.semantics import Mistake
from neocpu.oracle.verdicts import stochastic
from neocpu.oracle.verdicts.compare import Verdict
from neocpu.oracle.verdicts.stochastic_mistakes import Draws

UNCOMPARED = (
    "stochastic rounding: no two answers show whether seeds have random numbers of their own"
)
COUNTED = ("seed", "step")  # options by which random numbers differ


def judged_by_seed(outcomes: Sequence[CaseOutcome]) -> list[CaseOutcome]:
    """The outcomes, failed where two cases that differ in seed or step share random numbers.

    Where no two answers can be compared, the first that was rounded stochastically says so.
    """
    judged = list(outcomes)
    stochastic_answers = [
        (k, verdict)
        for k, outcome in enumerate(outcomes)
        for verdict in outcome.verdicts
        if verdict.draws is not None and verdict.draws.count and verdict.status == "passed"
    ]
    compared = any(len(verdict.draws.up) > 1 for _, verdict in stochastic_answers if verdict.draws)
    for (a, first), (b, second) in combinations(stochastic_answers, 2):
        if a == b or first.output != second.output:
            continue
        if not _same_question(outcomes[a].case, outcomes[b].case):
            continue
        pooled = _together(first.draws, second.draws)
        if pooled is None:
            continue
        compared = True
        mistake = stochastic.shared_by_seeds(pooled)
        if mistake is not None:
            about = f"{mistake.about}: {outcomes[a].case.name} and {outcomes[b].case.name}"
            judged[b] = _failed(judged[b], second, mistake._replace(about=about))
    if stochastic_answers and not compared:
        k, verdict = stochastic_answers[0]
        untested = (*verdict.untested, UNCOMPARED)
        judged[k] = _with_verdict(judged[k], replace(verdict, untested=untested))
    return judged


def _same_question(a: Case, b: Case) -> bool:
    """Do two cases differ in nothing but seed or step?"""
    if a.op != b.op or a.inputs.keys() != b.inputs.keys() or _counters(a) == _counters(b):
        return False
    if _other_options(a.options) != _other_options(b.options):
        return False
    return all(np.array_equal(array, b.inputs[name]) for name, array in a.inputs.items())


def _counters(case: Case) -> list[Value | None]:
    """Seed and step of a case; None for those that it does not set."""
    return [case.options.get(name) for name in COUNTED]


def _other_options(options: Options) -> dict[str, Value]:
    return {name: value for name, value in options.items() if name not in COUNTED}


def _together(a: Draws | None, b: Draws | None) -> Draws | None:
    """The roundings of two answers as those of two runs; None if they are of other elements."""
    if a is None or b is None or not np.array_equal(a.element, b.element):
        return None
    # Other chances: another question after all.
    if not np.array_equal(a.chance, b.chance):
        return None
    # One run of each: more would be compared among themselves again.
    return replace(a, up=np.concatenate([a.up[:1], b.up[:1]]))


def _with_verdict(outcome: CaseOutcome, verdict: Verdict) -> CaseOutcome:
    """The outcome with another verdict on the same output."""
    verdicts = tuple(verdict if v.output == verdict.output else v for v in outcome.verdicts)
    return replace(outcome, verdicts=verdicts)


def _failed(outcome: CaseOutcome, verdict: Verdict, mistake: Mistake) -> CaseOutcome:
    """The outcome, whose output has a mistake after all."""
    message = f"stochastic rounding: {mistake.about}"
    failed = replace(verdict, status="failed", message=message, mistakes=(mistake,))
    diagnosis = Diagnosis((mistake.name,), "mistake", mistake.about, mistake.fix)
    diagnoses = (*outcome.diagnoses, diagnosis)
    return replace(_with_verdict(outcome, failed), diagnoses=diagnoses)
