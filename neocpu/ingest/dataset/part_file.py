"""Where is a column of a dataset while its length is unknown? In a part file of its own.

A `PartFolder` is a hidden folder beside the destination; those of writers that were killed are
removed by the next writer of the same path on the same host.
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import ArrayLike

from neocpu.core.types import Elements
from neocpu.tables.storage.leftovers import part_of, remove_parts


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
