"""What does a check tell? A record that is true when all is right, as text, JSON or HTML.

JSON: {"format": "neocpu-oracle-report", "version": 1, "passed", "counts": {"passed", "failed",
"unanswered"}, "preset", "bits", "answers", "unknown": [keys],
"likely": [{"names", "explains": count}], "unexplained": [cases], "not_tried": [sentences],
"findings": [{"names", "kind", "about", "fix", "strength": strong or weak, "where",
"explains": [cases], "contradicted_by": [failed cases], "refuted_by": [passed cases], "equally":
[explanations that explain the same]}], "common": [{"op", "about", "failed", "passed",
"exceptions"}], "places": [{"op", "about"}],
"cases": [{"name", "op", "about", "status", "outputs": [{"output", "status", "message", "elements",
"wrong", "worst_ratio", "first", "worst", "warnings", "untested", "mistakes": [{"name",
"about", "fix"}]}], "diagnoses": [{"names", "kind",
"about", "fix", "strong"}], "note"}]}; first and worst: {"index", "place", "theirs", "reference",
"bound", "ulps"} or null.
Numbers that JSON lacks are the strings "nan", "inf", "-inf".

The page is `templates/check.html`: a table of all cases, and for each failed one where it is wrong
(a map of |error| / bound, one picture per output or table) and what explains it.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from neocpu.core.html import html_page
from neocpu.core.types import Doubles
from neocpu.oracle.diagnosis.findings import Cause
from neocpu.oracle.operator import Case
from neocpu.oracle.outcome import CaseOutcome, CheckOutcome, element_text, strong_diagnoses

CASES_NAMED = 8


@dataclass(frozen=True)
class Report(CheckOutcome):
    """The outcome of a check, with its text, JSON and HTML."""

    def raise_if_failed(self) -> None:
        """Raises AssertionError with the whole text unless everything passed."""
        __tracebackhide__ = True  # pytest shows the line of the test
        if not self:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        return "\n".join([self.verdicts(), *self.explanations()])

    def verdicts(self) -> str:
        """Counts, notes, and of each failed case what is wrong where: all but explanations."""
        lines = [self.headline()]
        lines += [f"  unknown answer {key}" for key in self.unknown]
        lines += [f"  {outcome.case.name} {outcome.note}" for outcome in self.cases if outcome.note]
        for outcome in self.cases:
            for verdict in outcome.verdicts:
                name = f"{outcome.case.name}/{verdict.output}"
                lines += [f"  warning: {name}: {warning}" for warning in verdict.warnings]
        lines += [f"  not tested: {line}" for line in untested_lines(self.cases)]
        for outcome in self.failures:
            about = f": {outcome.case.about}" if outcome.case.about else ""
            lines.append(f"FAILED {outcome.case.name}{about}")
            lines += [f"  {line}" for line in failure_lines(outcome)]
        return "\n".join(lines)

    def explanations(self) -> list[str]:
        """What explains the failures, and which cases each explanation explains."""
        lines = self.conclusion()
        if len(self.failures) < 2 or self.unsought:
            return lines
        for finding in self.findings:
            if finding.strong and len(finding.cases) < len(self.failures):
                lines.append(f"  {finding.title}: {_named(finding.cases)}")
        if self.unexplained and len(self.unexplained) < len(self.failures):
            lines.append(f"  unexplained: {_named(self.unexplained)}")
        return lines

    def to_json(self) -> str:
        """The report as JSON; schema in this file's head."""
        cases = [_case_json(outcome) for outcome in self.cases]
        cases += [{"name": name, "status": "unanswered"} for name in self.unanswered]
        whole = {
            "format": "neocpu-oracle-report",
            "version": 1,
            "passed": self.passed,
            "counts": {status: self.count(status) for status in ("passed", "failed", "unanswered")},
            "preset": self.preset,
            "bits": self.bits,
            "answers": self.source,
            "unknown": list(self.unknown),
            "likely": [{"names": names, "explains": count} for names, count in self.likely()],
            "findings": [_finding_json(finding) for finding in self.findings],
            "common": [{"op": op, **asdict(separation)} for op, separation in self.common],
            "places": [{"op": op, "about": about} for op, about in self.places],
            "unexplained": self.unexplained,
            "not_tried": list(self.untried),
            "cases": cases,
        }
        return json.dumps(_json_value(whole), indent=1, allow_nan=False)

    def to_html(self) -> str:
        """The report as one self-contained page."""
        return page(self)


