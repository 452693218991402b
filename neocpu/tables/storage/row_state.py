"""What was the last commit of a file of rows?

The newest intact header, the log that it counts, and the tags of live slots say so.
"""

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from neocpu.core.errors import StorageError
from neocpu.kernels.tiers import row_records
from neocpu.tables.storage.extents import TAG, FileLayout, RowTable, damaged
from neocpu.tables.storage.metadata_check import PAGE
from neocpu.tables.storage.row_io import RawFile
from neocpu.tables.storage.row_log import Change, Damage, Header, Segment, decode, headers
from neocpu.tables.storage.row_slots import RowSlots


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
