"""What was the last commit of a file of rows?

The newest intact header, the log that it counts, and the tags of live slots say so.

`RowSlots` has which slot has a row, which are free, and what changed since: an index in memory.
"""

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from neocpu.core.errors import StorageError
from neocpu.core.types import Bools, Bytes, Ints
from neocpu.kernels.tiers import row_index as kernels
from neocpu.kernels.tiers import row_records
from neocpu.kernels.twins.tiers.row_index import FREE, FRESH, HELD, LIVE, NEW, STAYED
from neocpu.tables.storage.extents import TAG, FileLayout, RowTable, damaged
from neocpu.tables.storage.metadata_check import PAGE
from neocpu.tables.storage.row_io import RawFile
from neocpu.tables.storage.row_log import Change, Damage, Header, Segment, decode, headers

FULLEST = 0.75  # load factor of the hash map at which it doubles
PIECE = 1 << 20  # rows of one piece of `RowSlots.rows`


class RowSlots:
    """The index of one table: a hash map from row to slot, and a status byte per slot.

    It also lists the slots that changed since the last commit.

    rows : that the table could have.
    count, free : attributes, rows that have a slot, and slots without a row.
    """

    def __init__(self, name: str, rows: int) -> None:
        self._name = name
        # a word of the map is a row and its slot: rows take the bits they need, slots the rest
        self._shift = 64 - max(1, (rows - 1).bit_length())
        self._words = np.zeros(64, np.uint64)
        self._status = np.zeros(0, np.uint8)
        self.count = 0
        self.free = 0
        self._cursor = 0
        self._born: list[Ints] = []
        self._died: list[Ints] = []
        # Slots that the commit before the last one needs, and those that the last one will leave.
        self._held = np.zeros(0, np.int64)
        self._left = np.zeros(0, np.int64)

    @property
    def slots(self) -> int:
        """Slots that there are."""
        return self._status.size

    @property
    def nbytes(self) -> int:
        """Memory of the index; lists of changed slots come on top until the next commit."""
        return self._words.nbytes + self._status.nbytes

    def extend(self, slots: int) -> None:
        """There are that many slots now; new ones are free."""
        # the slot would not fit beside the row in its word
        if slots >= 1 << min(self._shift, 62):
            raise StorageError(
                f"table {self._name}: {slots:,} slots are more than its index can number; use "
                "more ranks"
            )
        growth = slots - self.slots
        if growth > 0:
            self._status = np.concatenate([self._status, np.zeros(growth, np.uint8)])
            self.free += growth

    def find(self, rows: Ints) -> Ints:
        """Slot of every row, -1 for one that is not there."""
        slots = np.empty(rows.size, np.int64)
        kernels.find_slots(rows, self._words, self._shift, slots)
        return slots

    def slots_needed(self, rows: Ints) -> int:
        """How many free slots it takes to write these rows."""
        slots = self.find(rows)
        return rows.size - int(np.count_nonzero(self._status[slots[slots >= 0]] == FRESH))

    def place(self, rows: Ints) -> Ints:
        """Slots in which distinct rows are to be written; `slots_needed(rows)` must be free."""
        self._make_room(rows.size)
        slots = np.empty(rows.size, np.int64)
        old = np.empty(rows.size, np.int64)
        # the search for free slots goes on where the last one ended: neighbours are written
        # together
        self._cursor = kernels.place_rows(
            rows, self._words, self._shift, self._status, self._cursor, slots, old
        )
        born = slots[old != STAYED]
        self.count += int(np.count_nonzero(old == NEW))
        self.free -= born.size
        self._born.append(born)
        # -1 and below: the row had no slot, or stays in its own
        self._died.append(old[old >= 0])
        return slots

    def load(self, rows: Ints, slots: Ints) -> int:
        """Enter committed rows; returns the index in `rows` of a duplicate, or -1."""
        self._make_room(rows.size)
        duplicate: int = kernels.insert_rows(rows, slots, self._words, self._shift)
        self.count += rows.size
        return duplicate

    def restore(self, live: Bytes, held: Ints) -> None:
        """Set the statuses to those after a commit.

        live : u8[slots], 1 where a row lives.
        held : slots that only the commit before needs.
        """
        self._status = live.astype(np.uint8)
        # should the last header be damaged, the one before it counts, with these slots
        self._status[held] = HELD
        self._held = held
        self.free = int(np.count_nonzero(self._status == FREE))

    def live(self, low: int, high: int) -> Ints:
        """Slots in [low, high) with rows of the last commit or later."""
        status = self._status[low:high]
        return low + np.flatnonzero((status == LIVE) | (status == FRESH))

    def _make_room(self, count: int) -> None:
        size = self._words.size
        while self.count + count > FULLEST * size:
            size *= 2
        if size > self._words.size:
            larger = np.zeros(size, np.uint64)
            kernels.rehash(self._words, self._shift, larger)
            self._words = larger

    def changes(self) -> tuple[Ints, Ints]:
        """Slots born and died since the last commit was begun, ascending."""
        none = [np.zeros(0, np.int64)]
        born = np.sort(np.concatenate(self._born + none))
        died = np.sort(np.concatenate(self._died + none))
        return born, died

    def alive(self) -> Bytes:
        """A byte per slot: 1 where a row lives once this is committed."""
        alive: Bools = (self._status == LIVE) | (self._status == FRESH)
        return alive.astype(np.uint8)

    def seal(self) -> None:
        """Assign all changes to a commit that is being made; later writes take other slots."""
        born, died = self.changes()
        self._status[born] = LIVE
        self._status[died] = HELD  # until this commit is made, the last one still needs them
        self._left = died
        self._born = []
        self._died = []

    def release(self) -> None:
        """That commit is made: free the slots that only the one before the last needed."""
        self._status[self._held] = FREE
        self.free += self._held.size
        # they wait one more commit: the header before the last still names them
        self._held = self._left

    def rows(self) -> Iterator[Ints]:
        """All rows that have a slot, ascending, in pieces of about a million or a sixteenth."""
        wide = max(0, 64 - self._shift - 12)
        counts = np.zeros(1 << min(12, 64 - self._shift), np.int64)
        kernels.count_ranges(self._words, self._shift, wide, counts)
        most = max(PIECE, self.count // 16)
        low = 0
        total = 0
        for end, count in enumerate([*counts.tolist(), most + 1]):
            if total and total + count > most:
                piece = np.empty(total, np.int64)
                kernels.rows_between(self._words, self._shift, low << wide, end << wide, piece)
                piece.sort()
                yield piece
                total = 0
            if not total:
                low = end
            total += count


@dataclass
class CommitState:
    """The last commit.

    page : the page of /commits that its header is in (0 or 1).
    kept : byte ranges of the log that the two headers need.
    slots : the index of each table.
    noticed : damage that did no harm.
    """

    page: int
    header: Header
    kept: list[tuple[int, int]]
    slots: list[RowSlots]
    note: bytes
    noticed: list[str]


def load(path: Path, layout: FileLayout, io: RawFile) -> CommitState:
    """The state of the last commit. Raises StorageError if the damage of a file prevents it."""
    pages = [os.pread(io.handle, PAGE, layout.commits + i * PAGE) for i in range(2)]
    copies = [headers(page) for page in pages]
    newest = [max((h for h in pair if h), key=lambda h: h.epoch, default=None) for pair in copies]
    # Before the first commit one of the pages was never written.
    committed = any(h is not None and h.epoch > 0 for h in newest)
    noticed = [
        f"page {i} of /commits: {pair.count(None)} of its 2 copies of a header are damaged"
        for i, (pair, page) in enumerate(zip(copies, pages))
        if None in pair and (committed or any(page))
    ]
    # A kill may have cut off the newer page while it was written: then the older one counts.
    newest_page = max(range(2), key=lambda i: getattr(newest[i], "epoch", -1))
    header = newest[newest_page]
    before = newest[1 - newest_page]
    if header is None:
        raise damaged(path, "no header in /commits is whole")
    if header.identity != layout.identity():
        raise damaged(path, "the attributes of its tables are not those that were written")
    # the log grows around what either header needs
    kept = [(h.start, h.end) for h in (header, before) if h is not None]
    try:
        if not 0 <= header.start <= header.end <= layout.index.items:
            raise Damage("/commits points outside /index")
        log = io.get(layout.index, header.start, header.end - header.start)
        segments = list(decode(log, [extents.per for extents in layout.records]))
        slots = _replay(layout, io, header, segments)
    except (Damage, OSError) as error:
        raise damaged(path, str(error)) from error
    return CommitState(
        page=newest_page,
        header=header,
        kept=kept,
        slots=slots,
        note=segments[-1].note if segments else b"",
        noticed=noticed,
    )


def _replay(
    layout: FileLayout, io: RawFile, header: Header, segments: list[Segment]
) -> list[RowSlots]:
    """The index of each table after all segments of the log."""
    live = [np.zeros(extents.items, np.uint8) for extents in layout.records]
    for segment in segments:
        for table, change in enumerate(segment.changes):
            # a slot is a place in the file only while its extents are where they were
            _check_places(layout, table, change)
            if change.live is not None:  # a full segment replaces all before it
                live[table][: change.live.size] = change.live
            else:
                live[table][change.born] = 1
                live[table][change.died] = 0
    if segments:
        last = segments[-1]
        rows = sum(change.rows for change in last.changes)
        if last.epoch != header.epoch or rows != header.rows:
            raise Damage("/commits and /index do not belong together")
    indices = []
    for table, spec in enumerate(layout.tables):
        slots = RowSlots(spec.name, spec.rows)
        slots.extend(layout.records[table].items)
        # slots that died in the last commit belong to the header before it
        held = segments[-1].changes[table].died if segments else np.zeros(0, np.int64)
        slots.restore(live[table], held)
        _enter_rows(layout, table, io, slots)
        if slots.count != (segments[-1].changes[table].rows if segments else 0):
            raise Damage(f"table {spec.name} has another number of rows than noted")
        indices.append(slots)
    return indices


def _check_places(layout: FileLayout, table: int, change: Change) -> None:
    records = layout.records[table]
    tags = layout.tags[table]
    name = layout.tables[table].name
    known = change.extents <= min(records.origin.size, tags.origin.size)
    if (
        not known
        or places(records.checksum(change.extents), tags.checksum(change.extents)) != change.places
    ):
        raise Damage(f"table {name} has its extents elsewhere than noted")
    last_slot = max(change.born.max(initial=-1), change.died.max(initial=-1))
    if last_slot >= change.extents * records.per:
        raise Damage(f"table {name} has slots beyond its extents")


def _enter_rows(layout: FileLayout, table: int, io: RawFile, slots: RowSlots) -> None:
    """Enter the rows that the tags of live slots name."""
    extents = layout.tags[table]
    for first in range(0, extents.items, extents.per):
        live = slots.live(first, first + extents.per)
        if not live.size:
            continue
        # a whole extent in one read, dead slots included
        data = np.frombuffer(io.get(extents, first * TAG.itemsize, extents.size), np.uint8)
        tags = np.ascontiguousarray(data.reshape(-1, TAG.itemsize)[live - first]).reshape(-1)
        rows = np.empty(live.size, np.int64)
        bad = row_records.rows_of_tags(tags, live, table, rows)
        if bad >= 0:
            raise Damage(
                f"/{extents.name}: the tag of slot {live[bad]} is not the one that was written"
            )
        if rows.max() >= layout.tables[table].rows or rows.min() < 0 or slots.load(rows, live) >= 0:
            raise Damage(f"/{extents.name}: names a row twice, or one that its table does not have")


def places(records: int, tags: int) -> int:
    """CRC-32 of where the extents of a table are, from the CRC-32 of its records and its tags."""
    return zlib.crc32(records.to_bytes(4, "little"), tags)


def check_tables(
    path: Path, stored: tuple[RowTable, ...], expected: Sequence[RowTable] | None
) -> None:
    """Raises StorageError unless the tables stored in a file are those expected (None: any)."""
    if expected is None or stored == tuple(expected):
        return
    for table, expected_table in zip(stored, expected):
        if table != expected_table:
            raise StorageError(
                f"{path}: holds {table}, not {expected_table}; use the file of this run, or start "
                "a new one"
            )
    raise StorageError(
        f"{path}: holds {len(stored)} tables, not {len(expected)}; use the file of this run, or "
        "start a new one"
    )
