"""How does a block of lines become columns? Split once, parse each kind of field with its kernel,
note what is wrong.

A line with any fault is left out as a whole and described exactly: line, column, text and why.
Which of the two happens to the run (`--on-error fail` or `skip`) is decided by
`neocpu.ingest.convert`.
"""

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.ingest.dataset_layout import BagColumn
from neocpu.ingest.schema import CategoryField, Schema
from neocpu.kernels import tokenize

I32 = NDArray[np.int32]
# as in kernels/tokenize.py
EMPTY = 1
TOO_LARGE = 5
INEXACT = 7
LARGEST = float(np.finfo(np.float32).max)
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
SHOWN = 80  # characters of the faulty text in a message


class Fault(NamedTuple):
    """A line that cannot be used: its number in the block (from 0), column ("": whole line), text,
    what is wrong.
    """

    line: int
    column: str
    text: str
    why: str


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


def _show(raw: bytes) -> str:
    text = raw.decode("utf-8", "backslashreplace")
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def _exactly(
    text: NDArray[np.uint8],
    begin: I32,
    end: I32,
    out: NDArray[np.float64],
    status: NDArray[np.uint8],
) -> None:
    """Numbers too long for one exact step: Python rounds them correctly."""
    for i in np.flatnonzero(status == INEXACT):
        out[i] = float(text[begin[i] : end[i]].tobytes())
        status[i] = 0


