"""Which mistake explains wrong answers? The switches whose bent truth predicts them, in all cases.

    failed cases ──► single switches ──► their evidence over all cases, passed ones too
                 ──► pairs, of what remains ──► mirrors, patterns ──► what failed has in common

What explained an earlier case is tried first on the next one. Everything but the verdicts has a
budget, counted in work and not by a clock, so that a report is the same on every machine; what it
did not suffice for is told.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from neocpu.oracle.diagnosis.conclusion import Conclusion
from neocpu.oracle.diagnosis.evidence import CaseTrial, agreement
from neocpu.oracle.diagnosis.facets import Separation
from neocpu.oracle.diagnosis.findings import EXACT, Cause, Diagnosis, Effect, Evidence, joined
from neocpu.oracle.diagnosis.patterns import patterns_of
from neocpu.oracle.semantics import switches_for
from neocpu.oracle.truth.bends import VARIANTS

BUDGET = 20.0  # seconds of one core of a laptop
# Work of such a second, in the units of `CaseTrial.work`: 3 ms for a small case, 20 for 12,000
# products.
WORK_PER_SECOND = 8e5
# Shares of the budget after which the next phase begins.
SINGLES_END = 0.55
EVIDENCE_END = 0.75
PAIRS_END = 0.92
MOST_PAIRS = 300  # that are tried on one case
HOPELESS = 6  # passed cases against an explanation, beyond which no more are asked

Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much


@dataclass(frozen=True)
class Explanations:
    """What was found out about the failed cases of a check."""

    findings: tuple[Cause, ...] = ()  # strong ones first, those of more cases first
    diagnoses: dict[str, tuple[Diagnosis, ...]] = field(default_factory=dict)  # by case
    common: dict[str, Separation] = field(default_factory=dict)  # by operator, of what remains
    places: dict[str, str] = field(default_factory=dict)  # by operator: where the rest is wrong
    untried: tuple[str, ...] = ()  # what the budget did not suffice for


def _no_progress(phase: str, done: int, total: int) -> None:
    """Nobody watches."""


class _BudgetSpentError(Exception):
    """The budget does not suffice for more pairs."""


class Investigation:
    """The search for explanations of all failed cases of a check."""

    def __init__(
        self, trials: Sequence[CaseTrial], budget: float = BUDGET, progress: Progress = _no_progress
    ) -> None:
        self._limit = budget * WORK_PER_SECOND
        self._work = 0.0
        self._progress = progress
        self._untried: list[str] = []
        self._ops: dict[str, list[CaseTrial]] = {}
        # Small cases first: they say as much, and a budget lasts longer.
        for trial in sorted(trials, key=lambda trial: trial.size):
            self._ops.setdefault(trial.op.name, []).append(trial)
        # explanations of each operator that explain a failed case, the best known first
        self._evidence: dict[str, dict[tuple[str, ...], Evidence]] = {op: {} for op in self._ops}

    def run(self) -> Explanations:
        """All phases, as far as the budget goes."""
        self._singles()
        self._weigh(EVIDENCE_END)
        self._pairs()
        self._weigh(1.0)
        findings: list[Cause] = []
        common: dict[str, Separation] = {}
        places: dict[str, str] = {}
        for op, trials in self._ops.items():
            conclusion = Conclusion(trials, self._evidence[op])
            findings += conclusion.findings
            if conclusion.common is not None:
                common[op] = conclusion.common
            if conclusion.places:
                places[op] = conclusion.places
        all_findings = joined(findings)
        return Explanations(
            findings=all_findings,
            diagnoses=_by_case(all_findings),
            common=common,
            places=places,
            untried=tuple(self._untried),
        )

    def _over(self, share: float) -> bool:
        """Is this share of the budget spent?"""
        return self._work > share * self._limit

    def _effect(self, trial: CaseTrial, names: tuple[str, ...]) -> Effect | None:
        """`trial.effect`, whose work counts."""
        before = trial.bent
        effect = trial.effect(names)
        self._work += (trial.bent - before) * trial.work
        return effect

    def _failures(self) -> list[CaseTrial]:
        """All failed cases that switches may explain, the quick ones first."""
        failures = [trial for trials in self._ops.values() for trial in trials if trial.failed]
        return sorted(failures, key=lambda trial: trial.size)

    def _singles(self) -> None:
        """Single switches: those that explained an earlier case of the operator, else all."""
        failures = self._failures()
        skipped = 0
        for number, trial in enumerate(failures):
            self._progress("single switches", number, len(failures))
            if self._over(SINGLES_END):
                skipped += 1
                continue
            # Right by the exact model: what is wrong is the choice of the preset.
            if trial.preset and agrees_exactly(trial):
                self._note(trial, EXACT)
                continue
            before = list(self._evidence[trial.op.name])
            # What explained one failure mostly explains the next: then no other switch is tried.
            explained = [names for names in before if self._note(trial, names)]
            if explained:
                continue
            for switch in switches_for(trial.op.name):
                if (switch.name,) not in before and switch.name not in trial.preset:
                    self._note(trial, (switch.name,))
        if skipped:
            self._untried.append(f"single switches were not tried on {skipped} failed cases")

    def _note(self, trial: CaseTrial, names: tuple[str, ...]) -> bool:
        """Does the explanation explain the case? It is then kept, with what the case says of it."""
        evidence = self._evidence[trial.op.name]
        effect = self._effect(trial, names)
        if effect is None:
            return False
        if names in evidence or effect.explains:
            gathered = evidence.setdefault(names, Evidence(names))
            gathered.add(trial.case.name, trial.failed, effect)
        return effect.explains

    def _weigh(self, until: float) -> None:
        """Ask all cases of its operator about every explanation; failed ones first."""
        unasked = 0
        for op, trials in self._ops.items():
            failed_first = sorted(trials, key=lambda trial: (not trial.failed, trial.size))
            ranked = sorted(self._evidence[op].values(), key=lambda e: -len(e.explained))
            for number, evidence in enumerate(ranked):
                self._progress(f"evidence in {op}", number, len(ranked))
                for trial in failed_first:
                    # No further case could save it.
                    if len(evidence.refuting) > max(HOPELESS, len(evidence.explained)):
                        break
                    if self._over(until):
                        unasked += 1
                        break
                    self._note(trial, evidence.names)
        if unasked and until == 1.0:
            self._untried.append(f"{unasked} explanations were not tested on all cases")

    def _pairs(self) -> None:
        """Pairs of switches, on what no single switch explains."""
        explained = {
            case
            for evidence in self._evidence.values()
            for gathered in evidence.values()
            for case in gathered.explained
        }
        failures = [
            trial
            for trial in self._failures()
            if trial.case.name not in explained
            and not patterns_of(trial.case, trial.truths, trial.answers)
        ]
        skipped = 0
        for number, trial in enumerate(failures):
            self._progress("pairs of switches", number, len(failures))
            pairs = [names for names in self._evidence[trial.op.name] if len(names) == 2]
            by_known = [names for names in pairs if self._note(trial, names)]
            if by_known:
                continue
            try:
                for names in islice(self._pairs_of(trial), MOST_PAIRS):
                    self._note(trial, names)
            except _BudgetSpentError:
                skipped += 1
        if skipped:
            self._untried.append(f"not all pairs of switches were tried on {skipped} failed cases")

    def _pairs_of(self, trial: CaseTrial) -> Iterator[tuple[str, ...]]:
        """Pairs of switches that change a case, of which one makes some wrong elements right.

        Those that make more of them right first. Raises _BudgetSpentError.
        """
        active: list[tuple[int, str]] = []
        for switch in switches_for(trial.op.name):
            if self._over(PAIRS_END):
                raise _BudgetSpentError
            # One of many variants, chosen element by element, fits nearly anything beside another.
            if switch.name in trial.preset or switch.name in VARIANTS:
                continue
            effect = self._effect(trial, (switch.name,))
            # A switch that changes nothing here can explain nothing, alone or in a pair.
            if effect is not None and effect.apart:
                active.append((effect.predicted, switch.name))
        active.sort(key=lambda pair: -pair[0])
        for i, (predicted, first) in enumerate(active):
            # They are sorted: from here on neither of a pair makes anything right.
            if not predicted:
                return
            for _, second in active[i + 1 :]:
                if self._over(PAIRS_END):
                    raise _BudgetSpentError
                yield first, second


def agrees_exactly(trial: CaseTrial) -> bool:
    """Does an answer that fails by a preset follow the exact model?"""
    exact = trial.truth_under(frozenset())
    return (
        exact is not None
        and agreement(exact, trial.answers)
        and not agreement(trial.truths, trial.answers)
    )


def _by_case(findings: Sequence[Cause]) -> dict[str, tuple[Diagnosis, ...]]:
    """The diagnoses of each case, in the order of the findings."""
    cases: dict[str, tuple[Diagnosis, ...]] = {}
    for finding in findings:
        for name in finding.cases:
            cases[name] = (*cases.get(name, ()), finding.diagnosis)
    return cases
