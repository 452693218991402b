"""Are all bytes that HDF5 reads before the data those that were written?

HDF5 has no checksum over a whole file, and a flipped bit in its metadata can give other values, or
a loop without end. So a file that is complete ends in a seal, behind what HDF5 calls its end:

    ranges of bytes that the seal leaves out, i64[n, 2]: first byte, bytes
    magic "NEOSEAL1", bytes before the seal i64, n i64,
    SHA-256 of all bytes before the seal outside of the ranges,
    SHA-256 of the seal's own bytes before this

Left out are large arrays with checksums of their own, which are verified as they are read. A seal
tells damage, not malice: who changes a file on purpose can seal it anew.
"""

import hashlib
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from neocpu.tables.hdf5.disk import put_bytes, read_into

MAGIC = b"NEOSEAL1"
_TAIL = struct.Struct("<8sqq32s32s")
_RANGE = struct.Struct("<qq")
_READ = 1 << 20  # bytes hashed at a time
Range = tuple[int, int]  # first byte, bytes


class Seal(NamedTuple):
    """The seal of a file; size : bytes before it; left_out : ranges that it does not cover."""

    size: int
    left_out: list[Range]
    sha256: bytes


class BrokenSeal(ValueError):
    """A file has the end of a seal that does not go with the rest of it."""


def size_of(ranges: int) -> int:
    """Bytes of a seal that leaves out so many ranges."""
    return ranges * _RANGE.size + _TAIL.size


def joined(ranges: Iterable[Range]) -> list[Range]:
    """The same bytes in as few ranges as possible, ascending."""
    merged: list[Range] = []
    for first, count in sorted(ranges):
        if not count:
            continue
        if merged and merged[-1][0] + merged[-1][1] == first:
            merged[-1] = (merged[-1][0], merged[-1][1] + count)
        else:
            merged.append((first, count))
    return merged


def write(path: Path, size: int, left_out: Iterable[Range]) -> None:
    """Seal a complete file of `size` bytes, and sync it. Raises OSError."""
    ranges = joined(left_out)
    handle = os.open(path, os.O_RDWR)
    try:
        body = b"".join(_RANGE.pack(*each) for each in ranges)
        # the seal's own hash stands behind all that it covers, so it is added last
        head = _TAIL.pack(MAGIC, size, len(ranges), _hash(handle, size, ranges), b"")
        body += head[:-32]
        body += hashlib.sha256(body).digest()
        put_bytes(handle, body, size)
        # space was claimed for more ranges than are left after they are joined
        os.ftruncate(handle, size + len(body))
        os.fsync(handle)
    finally:
        os.close(handle)


def find(handle: int) -> Seal | None:
    """The seal of an open file; None if it has none. Raises BrokenSeal."""
    end = os.fstat(handle).st_size
    tail = os.pread(handle, _TAIL.size, max(end - _TAIL.size, 0))
    if len(tail) < _TAIL.size or not tail.startswith(MAGIC):
        return None
    _, size, count, sha256, own = _TAIL.unpack(tail)
    # a damaged count could ask for all memory, so it is held against the file first
    if not (size >= 0 and 0 <= count <= end and size + size_of(count) == end):
        raise BrokenSeal("its seal is for a file of another size")
    body = bytearray(end - size)
    if read_into(handle, memoryview(body), size) < len(body):
        raise BrokenSeal("its seal is for a file of another size")
    if hashlib.sha256(body[:-32]).digest() != own:
        raise BrokenSeal("its seal has other bytes than were written")
    ranges = [_RANGE.unpack_from(body, i * _RANGE.size) for i in range(count)]
    at = 0
    for first, length in ranges:
        if first < at or length <= 0 or first + length > size:
            raise BrokenSeal("its seal leaves out bytes that the file does not have")
        at = first + length
    return Seal(size, [(first, length) for first, length in ranges], sha256)


def holds(handle: int, seal: Seal) -> bool:
    """Whether the bytes that the seal covers are those that were written."""
    return _hash(handle, seal.size, seal.left_out) == seal.sha256


def _hash(handle: int, size: int, left_out: Sequence[Range]) -> bytes:
    """SHA-256 of the first `size` bytes outside of the ranges."""
    digest = hashlib.sha256()
    at = 0
    for first, count in [*left_out, (size, 0)]:
        while at < first:
            data = os.pread(handle, min(_READ, first - at), at)
            if not data:
                return b""  # the file ends here
            digest.update(data)
            at += len(data)
        at = first + count
    return digest.digest()
