"""Are answers right with another hyper-parameter? One that a slip makes of the right one.

Squared, without its root, times the learning rate, 1 minus it: what fits most failed cases of an
operator, and what no passed one refutes, is told.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from neocpu.oracle.diagnosis.evidence import PROBLEMS, CaseTrial, effect_of
from neocpu.oracle.operator import Value

RATE = "learning_rate"
MOST_CASES = 12  # the smallest ones, failed and passed
FIRST_CASES = 3  # in which all slips are tried
LEAST_SHARE = 0.6  # of the failed cases, that one slip has to explain
SLIPS: dict[str, Callable[[float, float], float]] = {  # of a number and the learning rate
    "{} squared": lambda x, rate: x * x,
    "the root of {}": lambda x, rate: math.sqrt(x) if x > 0 else x,
    "{} times the learning rate": lambda x, rate: x * rate,
    "{} over the learning rate": lambda x, rate: x / rate if rate else x,
    "1 - {}": lambda x, rate: 1 - x,
    "-{}": lambda x, rate: -x,
    "{} times 2": lambda x, rate: 2 * x,
    "{} over 2": lambda x, rate: x / 2,
    "{} = 0": lambda x, rate: 0.0,
}


class OtherNumber(NamedTuple):
    """A slip that explains failed cases."""

    option: str
    slip: str
    cases: tuple[str, ...]
    failed: int  # cases in which it was tried

    @property
    def about(self) -> str:
        """It, in a sentence."""
        slip = self.slip.format(self.option)
        return f"of {len(self.cases)} of {self.failed} cases answers are right with {slip}"


def other_number(failed: Sequence[CaseTrial], passed: Sequence[CaseTrial]) -> OtherNumber | None:
    """The slip that explains most failed cases of one operator; None if none explains enough."""
    failed = sorted(failed, key=lambda trial: trial.size)[:MOST_CASES]
    if not failed or RATE not in failed[0].op.options:
        return None
    slips = {
        (option, slip)
        for trial in failed[:FIRST_CASES]
        for option, value in trial.op.complete(trial.case.options).items()
        for slip in SLIPS
        if isinstance(value, float) and value and _says(trial, option, slip) > 0
    }
    cases = {key: [t.case.name for t in failed if _says(t, *key) > 0] for key in sorted(slips)}
    counts = Counter({key: len(names) for key, names in cases.items()})
    for key, count in counts.most_common(1):
        small = sorted(passed, key=lambda trial: trial.size)[:MOST_CASES]
        if count >= LEAST_SHARE * len(failed) and not any(_says(t, *key) < 0 for t in small):
            return OtherNumber(*key, tuple(cases[key]), len(failed))
    return None


def _says(trial: CaseTrial, option: str, slip: str) -> int:
    """What a case says of a slip: 1 it explains the answers, -1 it contradicts them, 0 nothing."""
    options: dict[str, Value] = trial.op.complete(trial.case.options)
    value = options.get(option)
    if not isinstance(value, float):
        return 0
    number = SLIPS[slip](value, float(options[RATE]))
    if number == value or not math.isfinite(number):
        return 0
    try:
        bent = trial.op.truth(trial.case.inputs, {**options, option: number}, trial.preset)
    except PROBLEMS:
        return 0
    effect = effect_of(trial.truths, bent, trial.answers)
    return 1 if trial.failed and effect.explains else -1 if effect.contradicted else 0
