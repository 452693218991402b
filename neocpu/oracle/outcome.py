"""What came out of a check? One record per case, one for all, and the words for a wrong element.

Verdict (verdicts/)      one output: right or wrong, and where
CaseOutcome              one case: its verdicts, and what explains a failure
CheckOutcome             all cases; `Report` (report.py) adds text, JSON and HTML
"""

from dataclasses import dataclass, replace
from typing import Self

from neocpu.oracle.diagnosis.diagnose import Explanations
from neocpu.oracle.diagnosis.facets import Separation
from neocpu.oracle.diagnosis.findings import Cause, Diagnosis
from neocpu.oracle.operator import Case
from neocpu.oracle.verdicts.compare import Verdict, WrongElement, as_text

# Beyond so many ulps the reference is next to 0, and a distance in ulps says nothing.
MEANINGFUL_ULPS = 2**32


@dataclass(frozen=True)
class CaseOutcome:
    """One case: a verdict per output, the explanations of a failure."""

    case: Case
    verdicts: tuple[Verdict, ...]
    diagnoses: tuple[Diagnosis, ...]
    note: str = ""  # how it was judged, where that differs from what was asked

    @property
    def status(self) -> str:
        """failed if an output is; else passed if one is; else unanswered."""
        statuses = {verdict.status for verdict in self.verdicts}
        if statuses & {"failed", "malformed"}:
            return "failed"
        return "passed" if "passed" in statuses else "unanswered"


@dataclass(frozen=True)
class CheckOutcome:
    """All cases of a check. True when something was answered, all of it right, no key unknown."""

    cases: tuple[CaseOutcome, ...]
    unknown: tuple[str, ...]  # keys of answers to no question
    unanswered: tuple[str, ...]  # cases without an answer
    preset: str = ""
    bits: bool = False
    source: str = ""
    findings: tuple[Cause, ...] = ()  # explanations of failed cases, strong ones first
    common: tuple[tuple[str, Separation], ...] = ()  # of what is unexplained, by operator
    places: tuple[tuple[str, str], ...] = ()  # where it is wrong, by operator
    untried: tuple[str, ...] = ()  # what the search had no time for
    unsought: bool = False  # nobody looked for explanations
    strict: bool = False  # a warning fails the check

    @property
    def passed(self) -> bool:
        """All answers are right, and there was one."""
        # Nothing answered is no success: a misspelt key would pass.
        right = not self.unknown and bool(self.count("passed")) and not self.count("failed")
        return right and not (self.strict and self.warned)

    @property
    def warned(self) -> int:
        """How many cases have a warning."""
        return sum(any(verdict.warnings for verdict in outcome.verdicts) for outcome in self.cases)

    def __bool__(self) -> bool:
        return self.passed

    def count(self, status: str) -> int:
        """How many cases have that status."""
        without_answer = len(self.unanswered) if status == "unanswered" else 0
        return sum(outcome.status == status for outcome in self.cases) + without_answer

    @property
    def failures(self) -> list[CaseOutcome]:
        """The cases that failed, in order."""
        return [outcome for outcome in self.cases if outcome.status == "failed"]

    def likely(self) -> list[tuple[str, int]]:
        """Strong explanations by how many failed cases they explain, most first."""
        return [(finding.title, len(finding.cases)) for finding in self.findings if finding.strong]

    @property
    def unexplained(self) -> list[str]:
        """Failed cases without a strong explanation."""
        explained = {name for finding in self.findings if finding.strong for name in finding.cases}
        return [o.case.name for o in self.failures if o.case.name not in explained]

    def explained_by(self, explanations: Explanations) -> Self:
        """The same outcome with its explanations."""
        cases = tuple(
            replace(outcome, diagnoses=explanations.diagnoses.get(outcome.case.name, ()))
            for outcome in self.cases
        )
        return replace(
            self,
            cases=cases,
            findings=explanations.findings,
            common=tuple(explanations.common.items()),
            places=tuple(explanations.places.items()),
            untried=explanations.untried,
            unsought=False,
        )

    def conclusion(self) -> list[str]:
        """What explains the failures, in a line or a few: strong findings, or what is in common."""
        failed = len(self.failures)
        if not failed or self.unsought:
            return []
        lines = []
        for finding in self.findings:
            if not finding.strong:
                continue
            count = len(finding.cases)
            share = f"{count} of {failed} failures are"
            if count == failed:
                share = f"all {failed} failures are" if failed > 1 else "the failure is"
            diagnosis = finding.diagnosis
            lines.append(
                f"{share} explained by {finding.title} ({diagnosis.kind}): {diagnosis.about}"
            )
            if diagnosis.fix:
                lines.append(f"  {diagnosis.fix}")
            if finding.equally:
                lines.append(f"  these cases cannot tell it from {', '.join(finding.equally)}")
        unexplained = len(self.unexplained)
        if unexplained:
            share = "it" if failed == 1 else f"{unexplained} of {failed} failures"
            lines.append(f"no known mistake explains {share}")
        lines += [f"  {op}: {separation}" for op, separation in self.common]
        lines += [f"  {op}: {where}" for op, where in self.places]
        return lines + [f"not tried: {what}" for what in self.untried]

    def headline(self) -> str:
        """Counts in one line."""
        peer = f" as {self.preset}" if self.preset else ""
        if self.bits:
            how = f"bit for bit{peer}"
        elif self.preset:
            how = f"as {self.preset} means it"
        else:
            how = "within bounds"
        counts = ", ".join(
            f"{self.count(status)} {status}" for status in ("passed", "failed", "unanswered")
        )
        if self.warned:
            counts += f", {self.warned} with warnings"
        return f"{'passed' if self else 'FAILED'} ({how}): {counts}"


def element_text(wrong: WrongElement) -> str:
    """One wrong element in words."""
    where = ", ".join(f"{name} {number}" for name, number in wrong.place.items())
    ulps = ""
    if wrong.ulps is not None and wrong.ulps < MEANINGFUL_ULPS:
        ulps = f" ({wrong.ulps:.3g} ulps)"
    bound = f" ± {wrong.bound:.2g}" if wrong.bound else ""
    expected = f"{as_text(wrong.reference)}{bound}{ulps}"
    return f"{where or f'index {list(wrong.index)}'}: {as_text(wrong.theirs)}, expected {expected}"


def strong_diagnoses(outcome: CaseOutcome) -> list[Diagnosis]:
    """The explanations of a case that are strong enough to be told."""
    return [diagnosis for diagnosis in outcome.diagnoses if diagnosis.strong]
