"""How can an HDF5 file be the SSD, when a process may be killed at any instant?

HDF5 lays the file out; we write into it.

    /                       attributes: format "neocpu-rows", version, created, extent (bytes)
    /commits                u8[10, 4096], contiguous: where the last two commits are (`row_log.py`),
                            then guards of HDF5's metadata (`metadata_check.py`)
    /index                  u8[...], chunks of 1 MiB: the log of commits
    /tables/NAME            attributes: number, rows, first_row, first_column, columns,
                            record (bytes), layout
    /tables/NAME/records    u8[slots, stride], uncompressed chunks of some MiB (the extents);
                            the record of a row is the first bytes of its slot
    /tables/NAME/tags       {row i64, record u32, tag u32}[slots]: the row of each slot, and hashes
                            of its record and of the tag itself (`row_records.py`)

Everything is in the earliest file format and allocated early, so that an extent has a place in the
file that never changes; records, tags, log and commits are written there without HDF5. HDF5 itself
is used twice: to make a file, which gets its name when it is complete, and to `grow` one. A kill
while it grows would leave half of HDF5's own metadata new, so these bytes (all that is not in
extents: kilobytes) are first saved in FILE.growing, and `recover` puts them back.
"""

import contextlib
import json
import math
import os
import stat
import struct
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from neocpu.core.errors import StorageError, told_as
from neocpu.core.types import Dtype, Ints
from neocpu.tables.hdf5.disk import allocate, starts_like_hdf5
from neocpu.tables.hdf5.walk import PROBLEMS, each_chunk, one_line
from neocpu.tables.storage import metadata_check
from neocpu.tables.storage.metadata_check import COMMITS, PAGE

FORMAT = "neocpu-rows"
VERSION = 1
INDEX_EXTENT = 1 << 20  # bytes
TAG = np.dtype([("row", "<i8"), ("record", "<u4"), ("tag", "<u4")])
_UNDO = struct.Struct("<8sqqI")  # magic, size of the file, pieces, CRC-32 of what follows
_UNDO_MAGIC = b"NEOGROW1"


@dataclass(frozen=True)
class RowTable:
    """The records of one table, or of one shard of it.

    rows : of the shard, numbered from 0.
    record : bytes of a row's record.
    first_row, first_column : where the shard is in its table.
    columns : how wide it is.
    layout : what is in a record, in words or JSON.
    """

    name: str
    rows: int
    record: int
    first_row: int = 0
    first_column: int = 0
    columns: int = 0
    layout: str = ""


