"""Where does every row have a place, below all caches? In a slot, or as a record of bytes.

    Memory             slots for all rows
    RecordHome         records of the rows that were written, packed and unpacked by a `Border`
      FileRecords      in a table of an SSD file
      MemoryRecords    in memory

A `Border` says what a row is in a record: all its bytes, or fewer (`NarrowBorder`). Rows that are
not narrowed and stay in memory need no records: in slots they can be used where they are.

Rows kept in fewer bytes than in the cache above (Neo; FBGEMM's cache_precision; Yang et al., arXiv
2010.11305) are encoded when they leave the cache, and decoded when they come up; optimizer states
are not narrowed. A row for which no cache line is free is staged in scratch, updated there, and
encoded when the next batch comes.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from neocpu.core.types import Bools, Bytes, Floats, Ints
from neocpu.tables.storage.arena import Arena
from neocpu.tables.storage.device import Device
from neocpu.tables.storage.row_codecs import RowCodec, streams_of
from neocpu.tables.storage.row_file import RowFile
from neocpu.tables.tiers.levels import Slots, Stats

Create = Callable[[Ints, Ints], None]
PIECE = 1 << 16  # rows whose records are packed at a time


class Memory:
    """All rows in slots [first, first + rows); device : how fast rows move to and from above."""

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
        self._present = np.zeros(rows, np.uint8)
        self._moved = [0, 0]

    def read(self, rows: Ints, slots: Ints) -> None:
        begun = self._device.begin()
        # rows that nobody wrote are made at home, and come up from there like any other
        self.place(rows)
        self._slots.copy(rows + self._first, slots)
        self._moved[0] += rows.size
        self._device.pay(begun, rows.size, rows.size * self._slots.record)

    def write(self, rows: Ints, slots: Ints) -> None:
        begun = self._device.begin()
        self._slots.copy(slots, rows + self._first)
        self._present[rows] = 1
        self._moved[1] += rows.size
        self._device.pay(begun, rows.size, rows.size * self._slots.record)

    def slots_of(self, rows: Ints) -> Ints:
        """The slots of rows that are used where they are, once `place` has initialised them."""
        return rows + self._first

    def place(self, rows: Ints) -> None:
        """Initialise rows that do not exist yet."""
        fresh = rows[self._present[rows] == 0]
        # initial values depend on the row alone, so it does not matter when they are made
        self._create(fresh, fresh + self._first)
        self._present[fresh] = 1

    def flush(self) -> None:
        pass

    def rows(self) -> Ints:
        return np.flatnonzero(self._present)

    def peek(self, rows: Ints) -> Bytes:
        return self._slots.pack(rows + self._first)

    def load(self, rows: Ints, records: Bytes) -> None:
        self._slots.unpack(rows + self._first, records)
        self._present[rows] = 1

    def stats(self) -> list[Stats]:
        rows = int(np.count_nonzero(self._present))
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
    """Records of bytes by row; a row has none until it is written.

    tier : the memory that they are in.
    """

    tier: str

    def read(self, rows: Ints, out: Bytes) -> Bools:
        """Read records of rows i64[n] into out u8[n, record]; returns which exist, bool[n]."""

    def write(self, rows: Ints, records: Bytes) -> None:
        """Set the records of distinct rows."""

    def rows(self) -> Ints:
        """Rows that have a record, ascending."""

    def stats(self) -> dict[str, int]:
        """The number of rows that have a record ("rows"), and further counts."""


class MemoryRecords:
    """Records in memory; a page takes memory once one of its records is written."""

    def __init__(self, tier: str, rows: int, record: int, huge: bool = True) -> None:
        self.tier = tier
        # a lazily committed map: rows that nobody writes take no memory
        arena = Arena(Arena.space(rows * record, np.uint8), huge=huge)
        self._records = arena.take(rows * record, np.uint8).reshape(rows, record)
        self._present = np.zeros(rows, np.bool_)

    def read(self, rows: Ints, out: Bytes) -> Bools:
        present = self._present[rows]
        out[present] = self._records[rows[present]]
        return present

    def write(self, rows: Ints, records: Bytes) -> None:
        self._records[rows] = records
        self._present[rows] = True

    def rows(self) -> Ints:
        return np.flatnonzero(self._present)

    def stats(self) -> dict[str, int]:
        return {"rows": int(np.count_nonzero(self._present))}


class FileRecords:
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
    """Packs rows into records and back: all bytes of a slot; record : bytes of a record."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.record = slots.record

    def pack(self, rows: Ints, slots: Ints) -> Bytes:
        """Records u8[n, record] of rows i64[n] that are in slots i64[n]."""
        return self._slots.pack(slots)

    def unpack(self, slots: Ints, records: Bytes) -> None:
        """Put records into slots, distinct ones."""
        self._slots.unpack(slots, records)


class RecordHome:
    """Rows as records behind a border.

    device : how fast they move, unless the records limit that themselves.
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
            piece = rows[at : at + PIECE]
            targets = slots[at : at + PIECE]
            data = np.empty((piece.size, self._border.record), np.uint8)
            # a row that was only read has no record: it has its initial values still
            present = self._records.read(piece, data)
            self._border.unpack(targets[present], data[present])
            self._create(piece[~present], targets[~present])
            self._moved[0] += int(present.sum())
        self._device.pay(begun, rows.size, rows.size * self._border.record)

    def write(self, rows: Ints, slots: Ints) -> None:
        begun = self._device.begin()
        for at in range(0, rows.size, PIECE):
            piece = rows[at : at + PIECE]
            self._records.write(piece, self._border.pack(piece, slots[at : at + PIECE]))
            self._moved[1] += piece.size
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

    def stats(self) -> list[Stats]:
        counts = self._records.stats()
        read, written = self._moved
        return [
            {
                "tier": self._records.tier,
                **counts,
                "bytes": counts["rows"] * self._border.record,
                "read": read,
                "written": written,
            }
        ]


class NarrowBorder(Border):
    """Slots of a region inside; outside, records: the codec's bytes, then the states unchanged.

    codec : of the shard's rows.
    wide : the slots of the shard.
    states : their optimizer states.
    get, put : read and write the numbers f32[n, D] in slots i64[n].
    """

    def __init__(
        self,
        codec: RowCodec,
        wide: Slots,
        states: Slots,
        get: Callable[[Ints], Floats],
        put: Callable[[Ints, Floats], None],
    ) -> None:
        super().__init__(wide)
        self._codec = codec
        self._states = states
        self._get = get
        self._put = put
        self.record = codec.bytes + states.record

    def pack(self, rows: Ints, slots: Ints) -> Bytes:
        """Records u8[n, record] of rows i64[n] that are in slots, rounded."""
        streams = None
        if self._codec.rounding != "nearest":
            # of all that the row holds: the same bytes get the same codes whenever they leave
            streams = streams_of(rows, super().pack(rows, slots))
        data = self._codec.encode(self._get(slots), streams)
        return np.concatenate([data, self._states.pack(slots)], axis=1)

    def unpack(self, slots: Ints, records: Bytes) -> None:
        """Put records into slots, decoded."""
        cut = self._codec.bytes
        self._put(slots, self._codec.decode(records[:, :cut]))
        self._states.unpack(slots, records[:, cut:])
