"""How does the oracle judge one mutant? Its answers, the verdicts, the explanation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.oracle_mutants.judge import Told, grade, is_first_hint_right, told
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.questions import Array, Question
from benchmarks.oracle_mutants.registry import MUTANTS, Mutant
from neocpu.oracle.answers import Answers
from neocpu.oracle.checking import JudgedSuite, judge_suite
from neocpu.oracle.report import Report

Answered = dict[str, dict[str, Array]]  # by case, by output


@dataclass
class Trial:
    """What became of one mutant."""

    name: str  # of the mutant
    differing: int = 0  # cases whose bits are not those of the right kernel
    failed: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    named: bool = False  # explanations were looked for
    told: tuple[Told, ...] = ()  # the explanations, strong ones first

    @property
    def mutant(self) -> Mutant:
        """The bug."""
        return MUTANTS[self.name]

    @property
    def caught(self) -> bool:
        """Did a case fail?"""
        return bool(self.failed)

    @property
    def grade(self) -> str:
        """How good the headline is; missed where nothing failed, caught where nobody looked."""
        if not self.caught:
            return "missed"
        return grade(self.told, len(self.failed), self.mutant) if self.named else "caught"

    @property
    def is_hint_right(self) -> bool:
        """Is the first hint right?"""
        return is_first_hint_right(self.told, len(self.failed), self.mutant)


def answers_of(kernel: Kernel, questions: list[Question]) -> Answered:
    """Answers of a kernel to all questions that it can answer."""
    answered = {question.name: kernel.answers_to(question) for question in questions}
    return {name: answers for name, answers in answered.items() if answers is not None}


def judged_suite(suite: Mapping[str, Any], answered: Answered) -> JudgedSuite:
    """The oracle's verdicts on some answers."""
    keys = {
        f"{case}/{output}": array
        for case, answers in answered.items()
        for output, array in answers.items()
    }
    return judge_suite({name: suite[name] for name in suite if name in answered}, Answers(keys))


def check(suite: Mapping[str, Any], answered: Answered, budget: float) -> Report:
    """The oracle's report on some answers.

    budget : seconds in which explanations are looked for; 0: verdicts only.
    """
    judgement = judged_suite(suite, answered)
    return judgement.explained(budget) if budget > 0 else judgement.report


def differs(answers: dict[str, Array], right: dict[str, Array]) -> bool:
    """Have the answers other bits?"""
    for output, array in right.items():
        answer = answers[output]
        if answer.shape != array.shape or answer.dtype != array.dtype:
            return True
        if np.ascontiguousarray(answer).tobytes() != np.ascontiguousarray(array).tobytes():
            return True
    return False


def run_trial(
    mutant: Mutant,
    questions: list[Question],
    suite: Mapping[str, Any],
    right: Answered,
    seed: int,
    budget: float,
) -> Trial:
    """Answer with a mutant, check, and look for explanations.

    right : answers of the right kernel; where the mutant has the same bits, it passes as that does.
    budget : seconds in which explanations are looked for, among all cases of the operators that the
        bug could touch, as in a user's check; 0: verdicts only, on answers that differ.
    """
    trial = Trial(mutant.name)
    kernel = mutant.kernel(seed)
    differing: Answered = {}
    same: Answered = {}
    for question in questions:
        if question.op not in mutant.operators or question.name not in right:
            continue
        try:
            answers = kernel.answers_to(question)
        except Exception as error:  # noqa: BLE001, a crash counts as no answer
            trial.crashes.append(f"{question.name}: {error!r}")
            continue
        if answers is not None:
            other = differs(answers, right[question.name])
            (differing if other else same)[question.name] = answers
    trial.differing = len(differing)
    answered = {**same, **differing} if budget > 0 else differing
    report = check(suite, answered, budget)
    trial.failed = [outcome.case.name for outcome in report.failures]
    trial.named = budget > 0
    trial.told = told(report) if trial.named else ()
    return trial
