"""What came out of a check? One record per case, one for all, and the words for a wrong element.

Verdict (compare.py)     one output: right or wrong, and where
CaseOutcome              one case: its verdicts, and what explains a failure
CheckOutcome             all cases; `Report` (report.py) adds text, JSON and HTML
"""

from collections import Counter
from dataclasses import dataclass

from neocpu.oracle.compare import Verdict, WrongElement, as_text
from neocpu.oracle.diagnose import Diagnosis
from neocpu.oracle.operator import Case

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
    strict: bool = False  # a warning fails the check

    @property
    def passed(self) -> bool:
        """All answers are right, and there was one."""
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
        """Explanations by how many failed cases they explain, most first."""
        counts = Counter(
            diagnosis.title for outcome in self.failures for diagnosis in outcome.diagnoses
        )
        return counts.most_common()

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


def described(wrong: WrongElement) -> str:
    """One wrong element in words."""
    where = ", ".join(f"{name} {number}" for name, number in wrong.place.items())
    ulps = ""
    if wrong.ulps is not None and wrong.ulps < MEANINGFUL_ULPS:
        ulps = f" ({wrong.ulps:.3g} ulps)"
    bound = f" ± {wrong.bound:.2g}" if wrong.bound else ""
    expected = f"{as_text(wrong.reference)}{bound}{ulps}"
    return f"{where or f'index {list(wrong.index)}'}: {as_text(wrong.theirs)}, expected {expected}"


def ranked(outcome: CaseOutcome, explained: dict[str, int]) -> list[Diagnosis]:
    """A case's explanations, proved ones first, then those that explain more of the failed cases.

    explained : how many failed cases each explanation (by title) explains.
    """
    return sorted(
        outcome.diagnoses,
        key=lambda diagnosis: (diagnosis.kind == "pattern", -explained.get(diagnosis.title, 0)),
    )
