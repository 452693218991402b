"""Which key columns of raw logs stand beside the predictions? Those that the user names."""

import io
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from neocpu.core.errors import DataError
from neocpu.ingest.formats.frames import POLARS_ERRORS
from neocpu.ingest.formats.parquet import scan
from neocpu.ingest.formats.readers import UNIT, kind_of, text_blocks
from neocpu.ingest.formats.schema import Schema
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
    parts = [_columns(Path(path), list(dict.fromkeys(names)), schema) for path in paths]
    # Relaxed: a column of numbers in one Parquet file may be one of floats in the next.
    return pl.concat(parts, how="vertical_relaxed")


def _columns(path: Path, names: list[str], schema: Schema) -> pl.DataFrame:
    kind = kind_of(path)
    if kind == "hdf5":
        raise DataError(f"{path}: a converted file has no key columns; name the raw log")
    try:
        frame = scan(path) if kind == "parquet" else _text(path, schema)
        missing = [name for name in names if name not in frame.collect_schema()]
        if missing:
            raise DataError(
                f"{path}: has no column {', '.join(map(repr, missing))} to stand beside the "
                f"predictions; it has {', '.join(frame.collect_schema())}"
            )
        return frame.select(names).collect()
    except POLARS_ERRORS as error:
        raise DataError(f"{path}: its key columns cannot be read: {one_line(error)}") from error


def _text(path: Path, schema: Schema) -> pl.LazyFrame:
    """A text file, all columns as text."""
    named = schema.columns and not schema.header
    source: Path | io.BytesIO = path
    separator = schema.delimiter
    if len(separator.encode()) > 1:
        # polars takes a separator of one byte only.
        text = b"".join(block.text.tobytes() for block in text_blocks(path))
        source = io.BytesIO(text.replace(separator.encode(), UNIT.encode()))
        separator = UNIT
    return pl.scan_csv(
        source,
        separator=separator,
        quote_char=schema.quote or None,
        has_header=schema.header,
        # a key such as 007 must leave as it came
        infer_schema=False,
        new_columns=list(schema.columns) if named else None,
    )
