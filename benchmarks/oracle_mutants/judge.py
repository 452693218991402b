"""What does a report say about a mutant? The headline of its explanations, and whether it is right.

This is the only file that knows how a Report holds explanations.
"""

import re
from typing import Any, NamedTuple

from benchmarks.oracle_mutants.registry import Mutant

HALF = 0.5  # of the failed cases, that a strong explanation has to explain
ROUNDING_PATTERNS = {"rounding", "rounding_mode", "rounded_to_bf16", "rounded_to_fp16"}


class Headline(NamedTuple):
    """The first explanation of a report."""

    title: str  # as the report prints it; "" if it has none
    names: frozenset[str]  # in the title
    strong: bool
    is_pattern: bool  # something seen in the numbers, not the name of a bug


SILENCE = Headline("", frozenset(), strong=False, is_pattern=False)


def headline(report: Any) -> Headline:
    """The explanation that a reader meets first; strong if it explains half of the failed cases."""
    explanations = report.likely()
    failed = len(report.failures)
    if not explanations or not failed:
        return SILENCE
    title, count = explanations[0]
    kinds = {d.kind for outcome in report.failures for d in outcome.diagnoses if d.title == title}
    names = frozenset(re.findall(r"[a-z_0-9]+", title))
    return Headline(title, names, count >= HALF * failed, "pattern" in kinds)


def grade(top: Headline, mutant: Mutant) -> str:
    """strong and right, strong and wrong, or weak or silent.

    A strong name is right if it is one of the mutant's. A strong pattern is wrong if it says that a
    bug of logic is one of rounding; else it is right where the bug has no name, and too little
    where it has one.
    """
    if not top.strong:
        return "weak or silent"
    if not top.is_pattern:
        right = len(top.names) == 1 and top.names <= set(mutant.true_names)
        return "strong and right" if right else "strong and wrong"
    if top.names & ROUNDING_PATTERNS and not mutant.is_rounding:
        return "strong and wrong"
    return "weak or silent" if mutant.true_names else "strong and right"
