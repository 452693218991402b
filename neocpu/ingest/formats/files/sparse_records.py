"""How do the sparse rows of libsvm and libffm become columns?

    1 3:0.5 7:1            libsvm: label "1", features "3:0.5 7"; feature_3 "0.5", feature_7 "1"
    3:0.5 7:1              the same without a label, to be scored
    0 1:23:1 2:5:0.3       libffm: label "0", field_1 "23", field_2 "5:0.3"

A list of weighted items is text: items are separated by a blank, an item from its weight by a
colon, and a weight of 1 is not written, as an item without a weight counts once. So a field with
one item of weight 1 in each row is a plain category. Of a libsvm file with few features that most
rows have, each is a column of numbers too, 0 where a row lacks it.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import polars as pl

from neocpu.ingest.formats.files.frame_file import Hint
from neocpu.ingest.formats.files.record_file import (
    NoRecordError,
    Record,
    RecordFile,
    Rows,
    line_rows,
)

DENSE = 256  # features of a libsvm file that may be columns of numbers
FILLED = 0.5  # share of the rows' features that are there, from which they are
ONE = re.compile(r"\+?0*1(\.0*)?(e[-+]?0+)?", re.IGNORECASE)
LIST = Hint("int", " ", ":")
FEATURES = "features"


def item(code: str, weight: str) -> str:
    """An item of a list with its weight."""
    return code if ONE.fullmatch(weight) else f"{code}:{weight}"


def _cut(line: str) -> tuple[Record, list[str]]:
    """The label of a line, where it has one, and its other words."""
    words = line.split("#", 1)[0].split()
    record: Record = {}
    if words and ":" not in words[0]:
        record["label"] = words.pop(0).removeprefix("+")
    if words and words[0].startswith("qid:"):
        record["qid"] = words.pop(0)[4:]
    return record, words


def parse_libsvm(line: str) -> Record:
    """A row of libsvm. Raises NoRecordError where a line is none."""
    record, words = _cut(line)
    items = []
    for word in words:
        code, colon, weight = word.partition(":")
        if not colon or not code.isdigit() or not weight:
            raise NoRecordError(f"has {word!r:.40} where libsvm has INDEX:VALUE")
        if f"feature_{code}" in record:
            raise NoRecordError(f"has index {code} twice")
        items.append(item(code, weight))
        record[f"feature_{code}"] = weight
    record[FEATURES] = " ".join(items)
    return record


def parse_libffm(line: str) -> Record:
    """A row of libffm. Raises NoRecordError where a line is none."""
    record, words = _cut(line)
    fields: dict[str, list[str]] = {}
    for word in words:
        field, _, rest = word.partition(":")
        code, colon, weight = rest.partition(":")
        if not colon or not (field.isdigit() and code.isdigit()) or not weight:
            raise NoRecordError(f"has {word!r:.40} where libffm has FIELD:INDEX:VALUE")
        fields.setdefault(f"field_{field}", []).append(item(code, weight))
    return record | {name: " ".join(items) for name, items in fields.items()}


def _by_number(name: str) -> tuple[str, int]:
    kind, _, number = name.partition("_")
    return kind, int(number) if number else 0


def _lacking(wanted: Collection[str], kind: str) -> dict[str, pl.DataType]:
    """Types of the fields that are wanted, which all rows of a file may lack."""
    return {name: pl.String() for name in wanted if re.fullmatch(rf"{kind}_\d+", name)}


class SparseRecords(RecordFile):
    """A text of sparse rows, all values of which are texts."""

    def _is_settled(self, name: str) -> bool:  # its values are counted, or looked at
        return False


class LibFfm(SparseRecords):
    """A text of libffm rows: a category for each field."""

    def __init__(self, path: Path, wanted: Collection[str] = ()) -> None:
        self._lists: set[str] = set()
        super().__init__(path)
        self.types |= _lacking(wanted, "field")
        fields = sorted((name for name in self.types if "_" in name), key=_by_number)
        self.offered = [*(name for name in self.types if "_" not in name), *fields]
        self.hints = {name: LIST if name in self._lists else Hint("int") for name in fields}

    def _note(self, name: str, value: object) -> None:
        self.types[name] = pl.String()
        if isinstance(value, str) and not value.isdigit() and "_" in name:
            self._lists.add(name)

    def parsed(self) -> Iterator[tuple[Rows, int]]:
        """The rows of the file, piece by piece, and the bytes read so far."""
        return line_rows(self.path, parse_libffm, "#")


class LibSvm(SparseRecords):
    """A text of libsvm rows: one list of weighted features, or a column for each."""

    def __init__(self, path: Path, wanted: Collection[str] = ()) -> None:
        self._filled: dict[str, int] = {}
        super().__init__(path)
        self.types |= _lacking(wanted, "feature")
        dense = sorted((name for name in self.types if "_" in name), key=_by_number)
        self._absent = dict.fromkeys(dense, "0")
        rows = max(self._filled.get(name, 0) for name in ("label", FEATURES))
        there = sum(self._filled.get(name, 0) for name in dense)
        narrow = 0 < len(dense) <= DENSE and there >= FILLED * rows * len(dense)
        self.offered = [name for name in self.types if "_" not in name and name != FEATURES]
        self.offered += dense if narrow else [FEATURES]
        self.hints: Mapping[str, Hint] = {FEATURES: LIST}

    def _note(self, name: str, value: object) -> None:
        self.types[name] = pl.String()
        self._filled[name] = self._filled.get(name, 0) + 1

    def parsed(self) -> Iterator[tuple[Rows, int]]:
        """The rows of the file, piece by piece, and the bytes read so far."""
        return line_rows(self.path, parse_libsvm, "#")
