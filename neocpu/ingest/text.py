"""How does a block of lines become columns? One kernel splits it, one parses each kind of field.

A line with any fault is left out completely, and the fault is described by line, column, text and
reason. Whether it stops the run (`--on-error fail` or `skip`) is up to `neocpu.ingest.convert`.
"""

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.ingest.dataset_layout import BagColumn
from neocpu.ingest.fields import I32, Fault, Fields, shown, split_items, split_text
from neocpu.ingest.schema import CategoryField, Schema
from neocpu.kernels import tokenize

LARGEST = float(np.finfo(np.float32).max)
# Status codes of kernels/tokenize.py
EMPTY = 1
TOO_LARGE = 5
INEXACT = 7
# Status codes of the checks in this file
NOT_A_LABEL = 16
NOT_A_TIME = 17
NO_LABEL = 18
WRONG_COUNT = 19
WHY = {
    2: "is not a hexadecimal number",
    3: "has more than {digits} hexadecimal digits",
    4: "is not an integer",
    5: "is too large for its column",
    6: "is not a number",
    NOT_A_LABEL: "is not a click label; it must be 0 or 1",
    NOT_A_TIME: "is not a time YYMMDDHH",
    NO_LABEL: "is empty, but a label is needed",
}


@dataclass(frozen=True)
class Parsed:
    """The good lines of a block as columns, and its faults in line order."""

    labels: NDArray[np.float32] | None
    dense: NDArray[np.float32]
    features: dict[str, BagColumn]
    missing_dense: NDArray[np.int64]
    missing: dict[str, int]
    lines: int
    faults: list[Fault]


class _Kind(NamedTuple):
    """How the text of a column is read; neighbouring columns of one kind are parsed together."""

    name: str
    digits: int = 0


def _exactly(
    text: NDArray[np.uint8],
    begin: I32,
    end: I32,
    out: NDArray[np.float64],
    status: NDArray[np.uint8],
) -> None:
    """Parse the numbers that are too long for one exact step: Python rounds them correctly."""
    for i in np.flatnonzero(status == INEXACT):
        out[i] = float(text[begin[i] : end[i]].tobytes())
        status[i] = 0


