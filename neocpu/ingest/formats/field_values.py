"""What does the text of a field say? A value and a status, by the kind of its column.

Numbers, codes, hours of times and words (true, false) of flat fields: text[begin:end] each. What a
status means in words is in `WHY`.

Each number of a vector is a field, as if it had a column: "0.1 0.2 0.3" is cut into the columns
x.0, x.1, x.2, which stand behind those of the log.
"""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from neocpu.core.types import Bools, Bytes, Doubles, Elements, Floats, Ints
from neocpu.ingest.formats.fields import (
    I32,
    Fault,
    Fields,
    Items,
    blank,
    equal_to,
    shown,
    split_items,
)
from neocpu.ingest.formats.schema import (
    HOURS,
    TIME_KINDS,
    CategoryField,
    DenseField,
    LabelField,
    Schema,
)
from neocpu.ingest.formats.times import hours_of_digits, hours_of_seconds, hours_of_texts
from neocpu.kernels.logs import tokenize

LARGEST = float(np.finfo(np.float32).max)
# Status codes of kernels/logs/tokenize.py
EMPTY = 1
NOT_INTEGER = 4
TOO_LARGE = 5
NOT_NUMBER = 6
INEXACT = 7
# Status codes of the checks in this file
NOT_A_LABEL = 16
NOT_A_TIME = 17
NO_LABEL = 18
NOT_A_CLICK = 19
NOT_A_CLASS = 20
WHY = {
    2: "is not a hexadecimal number",
    3: "has more than {digits} hexadecimal digits",
    NOT_INTEGER: "is not an integer",
    TOO_LARGE: "is too large for its column",
    NOT_NUMBER: "is not a number",
    NOT_A_LABEL: "is not a click label; it must be 0 or 1",
    NOT_A_TIME: "is not a time {form}",
    NO_LABEL: "is empty, but a label is needed",
    NOT_A_CLICK: (
        "is not a click label; it must be 0 or 1, false or true; for others give [label] "
        'positive = [...], threshold = ..., or kind = "number"'
    ),
    NOT_A_CLASS: "is none of the classes {form}",
}
THOUSANDS = re.compile(rb"\.(?=\d{3}(?:\.\d{3})*,\d)")
TRUE_WORDS = (b"true", b"True", b"TRUE")
FALSE_WORDS = (b"false", b"False", b"FALSE")
Text: TypeAlias = tuple[Bytes, I32, I32]  # and borders of fields


class FieldKind(NamedTuple):
    """How the text of a column is read; neighbouring columns of one kind are parsed together.

    name : int, float, hex, text, click (1.0, true: 1; 0.0, -1, false: 0), or time: hours since
    1970, by `form`. lenient : what is no number is an empty field.
    """

    name: str
    digits: int = 0
    form: str = ""
    lenient: bool = False


def _exactly(text: Bytes, begin: I32, end: I32, out: Doubles, status: Bytes) -> None:
    """Parse the numbers that are too long for one exact step: Python rounds them correctly."""
    for i in np.flatnonzero(status == INEXACT):
        out[i] = float(text[begin[i] : end[i]].tobytes())
        status[i] = 0


def _without_thousands(text: Bytes, begin: I32, end: I32) -> Text:
    """Text and flat fields without the points of thousands before a decimal comma: 1.234,50."""
    points = [match.start() for match in THOUSANDS.finditer(text.tobytes())]
    if not points:
        return text, begin, end
    kept = np.ones(text.size, bool)
    kept[points] = False
    moved = np.concatenate([np.zeros(1, np.int32), np.cumsum(kept, dtype=np.int32)])
    return text[kept], moved[begin], moved[end]


def label_kind(label: LabelField, words: bool) -> FieldKind:
    """How a label's column is read."""
    if label.is_text:
        return FieldKind("text")
    if label.kind == "number" or label.threshold is not None:
        return FieldKind("float")
    return FieldKind("click" if words else "int")


