"""How do part files become one HDF5 file? Laid out first, then filled, then sealed.

Uncompressed, HDF5 lays the file out in memory and the columns are copied to their places by plain
writes; compressed, HDF5 writes them, after disk space was claimed for each block. So a full disk is
an error of the system and never one inside HDF5 (`neocpu.tables.hdf5.draft`). While columns are
copied, the CRC-32 of each block of 4,096 entries is taken; the seal covers all the rest.

While its length is unknown a column is in a part file of its own. A `PartFolder` is a hidden folder
beside the destination; those of writers that were killed are removed by the next writer of the same
path on the same host.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from neocpu.core.errors import DataError
from neocpu.core.targets import part_of, remove_parts
from neocpu.core.types import Elements, JsonObject
from neocpu.ingest.dataset_layout import BLOCK, COMPRESSIONS, CRC, crc32_of
from neocpu.tables.hdf5.disk import put_bytes
from neocpu.tables.hdf5.draft import Draft

COPY = 1 << 20  # elements copied at a time from a part file


class PartFile:
    """A column on its way: an append-only file of one dtype, little-endian."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.path = path
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.size = 0
        # `delete` closes it
        self._file: BinaryIO = open(path, "wb", buffering=1 << 16)  # noqa: SIM115

    def append(self, values: ArrayLike) -> None:
        """Add elements. Raises OSError."""
        array = np.ascontiguousarray(values, self.dtype).reshape(-1)
        self._file.write(array.data if array.size else b"")
        self.size += array.size

    def blocks(self, length: int) -> Iterator[Elements]:
        """All elements of the column, `length` at a time. Raises OSError."""
        self._file.close()
        with open(self.path, "rb") as file:
            while (block := np.fromfile(file, self.dtype, length)).size:
                yield block

    def delete(self) -> None:
        """Remove the file; what its buffer still holds may not fit on the disk, and is not
        needed.
        """
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


class PartFolder:
    """The hidden folder of one writer of `target`. Raises OSError if it cannot be made."""

    def __init__(self, target: Path) -> None:
        remove_parts(target)
        self.path = part_of(target)
        self.path.mkdir()
        self._parts: list[PartFile] = []

    def part(self, name: str, dtype: str) -> PartFile:
        """A new part file. Raises OSError."""
        part = PartFile(self.path / name, dtype)
        self._parts.append(part)
        return part

    def delete(self) -> None:
        """Remove the folder and all that is in it."""
        for part in self._parts:
            part.delete()
        shutil.rmtree(self.path, ignore_errors=True)


def compression_options(compress: str) -> dict[str, object]:
    """h5py's keyword arguments for `--compress`. Raises DataError where zstd lacks its plugin."""
    if compress == "gzip":
        return {"compression": "gzip", "compression_opts": 4, "shuffle": True}
    if compress == "zstd":
        try:
            import hdf5plugin
        except ImportError as error:
            raise DataError(
                'zstd inside HDF5 needs a plugin: pip install "neocpu[zstd]", or use gzip'
            ) from error
        return {**hdf5plugin.Zstd(clevel=5), "shuffle": True}
    if compress == "none":
        return {}
    raise DataError(f"unknown compression {compress!r}; choose one of {', '.join(COMPRESSIONS)}")


class _Column(NamedTuple):
    """A column that has a place in the file, but no elements yet."""

    name: str
    part: PartFile
    shape: tuple[int, ...]


class Assembly:
    """A dataset file in the making at `path`; a context manager.

    compress : none, gzip or zstd. Objects get their places in the order of the calls. All methods
    raise OSError on a full disk.
    """

    def __init__(self, path: Path, compress: str) -> None:
        self._path = path
        self._options = compression_options(compress)
        self._draft = Draft(path if self._options else None, order=True)
        self._waiting: list[_Column] = []
        self._checked: list[str] = []

    def set(self, name: str, attributes: JsonObject) -> None:
        """Give an object ("": the root) attributes."""
        self._draft.set(name, attributes)

    def group(self, name: str) -> None:
        """Make an empty group."""
        self._draft.group(name)

    def put(self, name: str, values: ArrayLike) -> None:
        """A small array, which the seal covers."""
        self._draft.put(name, values)

    def column(self, name: str, part: PartFile, shape: tuple[int, ...]) -> None:
        """A column of this shape with the elements of a part file, and its checksums."""
        if not part.size:
            self._draft.put(name, np.empty(shape, part.dtype))
            return
        self._checked.append(name)
        column = _Column(name, part, shape)
        blocks = -(-shape[0] // BLOCK)
        if not self._options:
            self._draft.reserve(name, shape, part.dtype.str)
            self._draft.reserve(name + CRC, (blocks,), "<u4")
            self._waiting.append(column)
            return
        chunks = (min(BLOCK, shape[0]), *shape[1:])
        self._draft.columns(name, shape, part.dtype.str, {**self._options, "chunks": chunks})
        checksums = np.zeros(blocks, "<u4")
        for first, rows in _pieces(column, checksums):
            self._draft.put_rows(name, first, rows)
        part.delete()
        self._draft.put(name + CRC, checksums)

    def finish(self) -> None:
        """Write what is missing, seal the file and sync it."""
        image = self._draft.image()
        if not self._options:
            # The part files are still there: space is taken column by column, not at once.
            image.write(self._path, claim=False)
            handle = os.open(self._path, os.O_RDWR)
            try:
                for column in self._waiting:
                    self._copy(handle, column, image.offsets)
            finally:
                os.close(handle)
        image.seal(self._path, self._checked)

    def _copy(self, handle: int, column: _Column, offsets: Mapping[str, int]) -> None:
        """Copy a column from its part file to its place, and then its checksums."""
        checksums = np.zeros(-(-column.shape[0] // BLOCK), "<u4")
        width = column.part.dtype.itemsize * int(np.prod(column.shape[1:]))
        for first, rows in _pieces(column, checksums):
            put_bytes(handle, rows.reshape(-1).view(np.uint8), offsets[column.name] + first * width)
        put_bytes(handle, checksums.view(np.uint8), offsets[column.name + CRC])
        column.part.delete()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._draft.__exit__(*raised)


def _pieces(
    column: _Column, checksums: NDArray[np.uint32]
) -> Iterator[tuple[int, NDArray[np.generic]]]:
    """(first entry, entries) of a column; fills in the CRC-32 of each block, all 0 so far.

    Entries are a power of two, as a block's are: whole blocks, or where entries are long, as lists
    of many codes, a part of one.
    """
    width = int(np.prod(column.shape[1:]))
    entries = 1 << max(COPY // width, 1).bit_length() - 1
    first = 0
    for flat in column.part.blocks(entries * width):
        rows = flat.reshape(-1, *column.shape[1:])
        for start in range(0, rows.shape[0], BLOCK):
            number = (first + start) // BLOCK
            checksums[number] = crc32_of(rows[start : start + BLOCK], int(checksums[number]))
        yield first, rows
        first += rows.shape[0]
