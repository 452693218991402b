"""How do rows travel between memories? In slots of one mapping, cache over cache, down to a home where every row has a place.

    Tier          the rows of batches in slots that kernels may use (`tier.py`)
      Level       a cache in slots of slower memory                        any number of them
        Memory    all rows in slots          or  File: records in an SSD file

Every level has two verbs: `read(rows, slots)` brings rows up into slots of the caller, `write(rows, slots)` takes them back. A
row moves with its state. What is above is newer; only changed rows go down, and they go before others come up, so a row that
leaves and returns in one call is never lost. A row that nobody wrote has its initial values: its home makes them
(`create(rows, slots)`), so rows that were only looked at never reach a home.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neocpu.kernels import slots as kernels
from neocpu.storage.cache import Cache, Moves
from neocpu.storage.device import Device
from neocpu.storage.placement import WAYS
from neocpu.storage.row_file import RowFile

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Create = Callable[[Ints, Ints], None]
PIECE = 1 << 16  # rows whose records are made at a time


class Slots:
    """The bytes of the rows of one shard: its numbers and states, all by slot. `record`: bytes of a row."""

    def __init__(self, arrays: Sequence[NDArray[Any]], slots: int) -> None:
        self._fields = [(a.view(np.uint8).reshape(-1), a.nbytes // slots) for a in arrays if a.size]
        self.record = sum(size for _, size in self._fields)

    def copy(self, source: Ints, target: Ints) -> None:
        """Rows from slots to other slots, distinct ones."""
        for field, size in self._fields:
            kernels.copy_slots(field, size, source, target)

    def pack(self, slots: Ints) -> Bytes:
        """Records u8[n, record] of the rows in slots i64[n]."""
        records, at = np.empty((slots.size, self.record), np.uint8), 0
        for field, size in self._fields:
            kernels.pack_slots(field, size, slots, records.reshape(-1), self.record, at)
            at += size
        return records

    def unpack(self, slots: Ints, records: Bytes) -> None:
        """Put records into slots, distinct ones."""
        flat, at = np.ascontiguousarray(records).reshape(-1), 0
        for field, size in self._fields:
            kernels.unpack_slots(flat, self.record, at, size, slots, field)
            at += size


class Home(Protocol):
    """Where rows come from and go to."""

    def read(self, rows: Ints, slots: Ints) -> None:
        """Bring rows i64[n], distinct, into slots."""

    def write(self, rows: Ints, slots: Ints) -> None:
        """Take rows back from slots."""

    def flush(self) -> None:
        """All changed rows to the lowest home."""

    def rows(self) -> Ints:
        """Rows that were written, ascending, after a flush."""

    def peek(self, rows: Ints) -> Bytes:
        """Their records u8[n, record], after a flush; moves nothing."""

    def load(self, rows: Ints, records: Bytes) -> None:
        """Set rows, whatever they were; no cache above holds any."""

    def stats(self) -> list[dict[str, Any]]:
        """Counts of this level and those below."""


class Memory:
    """All rows in slots [first, first + rows). `device`: how fast they move between here and above."""

    def __init__(
        self, name: str, slots: Slots, first: int, rows: int, create: Create, device: Device | None = None
    ) -> None:
        self._device = device or Device()
        self.name, self._slots, self._first, self._create = name, slots, first, create
        self._there, self._moved = np.zeros(rows, np.uint8), [0, 0]

    def read(self, rows: Ints, slots: Ints) -> None:
        begun = self._device.begin()
        self.place(rows)
        self._slots.copy(rows + self._first, slots)
        self._moved[0] += rows.size
        self._device.pay(begun, rows.size, rows.size * self._slots.record)

    def write(self, rows: Ints, slots: Ints) -> None:
        begun = self._device.begin()
        self._slots.copy(slots, rows + self._first)
        self._there[rows] = 1
        self._moved[1] += rows.size
        self._device.pay(begun, rows.size, rows.size * self._slots.record)

    def slots_of(self, rows: Ints) -> Ints:
        """Their own slots, for rows that are used where they are, once `place` has made them."""
        return rows + self._first

    def place(self, rows: Ints) -> None:
        """Make rows that do not exist yet."""
        fresh = rows[self._there[rows] == 0]
        self._create(fresh, fresh + self._first)
        self._there[fresh] = 1

    def flush(self) -> None:
        pass

    def rows(self) -> Ints:
        return np.flatnonzero(self._there)

    def peek(self, rows: Ints) -> Bytes:
        return self._slots.pack(rows + self._first)

    def load(self, rows: Ints, records: Bytes) -> None:
        self._slots.unpack(rows + self._first, records)
        self._there[rows] = 1

    def stats(self) -> list[dict[str, Any]]:
        rows = int(np.count_nonzero(self._there))
        read, written = self._moved
        return [{"tier": self.name, "rows": rows, "bytes": rows * self._slots.record, "read": read, "written": written}]


class File:
    """Records of one table of an SSD file."""

    def __init__(self, file: RowFile, table: int, slots: Slots, create: Create) -> None:
        self._file, self._table, self._slots, self._create = file, table, slots, create
        self._moved = [0, 0]

    def read(self, rows: Ints, slots: Ints) -> None:
        for at in range(0, rows.size, PIECE):
            some, to = rows[at : at + PIECE], slots[at : at + PIECE]
            records = np.empty((some.size, self._slots.record), np.uint8)
            found = self._file.read(self._table, some, records)
            self._slots.unpack(to[found], records[found])
            self._create(some[~found], to[~found])
            self._moved[0] += int(found.sum())

    def write(self, rows: Ints, slots: Ints) -> None:
        for at in range(0, rows.size, PIECE):
            self.load(rows[at : at + PIECE], self._slots.pack(slots[at : at + PIECE]))
            self._moved[1] += rows[at : at + PIECE].size

    def flush(self) -> None:
        pass

    def rows(self) -> Ints:
        return np.concatenate([np.empty(0, np.int64), *self._file.rows(self._table)])

    def peek(self, rows: Ints) -> Bytes:
        records = np.empty((rows.size, self._slots.record), np.uint8)
        self._file.read(self._table, rows, records)
        return records

    def load(self, rows: Ints, records: Bytes) -> None:
        self._file.write(self._table, rows, np.ascontiguousarray(records))

    def stats(self) -> list[dict[str, Any]]:
        rows, (read, written) = sum(part.size for part in self._file.rows(self._table)), self._moved
        size, index = rows * self._slots.record, self._file.index_bytes(self._table)
        return [{"tier": "ssd", "rows": rows, "bytes": size, "index_bytes": index, "read": read, "written": written}]


class Level:
    """A cache in slots [first, first + lines) over a home; it is a home itself. `device`: how fast rows move between here and
    above."""

    def __init__(
        self, name: str, slots: Slots, first: int, lines: int, policy: str, home: Home, device: Device | None = None
    ) -> None:
        self._device = device or Device()
        self.name, self.home, self.cache = name, home, Cache(lines // WAYS, policy)
        self._slots, self.first = slots, first
        self._held = 0  # rows, when they were last forgotten

    def caches(self) -> list["Level"]:
        """This cache and those below it, nearest first."""
        return [self, *(self.home.caches() if isinstance(self.home, Level) else ())]

    def move(self, moves: Moves, fill: bool = True) -> None:
        """What the cache has decided: rows that leave go home first, then others come, unless they are overwritten anyway
        (`fill` false)."""
        dirty = moves.evicted_dirty
        self._home_write(moves.evicted_ids[dirty], moves.evicted_lines[dirty] + self.first)
        if fill:
            self.home.read(moves.filled_ids, moves.filled_lines + self.first)

    def _bring(self, rows: Ints, fill: bool = True) -> Moves:
        moves = self.cache.prefetch(rows, np.ones_like(rows))
        self.move(moves, fill)
        return moves

    def _home_write(self, rows: Ints, slots: Ints) -> None:
        order = np.argsort(rows, kind="stable")
        self.home.write(rows[order], slots[order])

    def read(self, rows: Ints, slots: Ints) -> None:
        moves = self._bring(rows)
        begun, here = self._device.begin(), moves.lines >= 0
        self._slots.copy(moves.lines[here] + self.first, slots[here])
        self._device.pay(begun, rows.size, int(here.sum()) * self._slots.record)
        self.home.read(rows[~here], slots[~here])
        self.cache.release(moves.lines, False)

    def write(self, rows: Ints, slots: Ints) -> None:
        moves = self._bring(rows, fill=False)
        begun, here = self._device.begin(), moves.lines >= 0
        self._slots.copy(slots[here], moves.lines[here] + self.first)
        self._device.pay(begun, rows.size, int(here.sum()) * self._slots.record)
        self.home.write(rows[~here], slots[~here])
        self.cache.release(moves.lines, True)

    def warm(self, rows: Ints) -> None:
        """Bring rows i64[n], most wanted first, into this cache and those below it, as far as there is room; no batch is at
        work. Nothing of it counts as asked for, and a warm row gives way to any other like one that was looked up once."""
        for level in reversed(self.caches()):
            moves = level._bring(np.sort(rows[: level.cache.lines]))
            level.cache.release(moves.lines, False)
        for level in self.caches():
            level.cache.reset_stats()

    def flush(self) -> None:
        lines, rows = self.cache.flush()
        self._home_write(rows, lines + self.first)
        self.home.flush()

    def rows(self) -> Ints:
        return self.home.rows()

    def peek(self, rows: Ints) -> Bytes:
        return self.home.peek(rows)

    def load(self, rows: Ints, records: Bytes) -> None:
        self.home.load(rows, records)

    def empty(self) -> None:
        """Flush, and forget all rows of this cache and those below."""
        self.flush()
        for level in self.caches():
            level.cache.invalidate()

    def forget(self) -> None:
        """Flush, and be as in the beginning, but for counts: no row is in a cache, nor how often it was used."""
        self.flush()
        for level in self.caches():
            level._held = level.cache.rows()[0].size or level._held
            level.cache.forget()

    def stats(self) -> list[dict[str, Any]]:
        rows = self.cache.rows()[0].size or self._held
        mine = {"tier": self.name, "rows": rows, "bytes": rows * self._slots.record, **self.cache.stats()}
        return [mine, *self.home.stats()]