def untested_lines(cases: Iterable[CaseOutcome]) -> list[str]:
    """What no answer of a check could show, by operator and format of its elements.

    What one large answer shows is not said of the small ones beside it.
    """
    hidden: dict[tuple[str, str], list[str]] = {}
    shown = set()
    for outcome in cases:
        options = outcome.case.options
        form = str(options.get("format", options.get("weights_format", "")))
        kind = (outcome.case.op, form)
        for verdict in outcome.verdicts:
            name = f"{outcome.case.name}/{verdict.output}"
            hidden.setdefault(kind, []).extend(f"{name}: {what}" for what in verdict.untested)
            if verdict.draws is not None and not verdict.untested:
                shown.add(kind)
    lines = []
    for kind, outputs in hidden.items():
        if kind in shown or not outputs:
            continue
        more = f" (and {len(outputs) - 1} more of {' '.join(kind)})" if len(outputs) > 1 else ""
        lines.append(f"{outputs[-1]}{more}")
    return lines


def _case_json(outcome: CaseOutcome) -> dict[str, object]:
    outputs = []
    for verdict in outcome.verdicts:
        facts = {
            name: value
            for name, value in vars(verdict).items()
            if name not in ("ratio", "first", "worst", "draws")
        }
        facts["first"] = asdict(verdict.first) if verdict.first else None
        facts["worst"] = asdict(verdict.worst) if verdict.worst else None
        facts["mistakes"] = [mistake._asdict() for mistake in verdict.mistakes]
        outputs.append(facts)
    return {
        "name": outcome.case.name,
        "op": outcome.case.op,
        "about": outcome.case.about,
        "status": outcome.status,
        "outputs": outputs,
        "diagnoses": [asdict(diagnosis) for diagnosis in outcome.diagnoses],
        "note": outcome.note,
    }