def _times(kind: str, times: NDArray[np.int64], status: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Codes of YYMMDDHH: hour + 1, or Monday 1 to Sunday 7 (from the count of days, as in any
    calendar).
    """
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
    codes = hour + 1 if kind == "hour" else (first + day - 1 + 3) % 7 + 1
    return np.where(good, codes, 0).astype(np.uint64)


class TextParser:
    """Parses blocks of lines by a schema whose columns are known.

    integers: categories whose text is an integer whatever the schema says (a Parquet column of
    numbers).
    """

    def __init__(self, schema: Schema, integers: frozenset[str] = frozenset()) -> None:
        self.schema = schema
        at = {name: i for i, name in enumerate(schema.columns)}
        self._kinds: dict[tuple[int, _Kind], None] = {}  # (column, kind), each once
        self._label = None
        if schema.label is not None:
            self._label = (
                at[schema.label.column],
                _Kind("int" if schema.label.kind == "click" else "float"),
            )
            self._kinds[self._label] = None
        self._dense = [(at[one.column], _Kind(one.kind)) for one in schema.dense]
        self._squashed = np.array([one.transform == "log1p" for one in schema.dense], bool)
        self._single: list[tuple[CategoryField, tuple[int, _Kind]]] = []
        self._lists: list[tuple[CategoryField, int, _Kind]] = []
        for one in schema.categories:
            name = "int" if one.kind in ("hour", "weekday") or one.column in integers else one.kind
            kind = _Kind(name, one.digits if name == "hex" else 0)
            if one.separator:
                self._lists.append((one, at[one.column], kind))
            else:
                self._single.append((one, (at[one.column], kind)))
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
        return _Block(self, text).parse()

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
    """One block in the parser: fields, values, and the first fault of every line."""

    def __init__(self, parser: TextParser, text: NDArray[np.uint8]) -> None:
        self.parser = parser
        self.text = text
        self.lines = int(np.count_nonzero(text == 10))
        columns = len(parser.schema.columns)
        self.begin, self.end = np.empty((2, columns, self.lines), np.int32)
        self.first = np.empty(self.lines + 1, np.int64)
        self.found = np.empty(self.lines, np.int32)
        delimiter, quote = (
            np.uint8(ord(one or "\0")) for one in (parser.schema.delimiter, parser.schema.quote)
        )
        tokenize.split_lines(text, delimiter, quote, self.begin, self.end, self.first, self.found)
        self.faults: dict[int, Fault] = {}
        for line in np.flatnonzero(self.found != columns).tolist():
            self._miscount(line, int(self.found[line]), columns)
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
            rows = zip(values.reshape(-1, self.lines), status.reshape(-1, self.lines))
            self.values |= {(column, kind): pair for column, pair in zip(range(first, last), rows)}
        labels = self._labels()
        bags = {one.name: self._list(one, column, kind) for one, column, kind in parser._lists}
        codes = {one.name: self._codes(one, key) for one, key in parser._single}
        faults = [self.faults[line] for line in sorted(self.faults)]
        keep = None
        if faults:
            keep = np.ones(self.lines, bool)
            keep[[fault.line for fault in faults]] = False
        dense, missing_dense = self._dense(keep)
        features = {}
        for one in parser.schema.categories:
            features[one.name] = _kept(bags[one.name] if one.separator else codes[one.name], keep)
        missing = {name: self._missing(name, keep) for name in features}
        kept_labels = labels if keep is None or labels is None else labels[keep]
        return Parsed(kept_labels, dense, features, missing_dense, missing, self.lines, faults)

    def _fault(self, line: int, column: int, raw: bytes, status: int, digits: int = 0) -> None:
        before = self.faults.get(line)
        names = self.parser.schema.columns
        if before is None or (before.column and names.index(before.column) > column):
            self.faults[line] = Fault(
                line, names[column], _show(raw), WHY[status].format(digits=digits)
            )

    def _miscount(self, line: int, found: int, columns: int) -> None:
        raw = self.text[self.first[line] : self.first[line + 1]].tobytes().rstrip(b"\r\n")
        why = f"has {found} column{'s' * (found != 1)}, expected {columns}"
        self.faults[line] = Fault(
            line, "", _show(raw), why if found >= 0 else "has a quote that is not closed"
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
        good_lines = self.found == len(self.parser.schema.columns)
        self._check(column, (status == EMPTY) & good_lines, NO_LABEL)
        if values.dtype == np.int64:
            self._check(column, (status == 0) & (values != 0) & (values != 1), NOT_A_LABEL)
        return values.astype(np.float32)

    def _codes(self, one: CategoryField, key: tuple[int, _Kind]) -> BagColumn:
        values, status = self.values[key]
        if one.kind in ("hour", "weekday"):
            state = status.copy()
            codes = _times(one.kind, values, state)
            self._check(key[0], state == NOT_A_TIME, NOT_A_TIME)
        else:
            codes = values.view(np.uint64)
            if one.dtype == "uint32" and key[1].name == "int":
                self._check(key[0], codes >= 2**32, TOO_LARGE)
        return BagColumn(codes.astype(one.dtype))

    def _list(self, one: CategoryField, column: int, kind: _Kind) -> BagColumn:
        begin = self.begin[column]
        end = self.end[column]
        text = self.text
        lengths = np.empty(self.lines, np.int32)
        separator = np.uint8(ord(one.separator))
        tokenize.count_items(text, begin, end, separator, lengths)
        first, last = np.empty((2, int(lengths.sum(dtype=np.int64))), np.int32)
        tokenize.split_items(text, begin, end, separator, first, last)
        line_of = np.repeat(np.arange(self.lines), lengths)
        weights = None
        stop = last
        if one.weight_separator:
            stop = np.empty(last.size, np.int32)
            tokenize.find_last(text, first, last, np.uint8(ord(one.weight_separator)), stop)
            weights = self._weights(column, np.minimum(stop + np.int32(1), last), last, line_of)
        codes, status = self.parser.fields(text, first, stop, kind)
        for i in np.flatnonzero(status > EMPTY).tolist():
            raw = text[first[i] : stop[i]].tobytes()
            self._fault(int(line_of[i]), column, raw, int(status[i]), kind.digits)
        return BagColumn(codes.view(np.uint64).astype(one.dtype), lengths, weights)

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
            here = slice(columns[0], columns[-1] + 1)
            out[:, here] = (
                _squash(numbers[here]) if squashed else numbers[here].astype(np.float32)
            ).T
        return out, missing

    def _missing(self, name: str, keep: NDArray[np.bool_] | None) -> int:
        column = next(one for one in self.parser.schema.categories if one.name == name).column
        at = self.parser.schema.columns.index(column)
        empty = self.begin[at] == self.end[at]
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
