"""How does a commit survive a kill at any instant?

It is appended to a log; then one small header says how far the log counts. A segment of the log
(in /index, one after the other) is one commit: for every table the slots that were taken (born)
and given up (died) since the commit before, as runs of slots; a full segment also has a bit per
slot. Then comes the caller's note. Row numbers are not in it: tags hold them. A header (64 bytes,
twice in each of the two pages of /commits) says where the segments of the present state begin and
end; the two pages are written in turn, so the header before stays. All are little-endian and hold
a CRC-32.

    header   magic "NEOROWS1", version u32, identity u32, epoch u64, start u64, end u64, rows u64,
             0 u64, 0 u32, crc u32
    segment  magic "SEGM", crc u32 of all that follows, bytes u64 (of the segment), epoch u64,
             kind u32 (0 delta, 1 full), tables u32, note u64 (bytes);
             per table: extents u32, crc u32 of their places, rows u64, born u64, died u64 (runs);
             per table: born (first, count) i64[.., 2], died likewise, and if full the bits of its
             slots, lowest bit first;
             the note; zeros up to a multiple of 8 bytes
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Bytes, Ints

HEADER = struct.Struct("<8sIIQQQQQII")
COPIES = (0, 2048)  # where the copies of a header are in its page
MAGIC = b"NEOROWS1"
VERSION = 1
_SEGMENT = struct.Struct("<4sIQQIIQ")
_SEGMENT_MAGIC = b"SEGM"
_TABLE = struct.Struct("<IIQQQ")


class Damage(ValueError):
    """Bytes of the log are not those that were written."""


@dataclass(frozen=True)
class Header:
    """Where a commit is: bytes [start, end) of the log.

    rows : in all tables.
    identity : CRC-32 of the descriptions of the tables.
    """

    epoch: int
    start: int
    end: int
    rows: int
    identity: int

    def page(self, size: int = 4096) -> bytes:
        """The page of /commits with the two copies of this header."""
        text = HEADER.pack(
            MAGIC, VERSION, self.identity, self.epoch, self.start, self.end, self.rows, 0, 0, 0
        )
        # the CRC covers all before it, magic and version too
        text = text[:-4] + struct.pack("<I", zlib.crc32(text[:-4]))
        page = bytearray(size)
        for at in COPIES:
            # two copies in different sectors: a bit that flips in one is survived
            page[at : at + HEADER.size] = text
        return bytes(page)


def headers(page: bytes) -> list[Header | None]:
    """The two copies of a header in a page; None for a damaged one."""
    copies: list[Header | None] = []
    for at in COPIES:
        magic, version, identity, epoch, start, end, rows, _, _, crc = HEADER.unpack_from(page, at)
        known = magic == MAGIC and version == VERSION
        intact = known and crc == zlib.crc32(page[at : at + HEADER.size - 4])
        copies.append(Header(epoch, start, end, rows, identity) if intact else None)
    return copies


@dataclass
class Change:
    """What a commit says of one table.

    extents, places : how many there are, and the CRC-32 of their places.
    rows : that have a record.
    born, died : slots, ascending.
    live : in a full segment, u8[slots], 1 where a row lives.
    """

    extents: int
    places: int
    rows: int
    born: Ints
    died: Ints
    live: Bytes | None = None


@dataclass
class Segment:
    """One commit in the log."""

    epoch: int
    changes: list[Change]
    note: bytes

    @property
    def full(self) -> bool:
        """Whether it has all slots, and so needs no segment before it."""
        return all(change.live is not None for change in self.changes)


def runs(slots: Ints) -> Ints:
    """Ascending distinct slots as (first, count) of each run: i64[r, 2]."""
    if not slots.size:
        return np.zeros((0, 2), np.int64)
    first = np.flatnonzero(np.diff(slots, prepend=slots[0] - 2) != 1)
    return np.stack([slots[first], np.diff(first, append=slots.size)], axis=1)


def slots_of(pairs: Ints) -> Ints:
    """The slots of runs, the inverse of `runs`."""
    if not len(pairs):
        return np.zeros(0, np.int64)
    first = pairs[:, 0]
    count = pairs[:, 1]
    ends = np.cumsum(count)
    return np.arange(ends[-1]) + np.repeat(first - (ends - count), count)


def encode(segment: Segment) -> bytes:
    """Bytes of a segment."""
    tables = []
    arrays = []
    for change in segment.changes:
        born = runs(change.born)
        died = runs(change.died)
        tables.append(_TABLE.pack(change.extents, change.places, change.rows, len(born), len(died)))
        arrays += [born.astype("<i8").tobytes(), died.astype("<i8").tobytes()]
        if segment.full:
            assert change.live is not None
            bits = np.packbits(change.live, bitorder="little").tobytes()
            # what follows stays aligned to words
            arrays.append(bits + bytes(-len(bits) % 8))
    body = b"".join([*tables, *arrays, segment.note])
    body += bytes(-len(body) % 8)
    size = _SEGMENT.size + len(body)
    # packed with a CRC of 0 first: the CRC covers the rest of the head
    head = _SEGMENT.pack(
        _SEGMENT_MAGIC, 0, size, segment.epoch, int(segment.full), len(tables), len(segment.note)
    )
    crc = zlib.crc32(body, zlib.crc32(head[8:]))
    return head[:4] + struct.pack("<I", crc) + head[8:] + body


def decode(log: bytes, slots: Sequence[int]) -> Iterator[Segment]:
    """The segments in the bytes of a log; slots : of an extent, by table. Raises Damage."""
    at = 0
    while at < len(log):
        if len(log) - at < _SEGMENT.size:
            raise Damage("a commit in /index is cut off")
        magic, crc, size, epoch, kind, tables, note = _SEGMENT.unpack_from(log, at)
        # the size is checked before it is believed
        inside = magic == _SEGMENT_MAGIC and _SEGMENT.size <= size <= len(log) - at
        if not inside or zlib.crc32(memoryview(log)[at + 8 : at + size]) != crc:
            raise Damage("a commit in /index has other bytes than were written")
        if tables != len(slots):
            raise Damage("a commit in /index is of other tables")
        yield _decode(log, at + _SEGMENT.size, epoch, bool(kind), slots, note)
        at += size


def _decode(
    log: bytes, at: int, epoch: int, full: bool, slots: Sequence[int], note: int
) -> Segment:
    tables = [_TABLE.unpack_from(log, at + i * _TABLE.size) for i in range(len(slots))]
    at += len(tables) * _TABLE.size
    changes = []
    for (extents, places, rows, born_runs, died_runs), per in zip(tables, slots):
        born = _slots_at(log, at, born_runs)
        at += 16 * born_runs
        died = _slots_at(log, at, died_runs)
        at += 16 * died_runs
        change = Change(extents=extents, places=places, rows=rows, born=born, died=died)
        if full:
            count = extents * per
            size = -(-count // 8)
            change.live = np.unpackbits(
                np.frombuffer(log, np.uint8, size, at), count=count, bitorder="little"
            )
            at += -(-size // 8) * 8
        changes.append(change)
    return Segment(epoch, changes, bytes(log[at : at + note]))


def _slots_at(log: bytes, at: int, count: int) -> Ints:
    """The slots of `count` runs that begin at byte `at` of the log."""
    return slots_of(np.frombuffer(log, "<i8", 2 * count, at).astype(np.int64).reshape(-1, 2))
