"""What does a report say about a mutant? Its headline, and whether that is right.

This is the only file that knows how a Report holds explanations.
"""

from typing import Any, NamedTuple

from benchmarks.oracle_mutants.registry import Mutant

HALF = 0.5  # of the failed cases, that a headline has to explain
BELOW = ("facet", "place")  # kinds of what stands below the headlines
ROUNDING_PATTERNS = {"rounding", "rounding_mode", "rounded_to_bf16", "rounded_to_fp16"}


class Told(NamedTuple):
    """One explanation of a report."""

    names: tuple[str, ...]  # of switches, a pattern or a peer; of a facet its words
    # mistake, quirk, pattern or mirror; facet: what failed cases have in common; place: where they
    # are wrong
    kind: str
    strong: bool  # the report tells it; weak ones stand in its JSON only
    cases: int  # failed ones that it explains
    where: str = ""  # the option to which it is confined
    equally: tuple[str, ...] = ()  # explanations that these cases cannot tell from it
    about: str = ""  # what it says

    @property
    def title(self) -> str:
        """As the report prints it."""
        equally = f" = {', '.join(self.equally)}" if self.equally else ""
        return f"{' + '.join(self.names)}{f' ({self.where})' if self.where else ''}{equally}"


def told(report: Any) -> tuple[Told, ...]:
    """All explanations of a report, strong ones first; what failed cases share, and where."""
    explanations = [
        Told(
            finding.diagnosis.names,
            finding.diagnosis.kind,
            finding.strong,
            len(finding.cases),
            finding.where,
            finding.equally,
            finding.diagnosis.about,
        )
        for finding in report.findings
    ]
    facets = [Told((s.about,), "facet", True, s.failed) for _, s in report.common]
    places = [Told((about,), "place", True, 0) for _, about in report.places]
    return (*explanations, *facets, *places)


def headline(explanations: tuple[Told, ...], failed: int) -> Told | None:
    """The name that a reader meets first; None where none explains half of the failed cases."""
    for explanation in explanations:
        if explanation.strong and explanation.kind not in BELOW:
            return explanation if explanation.cases >= HALF * failed else None
    return None


def grade(explanations: tuple[Told, ...], failed: int, mutant: Mutant) -> str:
    """strong and right, strong and wrong, or weak or silent.

    A strong name is right if it is one of the mutant's, or if the report says that it cannot tell
    it from one. Two names that are both the mutant's are right together. A strong pattern is wrong
    if it says that a bug of logic is one of rounding; else it is right where the bug has no name,
    and too little where it has one. Weak explanations and facets are no headlines.
    """
    top = headline(explanations, failed)
    if top is None:
        return "weak or silent"
    true = set(mutant.true_names)
    if top.kind != "pattern":
        right = set(top.names) <= true or any(set(e.split(" + ")) <= true for e in top.equally)
        return "strong and right" if right else "strong and wrong"
    if set(top.names) & true:
        return "strong and right"
    if set(top.names) & ROUNDING_PATTERNS and not mutant.is_rounding:
        return "strong and wrong"
    return "weak or silent" if mutant.true_names else "strong and right"


def is_first_hint_right(explanations: tuple[Told, ...], failed: int, mutant: Mutant) -> bool:
    """Does what a reader meets first name the bug, or say where it is if it has no name?"""
    top = headline(explanations, failed)
    if top and mutant.true_names and grade(explanations, failed, mutant) == "strong and right":
        return True
    hints = [top] if top else [told for told in explanations if told.kind in BELOW]
    words = mutant.says.split("|") if mutant.says else ()
    return any(word in f"{hint.title} {hint.about}" for hint in hints for word in words)
