"""Is HDF5's own metadata as it was written? Its earliest format has no checksums, and HDF5 can hang
on damaged metadata.

So before HDF5 opens a file of rows, all that is neither extents nor commits is compared with a
CRC-32. /commits begins on one of the first pages of the file; its first two pages are headers
(`row_log.py`), then come two guards, written in turn:

    magic "NEOGUARD", number u64, pieces u32, crc u32 of what follows; pieces (start, bytes) i64[..,
    2]; crc u32 of their bytes

A guard has room for some thousand pieces: the first, and with them all groups and headers, are
guarded however large the file.
"""

import os
import struct
import zlib
from collections.abc import Sequence

from neocpu.storage.row_log import headers

# of a guard
PAGE = 4096
PAGES = 4
COMMITS = (2 + 2 * PAGES, PAGE)
_GUARD = struct.Struct("<8sQII")
_MAGIC = b"NEOGUARD"
_MOST = (PAGES * PAGE - _GUARD.size - 4) // 16
_SOUGHT = 64  # pages
Piece = tuple[int, int]


def find(handle: int) -> int | None:
    """Where /commits is in an open file, without asking HDF5; None if no header is found."""
    for number in range(1, _SOUGHT):
        if any(headers(os.pread(handle, PAGE, number * PAGE).ljust(PAGE, b"\0"))):
            return number * PAGE
    return None


def newest(commits: bytes) -> tuple[int, int, list[Piece], int]:
    """(number, which of the two, pieces, CRC-32 of their bytes) of the newest guard in /commits;
    number 0: there is none.
    """
    found: tuple[int, int, list[Piece], int] = (0, 1, [], 0)
    for which in range(2):
        text = commits[(2 + which * PAGES) * PAGE :][: PAGES * PAGE]
        magic, number, count, crc = _GUARD.unpack_from(text)
        rest = text[_GUARD.size :][: 16 * count + 4]
        if magic == _MAGIC and zlib.crc32(rest) == crc and number > found[0]:
            pieces = [struct.unpack_from("<qq", rest, 16 * i) for i in range(count)]
            found = (number, which, pieces, struct.unpack_from("<I", rest, 16 * count)[0])
    return found


def checksum(handle: int, pieces: Sequence[Piece]) -> int:
    """CRC-32 of pieces of a file."""
    crc = 0
    for start, count in pieces:
        crc = zlib.crc32(os.pread(handle, count, start), crc)
    return crc


def check(handle: int, commits: int) -> bool:
    """Are the guarded bytes those that were written? True too where no guard is whole: then nothing
    is known.
    """
    number, _, pieces, crc = newest(os.pread(handle, COMMITS[0] * PAGE, commits))
    return number == 0 or checksum(handle, pieces) == crc


def write(handle: int, commits: int, pieces: Sequence[Piece]) -> None:
    """Guard the first of these pieces from now on."""
    number, which, _, _ = newest(os.pread(handle, COMMITS[0] * PAGE, commits))
    guarded = list(pieces)[:_MOST]
    rest = b"".join(struct.pack("<qq", *piece) for piece in guarded) + struct.pack(
        "<I", checksum(handle, guarded)
    )
    text = _GUARD.pack(_MAGIC, number + 1, len(guarded), zlib.crc32(rest)) + rest
    os.pwrite(handle, text.ljust(PAGES * PAGE, b"\0"), commits + (2 + (1 - which) * PAGES) * PAGE)
    os.fsync(handle)
