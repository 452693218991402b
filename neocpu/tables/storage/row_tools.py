"""Is a file of rows whole, what is in it, and how does it get small again?"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from neocpu.core.errors import StorageError
from neocpu.tables.storage import extents
from neocpu.tables.storage.lock import FileLock
from neocpu.tables.storage.row_file import RowFile

BATCH = 1 << 14  # records in memory at a time


def verify(file: RowFile, limit: int = 20) -> list[str]:
    """Read every record of an open file; a sentence for each damage, at most `limit` of them.

    Damage that would change the index is a StorageError already when the file is opened.
    """
    damages = list(file.noticed)
    for table in range(len(file.tables)):
        for slots in file.live(table):
            for low in range(0, slots.size, BATCH):
                rows, records = file.fetch(table, slots[low : low + BATCH])
                damages += file.damage(table, rows, slots[low : low + BATCH], records)
                if len(damages) >= limit:
                    return damages[:limit]
    return damages


def card(file: RowFile) -> Iterator[str]:
    """Lines that say what is in a file."""
    stats = file.stats()
    yield f"{file.path}: rows of {len(file.tables)} table(s), {stats['bytes']:,} bytes"
    text = file.note.decode(errors="replace")
    note = text if len(text) < 160 and text.isprintable() else f"a note of {len(file.note):,} bytes"
    yield (
        f"  commit    epoch {file.epoch}, log of {stats['log_bytes']:,} "
        f"bytes{': ' * bool(note)}{note}"
    )
    yield (
        f"  slots     {stats['slots']:,}: {stats['rows']:,} with a row, {stats['free']:,} free; "
        f"index in memory {stats['index_bytes']:,} bytes, {stats['index_bytes_per_row']:.1f} a row"
    )
    for number, table in enumerate(file.tables):
        count = sum(rows.size for rows in file.rows(number))
        origin = (
            f", from row {table.first_row:,} and column {table.first_column:,}"
            if table.columns
            else ""
        )
        layout = f": {table.layout}" if table.layout else ""
        yield (
            f"  {table.name.ljust(24)} {count:,} of {table.rows:,} rows of {table.record:,} "
            f"bytes{origin}{layout}"
        )


def compact(path: str | Path) -> tuple[int, int]:
    """Replace a file by one that holds the rows of its last commit densely, in ascending order.

    Returns the bytes of the file before and after. Raises StorageError, for damaged records too;
    then the old file stays.
    """
    path = Path(path)
    new = path.with_name(path.name + ".compact")
    with RowFile(path) as old:
        new.unlink(missing_ok=True)
        before = int(old.stats()["bytes"])
        try:
            with RowFile.create(new, old.tables, extent=old.extent) as copy:
                if old.epoch:  # a file without any commit stays one
                    _copy(old, copy)
                    copy.commit(old.epoch, old.note)
                after = int(copy.stats()["bytes"])
                os.replace(new, path)  # both are locked: nobody sees either half-way
        except OSError as error:
            raise StorageError(
                f"{path}: cannot be compacted: {error.strerror or error}; it is as it was"
            ) from error
        finally:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
    extents.sync_folder(path)
    return before, after


def _copy(old: RowFile, copy: RowFile) -> None:
    for table, spec in enumerate(old.tables):
        for rows in old.rows(table):
            for low in range(0, rows.size, BATCH):
                part = rows[low : low + BATCH]
                records = np.empty((part.size, spec.record), np.uint8)
                # a damaged record must not get a new tag that vouches for it
                old.read(table, part, records, check=True)
                copy.write(table, part, records)


def remove(path: Path) -> None:
    """Remove a file of rows that a run has left behind, if there is one, and its undo file.

    Raises StorageError for a file that another process uses or that is no file of rows; OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        _remove_rows(path)
    extents.undo_of(path).unlink(missing_ok=True)


def _remove_rows(path: Path) -> None:
    handle = os.open(path, os.O_RDWR)
    try:
        lock = FileLock(path, handle, True)
        # HDF5 is not asked: the file may be damaged, which is no reason to keep it
        start = os.pread(handle, 1 << 16, 0)
        if start and extents.FORMAT.encode() not in start:
            raise StorageError(f"{path}: is no file of rows; remove it, or choose another folder")
        path.unlink()
        lock.release()
    finally:
        os.close(handle)
