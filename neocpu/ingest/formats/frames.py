"""How do the rows of a data frame become samples? As the same rows of a file do.

Every value becomes the text that it has in a file: null and NaN are empty, true and false are
words, a date is 2014-10-21 and a time 2014-10-21T05:00:00.000000, and a whole number is written
without a point, whatever type holds it (see `Schema.points`). The texts of a column are laid side
by side, without delimiters, for the parser that reads files. So codes, numbers and faults are those
of the same rows in a file, whatever characters a text has.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import polars as pl

from neocpu.core.errors import DataError, told_as
from neocpu.core.forks import POLARS, check_fork
from neocpu.core.targets import whole_file
from neocpu.core.types import Bytes, Elements
from neocpu.ingest.formats.field_values import FALSE_WORDS, TRUE_WORDS, FieldKind
from neocpu.ingest.formats.fields import I32, Fields, Items, Parsed, joined
from neocpu.ingest.formats.mixed_types import series_of_several_types
from neocpu.ingest.formats.nested import leaf_of, with_fields
from neocpu.ingest.formats.schema import TIME_KINDS, Schema, as_called
from neocpu.ingest.formats.text import TextParser
from neocpu.tables.hdf5.walk import one_line

ROWS = 1 << 16  # parsed at a time, so that memory stays bounded
TEXT_BYTES = 1 << 30  # of the rows parsed at a time; borders of fields are int32
FRAME = "these data"  # what messages call a frame
POLARS_ERRORS = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    *(OSError, RuntimeError, ValueError, ArithmeticError, LookupError, MemoryError, TypeError),
)


def is_paths(data: object) -> TypeGuard[str | Path | Sequence[str | Path]]:
    """Are data given as files: a path, or a list of paths?"""
    paths = data if isinstance(data, list | tuple) else [data]
    return bool(paths) and all(isinstance(path, str | Path) for path in paths)


def as_frame(data: Any) -> pl.DataFrame:
    """Data as a polars frame: rows in columns that have names.

    data : a polars frame (a lazy one is collected), a pandas frame, an Arrow table or anything with
    the Arrow C stream interface, or a mapping of column names to arrays or lists.

    Raises DataError for anything else, and for columns of different lengths; EnvironmentProblem
    where polars hangs, after a fork.
    """
    check_fork(POLARS)
    return with_fields(_frame_of(data))


def _frame_of(data: Any) -> pl.DataFrame:
    try:
        if isinstance(data, pl.DataFrame):
            return data
        if isinstance(data, pl.LazyFrame):
            return data.collect()
        if isinstance(data, Mapping):
            return _columns(data)
        if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"):
            return _pandas(data)
        if hasattr(data, "__arrow_c_stream__"):
            return pl.DataFrame(data)
    except POLARS_ERRORS as error:
        raise DataError(f"these data are no table: {one_line(error)[:300]}") from error
    except ImportError as error:
        raise DataError(
            f"data of pandas need one more package ({error}): pip install pyarrow"
        ) from error
    raise DataError(
        f"{type(data).__name__} is no table; give a polars or pandas frame, an Arrow table or a "
        "dict of arrays"
    )


def _pandas(data: Any) -> pl.DataFrame:
    """A frame of pandas, whose columns of objects may hold anything."""
    try:
        return pl.from_pandas(data.rename(columns=str))
    except POLARS_ERRORS:
        if not data.columns.is_unique:
            raise
        return _columns(dict(data.items()))


def _columns(columns: Mapping[object, object]) -> pl.DataFrame:
    return pl.DataFrame({str(name): _series(values) for name, values in columns.items()})


def _series(values: Any) -> pl.Series:
    """One column; a matrix is a column of lists."""
    if isinstance(values, pl.Series):
        return values
    if isinstance(values, np.ma.MaskedArray):
        values = values.tolist()  # None where it is masked
    is_arrow = hasattr(values, "__arrow_c_stream__") or hasattr(values, "__arrow_c_array__")
    if is_arrow and str(getattr(values, "dtype", "")) != "object":
        return pl.Series("", values)
    array = values if isinstance(values, list) else np.asarray(values)
    if isinstance(array, np.ndarray) and array.dtype.kind != "O":
        return pl.Series("", array)
    items = list(array)
    # polars goes by the values that come first, and makes numbers of truths behind a NaN
    mixed = series_of_several_types(items) if len({*map(type, items)} - {type(None)}) > 1 else None
    return pl.Series("", items) if mixed is None else mixed


def write_frame(frame: pl.DataFrame, target: Path) -> None:
    """Write a frame as the name of its file says, .parquet or else CSV, whole or not at all.

    Raises DataError where it cannot be written.
    """
    with told_as(DataError, target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as draft:
            if target.suffix == ".parquet":
                frame.write_parquet(draft)
            else:
                frame.write_csv(draft)


def parse_frame(frame: pl.DataFrame, schema: Schema) -> Parsed:
    """The rows of a frame as columns, and the faults of rows that cannot be used.

    schema : its columns are found by name, others are ignored. Labels whose column is missing are
    left out.

    Raises DataError naming all columns that are missing or of a kind that no field has.
    """
    frame = frame.rename(dict(zip(frame.columns, as_called(frame.columns, schema.used))))
    reader = FrameReader(schema.without_labels(frame.columns), dict(frame.schema), FRAME)
    parts = [
        reader.parser.parse_fields(reader.fields(part))
        for part in _slices(frame.select(reader.columns))
    ]
    first = 0
    faults = []
    for part in parts:
        faults += [fault._replace(line=fault.line + first) for fault in part.faults]
        first += part.lines
    return replace(joined(parts), faults=faults)


def _slices(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The rows of a frame, so many at a time that the borders of their texts are int32."""
    size = max(int(frame.estimated_size()), 1)
    rows = min(ROWS, max(1, TEXT_BYTES * frame.height // size // 4))
    for first in range(0, max(frame.height, 1), rows):
        yield frame.slice(first, rows)


class FrameReader:
    """Makes fields of frames with the same columns.

    columns : the columns that it reads. parser : of its fields. Raises DataError naming all columns
    that are missing or of a kind that no field has; `where` says of what.
    """

    def __init__(self, schema: Schema, types: Mapping[str, pl.DataType], where: str) -> None:
        subject = "they have" if where == FRAME else "the file has"
        self._where = where
        self._structs = _structs(schema, types)
        inner = {name for names in self._structs.values() for name in names[1:]}
        self.columns = [name for name in schema.used if name not in inner]
        leaves = {name: leaf_of(types[name]) for name in self.columns if name in types}
        if faults := _column_faults(schema, types, self._structs, subject):
            raise DataError(f"{where}: {faults}")
        self._points = schema.points
        self._known = schema.known
        numbers = frozenset(
            field.column
            for field in schema.categories
            if field.kind == "hex" and leaves[field.column].is_numeric()
        )
        categories = tuple(
            # Dates of a frame are written out as ISO texts, whatever form the schema names.
            replace(field, time="iso")
            if leaves[field.column].is_temporal() and field.kind in TIME_KINDS
            else field
            for field in schema.categories
        )
        self._words = schema.words
        schema = replace(schema, columns=tuple(schema.used), categories=categories)
        # Fields are cut already, so a delimiter or a quote inside one is text like any other.
        self.parser = TextParser(replace(schema, delimiter="", quote=""), numbers)

    def fields(self, frame: pl.DataFrame) -> Fields:
        """The fields of the rows of a frame.

        Raises DataError for values that polars cannot write as text.
        """
        try:
            return self._fields(frame)
        except POLARS_ERRORS as error:
            raise DataError(f"{self._where}: {one_line(error)[:300]}") from error

    def _fields(self, frame: pl.DataFrame) -> Fields:
        names = self.parser.schema.columns
        begin, end = np.zeros((2, len(names), frame.height), np.int32)
        items = {}
        texts = _Texts()
        for column, series in enumerate(self._series(frame)):
            if isinstance(series.dtype, pl.List | pl.Array):
                items[column] = self._items(series, texts)
                # an empty list is an empty field, which the card counts
                end[column] = items[column].lengths > 0
            else:
                if series.dtype == pl.Boolean and not self._words:
                    # Schemas of version 1 knew no true and false: booleans were numbers.
                    series = series.cast(pl.Int8)
                begin[column], end[column] = texts.add(self._text_of(series))
        return Fields(texts.join(), begin, end, [], items)

    def _series(self, frame: pl.DataFrame) -> Iterator[pl.Series]:
        """The columns of the parser; lists of structs are two of them."""
        parts = {}
        for name, (value, weight) in self._structs.items():
            lists = frame.get_column(name)
            for alias, inner in ((name, value), (weight, weight)):
                parts[alias] = lists.list.eval(pl.element().struct.field(inner)).alias(alias)
        for name in self.parser.schema.columns:
            yield parts[name] if name in parts else frame.get_column(name)

    def _items(self, series: pl.Series, texts: "_Texts") -> Items:
        """The items of a column of lists; a null is an empty list, in a list an empty item."""
        # Arrays of fixed length lack the functions of lists.
        if isinstance(series.dtype, pl.Array):
            series = series.cast(pl.List(series.dtype.inner))
        lengths = series.list.len().fill_null(0).to_numpy().astype(np.int32)
        # `explode` makes a null of an empty list, which would be an item.
        values = series.filter(series.list.len() > 0).explode()
        begin, end = texts.add(self._text_of(values))
        return Items(lengths, begin, end, end, end)

    def _text_of(self, series: pl.Series) -> pl.Series:
        """Values as the text that they have in a file; null is empty."""
        dtype = series.dtype
        if dtype.is_float() or dtype.is_decimal():
            return self._number_texts(series)
        if isinstance(dtype, pl.Datetime):
            digits = {"ms": 3, "us": 6, "ns": 9}[dtype.time_unit]
            form = f"%Y-%m-%dT%H:%M:%S%.{digits}f" + "%z" * bool(dtype.time_zone)
            return series.dt.strftime(form)
        if dtype == pl.Boolean:
            return self._words_of(series)
        return series if dtype == pl.Binary else series.cast(pl.String)

    def _number_texts(self, series: pl.Series) -> pl.Series:
        """Numbers that need not be whole; those that are have no point, where the schema says so.

        Of values that a model knows, the form that it knows is taken.
        """
        known = self._known.get(series.name)
        if series.dtype.is_float():
            series = series.fill_nan(None)
        pointed = series.cast(pl.String)
        if known is None and series.name in self._points:
            return pointed
        if series.dtype.is_decimal():
            shortest = pointed.str.replace(r"\.?0+$", "")
            texts = shortest.zip_with(pointed.str.contains(".", literal=True), pointed)
        else:
            # a number that is not an integer stays as it is, for the parser to refuse
            whole = series.cast(pl.Int64, strict=False)
            same = (whole.cast(series.dtype) == series).fill_null(False)
            texts = whole.cast(pl.String).zip_with(same, pointed)
        if known is None:
            return texts
        return texts.zip_with(self._are_in(known, texts), pointed)

    def _words_of(self, series: pl.Series) -> pl.Series:
        """true and false; where a model only knows another spelling, as True of pandas, that."""
        words = series.cast(pl.String)
        known = self._known.get(series.name, np.zeros(0, np.uint64))
        for no, yes in zip(FALSE_WORDS, TRUE_WORDS):
            pair = pl.Series([no.decode(), yes.decode()])
            if self._are_in(known, pair).any():
                return words.replace(["false", "true"], pair)
        return words

    def _are_in(self, known: Elements, texts: pl.Series) -> pl.Series:
        """Which texts have one of these codes, bool[n]."""
        laid = _Texts()
        begin, end = laid.add(texts)
        codes, _ = self.parser.fields.parse(laid.join(), begin, end, FieldKind("text"))
        return pl.Series(np.isin(codes, known))


def _structs(schema: Schema, types: Mapping[str, pl.DataType]) -> dict[str, tuple[str, str]]:
    """Columns of lists of structs -> the fields that hold value and weight."""
    structs = {}
    for field in schema.categories:
        leaf = leaf_of(types.get(field.column, pl.Null()))
        if isinstance(leaf, pl.Struct) and field.weights and field.weights not in types:
            names = [each.name for each in leaf.fields]
            if len(names) == 2 and field.weights in names:
                value = names[1 - names.index(field.weights)]
                structs[field.column] = (value, field.weights)
    return structs


def _column_faults(
    schema: Schema,
    types: Mapping[str, pl.DataType],
    structs: Mapping[str, tuple[str, str]],
    subject: str,
) -> str:
    """All columns of a schema that are missing, or of a kind that no field has; or ""."""
    inner = [weight for _, weight in structs.values()]
    faults = []
    lists = schema.lists
    for name in schema.used:
        if name in types and name not in structs:
            fault = _fault_of(types[name], name in lists)
            text = not isinstance(types[name], pl.List | pl.Array)
            if text and not fault and not lists.get(name, "none"):
                fault = "holds no lists, and lists as text need a separator"
            if fault:
                faults.append(f"column {name!r} {fault}")
    if missing := schema.column_faults([*types, *inner], subject):
        faults.append(missing)
    return "; ".join(faults)


class _Texts:
    """Texts laid side by side."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, series: pl.Series) -> tuple[I32, I32]:
        """Append texts or bytes [n] (null: empty); returns their borders i32[n]."""
        if series.dtype == pl.Binary:  # UTF-8 or not: in a file, a text is its bytes
            lengths = series.bin.size().fill_null(0).to_numpy().astype(np.int64)
            self._parts.append(b"".join(series.drop_nulls().to_list()))
        else:
            lengths = series.str.len_bytes().fill_null(0).to_numpy()
            self._parts.append((series.str.join("").item() or "").encode())
        end = self._size + np.cumsum(lengths, dtype=np.int64)
        begin = end - lengths
        self._size += len(self._parts[-1])
        return begin.astype(np.int32), end.astype(np.int32)

    def join(self) -> Bytes:
        """All texts, u8[n], never empty."""
        # A bytearray, as kernels are compiled for arrays that can be written.
        return np.frombuffer(bytearray(b"".join([*self._parts, b"\n"])), np.uint8)


def _fault_of(dtype: pl.DataType, is_list: bool) -> str:
    """Why a column of this type is no field, or ""."""
    if isinstance(dtype, pl.Struct):
        names = ", ".join(field.name for field in dtype.fields)
        return f"is a struct ({names}); make its fields columns of their own first"
    if isinstance(dtype, pl.List | pl.Array):
        if not is_list:
            return (
                "holds lists; write list = true in its [[category]] entry, or in a [[dense]] one "
                "width, the numbers in each"
            )
        inner = leaf_of(dtype)
        if isinstance(inner, pl.Struct):
            names = ", ".join(field.name for field in inner.fields)
            return (
                f"holds lists of structs ({names}); of two fields, weights = NAME says which one "
                "is the weight"
            )
        return f"holds lists of {inner}; their items must be values" if inner.is_nested() else ""
    if isinstance(dtype, pl.Object | pl.Duration):
        return f"is of type {dtype}, which has no text; cast it first"
    if dtype.is_nested():
        return f"is of type {dtype}; make lists of its keys and of its values first"
    return ""
