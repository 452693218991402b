"""Which bends of which optimizer's rule does a suite show? The table of docs/oracle.md §4.

A switch of the model bends a rule; a kernel that answers by the bent model must fail. Here each
switch that changes the numbers of a case of cases/covers/rules.py answers it so, for each rule and
format.
`python docs/_ext/oracle_matrix.py` (a minute) writes the table into the page, between two marks;
`tests/test_oracle_matrix.py` compares it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from neocpu.core.rules import RULES
from neocpu.oracle.cases import DIM_MULTIPLE
from neocpu.oracle.cases.covers import rules
from neocpu.oracle.diagnosis.evidence import AskedSwitches, differ
from neocpu.oracle.operator import Case, Truth
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.semantics import switches_for
from neocpu.oracle.truth.formats import FORMATS, nearest
from neocpu.oracle.verdicts.compare import judge

PAGE = Path(__file__).resolve().parent.parent / "oracle.md"
BEGIN = "<!-- bends of rules: python docs/_ext/oracle_matrix.py -->\n"
END = "<!-- end of the bends -->\n"
ROW_FORMATS = ("fp32", *rules.NARROW)
UPDATE = OPERATORS["backward"]


class Cell(NamedTuple):
    """The switches that change the numbers of a rule's cases, with and without a failure."""

    fails: frozenset[str]
    passes: frozenset[str]

    def __str__(self) -> str:
        total = len(self.fails | self.passes)
        return f"{len(self.fails)} of {total}" if self.passes else f"{total}"


def cases_of(rule: str, row_format: str) -> list[Case]:
    """The cases of a rule with rows of a format."""
    prefix = f"{rules.PREFIX}{rule}-{row_format}-"
    return [case for case in rules.cases(0, DIM_MULTIPLE) if case.name.startswith(prefix)]


def cell(cases: Iterable[Case]) -> Cell:
    """What the cases of one rule and format show."""
    fails = set()
    changes = set()
    for case in cases:
        for switch, shows in _shown(case):
            changes.add(switch)
            fails |= {switch} if shows else set()
    return Cell(frozenset(fails), frozenset(changes - fails))


def _shown(case: Case) -> Iterator[tuple[str, bool]]:
    """The switches that change a case, and whether the bent answer fails."""
    asked = AskedSwitches()
    plain = UPDATE.truth(case.inputs, case.options, asked)
    for switch in switches_for("backward"):
        if switch.name not in asked.asked:
            continue
        bent = UPDATE.truth(case.inputs, case.options, frozenset({switch.name}))
        if differ(plain, bent):
            yield switch.name, any(_fails(plain[name], bent[name]) for name in plain)


def _fails(plain: Truth, bent: Truth) -> bool:
    """Is a kernel wrong that answers with the bent numbers, rounded to nearest?"""
    answer = nearest(bent.reference, FORMATS[bent.format])
    if bent.lower is not None and bent.upper is not None:
        # As the bend rounds, where that leaves one number.
        answer = np.where(bent.lower == bent.upper, bent.lower, answer)
    certain = np.isfinite(bent.bound)
    return bool((~judge(plain, answer)[0] & certain).any())


def matrix() -> dict[tuple[str, str], Cell]:
    """Cells by rule and format."""
    trained = [name for name, rule in RULES.items() if rule.updates]
    return {(rule, form): cell(cases_of(rule, form)) for rule in trained for form in ROW_FORMATS}


def table(cells: dict[tuple[str, str], Cell]) -> str:
    """The table in Markdown, what passes by name, and the names of all switches."""
    lines = [f"| rule | {' | '.join(ROW_FORMATS)} |\n", f"|---|{'---|' * len(ROW_FORMATS)}\n"]
    for rule in dict.fromkeys(rule for rule, _ in cells):
        row = " | ".join(str(cells[rule, form]) for form in ROW_FORMATS)
        lines.append(f"| `{rule}` | {row} |\n")
    lines.append("\nWhat passes there:\n\n")
    for (rule, form), shown in cells.items():
        if shown.passes:
            lines.append(f"* `{rule}`, {form}: {_names(shown.passes)}\n")
    every = frozenset().union(*(shown.fails | shown.passes for shown in cells.values()))
    lines.append(f"\nThe bends, each where the rule has what it bends: {_names(every)}.\n")
    return "".join(lines)


def _names(switches: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(switches))


def updated(page: str, text: str) -> str:
    """The page with another table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(), table(matrix())))
