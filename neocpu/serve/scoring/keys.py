"""Which key columns of raw logs stand beside the predictions? Those that the user names."""

import io
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from neocpu.core.errors import DataError
from neocpu.ingest.formats.files.folders import all_files, folder_keys
from neocpu.ingest.formats.files.kinds import kind_of
from neocpu.ingest.formats.files.streams import is_plain
from neocpu.ingest.formats.frames import POLARS_ERRORS
from neocpu.ingest.formats.readers import UNIT, text_blocks
from neocpu.ingest.formats.schema import Schema, plain_names
from neocpu.ingest.formats.sources import frames_of
from neocpu.tables.hdf5.walk import one_line

RESERVED = ("row", "prediction")


def key_columns(
    paths: Sequence[str | Path], names: Sequence[str], schema: Schema, labelled: bool = True
) -> pl.DataFrame:
    """Columns of all rows of raw logs, in order; text files give text.

    schema : says how text is cut into columns, and what they are called where no header does.
    labelled : do the logs have its label?

    Raises DataError for a column that a file does not have, and for a converted file.
    """
    if not labelled:
        schema = schema.without_labels()
    clash = [name for name in names if name in RESERVED]
    if clash:
        raise DataError(f"column {clash[0]!r} cannot stand beside the predictions: {RESERVED}")
    wanted = list(dict.fromkeys(names))
    parts = [_columns(path, wanted, schema) for path in all_files(paths)]
    # Relaxed: a column of numbers in one Parquet file may be one of floats in the next.
    return pl.concat(parts, how="vertical_relaxed")


def _columns(path: Path, names: list[str], schema: Schema) -> pl.DataFrame:
    if kind_of(path) == "hdf5":
        raise DataError(f"{path}: a converted file has no key columns; name the raw log")
    try:
        file = frames_of(path, schema)
        text = _text(path, schema) if file is None else pl.LazyFrame()
        columns = [*(text.collect_schema() if file is None else file.types)]
        keys = {key: value for key, value in folder_keys(path).items() if key not in columns}
        missing = [name for name in names if name not in (*columns, *keys)]
        if missing:
            raise DataError(
                f"{path}: has no column {', '.join(map(repr, missing))} to stand beside the "
                f"predictions; it has {', '.join(columns)}"
            )
        own = {name: name for name in names if name in columns}
        if file is None:
            frame = text.select([*own]).collect()
        else:
            frame = pl.concat(rows.frame for rows in file.batches(own))
        constants = [pl.lit(value).alias(name) for name, value in keys.items()]
        return frame.with_columns(constants).select(names)
    except POLARS_ERRORS as error:
        raise DataError(f"{path}: its key columns cannot be read: {one_line(error)}") from error


def _text(path: Path, schema: Schema) -> pl.LazyFrame:
    """A text file, all columns as text."""
    named = schema.columns and not schema.header
    source: Path | io.BytesIO = path
    separator = schema.delimiter
    several = len(separator.encode()) > 1  # bytes, where polars takes one only
    if several or schema.encoding or not is_plain(path):
        blocks = text_blocks(path, encoding=schema.encoding)
        text = b"".join(block.text.tobytes() for block in blocks)
        if several:
            text = text.replace(separator.encode(), UNIT.encode())
            separator = UNIT
        source = io.BytesIO(text)
    frame = pl.scan_csv(
        source,
        separator=separator,
        quote_char=schema.quote or None,
        has_header=schema.header,
        # a key such as 007 must leave as it came
        infer_schema=False,
        new_columns=list(schema.columns) if named else None,
    )
    names = list(frame.collect_schema())
    return frame.rename(dict(zip(names, plain_names(names))))
