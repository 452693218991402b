"""What does a schema take from the train data? Edges of buckets, means and deviations, and classes.

They are fitted once, on the sources of a conversion, and written into the schema's tree, which the
dataset stores: other splits, and whoever scores with the model, use the same ones. At most 262,144
rows are used: of more, every second, every fourth … row. Sums are exactly rounded, so the numbers
depend neither on the machine nor on how the sources are read. Classes are all texts of a label, of
all rows, sorted.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from neocpu.core.errors import ConfigError, DataError
from neocpu.core.types import Bools, Doubles, Tree
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.formats.field_values import FieldKind
from neocpu.ingest.formats.fields import Fields, shown
from neocpu.ingest.formats.schema import MOST_CLASSES, CategoryField, DenseField, Schema
from neocpu.ingest.formats.schema_numbers import fill, with_numbers
from neocpu.ingest.formats.sources import open_source
from neocpu.ingest.formats.table import table_schema
from neocpu.ingest.formats.text import TextParser

MOST_ROWS = 1 << 18


class _Sample:
    """Every 2^k-th row of numbers f64[columns], so that at most `MOST_ROWS` are kept."""

    def __init__(self) -> None:
        self._stride = 1
        self._rows = 0
        self._kept = 0
        self._parts: list[tuple[Doubles, Bools]] = []

    def add(self, numbers: Doubles, present: Bools) -> None:
        """Take rows: numbers f64[n, columns], and which of them are not empty."""
        # Every 2^k-th row of the log, however it is cut into blocks: the numbers depend on the log
        # alone.
        chosen = np.arange(-self._rows % self._stride, numbers.shape[0], self._stride)
        self._rows += numbers.shape[0]
        self._parts.append((numbers[chosen], present[chosen]))
        self._kept += chosen.size
        while self._kept > MOST_ROWS:
            numbers, present = self.rows()
            # Thinning keeps row 0, so what stays are the rows that the longer stride would have
            # chosen.
            self._parts = [(numbers[::2], present[::2])]
            self._kept = (self._kept + 1) // 2
            self._stride *= 2

    @property
    def empty(self) -> bool:
        """Whether there were no rows."""
        return not self._rows

    def rows(self) -> tuple[Doubles, Bools]:
        """The rows that are kept."""
        numbers, present = zip(*self._parts)
        return np.concatenate(numbers), np.concatenate(present)


class _Classes:
    """The texts of a column, by their codes."""

    def __init__(self, column: str) -> None:
        self.column = column
        self._texts: dict[int, str] = {}

    def add(self, path: Path, parser: TextParser, fields: Fields) -> None:
        """Take the texts of some rows. Raises DataError where they are too many, or no UTF-8."""
        position = parser.position[self.column]
        begin = fields.begin[position]
        end = parser.fields.blanked(fields.text, begin, fields.end[position])
        codes, _ = parser.fields.parse(fields.text, begin, end, FieldKind("text"))
        codes, rows = np.unique(codes[begin < end], return_index=True)
        rows = np.flatnonzero(begin < end)[rows]
        quote = parser.schema.quote.encode()
        for code, row in zip(codes.tolist(), rows.tolist()):
            if code in self._texts:
                continue
            raw = fields.text[begin[row] : end[row]].tobytes()
            try:
                self._texts[code] = (raw.replace(2 * quote, quote) if quote else raw).decode()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, column {self.column}: {shown(raw)!r} is no UTF-8; name the encoding "
                    "in the schema"
                ) from error
        if len(self._texts) > MOST_CLASSES:
            raise DataError(
                f"{path}, column {self.column}: its texts are more than {MOST_CLASSES:,}, too many "
                "for classes; choose another label"
            )

    def sorted(self) -> list[str]:
        """All texts. Raises DataError where there is none."""
        if not self._texts:
            raise DataError(f"column {self.column}: all fields of this label are empty")
        return sorted(self._texts.values())


def fit(schema: Schema, paths: Sequence[Path]) -> Schema:
    """A schema with the numbers and classes that it lacks, taken from these sources.

    Raises DataError for a source that cannot be read, or lacks a column.
    """
    assert schema.tree is not None
    standard = [
        each for each in schema.dense if each.transform == "standard" and each.fitted is None
    ]
    buckets = [each for each in schema.categories if each.kind == "bucket" and each.edges is None]
    # Without its transform, which is what is looked for.
    numbers = [replace(each, transform="none") for each in standard]
    # Buckets cut numbers, so the column of a category is read as a dense one here.
    numbers += [
        DenseField(
            each.column,
            each.name,
            "float",
            invalid="missing" if each.column in schema.lenient else "error",
        )
        for each in buckets
    ]
    labels = [each for each in schema.labels if each.kind == "class" and not each.classes]
    classes = [_Classes(label.column) for label in labels]
    fields = replace(
        schema,
        label=None,
        more_labels=(),
        categories=tuple(CategoryField(label.column, label.column) for label in labels),
        dense=tuple(numbers),
        session="",
    )
    sample = _Sample()
    for path in paths:
        source = open_source(path, fields)
        for block in source.blocks:
            for part in block.parts:
                sample.add(*source.parser.numbers(part))
                for texts in classes:
                    texts.add(path, source.parser, part)
    if sample.empty:
        return schema
    values, present = sample.rows()
    columns = [values[present[:, i], i] for i in range(len(numbers))]
    dense: dict[str, list[Doubles]] = {}
    for each, column in zip(standard, columns):
        # the numbers of a vector have one mean
        dense.setdefault(each.column, []).append(column)
    fitted: dict[str, dict[str, list[Any]]] = {
        "dense": {
            column: list(mean_and_deviation(np.concatenate(parts)))
            for column, parts in dense.items()
        },
        "category": {
            each.column: quantiles(column, each.buckets)
            for each, column in zip(buckets, columns[len(standard) :])
        },
        "label": {texts.column: texts.sorted() for texts in classes},
    }
    return table_schema(with_numbers(schema.tree, fitted))


def fitted_tree(tree: Tree, path: Path) -> Tree:
    """A schema's tree with the numbers that a dataset was made with, where it lacks some.

    Raises ConfigError if the dataset does not have them.
    """
    stored = Dataset(path).schema
    if stored is None:
        raise ConfigError(f"{path}: holds no schema; convert the train file again")
    whole = fill(tree, stored)
    schema = table_schema(whole)
    if schema.unfitted:
        raise ConfigError(f"{path}: does not have the numbers that the schema needs")
    return whole


def mean_and_deviation(values: Doubles) -> tuple[float, float]:
    """Mean and standard deviation of values f64[n]; (0, 1) of none, deviation 1 of equal ones."""
    if not values.size:
        return 0.0, 1.0
    # fsum rounds once: NumPy's sum depends on how the machine's vector units add.
    mean = math.fsum(values.tolist()) / values.size
    squares = (values - mean) ** 2
    deviation = math.sqrt(math.fsum(squares.tolist()) / values.size)
    return mean, deviation or 1.0


def quantiles(values: Doubles, buckets: int) -> list[float]:
    """Ascending edges that cut values f64[n] into at most so many buckets of about equal size.

    A bucket begins with its edge; equal values are in one bucket, so there may be fewer.
    """
    ordered = np.sort(values)
    places = np.arange(1, buckets) * ordered.size // buckets
    edges = np.unique(ordered[places]) if ordered.size else ordered
    # An edge at the least value would leave the bucket below it empty.
    return edges[edges > ordered[:1]].tolist() if ordered.size else []
