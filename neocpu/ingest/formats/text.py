"""How does a block of lines become columns? One kernel splits it, one parses each kind of field.

A line with any fault is left out completely, and the fault is described by line, column, text and
reason. Whether it stops the run (`--on-error fail` or `skip`) is up to
`neocpu.ingest.dataset.convert`.
"""

import itertools

import numpy as np

from neocpu.core.errors import listed
from neocpu.core.types import Bools, Bytes, Doubles, Elements, Floats, Ints
from neocpu.ingest.dataset_layout import BagColumn
from neocpu.ingest.formats.field_values import (
    EMPTY,
    NO_LABEL,
    NOT_A_CLASS,
    NOT_A_LABEL,
    TOO_LARGE,
    WHY,
    FieldKind,
    FieldParser,
    Vectors,
    category_kind,
    class_numbers,
    dense_kind,
    label_kind,
)
from neocpu.ingest.formats.fields import (
    Fault,
    Fields,
    Items,
    Parsed,
    equal_to,
    join_weights,
    shown,
    split_items,
    split_text,
)
from neocpu.ingest.formats.schema import TIME_KINDS, CategoryField, DenseField, LabelField, Schema
from neocpu.ingest.formats.times import time_codes
from neocpu.kernels.logs import tokenize

CLASSES = 10  # in a message


class TextParser:
    """Parses blocks of lines by a schema whose columns are known.

    integers : columns of categories whose text is an integer whatever the schema says (Parquet
    columns of numbers).
    """

    def __init__(self, schema: Schema, integers: frozenset[str] = frozenset()) -> None:
        self.schema = schema
        self.position = {name: i for i, name in enumerate(schema.columns)}
        self.fields = FieldParser(schema)
        self.vectors = Vectors(schema)
        self.labels = [
            (label, (self.position[label.column], label_kind(label, schema.words)))
            for label in schema.labels
        ]
        self.dense = [
            (number, (self.vectors.position(number), dense_kind(number))) for number in schema.dense
        ]
        kinds = [
            (
                category,
                (self.position[category.column], category_kind(category, integers, schema.lenient)),
            )
            for category in schema.categories
        ]
        self.single = [(category, key) for category, key in kinds if not category.is_list]
        self.lists = [(category, *key) for category, key in kinds if category.is_list]
        keys = [key for _, key in [*self.labels, *self.dense, *self.single]]
        # A column that is used twice in one way is parsed once.
        self._kinds = dict.fromkeys(keys)  # (column, kind), each once
        self.runs = self._neighbours()

    def _neighbours(self) -> list[tuple[int, int, FieldKind]]:
        """Runs [first, last) of columns of one kind, ascending."""
        runs: list[tuple[int, int, FieldKind]] = []
        # One call of a kernel parses all neighbours of one kind: calls cost more than short
        # columns.
        for column, kind in sorted(self._kinds):
            if runs and runs[-1][1] == column and runs[-1][2] == kind:
                runs[-1] = (runs[-1][0], column + 1, kind)
            else:
                runs.append((column, column + 1, kind))
        return runs

    def parse(self, text: Bytes) -> Parsed:
        """Columns of whole lines, uint8[n] ending with a newline."""
        return self.parse_fields(split_text(self.schema, text))

    def parse_fields(self, fields: Fields) -> Parsed:
        """Columns of the fields of a block, however they were found."""
        return _Block(self, fields).parse()

    def numbers(self, fields: Fields) -> tuple[Doubles, Bools]:
        """Dense columns before any transform, f64[n, Nd], and which of them are not empty.

        Rows with a fault are left out.
        """
        return _Block(self, fields).numbers()