def class_numbers(codes: Elements, classes: Sequence[str]) -> tuple[Floats, Bools]:
    """Which of the classes each text is, f32[n], by its code u64[n]; and whether it is one.

    classes : (): not fitted yet, and any text will do.
    """
    if not classes:
        return np.zeros(codes.size, np.float32), np.ones(codes.size, bool)
    texts = [text.encode() for text in classes]
    sizes = np.array([len(text) for text in texts], np.int32)
    end = np.cumsum(sizes, dtype=np.int32)
    known = np.empty(end.size, np.uint64)
    laid = np.frombuffer(bytearray(b"".join(texts)), np.uint8)
    tokenize.hash_text(laid, end - sizes, end, np.uint8(0), known, np.empty(end.size, np.uint8))
    order = np.argsort(known, kind="stable")
    places = np.searchsorted(known, codes, sorter=order)
    places = order[np.minimum(places, order.size - 1)]
    return places.astype(np.float32), known[places] == codes


def dense_kind(number: DenseField) -> FieldKind:
    """How a dense column is read."""
    return FieldKind(number.kind, lenient=number.invalid == "missing")


def category_kind(
    category: CategoryField, integers: frozenset[str], lenient: Collection[str]
) -> FieldKind:
    """How a category's column is read; integers, lenient : as of a parser and its schema."""
    if category.kind in TIME_KINDS:
        return FieldKind("time", form=category.time)
    if category.kind == "bucket":
        return FieldKind("float", lenient=category.column in lenient)
    if category.kind != "hex":
        return FieldKind(category.kind)
    return FieldKind("int") if category.column in integers else FieldKind("hex", category.digits)


