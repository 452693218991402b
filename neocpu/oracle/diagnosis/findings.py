"""How strong is an explanation? What each failed and each passed case says of it, weighed.

    Effect      of some switches on one case: what the bent truth says of its answers
    Diagnosis   one explanation of one case
    Evidence    of some switches over the cases of one operator: explained, contradicted, refuted
    Cause       an explanation of several failed cases that is strong enough to be told

An explanation must predict: it counts only where it gives wrong elements, by bounds that are about
as sharp as those of the plain truth. It must hold: a passed case that it says must fail refutes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

# Of an operator's failed cases that nothing else explains yet, the least share to be explained.
LEAST_SHARE = 0.5
# Of the failed cases in which an explanation says something, the least share that agree with it.
LEAST_AGREEMENT = 0.8
EXACT = ("exact",)  # names of the explanation that an answer follows the exact model


@dataclass(frozen=True)
class Diagnosis:
    """One explanation of a wrong answer."""

    names: tuple[str, ...]  # of switches, a preset, or a pattern
    kind: str  # mistake, quirk, mirror (a peer's bits), or pattern (not proved by a model)
    about: str
    fix: str = ""
    strong: bool = True  # whether the evidence of all cases supports it

    @property
    def title(self) -> str:
        """All names, for people."""
        return " + ".join(self.names)


@dataclass(frozen=True)
class Effect:
    """What a bent truth says of one case's answers, beside the plain truth."""

    wrong: int  # elements that the plain truth calls wrong
    predicted: int  # of them, those that the bent truth gives with sharp bounds
    agrees: bool  # all elements are right under the bent truth
    apart: bool  # some element cannot be right under both truths
    contradicted: bool  # an element is right under the plain truth, and surely not the bent one's
    equal: float = 0.0  # share of the elements that are the bent reference, rounded

    @property
    def explains(self) -> bool:
        """The bent truth predicts what is wrong."""
        return self.agrees and self.predicted > 0 and self.predicted >= 0.9 * self.wrong


@dataclass
class Evidence:
    """What the cases of one operator say of an explanation."""

    names: tuple[str, ...]
    explained: set[str] = field(default_factory=set)  # failed cases that it predicts
    unexplained: set[str] = field(default_factory=set)  # failed, and it predicts something else
    refuting: set[str] = field(default_factory=set)  # passed, though it says they must fail
    equal: dict[str, float] = field(default_factory=dict)  # of explained cases

    def add(self, case: str, failed: bool, effect: Effect) -> None:
        """Take in what one case says."""
        if failed and effect.explains:
            self.explained.add(case)
            self.equal[case] = effect.equal
        elif failed and effect.apart and not effect.agrees:
            self.unexplained.add(case)
        elif not failed and effect.contradicted:
            self.refuting.add(case)

    def score(self, remaining: set[str]) -> tuple[float, ...]:
        """By which explanations are ranked: cases explained, fewer against, fewer switches."""
        explained = self.explained & remaining
        equal = sum(self.equal[case] for case in explained) / max(len(explained), 1)
        against = len(self.refuting) + len(self.unexplained & remaining)
        # Rounded, as sums of floats in another order must not change the ranking.
        return (len(explained) - against, -len(self.names), round(equal, 6))

    def strong(self, remaining: set[str]) -> bool:
        """Does it explain most of what remains, nearly always where it is active, unrefuted?"""
        explained = len(self.explained & remaining)
        active = explained + len(self.unexplained & remaining)
        return (
            explained > 0
            and len(self.refuting) <= 0.03 * explained
            and explained >= LEAST_AGREEMENT * active
            and explained >= LEAST_SHARE * len(remaining)
        )


@dataclass(frozen=True)
class Cause:
    """An explanation of several failed cases."""

    diagnosis: Diagnosis
    cases: tuple[str, ...]  # that it explains
    contradicted: tuple[str, ...] = ()  # failed cases in which it predicts something else
    refuted: tuple[str, ...] = ()  # passed cases that it says must fail
    where: str = ""  # what its cases have in common, if it holds only there
    equally: tuple[str, ...] = ()  # titles of explanations that these cases cannot tell from it

    @property
    def strong(self) -> bool:
        """Whether reports tell it."""
        return self.diagnosis.strong

    @property
    def title(self) -> str:
        """Names, and where it holds."""
        return f"{self.diagnosis.title}{f' ({self.where})' if self.where else ''}"


def joined(findings: Sequence[Cause]) -> tuple[Cause, ...]:
    """Findings of single operators as one list: the same explanation of several operators once."""
    by_title: dict[tuple[str, bool], Cause] = {}
    for finding in findings:
        key = (finding.title, finding.strong)
        earlier = by_title.get(key)
        if earlier is not None:
            finding = Cause(
                diagnosis=earlier.diagnosis,
                cases=earlier.cases + finding.cases,
                contradicted=earlier.contradicted + finding.contradicted,
                refuted=earlier.refuted + finding.refuted,
                where=earlier.where,
                equally=tuple(name for name in earlier.equally if name in finding.equally),
            )
        by_title[key] = finding
    return tuple(sorted(by_title.values(), key=lambda f: (not f.strong, -len(f.cases))))
