"""Which column of a log is what? A `Schema` names labels, dense numbers and categories."""

import csv
import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from neocpu.core.errors import DataError
from neocpu.core.types import Elements, Tree

TRANSFORMS = ("log1p", "none")  # of --dense-transform
DENSE_TRANSFORMS = (*TRANSFORMS, "standard")
LABEL_KINDS = ("click", "number", "class")
MOST_CLASSES = 1000  # of a label
DENSE_KINDS = ("int", "float")
INVALID = ("error", "missing")  # what a text is that is no number
TIME_KINDS = ("hour", "weekday", "day", "month", "date")
CATEGORY_KINDS = ("hex", "int", "text", *TIME_KINDS, "bucket")
HOURS = "YYMMDDHH"  # the time of Avazu's log
TIMES = (HOURS, "unix", "unix_ms", "iso")  # besides formats of strptime
SHOWN = 60  # column names in a message
TYPED_NAME = re.compile(r"(.+):(token|float|token_seq|float_seq)")  # in a header of RecBole
MISSING_INTEGER = 1 << 63  # the code of an integer that is missing; -2^63 is refused


@dataclass(frozen=True)
class LabelField:
    """A label's column.

    kind : click (0 or 1), number (any) or class (a text). threshold : numbers from it on are 1,
    others 0. positive : texts that are 1, all others are 0. classes : texts, each of which is its
    number here, and any other a fault; (): not fitted yet.
    """

    column: str
    kind: str = "click"
    name: str = ""
    threshold: float | None = None
    positive: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether its column is read as text."""
        return bool(self.positive) or self.kind == "class"


@dataclass(frozen=True)
class DenseField:
    """A number. An empty field is 0, before log1p and after standardisation.

    kind : int or float. transform : log1p (of max(x, 0), as in the DLRM reference), none, or
    standard: x minus the mean, divided by the standard deviation, which are `fitted` (None: not
    yet). invalid : what a text is that is no such number, an error or missing. width : numbers in
    each field of a column of vectors, of which this is number `item` (0: the column has one each);
    separator : between them; "": they are lists of a frame. clip : numbers are moved into this
    range before anything else (None: they are taken as they are); an empty field stays empty.
    """

    column: str
    name: str
    kind: str = "int"
    transform: str = "log1p"
    fitted: tuple[float, float] | None = None
    invalid: str = "error"
    width: int = 0
    item: int = 0
    separator: str = ""
    clip: tuple[float, float] | None = None

    @property
    def description(self) -> str:
        """The transform as a dataset notes it; equal where the same numbers are stored."""
        clip = "" if self.clip is None else f" of {self.clip[0]!r} to {self.clip[1]!r}"
        if self.fitted is None:
            return f"{self.transform}{clip}"
        return f"{self.transform} {self.fitted[0]!r} {self.fitted[1]!r}{clip}"


@dataclass(frozen=True)
class CategoryField:
    """A category, or a list of them.

    kind : hex (the value, at most `digits` digits), int (the value), text (FNV-1a 64 of the bytes),
    bucket (of a number: 1 + how many `edges` are at most the number), or of a time: hour (plus 1),
    weekday (Monday 1 to Sunday 7), day (of the month), month, date (as the number 20141021).
    time : one of `TIMES` or a format of strptime. separator, many : the field holds a list, as text
    with this separator, or as lists of a frame. weight_separator : items are code, separator,
    weight (missing: 1). weights : the column that holds a list's weights, or the field of its
    structs. missing : the code of an empty field or item; an empty list is an empty bag. edges :
    None: not fitted yet.
    """

    column: str
    name: str
    kind: str = "text"
    digits: int = 16
    separator: str = ""
    weight_separator: str = ""
    many: bool = False
    weights: str = ""
    time: str = HOURS
    missing: int = 0
    buckets: int = 0
    edges: tuple[float, ...] | None = None

    @property
    def is_list(self) -> bool:
        """Whether a row may have any number of values."""
        return bool(self.separator) or self.many

    @property
    def weighted(self) -> bool:
        """Whether every item has a weight."""
        return bool(self.weight_separator or self.weights)

    @property
    def dtype(self) -> str:
        """Type of the stored codes."""
        narrow = self.kind in (*TIME_KINDS, "bucket") or (self.kind == "hex" and self.digits <= 8)
        return "uint32" if narrow else "uint64"

    @property
    def description(self) -> str:
        """The kind as a dataset notes it; equal where the same values have the same codes."""
        if self.kind == "int" and self.missing:
            return "int64"  # "int": missing is code 0
        if self.kind == "bucket" and self.edges is not None:
            edges = hashlib.sha256(repr(self.edges).encode()).hexdigest()
            return f"bucket {edges[:12]}"
        return self.kind


@dataclass(frozen=True)
class Schema:
    """A log's form.

    columns : names in file order; empty: the header (first line) says them. missing : texts that
    stand for an empty field. words : true and false are numbers, and clicks may be 1.0 or -1.
    more_labels : besides `label`. session : the category whose value names a sample's session.
    decimal : the point of numbers that are no integers. encoding : of the text, by Python's name;
    "": UTF-8, or UTF-16 with a byte order mark. comment : what the lines ahead of the header begin
    with; "": there are none.
    whole : a whole number has no point in a text, though its column is one of floats. known : codes
    that a model knows of columns of texts, by which a number gets its point or none. tree : the
    schema as it is written into datasets and checkpoints.
    """

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
    missing: tuple[str, ...] = ()
    words: bool = False
    more_labels: tuple[LabelField, ...] = ()
    session: str = ""
    decimal: str = "."
    encoding: str = ""
    comment: str = ""
    whole: bool = False
    known: Mapping[str, Elements] = field(default_factory=dict)
    tree: Tree | None = None

    @property
    def labels(self) -> tuple[LabelField, ...]:
        """All labels."""
        return () if self.label is None else (self.label, *self.more_labels)

    @property
    def used(self) -> list[str]:
        """Columns that are read, labels first, each once."""
        labels = [label.column for label in self.labels]
        dense = [number.column for number in self.dense]
        categories = [category.column for category in self.categories]
        weights = [category.weights for category in self.categories if category.weights]
        return list(dict.fromkeys([*labels, *dense, *categories, *weights]))

    @property
    def lists(self) -> dict[str, str]:
        """Columns of lists and of vectors -> what separates their items; "": lists of a frame."""
        columns = {number.column: number.separator for number in self.dense if number.width}
        for category in self.categories:
            if category.is_list:
                columns[category.column] = category.separator
                if category.weights:
                    columns[category.weights] = category.separator
        return columns

    @property
    def integers(self) -> set[str]:
        """Columns whose text is an integer."""
        columns = {number.column for number in self.dense if number.kind == "int"}
        for label in self.labels:
            if label.kind == "click" and not label.positive:
                columns.add(label.column)
        for category in self.categories:
            whole = category.kind in TIME_KINDS and category.time in TIMES[:3]
            if category.kind == "int" or whole:
                columns.add(category.column)
        return columns

    @property
    def lenient(self) -> set[str]:
        """Columns in which a text that is no number is missing, for their buckets too."""
        return {number.column for number in self.dense if number.invalid == "missing"}

    @property
    def points(self) -> set[str]:
        """Columns in whose texts a whole number of a float keeps its point: "4.0", not "4"."""
        if self.whole:
            return set()
        texts = {category.column for category in self.categories if category.kind == "text"}
        texts |= {label.column for label in self.labels if label.is_text}
        words = {category.column for category in self.categories if category.kind == "hex"}
        return texts - words - self.integers

    @property
    def unfitted(self) -> bool:
        """Whether means, deviations, edges or classes are still to be taken from data."""
        if any(label.kind == "class" and not label.classes for label in self.labels):
            return True
        return any(
            number.transform == "standard" and number.fitted is None for number in self.dense
        ) or any(
            category.kind == "bucket" and category.edges is None for category in self.categories
        )

    def without_labels(self, columns: Iterable[str] | None = None) -> "Schema":
        """The schema without its labels, or without those that have none of these columns.

        It is that of files without the columns of these labels.
        """
        kept = [label for label in self.labels if columns is not None and label.column in columns]
        label = kept[0] if kept else None
        schema = replace(self, label=label, more_labels=tuple(kept[1:]))
        gone = {label.column for label in self.labels} - set(schema.used)
        return replace(schema, columns=tuple(name for name in self.columns if name not in gone))

    def with_header(self, line: str, path: Path, elsewhere: Collection[str] = ()) -> "Schema":
        """The schema with the columns of a header line.

        elsewhere : columns that need not be among them. Raises DataError if another one that the
        schema uses is missing, or the line is no header.
        """
        try:
            names = self.split_line(line)
        except (csv.Error, TypeError, ValueError) as error:
            raise DataError(f"{path}: its first line does not name columns: {error}") from error
        if not set(self.used) <= {*names, *elsewhere}:
            names = as_called(plain_names(names), self.used)
        if faults := self.column_faults([*names, *set(elsewhere).difference(names)]):
            raise DataError(f"{path}: {faults}")
        return replace(self, columns=tuple(names))

    def split_line(self, line: str) -> list[str]:
        """The fields of a line, without blanks around them.

        Raises csv.Error, TypeError or ValueError where its quotes are no quotes.
        """
        if len(self.delimiter) > 1:  # csv knows one character only
            return [field.strip() for field in line.split(self.delimiter)]
        rows = csv.reader(
            [line],
            delimiter=self.delimiter,
            quotechar=self.quote or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
        )
        return [field.strip() for field in next(rows, [])]

    def column_faults(self, names: list[str], subject: str = "the file has") -> str:
        """All columns that are missing among these names, or there twice, and what there is."""
        missing = [name for name in self.used if name not in names]
        repeated = [name for name in self.used if names.count(name) > 1]
        faults = [
            f"column{'s' * (len(columns) > 1)} {', '.join(map(repr, columns))} "
            f"{'is' if len(columns) == 1 else 'are'} {problem}"
            for columns, problem in ((missing, "missing"), (repeated, "there more than once"))
            if columns
        ]
        if not faults:
            return ""
        listed = ", ".join(map(repr, names[:SHOWN]))
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        faults.append(f"{subject} {listed[:2000]}{more}{'. ' + self.hint if self.hint else ''}")
        return "; ".join(faults)


def as_called(names: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """The names of columns as a schema calls them, which wants some.

    A header's names are read without the blanks around them, those of Parquet and of frames with
    them: where no name is the one that is wanted, the only one that differs in blanks is.
    """
    called = [*names]
    lacking = [name for name in wanted if name not in names]
    others = set(names).difference(wanted) if lacking else ()
    for name in lacking:  # mostly none
        alike = [other for other in others if other.strip() == name.strip()]
        if len(alike) == 1 and names.count(alike[0]) == 1:
            called[names.index(alike[0])] = name
    return called


def plain_names(names: Sequence[str]) -> list[str]:
    """The names of a header as columns are called.

    RecBole's have their types behind them (`user_id:token`), and the index of a pandas frame has
    no name: it is called as pandas calls it, `Unnamed: 0`.
    """
    matches = [TYPED_NAME.fullmatch(name) for name in names]
    if names and all(matches):
        return [match[1] for match in matches if match]
    return [name or f"Unnamed: {number}" for number, name in enumerate(names)]
