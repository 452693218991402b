"""What does a check tell? A record that is true when all is right, a story for people, JSON for
programs.

JSON: {"format": "neocpu-oracle-report", "version": 1, "passed", "counts": {"passed", "failed",
"unanswered"}, "preset", "bits", "answers", "unknown": [keys], "likely": [{"names", "explains"}],
"cases": [{"name", "op", "about", "status", "outputs": [{"output", "status", "message", "elements",
"wrong", "worst_ratio", "first", "worst"}], "diagnoses": [{"names", "kind", "about", "fix"}],
"note"}]}; first and worst: {"index", "place", "theirs", "reference", "bound", "ulps"} or null.
Numbers that JSON lacks are the strings "nan", "inf", "-inf".
"""

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from neocpu.oracle.compare import Verdict, Wrong, as_text
from neocpu.oracle.diagnose import Diagnosis
from neocpu.oracle.operator import Case


@dataclass(frozen=True)
class CaseReport:
    """What came of one case."""

    case: Case
    verdicts: tuple[Verdict, ...]
    diagnoses: tuple[Diagnosis, ...]
    note: str = ""  # how it was judged, where not as asked

    @property
    def status(self) -> str:
        """failed if an output is; else passed if one is; else unanswered."""
        found = {v.status for v in self.verdicts}
        return (
            "failed"
            if found & {"failed", "malformed"}
            else "passed"
            if "passed" in found
            else "unanswered"
        )


@dataclass(frozen=True)
class Report:
    """What came of a check: true when something was answered, all of it right, and no key unknown."""

    cases: tuple[CaseReport, ...]
    unknown: tuple[str, ...]
    unanswered: tuple[str, ...]
    preset: str = ""
    bits: bool = False
    source: str = ""

    @property
    def passed(self) -> bool:
        """All answers are right, and there was one."""
        return not self.unknown and bool(self.count("passed")) and not self.count("failed")

    def __bool__(self) -> bool:
        return self.passed

    def count(self, status: str) -> int:
        """How many cases came out so."""
        more = len(self.unanswered) if status == "unanswered" else 0
        return sum(c.status == status for c in self.cases) + more

    @property
    def failures(self) -> list[CaseReport]:
        """The cases that failed, in order."""
        return [c for c in self.cases if c.status == "failed"]

    def likely(self) -> list[tuple[str, int]]:
        """Explanations by how many failed cases they explain, most first."""
        counts = Counter(" + ".join(d.names) for c in self.failures for d in c.diagnoses)
        return counts.most_common()

    def raise_if_failed(self) -> None:
        """Raises AssertionError with the story unless everything passed."""
        if not self:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        lines = [self.headline()]
        lines += [f"  unknown answer {key}" for key in self.unknown]
        lines += [f"  {found.case.name} {found.note}" for found in self.cases if found.note]
        for found in self.failures:
            lines += [
                f"FAILED {found.case.name}" + (f": {found.case.about}" if found.case.about else "")
            ]
            lines += [f"  {line}" for line in story(found, dict(self.likely()))]
        return "\n".join(lines)

    def headline(self) -> str:
        """Counts in one line."""
        of = f" as {self.preset}" if self.preset else ""
        how = (
            f"bit for bit{of}"
            if self.bits
            else f"as {self.preset} means it"
            if self.preset
            else "within bounds"
        )
        text = (
            f"{self.count('passed')} passed, {self.count('failed')} failed, "
            f"{self.count('unanswered')} unanswered"
        )
        return f"{'passed' if self else 'FAILED'} ({how}): {text}"

    def to_json(self) -> str:
        """The report as JSON; schema in this file's head."""
        counts = {status: self.count(status) for status in ("passed", "failed", "unanswered")}
        whole = {
            "format": "neocpu-oracle-report",
            "version": 1,
            "passed": self.passed,
            "counts": counts,
            "preset": self.preset,
            "bits": self.bits,
            "answers": self.source,
            "unknown": list(self.unknown),
            "likely": [{"names": names, "explains": n} for names, n in self.likely()],
            "cases": [_case(c) for c in self.cases]
            + [{"name": name, "status": "unanswered"} for name in self.unanswered],
        }
        return json.dumps(_plain(whole), indent=1, allow_nan=False)

    def to_html(self) -> str:
        """The report as one self-contained page."""
        from neocpu.oracle.html_page import page

        return page(self)


def _case(found: CaseReport) -> dict[str, Any]:
    outputs = [
        {key: value for key, value in vars(v).items() if key not in ("ratio", "first", "worst")}
        | {"first": v.first and asdict(v.first), "worst": v.worst and asdict(v.worst)}
        for v in found.verdicts
    ]
    named = {
        "name": found.case.name,
        "op": found.case.op,
        "about": found.case.about,
        "status": found.status,
    }
    return {
        **named,
        "outputs": outputs,
        "diagnoses": [asdict(d) for d in found.diagnoses],
        "note": found.note,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def told(wrong: Wrong) -> str:
    """One wrong element in words."""
    where = (
        ", ".join(f"{name} {at}" for name, at in wrong.place.items())
        or f"index {list(wrong.index)}"
    )
    near = (
        wrong.ulps is not None and wrong.ulps < 2**32
    )  # from 0, or further than fp32 numbers are apart: it says nothing
    ulps = f" ({wrong.ulps:.3g} ulps)" if near else ""
    give = f" ± {wrong.bound:.2g}" if wrong.bound else ""
    return f"{where}: {as_text(wrong.theirs)}, expected {as_text(wrong.reference)}{give}{ulps}"


def ranked(found: CaseReport, explains: dict[str, int]) -> list[Diagnosis]:
    """A case's explanations; what explains more of the other failures comes first."""
    return sorted(
        found.diagnoses, key=lambda d: (d.kind == "pattern", -explains.get(" + ".join(d.names), 0))
    )


def story(found: CaseReport, explains: dict[str, int], most: int = 3) -> list[str]:
    """The lines about a failed case: first wrong element, how many, and what explains them."""
    lines = []
    for v in found.verdicts:
        if v.status not in ("failed", "malformed"):
            continue
        lines += [f"{v.output}: {v.message}"] if v.message else []
        if v.first is not None:
            worst = (
                f"worst error {v.worst_ratio:.3g} x bound"
                if math.isfinite(v.worst_ratio)
                else "worst beyond measure"
            )
            lines += [
                f"{v.output}: {v.wrong} of {v.elements} wrong, {worst}",
                f"  first at {told(v.first)}",
            ]
    for d in ranked(found, explains)[:most]:
        lines += [f"explained by {' + '.join(d.names)} ({d.kind}): {d.about}"] + (
            [f"  {d.fix}"] if d.fix else []
        )
    return lines if found.diagnoses else [*lines, "no known mistake explains it"]
