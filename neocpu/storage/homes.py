"""Where does every row have a place, below all caches? In slots of its own, or as a record of
bytes.

    Memory     slots for all rows
    Stored     records of the rows that were written; at the border to the slots above stands a `Border`
      Filed    those of a table of an SSD file       or  Kept: in memory

A `Border` says what a row is in a record: all its bytes, or fewer (`narrow.py`). Rows that are not
narrowed and stay in memory need no records: in slots they can be used where they are.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neocpu.storage.arena import Arena
from neocpu.storage.device import Device
from neocpu.storage.levels import Bytes, Ints, Slots
from neocpu.storage.row_file import RowFile

Bools = NDArray[np.bool_]
Create = Callable[[Ints, Ints], None]
PIECE = 1 << 16  # rows whose records are made at a time


class Memory:
    """All rows in slots [first, first + rows). `device`: how fast they move between here and above."""

    def __init__(
        self,
        name: str,
        slots: Slots,
        first: int,
        rows: int,
        create: Create,
        device: Device | None = None,
    ) -> None:
        self._device = device or Device()
        self.name = name
        self._slots = slots
        self._first = first
        self._create = create
        self._there = np.zeros(rows, np.uint8)
        self._moved = [0, 0]

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
        return [
            {
                "tier": self.name,
                "rows": rows,
                "bytes": rows * self._slots.record,
                "read": read,
                "written": written,
            }
        ]


class Records(Protocol):
    """Records of bytes by row; a row has none until it is written. tier : the memory that they are
    in.
    """

    tier: str

    def read(self, rows: Ints, out: Bytes) -> Bools:
        """Records of rows i64[n] into out u8[n, record]; which rows have one, bool[n]."""

    def write(self, rows: Ints, records: Bytes) -> None:
        """Set them, distinct rows."""

    def rows(self) -> Ints:
        """Rows that have one, ascending."""

    def stats(self) -> dict[str, int]:
        """How many those are ("rows"), and what else is to be counted."""


class Kept:
    """Records of all rows in memory, which they take once they are written."""

    def __init__(self, tier: str, rows: int, record: int, huge: bool = True) -> None:
        self.tier = tier
        arena = Arena(Arena.space(rows * record, np.uint8), huge=huge)
        self._records = arena.take(rows * record, np.uint8).reshape(rows, record)
        self._there = np.zeros(rows, np.bool_)

    def read(self, rows: Ints, out: Bytes) -> Bools:
        found = self._there[rows]
        out[found] = self._records[rows[found]]
        return found

    def write(self, rows: Ints, records: Bytes) -> None:
        self._records[rows] = records
        self._there[rows] = True

    def rows(self) -> Ints:
        return np.flatnonzero(self._there)

    def stats(self) -> dict[str, int]:
        return {"rows": int(np.count_nonzero(self._there))}


class Filed:
    """Records of one table of an SSD file."""

    tier = "ssd"

    def __init__(self, file: RowFile, table: int) -> None:
        self._file = file
        self._table = table

    def read(self, rows: Ints, out: Bytes) -> Bools:
        return self._file.read(self._table, rows, out)

    def write(self, rows: Ints, records: Bytes) -> None:
        self._file.write(self._table, rows, records)

    def rows(self) -> Ints:
        return np.concatenate([np.empty(0, np.int64), *self._file.rows(self._table)])

    def stats(self) -> dict[str, int]:
        rows = sum(part.size for part in self._file.rows(self._table))
        return {"rows": rows, "index_bytes": self._file.index_bytes(self._table)}


class Border:
    """What a row is outside of its slot: all the bytes that it has there. `record`: how many."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.record = slots.record

    def pack(self, rows: Ints, slots: Ints) -> Bytes:
        """Records u8[n, record] of rows i64[n] that are in slots."""
        return self._slots.pack(slots)

    def unpack(self, slots: Ints, records: Bytes) -> None:
        """Put records into slots, distinct ones."""
        self._slots.unpack(slots, records)


class Stored:
    """Rows as records on the other side of a border. `device`: how fast they move, unless the
    records know.
    """

    def __init__(
        self, records: Records, border: Border, create: Create, device: Device | None = None
    ) -> None:
        self._records = records
        self._border = border
        self._create = create
        self._device = device or Device()
        self._moved = [0, 0]

    def read(self, rows: Ints, slots: Ints) -> None:
        begun = self._device.begin()
        for at in range(0, rows.size, PIECE):
            some = rows[at : at + PIECE]
            to = slots[at : at + PIECE]
            data = np.empty((some.size, self._border.record), np.uint8)
            found = self._records.read(some, data)
            self._border.unpack(to[found], data[found])
            self._create(some[~found], to[~found])
            self._moved[0] += int(found.sum())
        self._device.pay(begun, rows.size, rows.size * self._border.record)

    def write(self, rows: Ints, slots: Ints) -> None:
        begun = self._device.begin()
        for at in range(0, rows.size, PIECE):
            some = rows[at : at + PIECE]
            self._records.write(some, self._border.pack(some, slots[at : at + PIECE]))
            self._moved[1] += some.size
        self._device.pay(begun, rows.size, rows.size * self._border.record)

    def flush(self) -> None:
        pass

    def rows(self) -> Ints:
        return self._records.rows()

    def peek(self, rows: Ints) -> Bytes:
        data = np.empty((rows.size, self._border.record), np.uint8)
        self._records.read(rows, data)
        return data

    def load(self, rows: Ints, records: Bytes) -> None:
        self._records.write(rows, records)

    def stats(self) -> list[dict[str, Any]]:
        found = self._records.stats()
        read, written = self._moved
        size = found["rows"] * self._border.record
        return [
            {"tier": self._records.tier, **found, "bytes": size, "read": read, "written": written}
        ]
