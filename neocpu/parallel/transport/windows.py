"""How do ranks of one host hand each other messages without MPI? Through memory that both see.

Each rank has a segment of shared memory (an MPI-3 window, which `mpi.py` allocates):

    posted   i64[SLOTS]         exchange whose messages stand in this slot
    offset   i64[SLOTS, ranks]  where the message for each rank begins in `data`, or BY_MPI
    read     i64[SLOTS, ranks]  exchange whose message from each rank has been read by this one
    data     u8[...]            messages, the oldest first

A sender copies its messages into its own segment and then sets `posted`; a receiver that sees it
copies straight out of the sender's segment and sets `read` in its own, so that the sender may use
the memory again. Nobody waits to send: where `data` has no room, the messages go by MPI. Exchange n
of a comm has slot n % SLOTS; all ranks of the comm exchange in one order.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from neocpu.core.types import Bytes

# Exchanges of a comm that may be under way together.
SLOTS = 64
# Bytes of a segment's data. Only what messages touch takes memory.
DATA = 32 << 20
# Messages begin at multiples of this, a cache line.
LINE = 64
# Seconds between two questions whether a slot is free.
PAUSE = 1e-4
# An offset that stands for: this message comes by MPI.
BY_MPI = -1


def shared_room() -> int:
    """Bytes of shared memory that this host has left."""
    try:
        room = os.statvfs("/dev/shm")
    except OSError:  # a system without that folder: then there are no windows
        return 0
    return room.f_bavail * room.f_frsize


def segment_bytes(ranks: int, data: int = DATA) -> int:
    """Bytes of the segment of one of so many ranks."""
    return _header(ranks) + data


def _header(ranks: int) -> int:
    size = 8 * SLOTS * (1 + 2 * ranks)
    return -(-size // LINE) * LINE


class SharedSegment:
    """The segment of one rank. memory : u8[segment_bytes], zeros at first."""

    def __init__(self, memory: Bytes, ranks: int) -> None:
        head = _header(ranks)
        # indexing a memoryview takes half the time of indexing an array
        self.words = memory[:head].data.cast("B").cast("q")
        self.data = memory[head:]


class Region(NamedTuple):
    """Messages of an exchange, in [start, end) of this rank's data, and the ranks that read them.

    Where MPI carries them, start and end are the same.
    """

    exchange: int
    start: int
    end: int
    readers: tuple[int, ...]


class Windows:
    """The segments of the ranks of a host, as this rank sees them.

    memories : of all ranks. me : this rank's place among them. fence : orders loads and stores of
    this process before and after it, as MPI's `Win.Sync`.
    """

    def __init__(self, memories: Sequence[Bytes], me: int, fence: Callable[[], None]) -> None:
        self.ranks = len(memories)
        self.me = me
        self._fence = fence
        self._segments = [SharedSegment(memory, self.ranks) for memory in memories]
        self._own = self._segments[me]
        self._regions: deque[Region] = deque()  # not yet read, oldest first
        self._offset_at = SLOTS
        self._read_at = SLOTS * (1 + self.ranks)

    def limit(self, data: int) -> None:
        """Use only so many bytes of this rank's data."""
        self._own.data = self._own.data[:data]

    def post(self, exchange: int, out: Bytes, messages: Mapping[int, tuple[int, int]]) -> bool:
        """Send each of these ranks its message, (start, bytes) in `out`; False where there is no
        room, and MPI has to carry them all. Otherwise `out` is free again when this returns.
        """
        slot = exchange % SLOTS
        words = self._own.words
        offsets_at = self._offset_at + slot * self.ranks
        one = len(set(messages.values())) == 1  # the same message for all: one copy
        sizes = [-(-size // LINE) * LINE for _, size in messages.values()]
        at = self._room(exchange, sizes[0] if one else sum(sizes), tuple(messages))
        room = at != BY_MPI
        data = self._own.data
        copied = False
        for (rank, (start, size)), line in zip(messages.items(), sizes):
            words[offsets_at + rank] = at
            if room and not copied:
                data[at : at + size] = out[start : start + size]
            copied = one
            if room and not one:
                at += line
        # who sees the number of the exchange must see its offsets and data too
        self._fence()
        words[slot] = exchange
        return room

    def take(self, exchange: int, source: int, into: Bytes) -> int | None:
        """Receive the message of rank `source` into `into`: its size, BY_MPI, or None where it is
        not there yet.
        """
        slot = exchange % SLOTS
        segment = self._segments[source]
        if segment.words[slot] != exchange:
            return None
        # what the sender stored before it posted must not be loaded from before
        self._fence()
        at = segment.words[self._offset_at + slot * self.ranks + self.me]
        if at != BY_MPI:
            into[:] = segment.data[at : at + into.size]
            # the copy is complete before the sender may use the memory again
            self._fence()
        # also where MPI carries the message: the slot is free for another exchange
        self._own.words[self._read_at + slot * self.ranks + source] = exchange
        return BY_MPI if at == BY_MPI else into.size

    def _room(self, exchange: int, size: int, readers: tuple[int, ...]) -> int:
        """Where `size` bytes of data are free for an exchange, or BY_MPI."""
        regions = self._regions
        while regions and self._is_read(regions[0]):
            regions.popleft()
        # the slot is still in use: a receiver is that far behind
        while regions and regions[0].exchange <= exchange - SLOTS:
            time.sleep(PAUSE)
            if self._is_read(regions[0]):
                regions.popleft()
        at = self._free(size)
        start = at
        if at == BY_MPI:
            start = regions[-1].end if regions else 0
        # without data too: its slot is in use until all readers have seen it
        regions.append(Region(exchange, start, start if at == BY_MPI else at + size, readers))
        return at

    def _free(self, size: int) -> int:
        """First of `size` free bytes of data, or BY_MPI; regions stand in a ring."""
        whole = self._own.data.size
        if not self._regions:
            return 0 if size <= whole else BY_MPI
        oldest = self._regions[0].start
        newest = self._regions[-1]
        # the ring has gone over its end: the free bytes lie between the newest and the oldest
        if newest.start < oldest:
            # one byte stays free, so that a full ring does not look empty
            return newest.end if newest.end + size < oldest else BY_MPI
        if newest.end + size <= whole:
            return newest.end
        # a message lies in one piece, so bytes at the end of the ring may be left unused
        return 0 if size < oldest else BY_MPI

    def _is_read(self, region: Region) -> bool:
        """Have all readers taken their messages?"""
        at = self._read_at + region.exchange % SLOTS * self.ranks + self.me
        return all(self._segments[p].words[at] == region.exchange for p in region.readers)
