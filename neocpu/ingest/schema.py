"""Which column of a log is what? A `Schema` names label, dense numbers and categories."""

import csv
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from neocpu.errors import DataError

TRANSFORMS = ("log1p", "none")
LABEL_KINDS = ("click", "number")
DENSE_KINDS = ("int", "float")
SHOWN = 60  # column names in a message
CATEGORY_KINDS = ("hex", "int", "text", "hour", "weekday")


@dataclass(frozen=True)
class LabelField:
    """The label's column. click: 0 or 1; number: any."""

    column: str
    kind: str = "click"


@dataclass(frozen=True)
class DenseField:
    """A number. An empty field is 0, before the transform (as in the DLRM reference)."""

    column: str
    name: str
    kind: str = "int"
    transform: str = "log1p"


@dataclass(frozen=True)
class CategoryField:
    """A category, or with `separator` a list of them.

    An empty field is code 0, an empty list an empty bag.

    kind: hex (the value, at most `digits` digits), int (the value), text (FNV-1a 64 of the bytes),
    hour and weekday (of a time YYMMDDHH: hour + 1; Monday 1 to Sunday 7). weight_separator: items
    are code, separator, weight (missing: 1).
    """

    column: str
    name: str
    kind: str = "text"
    digits: int = 16
    separator: str = ""
    weight_separator: str = ""

    @property
    def is_list(self) -> bool:
        """Whether a row may have any number of values."""
        return bool(self.separator)

    @property
    def weighted(self) -> bool:
        """Whether every item has a weight."""
        return bool(self.weight_separator)

    @property
    def dtype(self) -> str:
        """Type of the stored codes."""
        narrow = self.kind in ("hour", "weekday") or (self.kind == "hex" and self.digits <= 8)
        return "uint32" if narrow else "uint64"


@dataclass(frozen=True)
class Schema:
    """A log's form. columns: names in file order; empty: the header (first line) says them."""

    name: str
    label: LabelField | None
    dense: tuple[DenseField, ...]
    categories: tuple[CategoryField, ...]
    columns: tuple[str, ...] = ()
    delimiter: str = "\t"
    quote: str = ""
    header: bool = False
    hint: str = ""  # said where a file has other columns
    extra: dict[str, str] = field(default_factory=dict)  # attributes of the dataset

    @property
    def used(self) -> list[str]:
        """Columns that are read, label first, each once."""
        label = [] if self.label is None else [self.label.column]
        dense = [number.column for number in self.dense]
        categories = [category.column for category in self.categories]
        return list(dict.fromkeys([*label, *dense, *categories]))

    @property
    def integers(self) -> set[str]:
        """Columns whose text is an integer."""
        columns = {number.column for number in self.dense if number.kind == "int"}
        if self.label is not None and self.label.kind == "click":
            columns.add(self.label.column)
        for category in self.categories:
            if category.kind in ("int", "hour", "weekday"):
                columns.add(category.column)
        return columns

    def with_header(self, line: str, path: Path) -> "Schema":
        """The schema with the columns of a header line.

        Raises DataError if a column that the schema uses is missing, or the line is no header.
        """
        try:
            rows = csv.reader(
                [line],
                delimiter=self.delimiter,
                quotechar=self.quote or None,
                quoting=self._quoting,
            )
            names = next(rows, [])
        except (csv.Error, TypeError, ValueError) as error:
            raise DataError(f"{path}: its first line does not name columns: {error}") from error
        return self.with_columns([name.strip() for name in names], path)

    @property
    def _quoting(self) -> Literal[0, 3]:
        return csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE

    def with_columns(self, names: list[str], path: Path) -> "Schema":
        """The schema with these columns; each column that it uses must occur once."""
        faulty = [name for name in self.used if names.count(name) != 1]
        if faulty:
            shown = ", ".join(map(repr, names[:SHOWN]))
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise DataError(
                f"{path}: column {faulty[0]!r} is "
                f"{'missing' if faulty[0] not in names else 'there more than once'}; "
                f"the file has {shown[:2000]}{more}{'. ' + self.hint if self.hint else ''}"
            )
        return replace(self, columns=tuple(names))
