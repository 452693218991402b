"""How do NumPy's .npy and .npz become rows? Each array gives columns, read some rows at a time.

    X_int[n, 13], X_cat[n, 26], y[n]    X_int_0 ... X_int_12, X_cat_0 ... X_cat_25, y

Arrays of an archive that have another length than the longest are no columns (`counts` in the
archives of facebookresearch/dlrm). Python objects are refused: reading them runs what is in them.
"""

import contextlib
import math
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import polars as pl
from numpy.lib import format as npy
from numpy.typing import NDArray

from neocpu.core.errors import DataError
from neocpu.core.types import Elements
from neocpu.ingest.formats.files.frame_file import FrameRows, Hint, readable
from neocpu.ingest.formats.files.streams import zip_members

ROWS = 1 << 14  # read at a time
PIECE = 1 << 24  # bytes
MOST_COLUMNS = 1 << 16
MOST_HELD = 1 << 30  # bytes of a matrix that lies by columns, which is held in memory
CODES = re.compile(r"(^|_)(cat|categorical|sparse|ids?)(_|$)", re.IGNORECASE)


class StoredArray:
    """An array in a file: its form, and its rows in order.

    Raises DataError for one that is no column or matrix of values.
    """

    def __init__(self, path: Path, name: str, stream: BinaryIO) -> None:
        self.name = name
        self._where = f"{path}, array {name!r}" if name else str(path)
        self._stream = stream
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        self.shape, self._by_columns, self.dtype = read(stream)
        if self.dtype.hasobject:
            raise DataError(
                f"{self._where}: holds Python objects, and reading them runs what is in them; save "
                "it with a type of numbers or texts"
            )
        if len(self.shape) not in (0, 1, 2) or any(size < 0 for size in self.shape):
            raise DataError(f"{self._where}: of shape {self.shape}, but rows are 1-D or 2-D arrays")
        if len(self.shape) == 2 and self.shape[1] > MOST_COLUMNS:
            raise DataError(f"{self._where}: {self.shape[1]:,} columns; at most {MOST_COLUMNS:,}")
        if other := [dtype for dtype in self.columns.values() if dtype.kind not in "biufUSM"]:
            raise DataError(f"{self._where}: values of type {other[0]} are no numbers or texts")
        self._held: Elements | None = None

    @property
    def rows(self) -> int:
        """How many rows it has; 0 of a single value."""
        return self.shape[0] if self.shape else 0

    @property
    def columns(self) -> dict[str, np.dtype]:
        """Names and types of its columns."""
        if self.dtype.names:
            fields = cast(Mapping[str, tuple[np.dtype, int]], self.dtype.fields)
            return {field: fields[field][0] for field in self.dtype.names}
        if len(self.shape) < 2:
            return {self.name or "c0": self.dtype}
        prefix = f"{self.name}_" if self.name else "c"
        return {f"{prefix}{number}": self.dtype for number in range(self.shape[1])}

    def read(self, first: int, count: int) -> dict[str, Elements]:
        """The columns of rows [first, first + count), which follow those read before."""
        block = self._rows(first, count)
        if self.dtype.names:
            return {field: block[field] for field in self.dtype.names}
        block = block.reshape(count, -1)
        return {name: block[:, number] for number, name in enumerate(self.columns)}

    def _rows(self, first: int, count: int) -> Elements:
        if self._by_columns and len(self.shape) == 2:
            if self._held is None:
                if self.dtype.itemsize * math.prod(self.shape) > MOST_HELD:
                    raise DataError(
                        f"{self._where}: lies by columns (Fortran order), and is too large to be "
                        "turned; save it with numpy.ascontiguousarray"
                    )
                self._held = self._take(math.prod(self.shape)).reshape(self.shape[::-1]).T
            return self._held[first : first + count]
        return self._take(count * math.prod(self.shape[1:]))

    def _take(self, count: int) -> Elements:
        """The next elements of the stream."""
        size = count * self.dtype.itemsize
        content = bytearray()
        # piece by piece: a damaged shape may ask for more bytes than there is memory
        while missing := size - len(content):
            if not (chunk := self._stream.read(min(missing, PIECE))):
                break
            content += chunk
        if len(content) < size:
            raise DataError(f"{self._where}: truncated; save it again")
        return np.frombuffer(content, self.dtype, count)


class ArrayFile:
    """A file of arrays: a `FrameFile`. Raises DataError for one that is damaged, or has no rows."""

    def __init__(self, path: Path, wanted: Collection[str] = ()) -> None:
        self.path = path
        with self._arrays() as arrays:
            self.rows: int | None = max((array.rows for array in arrays), default=0)
            columns = {
                name: dtype
                for array in arrays
                if array.rows == self.rows
                for name, dtype in array.columns.items()
            }
            codes = [
                name
                for array in arrays
                if array.dtype.kind in "iu" and CODES.search(array.name)
                for name in array.columns
            ]
        empty = {name: _series(name, np.zeros(0, dtype)) for name, dtype in columns.items()}
        self.types: Mapping[str, pl.DataType] = {name: each.dtype for name, each in empty.items()}
        self.hints: Mapping[str, Hint] = dict.fromkeys(codes, Hint("int"))
        self.offered = list(self.types)

    @contextlib.contextmanager
    def _arrays(self) -> Iterator[list[StoredArray]]:
        """The arrays of the file, open."""
        with contextlib.ExitStack() as stack, readable(self.path, "damaged or truncated"):
            if not zipfile.is_zipfile(self.path):
                stream = stack.enter_context(open(self.path, "rb"))
                yield [StoredArray(self.path, "", stream)]
                return
            archive = stack.enter_context(zipfile.ZipFile(self.path))
            arrays = []
            for name in zip_members(archive):
                member = cast(BinaryIO, stack.enter_context(archive.open(name)))
                arrays.append(StoredArray(self.path, name.removesuffix(".npy"), member))
            yield arrays

    def batches(self, columns: Mapping[str, str]) -> Iterator[FrameRows]:
        """The rows of columns: their names in the frames -> in the file."""
        rows = self.rows or 0
        size = self.path.stat().st_size
        with self._arrays() as arrays:
            used = [array for array in arrays if {*array.columns} & {*columns.values()}]
            for first in range(0, rows, ROWS):
                count = min(ROWS, rows - first)
                values: dict[str, Elements] = {}
                for array in used:
                    values |= array.read(first, count)
                frame = pl.DataFrame(
                    [_series(alias, values[name]) for alias, name in columns.items()]
                )
                yield FrameRows(frame, size * (first + count) // rows)


def _series(name: str, values: NDArray[np.generic]) -> pl.Series:
    """Values as a column: bytes are texts, and types that polars lacks are those that it has."""
    if values.dtype.kind == "S":
        return pl.Series(
            name, [text.decode("utf-8", "replace") for text in values.tolist()], pl.String
        )
    if values.dtype.kind == "U":
        # half of a surrogate pair is no text that polars could hold
        texts = [text.encode("utf-8", "replace").decode() for text in values.tolist()]
        return pl.Series(name, texts, pl.String)
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    return pl.Series(name, np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="))))