class FieldParser:
    """Parses flat fields as a schema reads them: its quotes, its missing texts, its words."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._missing = tuple(text.encode("utf-8", "replace") for text in schema.missing)

    def blanked(self, text: Bytes, begin: I32, end: I32) -> I32:
        """The ends of flat fields, where those that stand for an empty one are empty."""
        return blank(text, begin, end, self._missing) if self._missing else end

    def parse(self, text: Bytes, begin: I32, end: I32, kind: FieldKind) -> tuple[Elements, Bytes]:
        """Values and status of flat fields."""
        status = np.empty(begin.size, np.uint8)
        quote = np.uint8(ord(self._schema.quote or "\0"))
        if kind.name == "time":
            return self._times(text, begin, end, kind.form)
        if kind.name == "click":
            numbers, status = self.parse(text, begin, end, FieldKind("float"))
            # -1 is how some logs of binary labels write a 0.
            clicks = (numbers == 0) | (numbers == 1) | (numbers == -1)
            status[(status > EMPTY) | ~clicks] = NOT_A_CLICK
            return numbers == 1, status
        if kind.name == "float":
            decimals = np.empty(begin.size, np.float64)
            if self._schema.decimal == ",":
                if self._schema.delimiter != ",":  # which may stand behind any number
                    text, begin, end = _without_thousands(text, begin, end)
                # a comma inside such a field can be nothing else
                text = np.where(text == ord(","), np.uint8(ord(".")), text)
            tokenize.parse_decimals(text, begin, end, decimals, status)
            _exactly(text, begin, end, decimals, status)
            # Dense values become fp32, in which more would be infinite.
            status[(status == 0) & (np.abs(decimals) > LARGEST)] = TOO_LARGE
            self._words(text, begin, end, decimals, status)
            return decimals, status
        if kind.name == "int":
            integers = np.empty(begin.size, np.int64)
            tokenize.parse_integers(text, begin, end, integers, status)
            self._words(text, begin, end, integers, status)
            return integers, status
        codes = np.empty(begin.size, np.uint64)
        if kind.name == "hex":
            tokenize.parse_hex(text, begin, end, kind.digits, codes, status)
        else:
            tokenize.hash_text(text, begin, end, quote, codes, status)
        return codes, status

    def _words(self, text: Bytes, begin: I32, end: I32, numbers: Elements, status: Bytes) -> None:
        """Make true and false numbers, where the schema takes them for some."""
        faulty = np.flatnonzero((status == NOT_INTEGER) | (status == NOT_NUMBER))
        # Words are looked for among what is no number: hardly ever anything.
        if not self._schema.words or not faulty.size:
            return
        for words, number in ((TRUE_WORDS, 1), (FALSE_WORDS, 0)):
            for word in words:
                matches = equal_to(text, begin, end, word, faulty)
                numbers[matches] = number
                status[matches] = 0

    def _times(self, text: Bytes, begin: I32, end: I32, form: str) -> tuple[Ints, Bytes]:
        """Hours since 1970 of times in a form."""
        if form == HOURS:
            digits, status = self.parse(text, begin, end, FieldKind("int"))
            return hours_of_digits(digits, status, NOT_A_TIME), status
        if form in ("unix", "unix_ms"):
            numbers, status = self.parse(text, begin, end, FieldKind("float"))
            seconds = numbers / 1000.0 if form == "unix_ms" else numbers
            return hours_of_seconds(seconds, status, NOT_A_TIME), status
        status = (begin == end).astype(np.uint8)  # EMPTY is 1
        # Forms of dates have no kernel: polars reads them, as texts.
        content = text.tobytes()
        texts = [
            content[first:last].decode("utf-8", "replace")
            for first, last in zip(begin.tolist(), end.tolist())
        ]
        return hours_of_texts(texts, form, status, NOT_A_TIME), status


class Vectors:
    """The columns of vectors of a schema whose columns are known.

    columns : names of the log's columns and of those that vectors become.
    """

    def __init__(self, schema: Schema) -> None:
        self.columns = [*schema.columns]
        self._position = {name: i for i, name in enumerate(schema.columns)}
        self._dense = [number for number in schema.dense if number.width and not number.item]
        self._first: dict[str, int] = {}
        for number in self._dense:
            self._first[number.column] = len(self.columns)
            self.columns += [f"{number.column}.{item}" for item in range(number.width)]

    def position(self, number: DenseField) -> int:
        """The column that holds a dense number."""
        if not number.width:
            return self._position[number.column]
        return self._first[number.column] + number.item

    def split(self, fields: Fields) -> Fields:
        """Fields with a column for each number of a vector; those of empty vectors are empty.

        A row whose vector has another number of them has a fault, unless such texts are missing.
        """
        if not self._dense:
            return fields
        begin, end = [fields.begin], [fields.end]
        faults = [*fields.faults]
        for number in self._dense:
            position = self._position[number.column]
            items = fields.items.get(position)
            if items is None:
                cut = CategoryField(number.column, number.name, separator=number.separator)
                items = split_items(fields.text, fields.begin[position], fields.end[position], cut)
            begin.append(_columns(items, items.begin, number.width))
            end.append(_columns(items, items.end, number.width))
            if number.invalid == "error":
                faults += _faults(fields, number, items)
        return fields._replace(begin=np.concatenate(begin), end=np.concatenate(end), faults=faults)


def _columns(items: Items, borders: I32, width: int) -> I32:
    """Borders of items i32[items] as i32[width, rows]; 0 in rows that have others."""
    columns = np.zeros((width, items.lengths.size), np.int32)
    whole = items.lengths == width
    columns[:, whole] = borders[np.repeat(whole, items.lengths)].reshape(-1, width).T
    return columns


def _faults(fields: Fields, number: DenseField, items: Items) -> list[Fault]:
    """Faults of the rows that have another number of items, but none."""
    wrong = (items.lengths != number.width) & (items.lengths > 0)
    starts = np.cumsum(items.lengths) - items.lengths
    faults = []
    for line in np.flatnonzero(wrong).tolist():
        first = starts[line]
        last = first + items.lengths[line] - 1
        raw = fields.text[items.begin[first] : items.end[last]].tobytes()
        reason = f"has {items.lengths[line]} numbers, expected {number.width}"
        faults.append(Fault(line, number.column, shown(raw), reason))
    return faults
