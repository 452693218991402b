"""How do rows travel between memories? Through caches, down to a home that has all rows.

    Tier             the rows of batches in slots that kernels may use (`tier.py`)
      Level          a cache in slots of slower memory; any number of them
        Memory       all rows in slots (`homes.py`), or
        RecordHome   records in an SSD file, or narrow ones in memory (`homes.py`)

All slots are in one mapping. Every level has two verbs: `read(rows, slots)` brings rows up into
slots of the caller, `write(rows, slots)` takes them back. A row moves with its optimizer state. The
copy in the higher level is newer; only changed rows go down, and they go down before any row comes
up, so a row that leaves and returns in one call is never lost. A row that was never written has its
initial values: its home makes them (`create(rows, slots)`), so rows that were only read never reach
a home.
"""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np

from neocpu.core.types import Bytes, Elements, Ints
from neocpu.kernels.tiers import slots as kernels
from neocpu.tables.storage.device import Device
from neocpu.tables.tiers.cache import Cache, Moves
from neocpu.tables.tiers.placement import WAYS

Stats: TypeAlias = dict[str, str | int]  # "tier": the name of a memory; counts of it by their names


class Slots:
    """The bytes of the rows of one shard: weights and optimizer states, all by slot.

    arrays : each with `slots` slots of equal size.
    record : bytes of a row.
    """

    def __init__(self, arrays: Sequence[Elements], slots: int) -> None:
        # rules without states have empty arrays
        self._fields = [(a.view(np.uint8).reshape(-1), a.nbytes // slots) for a in arrays if a.size]
        self.record = sum(size for _, size in self._fields)

    def copy(self, source: Ints, target: Ints) -> None:
        """Copy rows from slots `source` to distinct slots `target`, i64[n] each."""
        for field, size in self._fields:
            kernels.copy_slots(field, size, source, target)

    def pack(self, slots: Ints) -> Bytes:
        """Records u8[n, record] of the rows in slots i64[n]."""
        records = np.empty((slots.size, self.record), np.uint8)
        at = 0
        for field, size in self._fields:
            kernels.pack_slots(field, size, slots, records.reshape(-1), self.record, at)
            at += size
        return records

    def unpack(self, slots: Ints, records: Bytes) -> None:
        """Put records into slots, distinct ones."""
        flat = np.ascontiguousarray(records).reshape(-1)
        at = 0
        for field, size in self._fields:
            kernels.unpack_slots(flat, self.record, at, size, slots, field)
            at += size


class Home(Protocol):
    """Where rows come from and go to."""

    def read(self, rows: Ints, slots: Ints) -> None:
        """Bring distinct rows i64[n] into slots i64[n]."""

    def write(self, rows: Ints, slots: Ints) -> None:
        """Take rows back from slots."""

    def flush(self) -> None:
        """Write all changed rows to the lowest home."""

    def rows(self) -> Ints:
        """Rows that were written, ascending, after a flush."""

    def peek(self, rows: Ints) -> Bytes:
        """The records u8[n, record] of rows, after a flush; moves nothing."""

    def load(self, rows: Ints, records: Bytes) -> None:
        """Overwrite rows; no cache above may hold any of them."""

    def stats(self) -> list[Stats]:
        """Counts of this level and those below."""


class Level:
    """A cache in slots [first, first + lines) over a home; it is a home itself.

    device : how fast rows move between this level and the one above.
    """

    def __init__(
        self,
        name: str,
        slots: Slots,
        first: int,
        lines: int,
        policy: str,
        home: Home,
        device: Device | None = None,
    ) -> None:
        self._device = device or Device()
        self.name = name
        self.home = home
        self.cache = Cache(lines // WAYS, policy)
        self._slots = slots
        self.first = first
        self._rows_before = 0  # rows in the cache when it was last emptied by `forget`

    def caches(self) -> list["Level"]:
        """This cache and those below it, nearest first."""
        return [self, *(self.home.caches() if isinstance(self.home, Level) else ())]

    def move(self, moves: Moves, fill: bool = True) -> None:
        """Carry out what the cache decided: write evicted rows home, then fetch new ones.

        fill : false if the caller overwrites the new ones anyway.
        """
        dirty = moves.evicted_dirty
        # evictions first, so that a row that leaves and returns in one call is not lost
        self.send_home(moves.evicted_rows[dirty], moves.evicted_lines[dirty])
        if fill:
            self.home.read(moves.filled_rows, moves.filled_lines + self.first)

    def _bring(self, rows: Ints, fill: bool = True) -> Moves:
        # a lower cache sees a row once each time it moves, whatever its lookups above
        moves = self.cache.prefetch(rows, np.ones_like(rows))
        self.move(moves, fill)
        return moves

    def send_home(self, rows: Ints, lines: Ints) -> None:
        """Write rows home from their lines."""
        # Rows in ascending order lie side by side in the slower memory.
        order = np.argsort(rows, kind="stable")
        self.home.write(rows[order], lines[order] + self.first)

    def read(self, rows: Ints, slots: Ints) -> None:
        moves = self._bring(rows)
        begun = self._device.begin()
        inside = moves.lines >= 0
        self._slots.copy(moves.lines[inside] + self.first, slots[inside])
        self._device.pay(begun, rows.size, int(inside.sum()) * self._slots.record)
        # rows without a line pass this level by
        self.home.read(rows[~inside], slots[~inside])
        self.cache.release(moves.lines, False)

    def write(self, rows: Ints, slots: Ints) -> None:
        # what is in the lines is overwritten: to fetch it would be for nothing
        moves = self._bring(rows, fill=False)
        begun = self._device.begin()
        inside = moves.lines >= 0
        self._slots.copy(slots[inside], moves.lines[inside] + self.first)
        self._device.pay(begun, rows.size, int(inside.sum()) * self._slots.record)
        self.home.write(rows[~inside], slots[~inside])
        self.cache.release(moves.lines, True)

    def warm(self, rows: Ints, share: float = 1.0) -> None:
        """Bring rows i64[n], most frequent first, into this cache and those below it.

        As many as this share of the lines has room for, while no batch is at work. The statistics
        do not count it, and a warm row is evicted like one that was looked up once.
        """
        # the lowest first, so that those above find their rows there
        for level in reversed(self.caches()):
            # the cache takes rows in ascending order
            moves = level._bring(np.sort(rows[: int(share * level.cache.lines)]))
            level.cache.release(moves.lines, False)
        for level in self.caches():
            level.cache.reset_stats()

    def flush(self) -> None:
        lines, rows = self.cache.flush()
        # what is dirty here is older below: it must be there before the home is flushed
        self.send_home(rows, lines)
        self.home.flush()

    def rows(self) -> Ints:
        return self.home.rows()

    def peek(self, rows: Ints) -> Bytes:
        return self.home.peek(rows)

    def load(self, rows: Ints, records: Bytes) -> None:
        self.home.load(rows, records)

    def empty(self) -> None:
        """Flush, and empty this cache and those below it."""
        self.flush()
        for level in self.caches():
            level.cache.invalidate()

    def forget(self) -> None:
        """Flush, and reset this cache and those below it, lookup counts too; statistics stay."""
        self.flush()
        for level in self.caches():
            # what is reported is what the cache held, though it is empty at the end of a run
            level._rows_before = level.cache.rows()[0].size or level._rows_before
            level.cache.forget()

    def stats(self) -> list[Stats]:
        rows = self.cache.rows()[0].size or self._rows_before
        counts: Stats = {
            "tier": self.name,
            "rows": rows,
            "bytes": rows * self._slots.record,
            "peak": self.cache.peak,
            **self.cache.stats(),
        }
        return [counts, *self.home.stats()]
