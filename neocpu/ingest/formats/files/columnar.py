"""How are Parquet and Arrow files read in bounded memory? Through polars, some rows at a time."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import polars as pl

from neocpu.core.errors import DataError
from neocpu.ingest.formats.files.columnar_probe import SLAB, scan, trouble
from neocpu.ingest.formats.files.frame_file import ROWS, FrameRows, Hint, readable


class Columnar:
    """A file of columns that polars reads: a `FrameFile`.

    Raises DataError for one that polars does not survive, and what polars raises.
    """

    def __init__(self, path: Path, wanted: Collection[str] = ()) -> None:
        self.path = path
        if why := trouble(path):
            raise DataError(f"{path}: not a readable file: {why}")
        self._frame = scan(path)
        self.types: Mapping[str, pl.DataType] = dict(self._frame.collect_schema())
        self.rows: int | None = int(self._frame.select(pl.len()).collect().item())
        self.hints: Mapping[str, Hint] = {}
        self.offered = list(self.types)

    def batches(self, columns: Mapping[str, str]) -> Iterator[FrameRows]:
        """The rows of columns: their names in the frames -> in the file."""
        size = self.path.stat().st_size
        chosen = [pl.col(name).alias(alias) for alias, name in columns.items()]
        rows = self.rows or 0
        for first in range(0, rows, SLAB):
            with readable(self.path, f"rows from {first + 1}"):
                slab = self._frame.slice(first, SLAB).select(chosen).collect()
            for offset in range(0, slab.height, ROWS):
                part = slab.slice(offset, ROWS)
                yield FrameRows(part, size * (first + offset + part.height) // rows)
