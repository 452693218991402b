"""How do rows travel between memories? In slots of one mapping, cache over cache, down to a home
where every row has a place.

    Tier          the rows of batches in slots that kernels may use (`tier.py`)
      Level       a cache in slots of slower memory                        any number of them
        Memory    all rows in slots          or  Stored: records in an SSD file, or narrow ones in memory (`homes.py`)

Every level has two verbs: `read(rows, slots)` brings rows up into slots of the caller, `write(rows,
slots)` takes them back. A row moves with its state. What is above is newer; only changed rows go
down, and they go before others come up, so a row that leaves and returns in one call is never lost.
A row that nobody wrote has its initial values: its home makes them (`create(rows, slots)`), so rows
that were only looked at never reach a home.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neocpu.kernels import slots as kernels
from neocpu.storage.cache import Cache, Moves
from neocpu.storage.device import Device
from neocpu.storage.placement import WAYS

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class Slots:
    """The bytes of the rows of one shard: its numbers and states, all by slot. `record`: bytes of a
    row.
    """

    def __init__(self, arrays: Sequence[NDArray[Any]], slots: int) -> None:
        self._fields = [(a.view(np.uint8).reshape(-1), a.nbytes // slots) for a in arrays if a.size]
        self.record = sum(size for _, size in self._fields)

    def copy(self, source: Ints, target: Ints) -> None:
        """Rows from slots to other slots, distinct ones."""
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


class Level:
    """A cache in slots [first, first + lines) over a home; it is a home itself. `device`: how fast
    rows move between here and above.
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
        self._held = 0  # rows, when they were last forgotten

    def caches(self) -> list["Level"]:
        """This cache and those below it, nearest first."""
        return [self, *(self.home.caches() if isinstance(self.home, Level) else ())]

    def move(self, moves: Moves, fill: bool = True) -> None:
        """What the cache has decided: rows that leave go home first, then others come, unless they
        are overwritten anyway (`fill` false).
        """
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
        begun = self._device.begin()
        here = moves.lines >= 0
        self._slots.copy(moves.lines[here] + self.first, slots[here])
        self._device.pay(begun, rows.size, int(here.sum()) * self._slots.record)
        self.home.read(rows[~here], slots[~here])
        self.cache.release(moves.lines, False)

    def write(self, rows: Ints, slots: Ints) -> None:
        moves = self._bring(rows, fill=False)
        begun = self._device.begin()
        here = moves.lines >= 0
        self._slots.copy(slots[here], moves.lines[here] + self.first)
        self._device.pay(begun, rows.size, int(here.sum()) * self._slots.record)
        self.home.write(rows[~here], slots[~here])
        self.cache.release(moves.lines, True)

    def warm(self, rows: Ints) -> None:
        """Bring rows i64[n], most wanted first, into this cache and those below it, as far as there
        is room; no batch is at work. Nothing of it counts as asked for, and a warm row gives way to
        any other like one that was looked up once.
        """
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
        """Flush, and be as in the beginning, but for counts: no row is in a cache, nor how often it
        was used.
        """
        self.flush()
        for level in self.caches():
            level._held = level.cache.rows()[0].size or level._held
            level.cache.forget()

    def stats(self) -> list[dict[str, Any]]:
        rows = self.cache.rows()[0].size or self._held
        mine = {
            "tier": self.name,
            "rows": rows,
            "bytes": rows * self._slots.record,
            **self.cache.stats(),
        }
        return [mine, *self.home.stats()]
