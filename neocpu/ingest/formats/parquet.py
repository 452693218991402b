"""How is a Parquet file read in bounded memory? Through polars, some thousand rows at a time."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import polars as pl

from neocpu.core.errors import DataError
from neocpu.ingest.formats.frames import POLARS_ERRORS
from neocpu.ingest.formats.parquet_probe import SLAB, trouble
from neocpu.tables.hdf5.walk import one_line

ROWS = 1 << 12  # of a frame that is parsed at a time


def scan(path: Path) -> pl.LazyFrame:
    """A Parquet file that polars can read without the end of this process (`parquet_probe.py`).

    Raises DataError for one that it cannot.
    """
    if why := trouble(path):
        raise DataError(f"{path}: not a readable Parquet file: {why}")
    return pl.scan_parquet(path)


class Parquet:
    """A Parquet file: names and types of its columns, and its rows.

    Raises DataError for a file that polars cannot read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._readable("not a readable Parquet file"):
            self._frame = scan(path)
            self.types = dict(self._frame.collect_schema())

    @contextlib.contextmanager
    def _readable(self, subject: str) -> Iterator[None]:
        """What polars raises within means that the file is damaged."""
        try:
            yield
        except POLARS_ERRORS as error:
            raise DataError(f"{self.path}: {subject}: {one_line(error)[:300]}") from error

    def frames(self, columns: Mapping[str, str]) -> Iterator[tuple[pl.DataFrame, int]]:
        """(some rows, bytes read so far) of columns: their names in the frame -> in the file."""
        size = self.path.stat().st_size
        chosen = [pl.col(name).alias(alias) for alias, name in columns.items()]
        with self._readable("the number of rows"):
            rows = self._frame.select(pl.len()).collect().item()
        for first in range(0, rows, SLAB):
            with self._readable(f"rows from {first + 1}"):
                frame = self._frame.select(chosen).slice(first, SLAB).collect()
            for offset in range(0, frame.height, ROWS):
                part = frame.slice(offset, ROWS)
                yield part, size * (first + offset + part.height) // rows
