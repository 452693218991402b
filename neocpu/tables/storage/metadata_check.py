"""Is HDF5's own metadata as it was written?

Its earliest format has no checksums, and HDF5 can hang on damaged metadata. So before HDF5 opens a
file of rows, all that is neither extents nor commits is compared with a CRC-32. /commits begins on
one of the first pages of the file; its first two pages are headers (`row_log.py`), then come two
guards, written in turn:

    magic "NEOGUARD", number u64, pieces u32, crc u32 of all that follows;
    pieces (start, bytes) i64[.., 2]; crc u32 of the bytes of the pieces

A guard has room for some thousand pieces: the first ones, and with them all groups and headers,
are guarded however large the file is.
"""

import os
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from neocpu.tables.storage.row_log import headers

PAGE = 4096  # bytes
PAGES = 4  # of a guard
COMMITS = (2 + 2 * PAGES, PAGE)  # shape of /commits: two headers, two guards
_GUARD = struct.Struct("<8sQII")  # magic, number, pieces, CRC-32 of what follows
_MAGIC = b"NEOGUARD"
_MOST_PIECES = (PAGES * PAGE - _GUARD.size - 4) // 16
_SEARCHED_PAGES = 64  # HDF5 places /commits, the first dataset of a file, well before this
Piece = tuple[int, int]  # first byte, bytes


class Guard(NamedTuple):
    """The content of a guard; number 0: there is none; place : which of the two it is."""

    number: int
    place: int
    pieces: list[Piece]
    checksum: int


def find(handle: int) -> int | None:
    """Where /commits is in an open file, without the help of HDF5; None if there is no header."""
    # by its contents: to ask HDF5 would be to trust what is to be checked
    for number in range(1, _SEARCHED_PAGES):
        if any(headers(os.pread(handle, PAGE, number * PAGE).ljust(PAGE, b"\0"))):
            return number * PAGE
    return None


def newest(commits: bytes) -> Guard:
    """The newest intact guard in the bytes of /commits."""
    guard = Guard(number=0, place=1, pieces=[], checksum=0)
    for place in range(2):
        text = commits[(2 + place * PAGES) * PAGE :][: PAGES * PAGE].ljust(_GUARD.size, b"\0")
        magic, number, count, crc = _GUARD.unpack_from(text)
        body = text[_GUARD.size :][: 16 * count + 4]
        # a guard that a kill cut off while it was written is none: the other one counts
        whole = magic == _MAGIC and len(body) == 16 * count + 4 and zlib.crc32(body) == crc
        if whole and number > guard.number:
            pieces = [struct.unpack_from("<qq", body, 16 * i) for i in range(count)]
            (pieces_crc,) = struct.unpack_from("<I", body, 16 * count)
            guard = Guard(number, place, pieces, pieces_crc)
    return guard


def checksum(handle: int, pieces: Sequence[Piece]) -> int:
    """CRC-32 of pieces of a file."""
    crc = 0
    for start, count in pieces:
        crc = zlib.crc32(os.pread(handle, count, start), crc)
    return crc


def check(handle: int, commits: int) -> bool:
    """Whether the guarded bytes are those that were written; true if no guard is intact."""
    guard = newest(os.pread(handle, COMMITS[0] * PAGE, commits))
    return guard.number == 0 or checksum(handle, guard.pieces) == guard.checksum


def write(handle: int, commits: int, pieces: Sequence[Piece]) -> None:
    """Guard these pieces, or as many of the first as fit, from now on."""
    last = newest(os.pread(handle, COMMITS[0] * PAGE, commits))
    guarded = list(pieces)[:_MOST_PIECES]
    body = b"".join(struct.pack("<qq", *piece) for piece in guarded)
    body += struct.pack("<I", checksum(handle, guarded))
    text = _GUARD.pack(_MAGIC, last.number + 1, len(guarded), zlib.crc32(body)) + body
    place = 1 - last.place  # the other one stays intact until this one is on the disk
    os.pwrite(handle, text.ljust(PAGES * PAGE, b"\0"), commits + (2 + place * PAGES) * PAGE)
    os.fsync(handle)
