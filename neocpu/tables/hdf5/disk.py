"""How do bytes get to a file without HDF5? Space first, then all of them."""

import errno
import os
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
