"""Which key columns of raw logs stand beside the predictions? Those that the user names."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from neocpu.core.errors import DataError
from neocpu.ingest.formats.files.folders import all_files, folder_keys
from neocpu.ingest.formats.files.kinds import kind_of
from neocpu.ingest.formats.frames import POLARS_ERRORS
from neocpu.ingest.formats.schema import Schema, as_called
from neocpu.ingest.formats.sources import frames_of, open_source
from neocpu.serve.scoring.rows import schema_without_labels
from neocpu.serve.scoring.values import ValueMap
from neocpu.tables.hdf5.walk import one_line

RESERVED = ("row", "prediction", "reason")
Choose = Callable[[list[str]], list[str]]  # of the columns that a file has


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

    def columns_of(path: Path) -> pl.DataFrame:
        def all_wanted(columns: list[str]) -> list[str]:
            called = as_called(columns, wanted)
            if missing := [name for name in wanted if name not in called]:
                raise DataError(
                    f"{path}: has no column {', '.join(map(repr, missing))}; it has "
                    f"{', '.join(columns)}"
                )
            return [columns[called.index(name)] for name in wanted]

        read = _read(path, schema_without_labels(path, values, unlabelled), all_wanted)
        return read.rename(dict(zip(read.columns, wanted)))

    # Relaxed: a column of numbers in one Parquet file may be one of floats in the next.
    return pl.concat(map(columns_of, all_files(paths)), how="vertical_relaxed")


def raw_frame(paths: Sequence[str | Path], schema: Schema, keys: Sequence[str]) -> pl.DataFrame:
    """The columns of raw files that a schema reads or that are `keys`, as far as they are there.

    Of files without any key, all columns: the first may name the rows. Text files give text. Raises
    DataError for a converted file, and for one that cannot be read.
    """
    wanted = [*schema.used, *keys]

    def those_wanted(columns: list[str]) -> list[str]:
        called = as_called(columns, wanted)
        return [name for name, as_wanted in zip(columns, called) if not keys or as_wanted in wanted]

    parts = [_read(path, schema, those_wanted) for path in all_files(paths)]
    try:
        return pl.concat(parts, how="vertical_relaxed")
    except POLARS_ERRORS as error:
        raise DataError(f"{paths[0]}: the files differ: {one_line(error)}") from error


def _read(path: Path, schema: Schema, choose: Choose) -> pl.DataFrame:
    """Chosen columns of a raw file. Raises DataError for a converted one."""
    if kind_of(path) == "hdf5":
        raise DataError(f"{path}: a converted file has no key columns; name the raw log")
    try:
        file = frames_of(path, schema)
        if file is None:
            return _texts(path, schema, choose)
        keys = _keys(path, file.types)
        names = choose([*file.types, *keys])
        own = {name: name for name in _own(names, file.types)}
        # also of a file without rows
        empty = pl.DataFrame(schema={name: file.types[name] for name in own})
        frame = pl.concat([empty, *(rows.frame for rows in file.batches(own))])
        return frame.with_columns(**keys).select(names)
    except POLARS_ERRORS as error:
        raise DataError(f"{path}: its key columns cannot be read: {one_line(error)}") from error


def _keys(path: Path, columns: Collection[str]) -> dict[str, pl.Expr]:
    """The values that folders give, but those that are columns of the file too."""
    keys = folder_keys(path)
    return {name: pl.lit(value) for name, value in keys.items() if name not in columns}


def _own(names: Sequence[str], columns: Collection[str]) -> list[str]:
    """The columns to be read of a file; at least one, which tells how many rows there are."""
    return [name for name in names if name in columns] or [*columns][:1]


def _texts(path: Path, schema: Schema, choose: Choose) -> pl.DataFrame:
    """Chosen columns of a text file, cut as the rows are that are scored; an empty field is null.

    The columns that the model reads need not be there.
    """
    cut = replace(schema, label=None, more_labels=(), dense=(), categories=(), session="")
    source = open_source(path, cut)
    columns = source.parser.schema.columns
    keys = _keys(path, columns)
    names = choose([*columns, *keys])
    texts: dict[str, list[str | None]] = {name: [] for name in _own(names, columns)}
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
