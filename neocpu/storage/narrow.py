"""How are rows kept in fewer bytes than in the cache above them? Encoded when they leave it, decoded when they come up.

    cache        slots of fp32 or fp16 numbers, updated as rows that live there are
      Narrow     a home whose records are narrow; at its border to the cache stands a `Border`
        Kept     records of all rows in memory     or  Filed: those of a table of an SSD file

A row that finds no line is staged in scratch, updated there, and encoded when the next batch comes. Optimizer states are not
narrowed: they travel and rest as they are (Neo; FBGEMM's cache_precision; Yang et al., arXiv 2010.11305).
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from neocpu.storage.arena import Arena
from neocpu.storage.device import Device
from neocpu.storage.levels import PIECE, Bytes, Create, Ints, Slots
from neocpu.storage.row_codecs import Floats, RowCodec, streams_of
from neocpu.storage.row_file import RowFile


class Border:
    """What a row is inside and outside: slots of a region, and records of a codec's bytes followed by fp32 states.

    wide : the slots of the shard. states : of them, what is not numbers. get, put : the numbers f32[n, D] in slots i64[n].
    """

    def __init__(
        self,
        codec: RowCodec,
        wide: Slots,
        states: Slots,
        get: Callable[[Ints], Floats],
        put: Callable[[Ints, Floats], None],
    ) -> None:
        self._codec, self._wide, self._states, self._get, self._put = codec, wide, states, get, put
        self.record = codec.bytes + states.record

    def pack(self, rows: Ints, slots: Ints) -> Bytes:
        """Records u8[n, record] of rows i64[n] that are in slots, rounded."""
        streams = None if self._codec.rounding == "nearest" else streams_of(rows, self._wide.pack(slots))
        data = self._codec.encode(self._get(slots), streams)
        return np.concatenate([data, self._states.pack(slots)], axis=1)

    def unpack(self, slots: Ints, records: Bytes) -> None:
        """Put records into slots, decoded."""
        cut = self._codec.bytes
        self._put(slots, self._codec.decode(records[:, :cut]))
        self._states.unpack(slots, records[:, cut:])


class Records(Protocol):
    """Records of bytes by row; a row has none until it is written. tier : the memory that they are in."""

    tier: str

    def read(self, rows: Ints, out: Bytes) -> Any:
        """Records of rows i64[n] into out u8[n, record]; which rows have one, bool[n]."""

    def write(self, rows: Ints, records: Bytes) -> None:
        """Set them, distinct rows."""

    def rows(self) -> Ints:
        """Rows that have one, ascending."""


class Kept:
    """Records of all rows in memory, which they take once they are written."""

    def __init__(self, tier: str, rows: int, record: int, huge: bool = True) -> None:
        self.tier = tier
        arena = Arena(Arena.space(rows * record, np.uint8), huge=huge)
        self._records = arena.take(rows * record, np.uint8).reshape(rows, record)
        self._there = np.zeros(rows, np.bool_)

    def read(self, rows: Ints, out: Bytes) -> Any:
        found = self._there[rows]
        out[found] = self._records[rows[found]]
        return found

    def write(self, rows: Ints, records: Bytes) -> None:
        self._records[rows] = records
        self._there[rows] = True

    def rows(self) -> Ints:
        return np.flatnonzero(self._there)


class Filed:
    """Records of one table of an SSD file."""

    tier = "ssd"

    def __init__(self, file: RowFile, table: int) -> None:
        self._file, self._table = file, table

    def read(self, rows: Ints, out: Bytes) -> Any:
        return self._file.read(self._table, rows, out)

    def write(self, rows: Ints, records: Bytes) -> None:
        self._file.write(self._table, rows, np.ascontiguousarray(records))

    def rows(self) -> Ints:
        return np.concatenate([np.empty(0, np.int64), *self._file.rows(self._table)])


class Narrow:
    """A `levels.Home` of narrow records. `device`: how fast they move, unless the records know."""

    def __init__(self, records: Records, border: Border, create: Create, device: Device | None = None) -> None:
        self._records, self._border, self._create = records, border, create
        self._device, self._moved = device or Device(), [0, 0]

    def read(self, rows: Ints, slots: Ints) -> None:
        begun = self._device.begin()
        for at in range(0, rows.size, PIECE):
            some, to = rows[at : at + PIECE], slots[at : at + PIECE]
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
        rows, (read, written) = self._records.rows().size, self._moved
        size = rows * self._border.record
        return [{"tier": self._records.tier, "rows": rows, "bytes": size, "read": read, "written": written}]
