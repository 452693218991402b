"""How do bytes get to a file without HDF5? Space first, then all of them.

HDF5 lays out a file of any size in little memory: it writes only metadata and small arrays, into
pages of which most are missing (`SparseFile`).
"""

import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIGNATURE = b"\x89HDF\r\n\x1a\n"  # HDF5's first bytes


def starts_like_hdf5(path: str | Path) -> bool:
    """Whether a file has HDF5's first bytes. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(8) == SIGNATURE


def allocate(handle: int, first: int, count: int) -> None:
    """Claim disk space for a part of a file, so that writing it cannot fail on a full disk.

    Raises OSError where there is none; does nothing where the file system cannot tell.
    """
    try:
        if count > 0:
            os.posix_fallocate(handle, first, count)
    except OSError as error:
        # such a file system tells of a full disk when it is written
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
    except AttributeError:  # not on this system
        pass


def read_into(handle: int, view: memoryview, first: int) -> int:
    """Fill a buffer from byte `first` of a file on; returns how many bytes there were.

    Raises OSError.
    """
    count = 0
    # one call reads two gibibytes at most
    while count < len(view) and (length := os.preadv(handle, [view[count:]], first + count)):
        count += length
    return count


def put_bytes(handle: int, data: Any, first: int) -> None:
    """Write all of a buffer at a place of a file. Raises OSError."""
    rest = memoryview(data).cast("B")
    while rest:
        # a call may write less than it was given
        written = os.pwrite(handle, rest, first)
        rest = rest[written:]
        first += written


PAGE = 1 << 16  # bytes


# seek, write, readinto and truncate are what h5py's driver for file objects calls
class SparseFile(io.RawIOBase):
    """A file object in memory in which bytes that were never written take no room and are zero."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0
        self._pages: dict[int, bytearray] = {}
        self._at = 0

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """(first byte, bytes) of all that was written, ascending."""
        for number in sorted(self._pages):
            first = number * PAGE
            if first < self.size:
                yield first, bytes(self._pages[number][: self.size - first])

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place; returns it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = start + offset
        return self._at

    def write(self, data: Any) -> int:
        """Write all of a buffer."""
        view = memoryview(data).cast("B")
        for page, start, count, done in self._spans(len(view)):
            content = self._pages.setdefault(page, bytearray(PAGE))
            content[start : start + count] = view[done : done + count]
        self.size = max(self.size, self._at)
        return len(view)

    def readinto(self, buffer: Any) -> int:
        """Read as much as there is; returns how much."""
        view = memoryview(buffer).cast("B")
        length = min(len(view), max(self.size - self._at, 0))
        for page, start, count, done in self._spans(length):
            # a page that was never written reads as zeros
            content = self._pages.get(page)
            view[done : done + count] = content[start : start + count] if content else bytes(count)
        return length

    def truncate(self, size: int | None = None) -> int:
        """Change the size; what is beyond it is lost."""
        self.size = self._at if size is None else size
        for number in [number for number in self._pages if number * PAGE >= self.size]:
            del self._pages[number]
        return self.size

    def _spans(self, length: int) -> Iterator[tuple[int, int, int, int]]:
        """(page, first byte in it, bytes, bytes before) of the next bytes; moves on over them."""
        done = 0
        while done < length:
            page, start = divmod(self._at, PAGE)
            count = min(length - done, PAGE - start)
            yield page, start, count, done
            done += count
            self._at += count