def _times(kind: str, times: NDArray[np.int64], status: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Codes of times YYMMDDHH: hour + 1, or Monday 1 to Sunday 7."""
    year = times // 10**6
    month = times // 10**4 % 100
    day = times // 100 % 100
    hour = times % 100
    good = (
        (times >= 0)
        & (year < 100)
        & (month >= 1)
        & (month <= 12)
        & (day >= 1)
        & (hour < 24)
        & (status == 0)
    )
    months = np.where(good, 12 * (30 + year) + month - 1, 0)
    first = months.astype("M8[M]").astype("M8[D]").astype(np.int64)
    good &= day <= (months + 1).astype("M8[M]").astype("M8[D]").astype(np.int64) - first
    status[(status == 0) & ~good] = NOT_A_TIME
    # Day 0, 1970-01-01, was a Thursday.
    codes = hour + 1 if kind == "hour" else (first + day - 1 + 3) % 7 + 1
    return np.where(good, codes, 0).astype(np.uint64)


class TextParser:
    """Parses blocks of lines by a schema whose columns are known.

    integers: columns of categories whose text is an integer whatever the schema says (Parquet
    columns of numbers).
    """

    def __init__(self, schema: Schema, integers: frozenset[str] = frozenset()) -> None:
        self.schema = schema
        position = {name: i for i, name in enumerate(schema.columns)}
        self._kinds: dict[tuple[int, _Kind], None] = {}  # (column, kind), each once
        self._label = None
        if schema.label is not None:
            self._label = (
                position[schema.label.column],
                _Kind("int" if schema.label.kind == "click" else "float"),
            )
            self._kinds[self._label] = None
        self._dense = [(position[field.column], _Kind(field.kind)) for field in schema.dense]
        self._squashed = np.array([field.transform == "log1p" for field in schema.dense], bool)
        self._single: list[tuple[CategoryField, tuple[int, _Kind]]] = []
        self._lists: list[tuple[CategoryField, int, _Kind]] = []
        for field in schema.categories:
            name = (
                "int"
                if field.kind in ("hour", "weekday") or field.column in integers
                else field.kind
            )
            kind = _Kind(name, field.digits if name == "hex" else 0)
            if field.is_list:
                self._lists.append((field, position[field.column], kind))
            else:
                self._single.append((field, (position[field.column], kind)))
        self._kinds.update(dict.fromkeys([*self._dense, *(key for _, key in self._single)]))
        self._runs = self._neighbours()

    def _neighbours(self) -> list[tuple[int, int, _Kind]]:
        """Runs [first, last) of columns of one kind, ascending."""
        runs: list[tuple[int, int, _Kind]] = []
        for column, kind in sorted(self._kinds):
            if runs and runs[-1][1] == column and runs[-1][2] == kind:
                runs[-1] = (runs[-1][0], column + 1, kind)
            else:
                runs.append((column, column + 1, kind))
        return runs

    def parse(self, text: NDArray[np.uint8]) -> Parsed:
        """Columns of whole lines, uint8[n] ending with a newline."""
        return self.parse_fields(split_text(self.schema, text))

    def parse_fields(self, fields: Fields) -> Parsed:
        """Columns of the fields of a block, however they were found."""
        return _Block(self, fields).parse()

    def fields(
        self, text: NDArray[np.uint8], begin: I32, end: I32, kind: _Kind
    ) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """Values and status of flat fields."""
        status = np.empty(begin.size, np.uint8)
        quote = np.uint8(ord(self.schema.quote or "\0"))
        if kind.name == "float":
            decimals = np.empty(begin.size, np.float64)
            tokenize.parse_decimals(text, begin, end, decimals, status)
            _exactly(text, begin, end, decimals, status)
            status[(status == 0) & (np.abs(decimals) > LARGEST)] = TOO_LARGE
            return decimals, status
        if kind.name == "int":
            integers = np.empty(begin.size, np.int64)
            tokenize.parse_integers(text, begin, end, integers, status)
            return integers, status
        codes = np.empty(begin.size, np.uint64)
        if kind.name == "hex":
            tokenize.parse_hex(text, begin, end, kind.digits, codes, status)
        else:
            tokenize.hash_text(text, begin, end, quote, codes, status)
        return codes, status


class _Block:
    """One block in the parser: its fields and values, and the first fault of every line."""

    def __init__(self, parser: TextParser, fields: Fields) -> None:
        self.parser = parser
        self.text = fields.text
        self.begin = fields.begin
        self.end = fields.end
        self.items = fields.items
        self.lines = fields.begin.shape[1]
        self.faults = {fault.line: fault for fault in fields.faults}
        self.whole = np.ones(self.lines, bool)  # lines that have all their fields
        self.whole[list(self.faults)] = False
        self.values: dict[tuple[int, _Kind], tuple[NDArray[Any], NDArray[np.uint8]]] = {}

    def parse(self) -> Parsed:
        parser = self.parser
        for first, last, kind in parser._runs:
            begin = self.begin[first:last].reshape(-1)
            end = self.end[first:last].reshape(-1)
            values, status = parser.fields(self.text, begin, end, kind)
            for i in np.flatnonzero(status > EMPTY).tolist():
                column = first + i // self.lines
                line = i % self.lines
                self._fault(
                    line,
                    column,
                    self.text[begin[i] : end[i]].tobytes(),
                    int(status[i]),
                    kind.digits,
                )
            shape = (last - first, self.lines)
            pairs = zip(values.reshape(shape), status.reshape(shape))
            self.values |= {(column, kind): pair for column, pair in zip(range(first, last), pairs)}
        labels = self._labels()
        bags = {
            field.name: self._list(field, column, kind) for field, column, kind in parser._lists
        }
        codes = {field.name: self._codes(field, key) for field, key in parser._single}
        faults = [self.faults[line] for line in sorted(self.faults)]
        keep = None
        if faults:
            keep = np.ones(self.lines, bool)
            keep[[fault.line for fault in faults]] = False
        dense, missing_dense = self._dense(keep)
        features = {}
        for field in parser.schema.categories:
            features[field.name] = _kept(
                bags[field.name] if field.is_list else codes[field.name], keep
            )
        missing = {name: self._missing(name, keep) for name in features}
        kept_labels = labels if keep is None or labels is None else labels[keep]
        return Parsed(kept_labels, dense, features, missing_dense, missing, self.lines, faults)

    def _fault(self, line: int, column: int, raw: bytes, status: int, digits: int = 0) -> None:
        earlier = self.faults.get(line)
        names = self.parser.schema.columns
        if earlier is None or (earlier.column and names.index(earlier.column) > column):
            self.faults[line] = Fault(
                line, names[column], shown(raw), WHY[status].format(digits=digits)
            )

    def _check(self, column: int, bad: NDArray[np.bool_], status: int) -> None:
        """Note a fault of a column at each bad line."""
        for line in np.flatnonzero(bad).tolist():
            raw = self.text[self.begin[column, line] : self.end[column, line]].tobytes()
            self._fault(line, column, raw, status)

    def _labels(self) -> NDArray[np.float32] | None:
        if self.parser._label is None:
            return None
        column = self.parser._label[0]
        values, status = self.values[self.parser._label]
        self._check(column, (status == EMPTY) & self.whole, NO_LABEL)
        if values.dtype == np.int64:
            self._check(column, (status == 0) & (values != 0) & (values != 1), NOT_A_LABEL)
        return values.astype(np.float32)

    def _codes(self, field: CategoryField, key: tuple[int, _Kind]) -> BagColumn:
        values, status = self.values[key]
        if field.kind in ("hour", "weekday"):
            state = status.copy()
            codes = _times(field.kind, values, state)
            self._check(key[0], state == NOT_A_TIME, NOT_A_TIME)
        else:
            codes = values.view(np.uint64)
            if field.dtype == "uint32" and key[1].name == "int":
                self._check(key[0], codes >= 2**32, TOO_LARGE)
        return BagColumn(codes.astype(field.dtype))

    def _list(self, field: CategoryField, column: int, kind: _Kind) -> BagColumn:
        text = self.text
        items = self.items.get(column)
        if items is None:
            items = split_items(text, self.begin[column], self.end[column], field)
        first = items.begin
        stop = items.end
        line_of = np.repeat(np.arange(self.lines), items.lengths)
        weights = None
        if field.weighted:
            weights = self._weights(column, items.weight_begin, items.weight_end, line_of)
        codes, status = self.parser.fields(text, first, stop, kind)
        for i in np.flatnonzero(status > EMPTY).tolist():
            raw = text[first[i] : stop[i]].tobytes()
            self._fault(int(line_of[i]), column, raw, int(status[i]), kind.digits)
        return BagColumn(codes.view(np.uint64).astype(field.dtype), items.lengths, weights)

    def _weights(
        self, column: int, begin: I32, end: I32, line_of: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        weights, status = self.parser.fields(self.text, begin, end, _Kind("float"))
        for i in np.flatnonzero(status > EMPTY).tolist():
            self._fault(
                int(line_of[i]), column, self.text[begin[i] : end[i]].tobytes(), int(status[i])
            )
        weights[status == EMPTY] = 1.0
        return weights.astype(np.float32)

    def _dense(
        self, keep: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """dense float32[lines kept, Nd] and the count of empty fields per column."""
        parser = self.parser
        kept = self.lines if keep is None else int(np.count_nonzero(keep))
        out = np.empty((kept, len(parser._dense)), np.float32)
        missing = np.zeros(len(parser._dense), np.int64)
        numbers = np.empty((len(parser._dense), kept), np.float64)
        for i, key in enumerate(parser._dense):
            values, status = self.values[key]
            numbers[i] = values if keep is None else values[keep]
            missing[i] = np.count_nonzero(status[keep] if keep is not None else status)
        for squashed, run in itertools.groupby(
            range(len(parser._dense)), lambda i: bool(parser._squashed[i])
        ):
            columns = list(run)
            squashed_columns = slice(columns[0], columns[-1] + 1)
            out[:, squashed_columns] = (
                _squash(numbers[squashed_columns])
                if squashed
                else numbers[squashed_columns].astype(np.float32)
            ).T
        return out, missing

    def _missing(self, name: str, keep: NDArray[np.bool_] | None) -> int:
        column = next(field for field in self.parser.schema.categories if field.name == name).column
        position = self.parser.schema.columns.index(column)
        empty = self.begin[position] == self.end[position]
        return int(np.count_nonzero(empty if keep is None else empty & keep))


def _squash(numbers: NDArray[np.float64]) -> NDArray[np.float32]:
    out = np.empty(numbers.size, np.float32)
    tokenize.squash(numbers.reshape(-1), out)
    return out.reshape(numbers.shape)


def _kept(bags: BagColumn, keep: NDArray[np.bool_] | None) -> BagColumn:
    if keep is None:
        return bags
    if bags.lengths is None:
        return BagColumn(bags.codes[keep])
    items = np.repeat(keep, bags.lengths)
    return BagColumn(
        bags.codes[items], bags.lengths[keep], None if bags.weights is None else bags.weights[items]
    )
