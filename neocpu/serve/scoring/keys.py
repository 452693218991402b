"""Which key columns of raw logs stand beside the predictions? Those that the user names."""

from collections.abc import Collection, Sequence
from pathlib import Path

import polars as pl

from neocpu.core.errors import DataError
from neocpu.ingest.formats.files.folders import all_files, folder_keys
from neocpu.ingest.formats.files.kinds import kind_of
from neocpu.ingest.formats.frames import POLARS_ERRORS
from neocpu.ingest.formats.schema import Schema
from neocpu.ingest.formats.sources import frames_of, open_source
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
    wanted = list(dict.fromkeys(names))
    parts = [_columns(path, wanted, values, unlabelled) for path in all_files(paths)]
    # Relaxed: a column of numbers in one Parquet file may be one of floats in the next.
    return pl.concat(parts, how="vertical_relaxed")


def _columns(path: Path, names: list[str], values: ValueMap, unlabelled: bool) -> pl.DataFrame:
    if kind_of(path) == "hdf5":
        raise DataError(f"{path}: a converted file has no key columns; name the raw log")
    schema = schema_without_labels(path, values, unlabelled)
    try:
        file = frames_of(path, schema)
        if file is None:
            return _texts(path, names, schema)
        keys = _keys(path, names, [*file.types])
        own = {name: name for name in _own(names, keys, [*file.types])}
        frame = pl.concat(rows.frame for rows in file.batches(own))
        return frame.with_columns(**keys).select(names)
    except POLARS_ERRORS as error:
        raise DataError(f"{path}: its key columns cannot be read: {one_line(error)}") from error


def _keys(path: Path, names: Sequence[str], columns: Sequence[str]) -> dict[str, pl.Expr]:
    """Those of the names that folders give a value, not columns; DataError for what neither has."""
    keys = {key: value for key, value in folder_keys(path).items() if key not in columns}
    if missing := [name for name in names if name not in (*columns, *keys)]:
        raise DataError(
            f"{path}: has no column {', '.join(map(repr, missing))} to stand beside the "
            f"predictions; it has {', '.join(columns)}"
        )
    return {name: pl.lit(keys[name]) for name in names if name in keys}


def _own(names: Sequence[str], keys: Collection[str], columns: Sequence[str]) -> list[str]:
    """The columns to be read of a file; at least one, which tells how many rows there are."""
    return [name for name in names if name not in keys] or [*columns[:1]]


def _texts(path: Path, names: list[str], schema: Schema) -> pl.DataFrame:
    """Columns of a text file, cut as the rows are that are scored; an empty field is null."""
    source = open_source(path, schema)
    columns = source.parser.schema.columns
    keys = _keys(path, names, columns)
    texts: dict[str, list[str | None]] = {name: [] for name in _own(names, keys, columns)}
    for block in source.blocks:
        for fields in block.parts:
            content = fields.text.tobytes()
            for name, column in texts.items():
                number = columns.index(name)
                borders = zip(fields.begin[number].tolist(), fields.end[number].tolist())
                # a key such as 007 must leave as it came
                column += [
                    content[begin:end].decode("utf-8", "replace") or None for begin, end in borders
                ]
    frame = pl.DataFrame(texts, schema=dict.fromkeys(texts, pl.String))
    if schema.quote:
        # fields come without their quotes, but a quote inside one is still doubled
        single = pl.all().str.replace_all(2 * schema.quote, schema.quote, literal=True)
        frame = frame.with_columns(single)
    return frame.with_columns(**keys).select(names)
