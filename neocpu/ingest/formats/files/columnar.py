"""How are Parquet and Arrow files read in bounded memory? Through polars, some rows at a time."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import polars as pl

from neocpu.core.errors import DataError
from neocpu.ingest.formats.files.columnar_probe import SLAB, scan, trouble
from neocpu.ingest.formats.files.frame_file import ROWS, FrameRows, Hint, readable
from neocpu.ingest.formats.nested import leaf_of, with_fields

AHEAD = 1 << 16  # rows read at once where those of a block follow the block before


class Columnar:
    """A file of columns that polars reads: a `FrameFile`.

    Raises DataError for one that polars does not survive, and what polars raises.
    """

    def __init__(self, path: Path, wanted: Collection[str] = ()) -> None:
        self.path = path
        if why := trouble(path):
            raise DataError(f"{path}: not a readable file: {why}")
        self._frame = scan(path)
        self.types: Mapping[str, pl.DataType] = dict(with_fields(self._frame).collect_schema())
        self.rows: int | None = int(self._frame.select(pl.len()).collect().item())
        self.hints: Mapping[str, Hint] = {}
        self.offered = [
            name for name, dtype in self.types.items() if not isinstance(leaf_of(dtype), pl.Struct)
        ]
        self._ahead = (0, pl.DataFrame())  # rows that were read last, and the number of their first

    def rows_between(self, columns: Mapping[str, str], first: int, last: int) -> FrameRows:
        """Rows [first, last) of columns, as `batches` has them."""
        begin, frame = self._ahead
        if not begin <= first < last <= begin + frame.height:
            # whoever reads on will read on; other rows are read alone
            size = AHEAD if first == begin + frame.height else last - first
            begin, frame = self._ahead = first, self._slab(columns, first, max(size, last - first))
        return FrameRows(frame.slice(first - begin, last - first), 0)

    def _slab(self, columns: Mapping[str, str], first: int, rows: int) -> pl.DataFrame:
        chosen = [pl.col(name).alias(alias) for alias, name in columns.items()]
        with readable(self.path, f"rows from {first + 1}"):
            return with_fields(self._frame.slice(first, rows)).select(chosen).collect()

    def batches(self, columns: Mapping[str, str]) -> Iterator[FrameRows]:
        """The rows of columns: their names in the frames -> in the file."""
        size = self.path.stat().st_size
        rows = self.rows or 0
        for first in range(0, rows, SLAB):
            slab = self._slab(columns, first, SLAB)
            for offset in range(0, slab.height, ROWS):
                part = slab.slice(offset, ROWS)
                yield FrameRows(part, size * (first + offset + part.height) // rows)
