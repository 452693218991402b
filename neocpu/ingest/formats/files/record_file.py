"""How does text whose rows name their columns become frames? Row by row, into columns of texts.

    {"user": 7, "tags": ["a", "b"]}     user "7", tags ["a", "b"]

A row may lack columns, so the first rows say which there are, and what a schema wants beside them
is looked for in all of the file.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from neocpu.core.errors import DataError
from neocpu.ingest.formats.fields import Fault, shown
from neocpu.ingest.formats.files.frame_file import ROWS, FrameRows, Hint
from neocpu.ingest.formats.readers import text_blocks

Value = str | list[Any] | None  # of a list: texts
Record = dict[str, Value]
FIRST_ROWS = 1 << 15  # rows that tell the columns


class NoRecordError(ValueError):
    """A row or a value is not what the rows of the file are; the text says why."""


class Faulty(NamedTuple):
    """A row that is no record: its text, and what is wrong."""

    text: str
    reason: str


Rows = Sequence[Record | Faulty]


class RecordFile:
    """A text of records: a `FrameFile`. Kinds say how a text is read (`parsed`)."""

    hints: Mapping[str, Hint] = {}
    rows: int | None = None
    advice = ""  # where no row is a record

    def __init__(self, path: Path, wanted: Collection[str] = ()) -> None:
        self.path = path
        self.types: dict[str, pl.DataType] = {}
        self._absent: dict[str, str] = {}
        missing = set(wanted)
        seen = 0
        settled: set[str] = set()
        faulty: Faulty | None = None
        for rows, _ in self.parsed():
            for row in rows:
                for name, value in row.items() if isinstance(row, dict) else ():
                    if name not in settled:
                        self._note(name, value)
            if not seen and rows and isinstance(rows[0], Faulty):
                faulty = rows[0]
            seen += len(rows)
            settled |= {name for name in self.types if self._is_settled(name)}
            missing -= {name for name, dtype in self.types.items() if dtype != pl.Null}
            if seen >= FIRST_ROWS and not missing:
                break
        if faulty is not None and not self.types:
            text = shown(faulty.text.encode("utf-8", "replace"))
            raise DataError(
                f"{path}: no row can be read; the first {faulty.reason}: {text}{self.advice}"
            )
        self.types = {
            name: pl.String() if dtype == pl.Null else dtype
            for name, dtype in self.types.items()
            # null where other rows have an object, whose keys are columns
            if name in settled or not any(each.startswith(f"{name}.") for each in self.types)
        }
        self.offered = list(self.types)

    def parsed(self) -> Iterator[tuple[Rows, int]]:
        """The rows of the file, piece by piece, and the bytes read so far."""
        raise NotImplementedError

    def _is_settled(self, name: str) -> bool:
        """Would no further value change what is known of a column?"""
        dtype = self.types[name]
        return dtype not in (pl.Null, pl.List(pl.Null))

    def _note(self, name: str, value: Value) -> None:
        """The type of a column, by one more of its values."""
        known = self.types.get(name)
        empty = isinstance(known, pl.List) and known.inner == pl.Null and isinstance(value, list)
        if known is None or known == pl.Null or empty:
            self.types[name] = _type_of(value)

    def batches(self, columns: Mapping[str, str]) -> Iterator[FrameRows]:
        """The rows of columns: their names in the frames -> in the file."""
        for rows, done in self.parsed():
            for first in range(0, len(rows), ROWS):
                yield self._frame(rows[first : first + ROWS], columns, done)

    def _frame(self, rows: Rows, columns: Mapping[str, str], done: int) -> FrameRows:
        faults = {
            line: Fault(line, "", shown(row.text.encode("utf-8", "replace")), row.reason)
            for line, row in enumerate(rows)
            if isinstance(row, Faulty)
        }
        records = [row if isinstance(row, dict) else {} for row in rows]
        parts = []
        for alias, name in columns.items():
            absent = self._absent.get(name)
            values = [record.get(name, absent) for record in records]
            dtype = self.types[name]
            # a column of texts need not be gone through value by value
            if dtype != pl.String or list in set(map(type, values)):
                for line, fault in _fit(values, dtype):
                    text = str(values[line])
                    values[line] = None
                    faults.setdefault(line, Fault(line, name, shown(text.encode()), fault))
            parts.append(_series(alias, values, _texts(dtype)))
        ordered = tuple(faults[line] for line in sorted(faults))
        return FrameRows(pl.DataFrame(parts), done, ordered)


def _series(name: str, values: list[Value], dtype: pl.DataType) -> pl.Series:
    """Values as a column; a list without items is null, as an empty field is."""
    if dtype != pl.List(pl.String):
        return pl.Series(name, values, dtype)
    # polars would make a column of every single list
    items = [item for value in values for item in value or ()]
    lengths = [len(value or ()) for value in values]
    rows = pl.Series("row", np.repeat(np.arange(len(values)), lengths))
    lists = pl.DataFrame([rows, pl.Series(name, items, pl.String)]).group_by("row").agg(name)
    every = pl.DataFrame({"row": np.arange(len(values))})
    return every.join(lists, on="row", how="left").sort("row").get_column(name)


def _fit(values: list[Value], dtype: pl.DataType) -> Iterator[tuple[int, str]]:
    """Make one value a list in a column of lists; yields what does not fit its type, and why."""
    inner = dtype.inner if isinstance(dtype, pl.List) else None
    kind = list if isinstance(inner, pl.List) else str
    for line, value in enumerate(values):
        if value is None:
            continue
        if inner is None:
            if isinstance(value, list):
                yield line, "is a list, but the rows before have one value"
            continue
        items = value if isinstance(value, list) else [value]
        values[line] = items
        if not all(item is None or isinstance(item, kind) for item in items):
            yield line, "has other items than the lists of the rows before"


def _type_of(value: Value) -> pl.DataType:
    """The type of a column with this value; what is not known yet is Null."""
    if value is None:
        return pl.Null()
    if isinstance(value, str):
        return pl.String()
    item = next((each for each in value if each is not None), None)
    if isinstance(item, list):
        return pl.List(pl.List(pl.String()))
    return pl.List(pl.Null() if item is None else pl.String())


def _texts(dtype: pl.DataType) -> pl.DataType:
    """A type in which lists without any item are lists of texts."""
    empty = isinstance(dtype, pl.List) and dtype.inner == pl.Null
    return pl.List(pl.String()) if empty else dtype


def line_rows(
    path: Path, parse: Callable[[str], Record], comment: str = "\n"
) -> Iterator[tuple[Rows, int]]:
    """The rows of a text with one record a line; empty lines are none.

    parse : makes a record of a line, or raises NoRecordError. comment : lines that begin with it
    are no rows either.
    """
    blocks = text_blocks(path)
    try:
        for block in blocks:
            lines = block.text.tobytes().decode("utf-8", "replace").split("\n")
            rows = [line for line in lines if line.strip() and not line.startswith(comment)]
            yield [_parsed(line, parse) for line in rows], block.done
    finally:
        blocks.close()


def _parsed(line: str, parse: Callable[[str], Record]) -> Record | Faulty:
    try:
        return parse(line)
    except NoRecordError as error:
        return Faulty(line, str(error))