@dataclass
class Extents:
    """Where the items of one dataset are in the file.

    Item i begins at byte origin[i // per] + (i % per) * stride.

    per : items of an extent.
    stride : bytes from one item to the next.
    origin : i64[extents].
    """

    name: str
    per: int
    stride: int
    origin: Ints

    @property
    def items(self) -> int:
        """Items that the extents have room for."""
        return self.per * self.origin.size

    @property
    def size(self) -> int:
        """Bytes of an extent."""
        return self.per * self.stride

    def offsets(self, items: Ints) -> Ints:
        """Where items begin in the file."""
        return self.origin[items // self.per] + items % self.per * self.stride

    def checksum(self, extents: int) -> int:
        """CRC-32 of the places of the first extents."""
        return zlib.crc32(self.origin[:extents].astype("<i8").tobytes())


@dataclass
class FileLayout:
    """Where the parts of a file are; commits : the byte at which /commits begins."""

    tables: tuple[RowTable, ...]
    extent: int
    commits: int
    index: Extents
    records: list[Extents]
    tags: list[Extents]

    def all(self) -> list[Extents]:
        """The datasets that grow."""
        return [self.index, *self.records, *self.tags]

    def identity(self) -> int:
        """CRC-32 of the descriptions of the tables."""
        return zlib.crc32(json.dumps([asdict(table) for table in self.tables]).encode())


def image(path: Path, tables: tuple[RowTable, ...], extent: int) -> bytes:
    """The bytes of a file with tables and no rows.

    It is made in memory, because HDF5 may crash if a disk is full.

    path : a name that no open file has; nothing is written there.
    """
    # HDF5 registers a name even of a file in memory, so it must be nobody else's
    with _opened(path, "w", driver="core", backing_store=False) as file:
        file.attrs.update({"format": FORMAT, "version": VERSION, "extent": extent})
        file.attrs["created"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        space = h5py.h5s.create_simple(COMMITS)
        h5py.h5d.create(file.id, b"commits", h5py.h5t.STD_U8LE, space, _allocated_early())
        file["commits"][...] = np.zeros(COMMITS, np.uint8)
        _create_growing(file, "index", (0,), (INDEX_EXTENT,), np.dtype("u1"))
        for number, table in enumerate(tables):
            group = file.create_group(f"tables/{table.name}")
            attributes = asdict(table)
            del attributes["name"]
            group.attrs.update({"number": number, **attributes})
            stride = -(-table.record // 8) * 8
            per = max(1, min(extent // stride, max(64, table.rows)))
            # 512 strides of a multiple of 8 bytes are whole pages: no gaps between extents.
            per = per // 512 * 512 or per
            _create_growing(group, "records", (0, stride), (per, stride), np.dtype("u1"))
            _create_growing(group, "tags", (0,), (per,), TAG)
        file.flush()
        # written by us, where a full disk is an error and no crash
        return file.id.get_file_image()


def _opened(path: Path, mode: str, **options: object) -> h5py.File:
    # `FileLock` locks the file; HDF5's own lock would be a second one on another descriptor.
    file_format = {
        "libver": ("earliest", "v110"),
        "alignment_threshold": 1 << 14,
        "alignment_interval": PAGE,
    }
    return h5py.File(path, mode, locking=False, **file_format, **options)


def _allocated_early() -> h5py.h5p.PropDCID:
    """Properties of a dataset that has its place in the file as soon as it has a size."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    # zeros would be written over whole extents, of which many slots are never used
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return properties


def _create_growing(
    group: h5py.Group, name: str, shape: tuple[int, ...], chunk: tuple[int, ...], dtype: Dtype
) -> None:
    properties = _allocated_early()
    properties.set_chunk(chunk)
    space = h5py.h5s.create_simple(shape, (h5py.h5s.UNLIMITED, *shape[1:]))
    item = h5py.h5t.py_create(dtype, logical=True)
    h5py.h5d.create(group.id, name.encode(), item, space, properties)


def read(path: Path, handle: int | None = None) -> FileLayout:
    """The layout of a file; with a handle, HDF5's metadata is checked first.

    Raises StorageError for a file that is missing, foreign, newer, truncated or damaged.
    """
    with told_as(StorageError, path, "cannot be read"):
        foreign = not starts_like_hdf5(path)
    if foreign:
        raise StorageError(f"{path}: not a file of rows (not an HDF5 file)")
    if handle is not None:
        # HDF5's earliest metadata has no checksums, and damaged it can hang HDF5
        commits = metadata_check.find(handle)
        if commits is not None and not metadata_check.check(handle, commits):
            raise damaged(path, "HDF5's metadata has other bytes than were written")
    size = path.stat().st_size
    try:
        with _opened(path, "r") as file:
            layout = _layout(path, file, size)
    except PROBLEMS as error:
        why = f"truncated, or its HDF5 metadata cannot be read: {one_line(error)}"
        raise damaged(path, why) from error
    for extents in layout.all():
        # a read of a map beyond the end of its file would end the process
        if extents.origin.size and int(extents.origin.max()) + extents.size > size:
            raise damaged(
                path, f"truncated: it has {size:,} bytes, but /{extents.name} goes on beyond them"
            )
    if not 0 < layout.commits <= size - COMMITS[0] * COMMITS[1]:
        raise damaged(path, "/commits is outside the file")
    return layout


def damaged(path: Path, reason: str) -> StorageError:
    """The error that a file is broken."""
    return StorageError(
        f"{path}: damaged file of rows: {reason}; restore it from a checkpoint or a copy"
    )


def _layout(path: Path, file: h5py.File, size: int) -> FileLayout:
    if _plain(file.attrs.get("format")) != FORMAT:
        raise StorageError(
            f"{path}: an HDF5 file, but not a neocpu file of rows, or a truncated one"
        )
    if int(file.attrs["version"]) > VERSION:
        raise StorageError(
            f"{path}: a file of rows of version {file.attrs['version']}; this neocpu reads up to "
            f"{VERSION}; upgrade"
        )
    names = {int(group.attrs["number"]): name for name, group in file["tables"].items()}
    tables = []
    records = []
    tags = []
    for number in range(len(names)):
        name = names[number]
        attributes = {
            key: _plain(value)
            for key, value in file[f"tables/{name}"].attrs.items()
            if key != "number"
        }
        tables.append(_checked(RowTable(name, **attributes)))
        records.append(_extents(file, f"tables/{name}/records", size))
        tags.append(_extents(file, f"tables/{name}/tags", size))
        if (
            records[-1].per != tags[-1].per
            or records[-1].stride < tables[-1].record
            or tags[-1].stride != TAG.itemsize
        ):
            raise ValueError(f"tables/{name} has records of another size than noted")
    commits = file["commits"].id.get_offset()
    if file["commits"].shape != COMMITS or commits is None:
        raise ValueError("/commits has no place")
    return FileLayout(
        tables=tuple(tables),
        extent=int(file.attrs["extent"]),
        commits=commits,
        index=_extents(file, "index", size),
        records=records,
        tags=tags,
    )


def _checked(table: RowTable) -> RowTable:
    """The description of a table; raises ValueError unless its numbers are some."""
    numbers = (table.rows, table.record, table.first_row, table.first_column, table.columns)
    # `type`, since True is an int and arrays are none; 2^62 leaves room for sums
    if not all(type(number) is int and 0 <= number < 2**62 for number in numbers):
        raise ValueError(f"tables/{table.name} has impossible attributes")
    if not (table.rows and table.record and isinstance(table.layout, str)):
        raise ValueError(f"tables/{table.name} has no rows, or no layout")
    return table


def _extents(file: h5py.File, name: str, size: int) -> Extents:
    """Where the items of a dataset are in a file of `size` bytes. Raises one of PROBLEMS."""
    dataset = file[name]
    per = dataset.chunks[0]
    stride = dataset.dtype.itemsize * math.prod(dataset.shape[1:])
    # checked first: a damaged shape could ask for all memory
    if dataset.shape[0] * stride > size or not stride:
        raise ValueError(f"/{name} has more items than the file has bytes")
    origin = np.full(dataset.shape[0] // per, -1, np.int64)

    def note(chunk: h5py.h5d.StoreInfo) -> None:
        origin[chunk.chunk_offset[0] // per] = chunk.byte_offset

    each_chunk(dataset.id, note)
    # two extents in one place would let rows overwrite each other
    if origin.size and (origin.min() <= 0 or np.unique(origin).size != origin.size):
        raise ValueError(f"/{name} lacks extents")
    return Extents(name, per, stride, origin)


def _plain(value: object) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def grow(path: Path, handle: int, layout: FileLayout, extent_counts: dict[str, int]) -> None:
    """Give datasets, by name, that many extents; `layout` learns where they are.

    handle : the file, open for reading and writing.

    Raises StorageError if the disk is full; then nothing has changed.
    """
    size = os.fstat(handle).st_size
    growing = [e for e in layout.all() if extent_counts.get(e.name, 0) > e.origin.size]
    need = 1 << 16  # for HDF5's own metadata
    for extents in growing:
        # HDF5 aligns extents to pages
        need += (extent_counts[extents.name] - extents.origin.size) * (extents.size + PAGE)
    try:
        # A full disk must be noticed here: in the middle of HDF5's writes it is harder to undo.
        allocate(handle, size, need)
        _save(path, handle, layout, size)
    except OSError as error:
        os.ftruncate(handle, size)
        undo_of(path).unlink(missing_ok=True)
        raise full(path, need, error) from error
    try:
        with _opened(path, "r+") as file:
            for extents in growing:
                dataset = file[extents.name]
                dataset.resize(extent_counts[extents.name] * dataset.chunks[0], axis=0)
            file.flush()
            grown = [_extents(file, extents.name, size + need) for extents in growing]
        os.fsync(handle)
        # slots are written without HDF5 later, which must not meet a full disk
        allocate(handle, size, os.fstat(handle).st_size - size)
    except (OSError, RuntimeError, ValueError) as error:
        recover(path, handle)
        raise full(path, need, error) from error
    for extents, new in zip(growing, grown):
        # the index knows records by their places
        if not np.array_equal(new.origin[: extents.origin.size], extents.origin):
            recover(path, handle)
            raise damaged(path, f"/{extents.name} is elsewhere than before")
    for extents, new in zip(growing, grown):
        extents.origin = new.origin
    # a guard newer than the saved one tells `recover` that the growth had ended
    metadata_check.write(handle, layout.commits, metadata(layout, os.fstat(handle).st_size))
    undo_of(path).unlink()  # the growth counts from here on
    sync_folder(path)


def full(path: Path, need: int, error: BaseException) -> StorageError:
    """The error that a file cannot grow."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return StorageError(
        f"{path}: cannot grow by {need:,} bytes: {reason}; free space on that disk, what was "
        "committed is safe"
    )


def publish(new: Path, path: Path) -> None:
    """Give a complete file its name, which must be free. Raises FileExistsError."""
    try:
        # a link fails where the name is taken; a rename would replace another run's file
        os.link(new, path)
    except FileExistsError:
        raise
    except OSError as error:  # a file system without hard links
        if path.exists():
            raise FileExistsError(path) from error
        os.replace(new, path)


def open_file(path: Path, write: bool) -> int:
    """A descriptor of a file of rows. Raises StorageError."""
    flags = os.O_RDWR if write else os.O_RDONLY
    for name in ("O_CLOEXEC", "O_NONBLOCK"):  # a pipe would block for ever
        flags |= getattr(os, name, 0)
    try:
        handle = os.open(path, flags)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        advice = "make it with RowFile.create" if missing else "mend its permissions"
        raise StorageError(
            f"{path}: cannot be opened: {error.strerror}; {advice}, or choose another one"
        ) from error
    # asked of the descriptor: the path may be another file by now
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StorageError(f"{path}: not a file of rows (not a regular file)")
    return handle


def sync_folder(path: Path) -> None:
    """Bring new and removed names in the folder of `path` to the disk, where the system can."""
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def undo_of(path: Path) -> Path:
    """The file that exists while `path` grows."""
    return path.with_name(path.name + ".growing")


def metadata(layout: FileLayout, size: int) -> list[tuple[int, int]]:
    """Pieces (start, bytes) of a file that are neither extents nor commits."""
    taken = [(layout.commits, COMMITS[0] * COMMITS[1])]
    taken += [(int(at), extents.size) for extents in layout.all() for at in extents.origin]
    pieces = []
    at = 0
    for start, count in [*sorted(taken), (size, 0)]:
        if start > at:
            pieces.append((at, start - at))
        at = start + count
    return pieces


def _save(path: Path, handle: int, layout: FileLayout, size: int) -> None:
    pieces = [(layout.commits, COMMITS[0] * COMMITS[1]), *metadata(layout, size)]
    body = b"".join(struct.pack("<qq", *piece) for piece in pieces)
    body += b"".join(os.pread(handle, count, start) for start, count in pieces)
    with open(undo_of(path), "wb") as file:
        file.write(_UNDO.pack(_UNDO_MAGIC, size, len(pieces), zlib.crc32(body)) + body)
        file.flush()
        # on the disk before HDF5 changes the first byte
        os.fsync(file.fileno())
    sync_folder(path)


def recover(path: Path, handle: int) -> bool:
    """Undo a growth that a kill interrupted; returns whether there was one.

    Its new extents were not in use yet, so no record is lost.
    """
    undo = undo_of(path)
    if not undo.exists():
        return False
    text = undo.read_bytes()
    # an undo file that is cut off was never synced, so HDF5 had changed nothing yet
    if len(text) >= _UNDO.size:
        magic, size, count, checksum = _UNDO.unpack_from(text)
        body = text[_UNDO.size :]
        if magic == _UNDO_MAGIC and zlib.crc32(body) == checksum:
            _put_back(handle, body, count, size)
    undo.unlink()
    sync_folder(path)
    return True


def _put_back(handle: int, body: bytes, count: int, size: int) -> None:
    at = count * 16
    pieces = []
    for number in range(count):
        start, length = struct.unpack_from("<qq", body, number * 16)
        pieces.append((start, body[at : at + length]))
        at += length
    start, saved = pieces[0]
    # /commits is the first piece: what was written to it since says whether the growth had ended
    current = os.pread(handle, len(saved), start)
    committed = current[: 2 * PAGE] != saved[: 2 * PAGE]
    guarded = metadata_check.newest(current).number > metadata_check.newest(saved).number
    if committed or guarded:
        return  # the growth had ended before the kill
    for start, data in pieces:
        os.pwrite(handle, data, start)
    os.ftruncate(handle, size)
    os.fsync(handle)
