"""What was seen of one column of a log, and the role that it gets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class LogColumn:
    """One column: its role and what was seen.

    role : "label", "dense", "category", "list", "time" or "left out". kind : of the schema:
    "click", "number" or "class" of a label, "int" or "float" of a dense column, "text", "int",
    "hex" or "bucket" of categories. transform : of a dense column; `width`, how many numbers each
    of its fields holds (0: one, and no list); `unreadable`, how many of its texts are no numbers.
    time : the form of one, as the schema calls it; `absent`, texts of it that are none; `also`,
    another form that fits, in which they are other times. separator, weight_separator : of a list.
    distinct : values (of a list: of its items); `grown`, how many the whole log may have;
    `frequent`, how many have a row of a vocabulary. missing : share of empty fields. items : per
    row. source : the column that a feature is made of, if that is another. positive, threshold : of
    a label, what makes it a click. why : the reason, a phrase.
    """

    name: str
    role: str
    kind: str = ""
    transform: str = ""
    width: int = 0
    unreadable: int = 0
    time: str = ""
    separator: str = ""
    weight_separator: str = ""
    distinct: int = 0
    grown: int = 0
    frequent: int = 0
    missing: float = 0.0
    items: float = 1.0
    source: str = ""
    absent: tuple[str, ...] = ()
    also: str = field(default="", repr=False)
    positive: tuple[str, ...] = ()
    threshold: float | None = None
    why: str = ""

    @property
    def lenient(self) -> bool:
        """Whether texts that are no numbers count as missing."""
        return self.unreadable > 0


LogColumns: TypeAlias = Sequence[LogColumn]


def by_role(columns: LogColumns) -> Mapping[str, list[LogColumn]]:
    """role -> its columns, in the log's order."""
    roles: dict[str, list[LogColumn]] = {}
    for column in columns:
        roles.setdefault(column.role, []).append(column)
    return roles