class _Block:
    """One block in the parser: its fields and values, and the first fault of every line."""

    def __init__(self, parser: TextParser, fields: Fields) -> None:
        self.parser = parser
        self.text = fields.text
        fields = parser.vectors.split(fields)
        self.begin = fields.begin
        self.items = fields.items
        self.lines = fields.begin.shape[1]
        end = parser.fields.blanked(fields.text, fields.begin.reshape(-1), fields.end.reshape(-1))
        self.end = end.reshape(fields.end.shape)
        self.faults = {fault.line: fault for fault in fields.faults}
        self.whole = np.ones(self.lines, bool)  # lines that have all their fields
        # Lines with another number of columns have empty fields, which would be told again as
        # missing.
        self.whole[list(self.faults)] = False
        self.values: dict[tuple[int, FieldKind], tuple[Elements, Bytes]] = {}
        self.invalid: dict[tuple[int, FieldKind], Bools] = {}
        for first, last, kind in parser.runs:
            self._parse_run(first, last, kind)

    def _parse_run(self, first: int, last: int, kind: FieldKind) -> None:
        """Parse neighbouring columns [first, last) of one kind."""
        begin = self.begin[first:last].reshape(-1)
        end = self.end[first:last].reshape(-1)
        values, status = self.parser.fields.parse(self.text, begin, end, kind)
        shape = (last - first, self.lines)
        columns = range(first, last)
        if kind.lenient:
            invalid = status > EMPTY
            values[invalid] = 0
            status[invalid] = EMPTY
            self.invalid |= {(i, kind): row for i, row in zip(columns, invalid.reshape(shape))}
        for i in np.flatnonzero(status > EMPTY).tolist():
            raw = self.text[begin[i] : end[i]].tobytes()
            # Fields lie column by column, so a flat number is column * lines + line.
            self._fault(i % self.lines, first + i // self.lines, raw, int(status[i]), kind)
        pairs = zip(values.reshape(shape), status.reshape(shape))
        self.values |= {(column, kind): pair for column, pair in zip(columns, pairs)}

    def parse(self) -> Parsed:
        """The columns of the good lines."""
        parser = self.parser
        labels = {label.name: self._label(label, *key) for label, key in parser.labels}
        bags = {
            category.name: self._list(category, column, kind)
            for category, column, kind in parser.lists
        }
        codes = {category.name: self._codes(category, key) for category, key in parser.single}
        keep = self._good()
        dense, missing_dense = self._dense(keep)
        features = {
            category.name: _kept((bags if category.is_list else codes)[category.name], keep)
            for category in parser.schema.categories
        }
        if keep is not None:
            labels = {name: values[keep] for name, values in labels.items()}
        names = list(labels)
        return Parsed(
            labels=labels[names[0]] if names else None,
            dense=dense,
            features=features,
            missing_dense=missing_dense,
            missing={
                category.name: self._missing(category.column, keep)
                for category in parser.schema.categories
            },
            lines=self.lines,
            faults=[self.faults[line] for line in sorted(self.faults)],
            more_labels={name: labels[name] for name in names[1:]},
            invalid={
                number.name: _count(self.invalid[key], keep)
                for number, key in parser.dense
                if key[1].lenient
            },
        )

    def _good(self) -> Bools | None:
        """Which lines have no fault; None: all."""
        if not self.faults:
            return None
        keep = np.ones(self.lines, bool)
        keep[list(self.faults)] = False
        return keep

    def _fault(self, line: int, column: int, raw: bytes, status: int, kind: FieldKind) -> None:
        """Note a fault, unless the line has one in an earlier column."""
        earlier = self.faults.get(line)
        names = self.parser.vectors.columns
        if earlier is None or (earlier.column and names.index(earlier.column) > column):
            reason = WHY[status].format(digits=kind.digits, form=kind.form)
            self.faults[line] = Fault(line, names[column], shown(raw), reason)

    def _check(self, column: int, bad: Bools, status: int, form: str = "") -> None:
        """Note a fault of a column at each bad line; form : in the words of the status."""
        for line in np.flatnonzero(bad).tolist():
            raw = self.text[self.begin[column, line] : self.end[column, line]].tobytes()
            self._fault(line, column, raw, status, FieldKind("", form=form))

    def _label(self, label: LabelField, column: int, kind: FieldKind) -> Floats:
        """Labels f32[lines]; the faults of those that are none are noted."""
        values, status = self.values[column, kind]
        self._check(column, (status == EMPTY) & self.whole, NO_LABEL)
        if label.positive:
            begin = self.begin[column]
            end = self.end[column]
            every = np.arange(self.lines)
            # Any other text is a 0: a positive word does not make all the others faults.
            chosen = np.zeros(self.lines, np.float32)
            for positive in label.positive:
                word = positive.encode("utf-8", "replace")
                chosen[equal_to(self.text, begin, end, word, every)] = 1.0
            return chosen
        if label.kind == "class":
            numbers, known = class_numbers(values, label.classes)
            unknown = (status != EMPTY) & ~known
            self._check(column, unknown, NOT_A_CLASS, listed(label.classes, CLASSES))
            return numbers
        # Compared in fp64, before a label is rounded to fp32.
        if label.threshold is not None:
            return (values >= label.threshold).astype(np.float32)
        if kind.name == "int":
            self._check(column, (status == 0) & (values != 0) & (values != 1), NOT_A_LABEL)
        with np.errstate(over="ignore"):  # what is too large is a fault already
            return values.astype(np.float32)

    def _codes(self, category: CategoryField, key: tuple[int, FieldKind]) -> BagColumn:
        values, status = self.values[key]
        if category.kind in TIME_KINDS:
            codes = time_codes(category.kind, values, status)
        elif category.kind == "bucket":
            edges = np.array(category.edges or (), np.float64)
            codes = np.where(status == 0, 1 + np.searchsorted(edges, values, "right"), 0)
        else:
            codes = values.view(np.uint64)
            # Only a Parquet column of numbers gets here: hexadecimal text was held to its digits.
            if category.dtype == "uint32" and key[1].name == "int":
                self._check(key[0], codes >= 2**32, TOO_LARGE)
            if category.missing:
                self._check(key[0], codes == category.missing, TOO_LARGE)
                codes = np.where(status == EMPTY, np.uint64(category.missing), codes)
        return BagColumn(codes.astype(category.dtype))

    def _list(self, category: CategoryField, column: int, kind: FieldKind) -> BagColumn:
        items = self.items.get(column)
        if items is None:
            items = split_items(self.text, self.begin[column], self.end[column], category)
        if category.weights and category.weights in self.parser.position:
            items = self._joined(category, column, items)
        line_of = np.repeat(np.arange(self.lines), items.lengths)
        weights = self._weights(column, items, line_of) if category.weighted else None
        end = self.parser.fields.blanked(self.text, items.begin, items.end)
        values, status = self.parser.fields.parse(self.text, items.begin, end, kind)
        codes = values.view(np.uint64)
        if category.missing:
            status[codes == category.missing] = TOO_LARGE
            codes = np.where(status == EMPTY, np.uint64(category.missing), codes)
        for i in np.flatnonzero(status > EMPTY).tolist():
            raw = self.text[items.begin[i] : end[i]].tobytes()
            self._fault(int(line_of[i]), column, raw, int(status[i]), kind)
        return BagColumn(codes.astype(category.dtype), items.lengths, weights)

    def _joined(self, category: CategoryField, column: int, items: Items) -> Items:
        """Items with the weights that another column holds; their numbers must agree."""
        position = self.parser.position[category.weights]
        weights = self.items.get(position)
        if weights is None:
            weights = split_items(self.text, self.begin[position], self.end[position], category)
        for line in np.flatnonzero(items.lengths != weights.lengths).tolist():
            counts = f"{weights.lengths[line]} weights for {items.lengths[line]} items"
            earlier = self.faults.get(line)
            if earlier is None or earlier.column:
                fault = f"of {self.parser.schema.columns[column]!r}"
                self.faults[line] = Fault(line, category.weights, counts, fault)
        return join_weights(items, weights)

    def _weights(self, column: int, items: Items, line_of: Ints) -> Floats:
        begin = items.weight_begin
        end = self.parser.fields.blanked(self.text, begin, items.weight_end)
        weights, status = self.parser.fields.parse(self.text, begin, end, FieldKind("float"))
        for i in np.flatnonzero(status > EMPTY).tolist():
            raw = self.text[begin[i] : end[i]].tobytes()
            self._fault(int(line_of[i]), column, raw, int(status[i]), FieldKind("float"))
        # An item without a weight counts once, as in a list without any.
        weights[status == EMPTY] = 1.0
        return weights.astype(np.float32)

    def numbers(self) -> tuple[Doubles, Bools]:
        """Dense columns before any transform, f64[n, Nd], and which of them are not empty."""
        dense = [
            (_clipped(number, *self.values[key]), self.values[key][1])
            for number, key in self.parser.dense
        ]
        shape = (self.lines, len(dense))
        numbers = np.array([values for values, _ in dense], np.float64).T.reshape(shape)
        present = np.array([status == 0 for _, status in dense], bool).T.reshape(shape)
        keep = self._good()
        return (numbers, present) if keep is None else (numbers[keep], present[keep])

    def _dense(self, keep: Bools | None) -> tuple[Floats, Ints]:
        """dense float32[lines kept, Nd] and the count of empty fields per column."""
        dense = self.parser.dense
        kept = self.lines if keep is None else int(np.count_nonzero(keep))
        out = np.empty((kept, len(dense)), np.float32)
        missing = np.zeros(len(dense), np.int64)
        numbers = np.empty((len(dense), kept), np.float64)
        for i, (number, key) in enumerate(dense):
            values, status = self.values[key]
            values = _clipped(number, values, status)
            empty = status > 0 if keep is None else status[keep] > 0
            numbers[i] = values if keep is None else values[keep]
            missing[i] = np.count_nonzero(empty)
            if number.fitted is not None:
                # In fp64, and rounded once: the mean of large numbers would lose digits in fp32.
                numbers[i] = np.where(
                    empty, 0.0, (numbers[i] - number.fitted[0]) / number.fitted[1]
                )
        squashed = [number.transform == "log1p" for number, _ in dense]
        # Neighbours go through one call of the kernel.
        for squash, run in itertools.groupby(range(len(dense)), squashed.__getitem__):
            columns = list(run)
            part = slice(columns[0], columns[-1] + 1)
            out[:, part] = (
                _squash(numbers[part]) if squash else numbers[part].astype(np.float32)
            ).T
        return out, missing

    def _missing(self, column: str, keep: Bools | None) -> int:
        """How many fields of a column are empty."""
        position = self.parser.position[column]
        # By borders, not by values: a 0 that was written is not a missing one.
        return _count(self.begin[position] == self.end[position], keep)


def _count(fields: Bools, keep: Bools | None) -> int:
    """How many of these fields are in lines that are kept."""
    return int(np.count_nonzero(fields if keep is None else fields & keep))


def _squash(numbers: Doubles) -> Floats:
    out = np.empty(numbers.size, np.float32)
    tokenize.squash(numbers.reshape(-1), out)
    return out.reshape(numbers.shape)


def _kept(bags: BagColumn, keep: Bools | None) -> BagColumn:
    if keep is None:
        return bags
    if bags.lengths is None:
        return BagColumn(bags.codes[keep])
    items = np.repeat(keep, bags.lengths)
    return BagColumn(
        bags.codes[items], bags.lengths[keep], None if bags.weights is None else bags.weights[items]
    )


def _clipped(number: DenseField, values: Elements, status: Bytes) -> Elements:
    """The numbers of a column, those that are not empty within its range."""
    if number.clip is None:
        return values
    return np.where(status > 0, values, np.clip(values, *number.clip))