def _json_value(value: object) -> object:
    """Lists for tuples, and text for the numbers that JSON lacks."""
    if isinstance(value, dict):
        return {key: _json_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _finding_json(finding: Cause) -> dict[str, object]:
    return {
        "names": list(finding.diagnosis.names),
        "kind": finding.diagnosis.kind,
        "about": finding.diagnosis.about,
        "fix": finding.diagnosis.fix,
        "strength": "strong" if finding.strong else "weak",
        "where": finding.where,
        "explains": list(finding.cases),
        "contradicted_by": list(finding.contradicted),
        "refuted_by": list(finding.refuted),
        "equally": list(finding.equally),
    }


def _named(cases: Sequence[str]) -> str:
    """Some names of cases, and how many more there are."""
    more = f" and {len(cases) - CASES_NAMED} more" if len(cases) > CASES_NAMED else ""
    return ", ".join(cases[:CASES_NAMED]) + more


def failure_lines(outcome: CaseOutcome) -> list[str]:
    """The lines about a failed case: first wrong element, and how many."""
    lines = []
    for verdict in outcome.verdicts:
        if verdict.status not in ("failed", "malformed"):
            continue
        if verdict.message:
            lines.append(f"{verdict.output}: {verdict.message}")
        if verdict.first is not None:
            worst = "worst beyond measure"
            if math.isfinite(verdict.worst_ratio):
                worst = f"worst error {verdict.worst_ratio:.3g} x bound"
            lines.append(f"{verdict.output}: {verdict.wrong} of {verdict.elements} wrong, {worst}")
            lines.append(f"  first at {element_text(verdict.first)}")
    return lines


# |error| / bound beyond which an element has this colour; the first is right.
SCALE = (
    (0.0, "#e8efe9", "right"),
    (1.0, "#f6d98b", "up to 10 bounds"),
    (10.0, "#ee9b4a", "to 1,000"),
    (1e3, "#d1493f", "to a million"),
    (1e6, "#6b1a4a", "beyond, or NaN"),
)
WIDEST = 128  # cells of a map
TALLEST = 64
MOST_PANELS = 6
SMALLEST_CELL = 6  # pixels of a cell, in large maps
LARGEST_CELL = 16  # and in small ones
MAP_WIDTH = 768  # pixels that cells grow to fill
MAP_HEIGHT = 320


@dataclass(frozen=True)
class ErrorMap:
    """A picture of |error| / bound, in cells.

    cell : pixels of a cell's side. runs : (x, y, width, level in SCALE) of neighbours in a row that
        are equally wrong.
    """

    caption: str
    width: int
    height: int
    cell: int
    runs: list[tuple[int, int, int, int]]


def page(check: CheckOutcome) -> str:
    """The whole page as text."""
    return html_page(
        "neocpu.oracle",
        "check.html",
        check=check,
        scale=[(colour, meaning) for _, colour, meaning in SCALE],
        strong_diagnoses=strong_diagnoses,
        element_text=element_text,
        maps=_maps,
    )


def _maps(case: Case, output: str, ratio: Doubles) -> list[ErrorMap]:
    return [_map(title, cells) for title, cells in panels(case, output, ratio)]


def panels(case: Case, output: str, ratio: Doubles) -> list[tuple[str, Doubles]]:
    """Pictures of an output, by title: one per table where it is a flat run of tables, else one.

    ratio : |error| / bound of each element. A picture has the rows of a table, or rows by the
        last axis.
    """
    rows = case.inputs.get("rows")
    dims = case.inputs.get("dims")
    if ratio.ndim == 1 and rows is not None and dims is not None:
        # elements of the tables, or one number per row (states of row-wise rules)
        for widths in (np.asarray(dims), np.ones(rows.size, np.int64)):
            sizes = rows * widths
            if int(sizes.sum()) == ratio.size and ratio.size:
                pieces = np.split(ratio, np.cumsum(sizes)[:-1])
                tables = [
                    piece.reshape(int(h), int(w)) for piece, h, w in zip(pieces, rows, widths)
                ]
                wrong = [(f"{output}, table {t}", x) for t, x in enumerate(tables) if x.any()]
                return wrong[:MOST_PANELS]
    cells = ratio.reshape(-1, ratio.shape[-1]) if ratio.ndim > 1 else ratio.reshape(1, -1)
    return [(output, cells)] if cells.size else []


def _map(title: str, cells: Doubles) -> ErrorMap:
    """A map of which each cell is the worst element that it covers."""
    if cells.shape[0] == 1 and cells.shape[1] > WIDEST:  # a long line is folded
        folded = np.zeros((-(-cells.shape[1] // WIDEST), WIDEST))
        folded.reshape(-1)[: cells.size] = cells
        cells = folded
    small = shrunk(shrunk(cells, TALLEST, 0), WIDEST, 1)
    limits = [lowest for lowest, _, _ in SCALE][1:]
    level = np.digitize(small, limits, right=True)
    # Judged bit for bit, an element within its bound may be wrong, and must not look right.
    level = np.where((small > 0) & (level == 0), 1, level)
    height, width = small.shape
    runs = []
    for y, levels in enumerate(level.tolist()):
        cuts = (np.flatnonzero(np.diff(level[y])) + 1).tolist()
        for start, end in zip([0, *cuts], [*cuts, width]):
            if levels[start]:
                runs.append((start, y, end - start, levels[start]))
    cell = min(LARGEST_CELL, MAP_WIDTH // max(width, 1), MAP_HEIGHT // max(height, 1))
    return ErrorMap(
        caption=f"{title}: {cells.shape[0]} by {cells.shape[1]}",
        width=width,
        height=height,
        cell=max(SMALLEST_CELL, cell),
        runs=runs,
    )


def shrunk(cells: Doubles, most: int, axis: int) -> Doubles:
    """At most `most` cells along an axis, each the largest of those it covers."""
    if cells.shape[axis] <= most:
        return cells
    starts = np.arange(most) * cells.shape[axis] // most
    return np.maximum.reduceat(cells, starts, axis)
