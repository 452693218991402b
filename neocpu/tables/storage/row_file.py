"""How does a table live on an SSD? As records by row number, in a file that survives any kill.

    with RowFile.create("rank0.h5", [RowTable("C1", rows=10**10, record=516)]) as file:
        present = file.read(0, rows, out)      # rows i64[n], out u8[n, 516], present bool[n]
        file.write(0, rows, records)           # to slots that the last commit does not use
        file.commit(epoch=1, note=b"...")      # all or nothing, and for good

A row that was never written is not present: `read` leaves its part of `out` as it is. Opening the
file gives the last commit exactly: index, records and note. `tables/storage/extents.py` lays the
file out, `row_log.py` says what a commit is, `row_slots.py` keeps the index, `row_io.py` moves the
bytes. docs/memory.md describes the format byte by byte.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from neocpu.core.errors import StorageError
from neocpu.core.types import Bools, Bytes, Elements, Ints
from neocpu.kernels.tiers import row_records
from neocpu.tables.storage import extents, metadata_check, row_state
from neocpu.tables.storage.device import Device
from neocpu.tables.storage.extents import INDEX_EXTENT, TAG, RowTable
from neocpu.tables.storage.lock import FileLock
from neocpu.tables.storage.metadata_check import PAGE
from neocpu.tables.storage.row_io import MAPPED, Access, RawFile
from neocpu.tables.storage.row_log import Change, Header, Segment, encode

EXTENT = 8 << 20  # bytes by which a table grows
SLACK = 1 << 16  # bytes of log that may pile up before a full index is considered


class RowFile:
    """Records of the rows of several tables, by table number and row number; one process at a time.

    tables : the tables that the file must hold (None: any).
    write : false to only look.
    access : by maps or by calls.
    device : another one to be as slow as (None: as fast as this machine's).
    budget : bytes that the file may have (0: no limit).

    One thread may write while other threads read different rows.

    Attributes: path, tables, epoch and note of the last commit, noticed (damage that did no harm).
    Raises StorageError for a file that is missing, foreign, damaged, in use, or cannot grow, or
    that holds different tables.
    """

    def __init__(
        self,
        path: str | Path,
        tables: Sequence[RowTable] | None = None,
        *,
        write: bool = True,
        access: Access = MAPPED,
        device: Device | None = None,
        budget: int = 0,
    ) -> None:
        self.path = Path(path)
        self._budget = budget
        self._broken = False
        self._sealed = False
        self._guard = threading.RLock()
        self._readers = 0
        self._idle = threading.Condition()
        handle = extents.open_file(self.path, write)
        try:
            self._lock = FileLock(self.path, handle, write)
            if extents.undo_of(self.path).exists() and not write:
                raise StorageError(
                    f"{self.path}: was interrupted while it grew; run `neocpu tier verify` on it, "
                    "or resume"
                )
            if write:
                # before anything is read: until then half of HDF5's metadata may be new
                extents.recover(self.path, handle)
            self._layout = extents.read(self.path, handle)
            self.tables = self._layout.tables
            row_state.check_tables(self.path, self.tables, tables)
            self._io = RawFile(handle, write, access, device or Device())
        except BaseException:
            if hasattr(self, "_lock"):
                self._lock.release()
            os.close(handle)
            raise
        try:
            state = row_state.load(self.path, self._layout, self._io)
        except BaseException:
            self.close()
            raise
        self._page = state.page
        self._header = state.header
        self._kept = state.kept
        self._slots = state.slots
        self.epoch = state.header.epoch
        self.note = state.note
        self.noticed = state.noticed
        self.commits = 0

    @classmethod
    def create(
        cls,
        path: str | Path,
        tables: Sequence[RowTable],
        *,
        extent: int = EXTENT,
        access: Access = MAPPED,
        device: Device | None = None,
        budget: int = 0,
    ) -> "RowFile":
        """Make a file without rows and open it; its name must be free.

        extent : bytes by which a table grows, at least.

        Raises StorageError for a name that is taken, table names that are not distinct, and a
        folder that cannot be written.
        """
        path = Path(path)
        tables = tuple(tables)
        names = [table.name for table in tables]
        if len(set(names)) < len(names) or not all(
            name and "/" not in name and name != "." for name in names
        ):
            raise StorageError(
                f"{path}: names of tables must be distinct, not empty and without '/': "
                f"{', '.join(names)}"
            )
        if any(table.record < 1 or not 0 < table.rows < 2**62 for table in tables):
            raise StorageError(
                f"{path}: a table needs 1 to 2^62 - 1 rows and records of at least a byte"
            )
        # of this process: runs that make the same file must not write into one
        new = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            new.write_bytes(extents.image(new, tables, extent))
            layout = extents.read(new)
            handle = extents.open_file(new, True)
            try:
                os.pwrite(handle, Header(0, 0, 0, 0, layout.identity()).page(), layout.commits)
                size = os.fstat(handle).st_size
                metadata_check.write(handle, layout.commits, extents.metadata(layout, size))
            finally:
                os.close(handle)
            extents.publish(new, path)
        except FileExistsError as error:
            raise StorageError(
                f"{path}: exists already; open it, or choose another name"
            ) from error
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise StorageError(
                f"{path}: cannot be made: {reason}; choose a folder that can be written to"
            ) from error
        finally:
            with contextlib.suppress(OSError):
                new.unlink()
        extents.sync_folder(path)
        return cls(path, tables, access=access, device=device, budget=budget)

    @property
    def extent(self) -> int:
        """Bytes by which a table grows, at least."""
        return self._layout.extent

    def read(self, table: int, rows: Ints, out: Bytes, *, check: bool = False) -> Bools:
        """Read the records of rows i64[n] into out u8[n, record]; returns which exist, bool[n].

        The part of `out` of a row without a record stays as it is. With `check` every record is
        compared with its hash, and StorageError names the first that is damaged.
        """
        rows = np.ascontiguousarray(rows, np.int64)
        self._check_shapes(table, rows, out)
        with self._guard:
            slots = self._slots[table].find(rows)
            with self._idle:
                self._readers += 1
        # from here on commits wait for this read before they free a slot
        present = slots >= 0
        try:
            self._io.gather(self._layout.records[table], slots, out)
            if check:
                i = np.flatnonzero(present)
                if damages := self.damage(table, rows[i], slots[i], out[i]):
                    raise extents.damaged(self.path, damages[0])
        finally:
            with self._idle:
                self._readers -= 1
                self._idle.notify_all()
        return present

    def damage(self, table: int, rows: Ints, slots: Ints, records: Bytes) -> list[str]:
        """A sentence for each record that has other bytes than were written."""
        stored_tags, actual_tags = np.zeros((2, rows.size, TAG.itemsize), np.uint8)
        self._io.gather(self._layout.tags[table], slots, stored_tags)
        row_records.make_tags(
            records.reshape(-1), records.shape[1], rows, slots, table, actual_tags.reshape(-1)
        )
        name = self.tables[table].name
        extents = self._layout.records[table]
        return [
            (
                f"table {name}, row {rows[i]} (slot {slots[i]} of /{extents.name}) has other bytes "
                "than were written"
            )
            for i in np.flatnonzero((stored_tags != actual_tags).any(axis=1))
        ]

    def write(self, table: int, rows: Ints, records: Bytes) -> None:
        """Write records u8[n, record] of distinct rows i64[n]; the last commit stays intact.

        Raises StorageError if the file cannot grow; then nothing was written.
        """
        rows = np.ascontiguousarray(rows, np.int64)
        records = np.ascontiguousarray(records)
        self._check_shapes(table, rows, records)
        tags = np.empty((rows.size, TAG.itemsize), np.uint8)
        with self._guard:
            self._check_usable()
            # before a slot is taken: if the disk is full nothing has changed
            self._make_room(table, rows)
            slots = self._slots[table].place(rows)
            try:
                flat = records.reshape(-1)
                row_records.make_tags(flat, records.shape[1], rows, slots, table, tags.reshape(-1))
                # no sync: until a commit counts these slots, nobody reads them after a kill
                self._io.scatter(self._layout.records[table], slots, records)
                self._io.scatter(self._layout.tags[table], slots, tags)
            except OSError as error:
                raise self._break(error) from error

    def _check_shapes(self, table: int, rows: Ints, records: Bytes) -> None:
        spec = self.tables[table]
        if (
            records.shape != (rows.size, spec.record)
            or records.dtype != np.uint8
            or not records.flags.c_contiguous
        ):
            raise ValueError(
                f"records of table {spec.name} must be contiguous u8[{rows.size}, {spec.record}]"
            )
        if rows.size and (rows.min() < 0 or rows.max() >= spec.rows):
            raise ValueError(f"table {spec.name} has rows 0 to {spec.rows - 1}")

    def _check_usable(self) -> None:
        if self._broken:
            raise StorageError(
                f"{self.path}: writing failed before; open it again: the last commit is safe"
            )

    def _break(self, error: OSError) -> StorageError:
        # what is in the slots is unknown now, and a commit would count them
        self._broken = True
        return StorageError(
            f"{self.path}: cannot be written: {error.strerror or error}; the last commit is safe"
        )

    def _make_room(self, table: int, rows: Ints) -> None:
        """Free slots for these rows, and some more, so that the search for them stays short."""
        slots = self._slots[table]
        records = self._layout.records[table]
        tags = self._layout.tags[table]
        spare = slots.slots // 64
        if rows.size + spare <= slots.free:
            return
        # rows written since the last commit keep their slots: only the others need new ones
        needed = slots.slots_needed(rows)
        missing = needed + spare - slots.free
        if needed == 0 or missing <= 0:
            return
        extents = records.origin.size
        least = extents + -(-max(1, needed - slots.free) // records.per)
        # Growing by an eighth keeps the number of growths logarithmic in the size of the table.
        best = max(least, extents + -(-max(missing, slots.slots // 8) // records.per))
        if needed <= slots.free:
            least = extents
        try:
            self._grow({records.name: best, tags.name: best})
        except StorageError:
            if least == best:
                raise
            # a nearly full disk may have room for what is needed now, if for no more
            self._grow({records.name: least, tags.name: least})
        slots.extend(records.items)

    def _grow(self, extent_counts: dict[str, int]) -> None:
        size = os.fstat(self._io.handle).st_size
        growth = sum(
            max(0, extent_counts.get(extents.name, 0) - extents.origin.size) * extents.size
            for extents in self._layout.all()
        )
        if not growth:
            return
        if self._budget and size + growth > self._budget:
            raise StorageError(
                f"{self.path}: would have {size + growth:,} bytes, but may have {self._budget:,}; "
                "raise its budget (memory.ssd of a run), commit more often, or use more ranks"
            )
        extents.grow(self.path, self._io.handle, self._layout, extent_counts)
        # the map of before ends where the file ended
        self._io.remap()

    def commit(self, epoch: int, note: bytes = b"") -> None:
        """Make everything written so far, and a note, the state of the file, at once and for good.

        epoch : greater than that of the last commit.

        Costs in proportion to the rows that changed. Raises StorageError; then the last commit
        stands.
        """
        self.seal(epoch, note)()

    def seal(self, epoch: int, note: bytes = b"") -> Callable[[], None]:
        """Fix the content of a commit; the function that is returned brings it to the disk.

        Any thread may call that function, once, while other threads go on reading and writing.
        What they write belongs to the next commit, which may be sealed once this one is made.
        """
        with self._guard:
            self._check_usable()
            if epoch <= self.epoch:
                raise ValueError(f"epoch {epoch} is not after {self.epoch}")
            if self._sealed:
                raise ValueError("the commit before is not made yet")
            segment, start, at = self._segment(epoch, note)
            end = at + len(segment)
            if end > self._layout.index.items:
                self._grow({"index": -(-end // INDEX_EXTENT)})
            rows = sum(slots.count for slots in self._slots)
            header = Header(epoch, start, end, rows, self._layout.identity())
            # one commit at a time: what two headers need is kept, and no more
            self._sealed = True
            for slots in self._slots:
                slots.seal()
        return lambda: self._finish(header, at, segment, note)

    def _finish(self, header: Header, at: int, segment: bytes, note: bytes) -> None:
        """Make a sealed commit: write its segment to byte `at` of the log, then its header."""
        try:
            with self._guard:
                self._check_usable()
                self._io.put(self._layout.index, at, segment)
            # The header may reach the disk only after the segment that it counts.
            self._io.sync()
            with self._guard:  # the file may not grow between a header and its sync
                self._io.put_at(self._layout.commits + (1 - self._page) * PAGE, header.page())
                self._io.sync()
                self._page = 1 - self._page
                self._kept = [(header.start, header.end), (self._header.start, self._header.end)]
                self._header = header
                self.epoch = header.epoch
                self.note = note
                self._sealed = False
                self.commits += 1
                with self._idle:  # a read that has found its slots may not see them used again
                    self._idle.wait_for(lambda: self._readers == 0)
                    for slots in self._slots:
                        slots.release()
        except OSError as error:
            raise self._break(error) from error

    def _segment(self, epoch: int, note: bytes) -> tuple[bytes, int, int]:
        """The next commit: its bytes, where the log then begins, and where the bytes go.

        A delta is appended to the log. A full index starts a new log, where it overwrites nothing
        that one of the two kept headers needs.
        """
        changes = []
        for slots, records, tags in zip(self._slots, self._layout.records, self._layout.tags):
            extents = records.origin.size
            crc = row_state.places(records.checksum(extents), tags.checksum(extents))
            born, died = slots.changes()
            changes.append(
                Change(extents=extents, places=crc, rows=slots.count, born=born, died=died)
            )
        start = self._header.start
        end = self._header.end
        delta = encode(Segment(epoch, changes, note))
        full_size = sum(slots.slots // 8 for slots in self._slots) + len(note) + SLACK
        crossing = any(
            low < end + len(delta) and end < high for low, high in self._kept[1:] if low != start
        )
        # Up to twice a full index, replaying deltas costs less than writing the index anew.
        if end > start and not crossing and end - start + len(delta) < 2 * full_size:
            return delta, start, end
        for change, slots in zip(changes, self._slots):
            change.live = slots.alive()
        full = encode(Segment(epoch, changes, note))
        at = 0
        for low, high in sorted(self._kept):
            if at + len(full) > low and high > low:
                at = max(at, high)
        return full, at, at

    def places(self, table: int, rows: Ints) -> Ints:
        """Byte of the file at which the record of each row begins now; -1: it has none."""
        slots = self._slots[table].find(rows)
        extents = self._layout.records[table]
        return np.where(slots < 0, -1, extents.offsets(np.maximum(slots, 0)))

    def rows(self, table: int) -> Iterator[Ints]:
        """Rows that have a record, ascending, in pieces i64[...]."""
        return self._slots[table].rows()

    def changed(self, table: int) -> Ints:
        """Rows written since the last commit was begun, ascending: for incremental copies."""
        born, _ = self._slots[table].changes()
        return np.sort(self._tags(table, born)["row"].astype(np.int64))

    def live(self, table: int) -> Iterator[Ints]:
        """Slots that hold a row, ascending, by extent: the fastest order to read the file in."""
        extents = self._layout.records[table]
        # an extent is one piece of the file
        for first in range(0, extents.items, extents.per):
            yield self._slots[table].live(first, first + extents.per)

    def fetch(self, table: int, slots: Ints) -> tuple[Ints, Bytes]:
        """Rows and records of slots that hold a row."""
        records = np.empty((slots.size, self.tables[table].record), np.uint8)
        self._io.gather(self._layout.records[table], slots, records)
        return self._tags(table, slots)["row"].astype(np.int64), records

    def _tags(self, table: int, slots: Ints) -> Elements:
        tags = np.empty((slots.size, TAG.itemsize), np.uint8)
        self._io.gather(self._layout.tags[table], slots, tags)
        return tags.view(TAG).reshape(-1)

    def index_bytes(self, table: int) -> int:
        """Memory that the index of one table takes."""
        return self._slots[table].nbytes

    def stats(self) -> dict[str, int | float]:
        """Counts of rows and slots, bytes of file and index, and traffic.

        "changed" : rows that a crash would set back to the last commit.
        """
        rows = sum(slots.count for slots in self._slots)
        index_bytes = sum(slots.nbytes for slots in self._slots)
        io = self._io
        return {
            "rows": rows,
            "bytes": os.fstat(io.handle).st_size,
            "slots": sum(slots.slots for slots in self._slots),
            "free": sum(slots.free for slots in self._slots),
            "changed": sum(slots.changes()[0].size for slots in self._slots),
            "index_bytes": index_bytes,
            "index_bytes_per_row": index_bytes / rows if rows else 0.0,
            "log_bytes": self._header.end - self._header.start,
            "reads": io.reads,
            "writes": io.writes,
            "bytes_read": io.bytes_read,
            "bytes_written": io.bytes_written,
            "commits": self.commits,
        }

    def drop_pages(self) -> None:
        """Write back, then let the page cache forget the file: for benchmarks."""
        self._io.drop_pages()

    def close(self) -> None:
        """Close the file; what was not committed is lost."""
        self._lock.release()
        self._io.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
