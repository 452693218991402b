"""What does the evidence of one operator amount to? Findings, and what the rest has in common.

Are answers right with another hyper-parameter, one that a slip makes of the right one? Squared,
without its root, times the learning rate, 1 minus it: what fits most failed cases of an operator,
and what no passed one refutes, is told.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations
from typing import NamedTuple

from neocpu.oracle.diagnosis.attribution import attributed
from neocpu.oracle.diagnosis.evidence import PROBLEMS, CaseTrial, effect_of
from neocpu.oracle.diagnosis.facets import Facts, Separation, facts_of, separated
from neocpu.oracle.diagnosis.findings import EXACT, Cause, Diagnosis, Evidence
from neocpu.oracle.diagnosis.patterns import patterns_of, rounding_of_all, unwritten
from neocpu.oracle.diagnosis.places import sums_in_common, wrong_places
from neocpu.oracle.mirrors import NoMirror, mirror_bits, mirrors_of
from neocpu.oracle.operator import Options
from neocpu.oracle.semantics import SWITCHES
from neocpu.oracle.truth.bends import VARIANTS
from neocpu.oracle.verdicts.compare import malformed, same_bits

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
    options: Options = trial.op.complete(trial.case.options)
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


# Options by which kernels are written or compiled one by one: what one does says nothing of others.
SCOPES = ("optimizer", "weights_format", "pooling", "weight_decay_mode", "format", "output_format")
WEIGHTED = "weights of samples"
MOST_VALUES = 6  # twice as many as are told together
LEAST_CASES = 4  # of which it says something that they have values in common
LEAST_SHARE_SHOWN = 0.8  # of the unexplained cases, that a pattern or a peer's bits must explain


class Conclusion:
    """Findings of the cases of one operator, and what the unexplained ones have in common."""

    def __init__(
        self, trials: Sequence[CaseTrial], evidence: dict[tuple[str, ...], Evidence]
    ) -> None:
        self._trials = trials
        self._by_name = {trial.case.name: trial for trial in trials}
        self._failed = {trial.case.name for trial in trials if trial.failed}
        self._passed = set(self._by_name) - self._failed
        self._facts: Facts | None = None
        self._patterns: dict[tuple[str, ...], Diagnosis] = {}
        self._evidence = [*self._from_numbers(), *evidence.values()]
        self.findings: list[Cause] = []
        remaining = set(self._failed)
        while remaining:
            finding = self._best(remaining)
            if finding is None:
                break
            finding = self._simpler(finding, remaining) or finding
            self.findings.append(finding)
            # The best explains first; the next has to explain what is left.
            remaining -= set(finding.cases)
        remaining -= self._mirrors(remaining)
        remaining -= self._shown(remaining)
        for finding in (self._of_number(remaining), self._of_sums(tuple(remaining))):
            if finding is not None:
                self.findings.append(finding)
                remaining -= set(finding.cases)
        remaining -= self._rounding(remaining)
        self._weak()
        places = wrong_places([self._by_name[name] for name in sorted(remaining)])
        self.places = "; ".join(filter(None, (places, *self._only_with(remaining))))
        self.common = self._separated(remaining) if remaining else None

    def _from_numbers(self) -> list[Evidence]:
        """Evidence that needs no bent truth: outputs that nobody wrote, unfair rounding."""
        evidence: dict[tuple[str, ...], Evidence] = {}
        for name in sorted(self._failed):
            for diagnosis in shown_by_numbers(self._by_name[name]):
                self._patterns.setdefault(diagnosis.names, diagnosis)
                gathered = evidence.setdefault(diagnosis.names, Evidence(diagnosis.names))
                gathered.explained.add(name)
                # As sure as a model that gives every number.
                gathered.equal[name] = 1.0
        return list(evidence.values())

    def _separated(self, failed: set[str]) -> Separation | None:
        """What failed cases have in common, and passed ones have not."""
        if self._facts is None:
            self._facts = facts_of(
                (trial.case, trial.op.complete(trial.case.options)) for trial in self._trials
            )
        return separated(failed, self._passed, self._facts)

    def _best(self, remaining: set[str]) -> Cause | None:
        """The best strong explanation of what remains."""
        strong: list[tuple[tuple[object, ...], Evidence, str]] = []
        for evidence in self._evidence:
            if not evidence.explained & remaining:
                continue
            # Over all cases first: an explanation with a condition says less.
            if evidence.strong(remaining):
                strong.append(((evidence.score(remaining), 1), evidence, ""))
                continue
            for where, scoped in self._scoped(evidence):
                if scoped.strong(remaining) and self._telling(scoped, remaining):
                    strong.append(((scoped.score(remaining), 0), scoped, where))
                    break
        if not strong:
            return None
        # of explanations that nothing tells apart, the more specific one
        strong.sort(key=lambda s: (*s[0], reach(s[1].names)), reverse=True)
        rank, best, where = strong[0]
        explained = best.explained & remaining
        equals = [
            " + ".join(evidence.names)
            for other_rank, evidence, _ in strong[1:]
            if other_rank == rank and evidence.explained & remaining == explained
        ]
        return self._finding(best, explained, where, equally=tuple(equals))

    def _telling(self, evidence: Evidence, remaining: set[str]) -> bool:
        """Does an explanation of a part of the cases explain enough of them?"""
        explained = evidence.explained & remaining
        return len(explained) >= 2 or explained == remaining

    def _scoped(self, evidence: Evidence) -> Iterator[tuple[str, Evidence]]:
        """The evidence of the kernels alone that it explains: by one option, or two."""
        keys = [key for key in (*SCOPES, WEIGHTED) if len(self._values(key, self._by_name)) > 1]
        for scope in chain(combinations(keys, 1), combinations(keys, 2)):
            values = {key: self._values(key, evidence.explained) for key in scope}

            def inside(case: str, values: dict[str, set[str]] = values) -> bool:
                return all(self._values(key, {case}) <= members for key, members in values.items())

            scoped = Evidence(
                names=evidence.names,
                explained=evidence.explained,
                unexplained=set(filter(inside, evidence.unexplained)),
                refuting=set(filter(inside, evidence.refuting)),
                equal=evidence.equal,
            )
            words = [f"{key} {' or '.join(sorted(members))}" for key, members in values.items()]
            yield f"only with {' and '.join(words)}", scoped

    def _values(self, key: str, cases: Iterable[str]) -> set[str]:
        """The values that an option has in some cases."""
        values = set()
        for name in cases:
            trial = self._by_name[name]
            if key == WEIGHTED:
                weighted = any(name.endswith("per_sample_weights") for name in trial.case.inputs)
                values.add("given" if weighted else "absent")
            else:
                values.add(str(trial.op.complete(trial.case.options).get(key, "")))
        return values

    def _only_with(self, cases: set[str]) -> Iterator[str]:
        """Options that few values have in some cases, and more in all."""
        for key in SCOPES:
            values = self._values(key, cases)
            every = self._values(key, self._by_name)
            if len(cases) >= LEAST_CASES and 2 * len(values) <= min(len(every), MOST_VALUES):
                yield f"only with {key} {' or '.join(sorted(values))}"

    def _finding(
        self,
        evidence: Evidence,
        cases: set[str],
        where: str = "",
        strong: bool = True,
        equally: tuple[str, ...] = (),
    ) -> Cause:
        diagnosis = self._patterns.get(evidence.names) or switch_diagnosis(evidence.names)
        return Cause(
            diagnosis=replace(diagnosis, strong=strong),
            cases=tuple(sorted(cases)),
            contradicted=tuple(sorted(evidence.unexplained)),
            refuted=tuple(sorted(evidence.refuting)),
            where=where,
            equally=equally,
        )

    def _weak(self) -> None:
        """All other explanations of some case."""
        named = {finding.diagnosis.names for finding in self.findings}
        for evidence in self._evidence:
            if evidence.names not in named and evidence.explained:
                self.findings.append(self._finding(evidence, evidence.explained, strong=False))

    def _grouped(self, diagnoses: dict[str, Diagnosis], remaining: set[str]) -> set[str]:
        """Findings of diagnoses by case; returns the cases that strong ones explain."""
        explained: set[str] = set()
        by_name = {diagnosis.names: diagnosis for diagnosis in diagnoses.values()}
        for diagnosis in by_name.values():
            cases = {name for name, same in diagnoses.items() if same.names == diagnosis.names}
            strong = len(cases) >= LEAST_SHARE_SHOWN * len(remaining)
            explained |= cases if strong else set()
            finding = Cause(replace(diagnosis, strong=strong), tuple(sorted(cases)))
            self.findings.append(finding)
        return explained

    def _mirrors(self, remaining: set[str]) -> set[str]:
        """Answers that have the bits of a peer."""
        diagnoses = {}
        for name in sorted(remaining):
            diagnosis = by_mirror(self._by_name[name])
            if diagnosis is not None:
                diagnoses[name] = diagnosis
        return self._grouped(diagnoses, remaining)

    def _shown(self, remaining: set[str]) -> set[str]:
        """What the numbers themselves show, where no model does."""
        diagnoses = {}
        for name in sorted(remaining):
            trial = self._by_name[name]
            for pattern in patterns_of(trial.case, trial.truths, trial.answers)[:1]:
                diagnoses[name] = Diagnosis((pattern.name,), "pattern", pattern.about, pattern.fix)
        return self._grouped(diagnoses, remaining)

    def _rounding(self, remaining: set[str]) -> set[str]:
        """Errors that are rounding, where nothing else was found."""
        if not remaining or remaining != self._failed or self._separated(remaining) is not None:
            return set()
        trials = [self._by_name[name] for name in sorted(remaining)]
        rounding = rounding_of_all([(t.case, t.truths, t.answers) for t in trials])
        if rounding is None:
            return set()
        diagnosis = Diagnosis((rounding.name,), "pattern", rounding.about, rounding.fix)
        return self._grouped(dict.fromkeys(sorted(remaining), diagnosis), remaining)

    def _of_number(self, names: set[str]) -> Cause | None:
        """Another hyper-parameter with which answers are right."""
        slip = other_number(
            [self._by_name[name] for name in sorted(names)],
            [self._by_name[name] for name in sorted(self._passed)],
        )
        if slip is None:
            return None
        fix = "check which number the kernel is passed, and what it is multiplied by"
        return Cause(Diagnosis(("other_number",), "pattern", slip.about, fix), slip.cases)

    def _simpler(self, finding: Cause, remaining: set[str]) -> Cause | None:
        """What fits every wrong sum, where that is likelier than two mistakes at once.

        Nor is one lookup that is lost by chance likely where it is always the same.
        """
        names = finding.diagnosis.names
        if len(names) > 1:
            return self._of_sums(finding.cases, 1.0)
        if names[0] not in VARIANTS:
            return None
        return self._of_sums(tuple(remaining), 1.0, vague=False)

    def _of_sums(
        self, names: Sequence[str], share: float = 0.0, vague: bool = True
    ) -> Cause | None:
        """What the wrong sums of some cases lack or have too much; of so many of them at least."""
        found = attributed([self._by_name[name] for name in sorted(names)])
        if found is None or found.fitting < share * found.total or found.hint.vague > vague:
            return None
        where = sums_in_common([self._by_name[name] for name in found.cases])
        about = "; ".join(filter(None, (found.about, where)))
        return Cause(Diagnosis((found.hint.name,), "pattern", about, found.fix), found.cases)


def shown_by_numbers(trial: CaseTrial) -> list[Diagnosis]:
    """What the numbers of a case prove by themselves: nobody wrote them, or rounding is unfair."""
    pattern = unwritten(trial.case, trial.truths, trial.answers)
    unwritten_output = []
    if pattern is not None:
        unwritten_output = [Diagnosis((pattern.name,), "pattern", pattern.about, pattern.fix)]
    return [*trial.proved, *unwritten_output]


def reach(names: tuple[str, ...]) -> tuple[int, int]:
    """How many of some switches are quirks, and how many operators they all change."""
    switches = [SWITCHES[name] for name in names if name in SWITCHES]
    quirks = sum(switch.kind == "quirk" for switch in switches)
    return -quirks, -sum(len(switch.ops) for switch in switches)


def switch_diagnosis(names: tuple[str, ...]) -> Diagnosis:
    """The texts of one or more switches as a diagnosis."""
    if names == EXACT:
        about = "the answer follows the exact model, from which the preset departs here"
        return Diagnosis(names, "quirk", about)
    switches = [SWITCHES[name] for name in names]
    kind = "mistake" if any(s.kind == "mistake" for s in switches) else "quirk"
    fix = "; ".join(s.fix for s in switches if s.fix)
    return Diagnosis(names, kind, "; and ".join(s.about for s in switches), fix)


def by_mirror(trial: CaseTrial) -> Diagnosis | None:
    """All peers whose bits the answers are; None if there is no such peer."""
    case = trial.case
    equal = []
    for mirror in mirrors_of(case.op):
        try:
            bits = mirror_bits(mirror.preset, case.op, case.inputs, case.options)
        except (NoMirror, IndexError, KeyError, ValueError):
            continue
        if all(
            name in bits
            and not malformed(trial.truths[name], answer)
            and same_bits(trial.truths[name], bits[name], answer)
            for name, answer in trial.answers.items()
        ):
            equal.append(mirror)
    if not equal:
        return None
    calls = "; ".join(f"{mirror.preset}, {mirror.call}" for mirror in equal)
    return Diagnosis((equal[0].preset,), "mirror", f"these are the bits of {calls}")
