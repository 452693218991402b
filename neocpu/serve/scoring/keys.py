"""Which key columns of raw logs stand beside the predictions? Those that the user names."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


def raw_frame(paths: Sequence[str | Path], schema: Schema, keys: Sequence[str]) -> pl.DataFrame:
    """The columns of raw files that a schema reads or that are `keys`, as far as they are there.

    Of files without any key, all columns: the first may name the rows. Text files give text. Raises
    DataError for a converted file, and for one that cannot be read.
    """
    wanted = {*schema.used, *keys}
    parts = []
    for path in map(Path, paths):
        frame = _frame(path, schema)
        with _readable(path):
            names = frame.collect_schema().names()
            chosen = [name for name in names if not keys or name in wanted]
            parts.append(frame.select(chosen).collect())
    with _readable(Path(paths[0])):
        return pl.concat(parts, how="vertical_relaxed")


def _columns(path: Path, names: list[str], schema: Schema) -> pl.DataFrame:
    frame = _frame(path, schema)
    with _readable(path):
        missing = [name for name in names if name not in frame.collect_schema()]
        if missing:
            raise DataError(
                f"{path}: has no column {', '.join(map(repr, missing))} to stand beside the "
                f"predictions; it has {', '.join(frame.collect_schema())}"
            )
        return frame.select(names).collect()


def _frame(path: Path, schema: Schema) -> pl.LazyFrame:
    """All columns of a raw file. Raises DataError for a converted one."""
    kind = kind_of(path)
    if kind == "hdf5":
        raise DataError(f"{path}: a converted file has no key columns; name the raw log")
    with _readable(path):
        return scan(path) if kind == "parquet" else _text(path, schema)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what polars raises within into a DataError."""
    try:
        yield
    except DataError:
        raise
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
