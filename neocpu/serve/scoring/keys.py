"""Which key columns of raw logs stand beside the predictions? Those that the user names."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from neocpu.core.errors import DataError
from neocpu.ingest.formats.frames import POLARS_ERRORS
from neocpu.ingest.formats.parquet import scan
from neocpu.ingest.formats.readers import kind_of
from neocpu.ingest.formats.schema import Schema
from neocpu.ingest.formats.sources import open_source
from neocpu.serve.scoring.rows import schema_without_labels
from neocpu.serve.scoring.values import ValueMap
from neocpu.tables.hdf5.walk import one_line

RESERVED = ("row", "prediction", "reason")


def key_columns(
    paths: Sequence[str | Path], names: Sequence[str], values: ValueMap, unlabelled: bool = False
) -> pl.DataFrame:
    """Columns of all rows of raw logs, in order; text files give text.

    values : of the model, whose schema says how text is cut into columns, and what they are called
    where no header does. unlabelled : as of `schema_without_labels`.

    A line with another number of columns has none of these keys. Raises DataError for a column that
    a file does not have, and for a converted file.
    """
    clash = [name for name in names if name in RESERVED]
    if clash:
        raise DataError(f"column {clash[0]!r} cannot stand beside the predictions: {RESERVED}")
    names = list(dict.fromkeys(names))
    parts = [_columns(path, names, values, unlabelled) for path in map(Path, paths)]
    # Relaxed: a column of numbers in one Parquet file may be one of floats in the next.
    return pl.concat(parts, how="vertical_relaxed")


def _columns(path: Path, names: list[str], values: ValueMap, unlabelled: bool) -> pl.DataFrame:
    kind = kind_of(path)
    if kind == "hdf5":
        raise DataError(f"{path}: a converted file has no key columns; name the raw log")
    if kind != "parquet":
        return _texts(path, names, schema_without_labels(path, values, unlabelled))
    try:
        frame = scan(path)
        _check(path, names, list(frame.collect_schema()))
        return frame.select(names).collect()
    except POLARS_ERRORS as error:
        raise DataError(f"{path}: its key columns cannot be read: {one_line(error)}") from error


def _check(path: Path, names: Sequence[str], columns: Sequence[str]) -> None:
    """Raise DataError for names that are no columns."""
    if missing := [name for name in names if name not in columns]:
        raise DataError(
            f"{path}: has no column {', '.join(map(repr, missing))} to stand beside the "
            f"predictions; it has {', '.join(columns)}"
        )


def _texts(path: Path, names: list[str], schema: Schema) -> pl.DataFrame:
    """Columns of a text file, cut as the rows are that are scored; an empty field is null."""
    source = open_source(path, schema)
    columns = source.parser.schema.columns
    _check(path, names, columns)
    texts: dict[str, list[str | None]] = {name: [] for name in names}
    for block in source.blocks:
        for fields in block.parts:
            content = fields.text.tobytes()
            for name in names:
                column = columns.index(name)
                borders = zip(fields.begin[column].tolist(), fields.end[column].tolist())
                # a key such as 007 must leave as it came
                texts[name] += [
                    content[begin:end].decode("utf-8", "replace") or None for begin, end in borders
                ]
    frame = pl.DataFrame(texts, schema=dict.fromkeys(names, pl.String))
    if not schema.quote:
        return frame
    # fields come without their quotes, but a quote inside one is still doubled
    return frame.with_columns(
        pl.all().str.replace_all(2 * schema.quote, schema.quote, literal=True)
    )
