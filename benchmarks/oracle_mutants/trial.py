"""How does the oracle judge one mutant? Its answers, the verdicts, the explanation."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.oracle_mutants.judge import Headline, grade, headline
from benchmarks.oracle_mutants.kernel import Kernel
from benchmarks.oracle_mutants.questions import Array, Question
from benchmarks.oracle_mutants.registry import Mutant
from neocpu.oracle import checking
from neocpu.oracle.answers import Answers

Answered = dict[str, dict[str, Array]]  # by case, by output


@dataclass
class Trial:
    """What became of one mutant."""

    mutant: Mutant
    differing: int = 0  # cases whose bits are not those of the right kernel
    failed: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    top: Headline | None = None

    @property
    def caught(self) -> bool:
        """Did a case fail?"""
        return bool(self.failed)

    @property
    def grade(self) -> str:
        """How good the headline is; missed where nothing failed."""
        if not self.caught:
            return "missed"
        return grade(self.top, self.mutant) if self.top else "weak or silent"


def answers_of(kernel: Kernel, questions: list[Question]) -> Answered:
    """Answers of a kernel to all questions that it can answer."""
    answered = {question.name: kernel.answers_to(question) for question in questions}
    return {name: answers for name, answers in answered.items() if answers is not None}


def check(suite: Mapping[str, Any], answered: Answered, explain: bool, budget: float) -> Any:
    """The oracle's report on some answers.

    explain : look for explanations, for `budget` seconds where the oracle takes a limit.
    """
    keys = {
        f"{case}/{output}": array
        for case, answers in answered.items()
        for output, array in answers.items()
    }
    subset = {name: suite[name] for name in suite if name in answered}
    options = {}
    if "budget" in inspect.signature(checking.check_suite).parameters:
        options["budget"] = budget if explain else 0.0
    elif not explain:
        with mock.patch.object(checking, "diagnose", return_value=[]):
            return checking.check_suite(subset, Answers(keys))
    return checking.check_suite(subset, Answers(keys), **options)


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
    explained: int,
    budget: float,
) -> Trial:
    """Answer with a mutant, check, and explain some of the failed cases.

    right : answers of the right kernel; where the mutant has the same bits, it passes as that does.
    explained : failed cases that are explained, spread over all of them.
    """
    trial = Trial(mutant)
    kernel = mutant.kernel(seed)
    answered: Answered = {}
    for question in questions:
        if question.op not in mutant.operators or question.name not in right:
            continue
        try:
            answers = kernel.answers_to(question)
        except Exception as error:  # noqa: BLE001, a crash counts as no answer
            trial.crashes.append(f"{question.name}: {error!r}")
            continue
        if answers is not None and differs(answers, right[question.name]):
            answered[question.name] = answers
    trial.differing = len(answered)
    report = check(suite, answered, explain=False, budget=budget)
    trial.failed = [outcome.case.name for outcome in report.failures]
    if trial.failed:
        places = np.unique(np.linspace(0, len(trial.failed) - 1, explained).astype(int))
        chosen = {trial.failed[place] for place in places}
        shown = {name: answers for name, answers in answered.items() if name in chosen}
        trial.top = headline(check(suite, shown, explain=True, budget=budget))
    return trial
