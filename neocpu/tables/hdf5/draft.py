"""How does an HDF5 file come to be, when a full disk can crash HDF5?

HDF5 lays it out in memory; we write it. Groups, attributes and small arrays have their contents in
the draft, large arrays only their places, where they are written later, by any process and without
HDF5. Text is of fixed length: HDF5 keeps what is variable in a heap that has no checksums.

    with Draft() as draft:
        draft.set("", {"format": "…", "version": 1})
        draft.put("index", numbers)
        draft.reserve("rows", (10**9,), "<i8")
        image = draft.image()
    image.write(path)
    …                              # rows, at image.offsets["rows"]
    image.seal(path, ["rows"])     # rows have checksums of their own

Only compressed columns are written by HDF5 itself, as nobody knows their size before: then the
draft is a file, and disk space is claimed before each block.
"""

import functools
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import h5py
import numpy as np
from numpy.typing import ArrayLike

from neocpu.core.types import Dtype, Elements
from neocpu.tables.hdf5 import seal
from neocpu.tables.hdf5.disk import SparseFile, allocate, put_bytes
from neocpu.tables.hdf5.walk import each_chunk

SEALED = "sealed"  # attribute of the root: the file is whole only with its seal
SLACK = 4 << 20  # bytes for HDF5's own metadata, beside those of chunks
CHUNK_METADATA = 512  # bytes that the place of a chunk takes, at most
LARGEST_CHUNK = 4 << 20  # bytes of an array that is compressed as one chunk
EFFORT = 6  # of gzip; the most, 9, takes twice the time for one byte in a hundred
ALIGNED = 64  # bytes; an array of more than a few begins at a multiple of it
LIBVER = "v110"  # the first whose metadata has checksums


@dataclass(frozen=True)
class Image:
    """The bytes of a draft, without those of arrays that are only reserved.

    pieces : (first byte, bytes).
    size : of the file without its seal.
    offsets : first byte of each reserved array (0 if it is empty).
    ranges : of each large array, where its elements are.
    """

    pieces: list[tuple[int, bytes]]
    size: int
    offsets: dict[str, int]
    ranges: dict[str, list[seal.Range]]

    def write(self, path: Path, *, claim: bool = True) -> None:
        """Make the file. Raises OSError.

        claim : with disk space for all of it and its seal; else whoever writes its large arrays
        finds out that the disk is full.
        """
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            os.ftruncate(handle, self.size)
            if claim:
                allocate(handle, 0, self.size + seal.size_of(len(self.ranges)))
            for first, data in self.pieces:
                put_bytes(handle, data, first)
        finally:
            os.close(handle)

    def seal(self, path: Path, left_out: Iterable[str] = ()) -> None:
        """Complete and sync a file in which all is written. Raises OSError.

        left_out : arrays that have checksums of their own.
        """
        seal.write(path, self.size, [each for name in left_out for each in self.ranges[name]])


class Draft:
    """An HDF5 file that is laid out in memory, or, for compressed columns, at `path`.

    order : groups keep the order in which names came. A context manager.

    Raises OSError where a file at `path` cannot be made.
    """

    def __init__(self, path: Path | None = None, *, order: bool = False) -> None:
        self._path = path
        self._order = order
        self._reserved: dict[str, seal.Range] = {}
        self._columns: list[str] = []
        self._chunks = 0
        self._claimed = SLACK if path is not None else 0  # bytes
        self._memory = SparseFile()
        self._folders: dict[str, h5py.Group] = {}
        target: SparseFile | Path = self._memory
        # NumPy and Numba are slower with mapped arrays that are not aligned.
        options: dict[str, object] = {"alignment_threshold": 512, "alignment_interval": ALIGNED}
        if path is not None:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                allocate(handle, 0, SLACK)
            finally:
                os.close(handle)
            target = path
            options = {"locking": False}
        self._file = h5py.File(target, "w", libver=LIBVER, track_order=order, **options)
        # a file that lost its seal must not pass for an older one, which never had any
        self.set("", {SEALED: 1})

    def set(self, name: str, attributes: Mapping[str, ArrayLike]) -> None:
        """Give a group or an array ("": the root) attributes: text, numbers, arrays of numbers."""
        self._claim(sum(np.asarray(value).nbytes for value in attributes.values()))
        item = h5py.h5o.open(self._file.id, name.encode()) if name else self._file.id
        for key, value in attributes.items():
            content = fixed_text(value) if isinstance(value, str) else np.asarray(value)
            _set(item, key.encode(), content)

    def group(self, name: str) -> None:
        """Make an empty group."""
        self._claim(0)
        self._file.create_group(name, track_order=self._order)

    def put(self, name: str, values: ArrayLike, *, compress: bool = False) -> None:
        """An array with its contents; compress : by gzip."""
        array = np.asarray(values)
        self._claim(array.nbytes)
        if not compress or not array.ndim or not array.size:
            self._put(name, array, self._properties())
        elif array.nbytes <= LARGEST_CHUNK:  # in one chunk numbers that repeat take no room
            properties = self._properties()
            properties.set_chunk(array.shape)
            properties.set_shuffle()
            properties.set_deflate(EFFORT)
            self._put(name, array, properties)
        else:
            gzip = {"compression": "gzip", "compression_opts": EFFORT, "shuffle": True}
            self._file.create_dataset(name, data=array, track_times=False, **gzip)

    def _put(self, name: str, array: Elements, properties: h5py.h5p.PropDCID) -> None:
        """An array, in less time than by h5py's `create_dataset`."""
        content = np.ascontiguousarray(array).reshape(array.shape)
        space = h5py.h5s.create_simple(content.shape)
        group, last = self._parent(name)
        stored = h5py.h5d.create(group, last, _type(content.dtype), space, properties)
        stored.write(h5py.h5s.ALL, h5py.h5s.ALL, content)

    def _parent(self, name: str) -> tuple[h5py.h5g.GroupID, bytes]:
        """The group of an object, made if need be, and the object's name in it."""
        folder, _, last = name.rpartition("/")
        if folder not in self._folders:
            # one folder at a time is written to; open ones take memory
            self._folders = {folder: (self._file.require_group(folder) if folder else self._file)}
        return self._folders[folder].id, last.encode()

    @staticmethod
    def _properties() -> h5py.h5p.PropDCID:
        """Properties of an array without times: the same contents are the same bytes."""
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_obj_track_times(False)
        return properties

    def text(self, name: str, text: str) -> None:
        """A text."""
        content = fixed_text(text)
        self._claim(content.nbytes)
        self._file.create_dataset(name, data=content, dtype=content.dtype, track_times=False)

    def reserve(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """An array that is written later, in one piece from `Image.offsets[name]` on."""
        properties = self._properties()
        properties.set_layout(h5py.h5d.CONTIGUOUS)
        # the place must be known before anything is written to it
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        # zeros of an array of any size would go to memory here
        properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple(shape)
        group, last = self._parent(name)
        stored = h5py.h5d.create(group, last, _type(np.dtype(dtype)), space, properties)
        # opening it again for this at the end would take most of the time of a draft
        size = math.prod(shape) * np.dtype(dtype).itemsize
        self._reserved[name] = (stored.get_offset() or 0, size)

    def columns(
        self, name: str, shape: tuple[int, ...], dtype: str, options: Mapping[str, object]
    ) -> None:
        """A chunked array, in a draft at a path; options : h5py's, with "chunks"."""
        self._claim(0)
        self._file.create_dataset(name, shape, dtype, track_times=False, **options)
        self._columns.append(name)

    def put_rows(self, name: str, first: int, values: Elements) -> None:
        """Rows first, first + 1, … of a chunked array, whole chunks.

        Raises OSError if the disk has no room for them, before HDF5 is asked to write.
        """
        column = self._file[name]
        self._chunks += -(-values.shape[0] // column.chunks[0])
        # A chunk that cannot be compressed is stored as it is, and a little more.
        self._claim(values.nbytes + values.nbytes // 64 + CHUNK_METADATA * self._chunks)
        column[first : first + values.shape[0]] = values

    def _claim(self, count: int) -> None:
        """Claim disk space for bytes that HDF5 is going to write, and some for its metadata."""
        if self._path is None:
            return
        end = self._file.id.get_filesize()
        if end + count + SLACK // 2 <= self._claimed:
            return
        handle = os.open(self._path, os.O_RDWR)
        try:
            allocate(handle, end, count + SLACK)
        finally:
            os.close(handle)
        self._claimed = end + count + SLACK

    def image(self) -> Image:
        """The bytes of the file; the draft is at its end. Raises OSError."""
        self._file.flush()
        offsets = {name: first for name, (first, _) in self._reserved.items()}
        ranges = {name: [place] for name, place in self._reserved.items()}
        ranges |= {name: _ranges(self._file[name]) for name in self._columns}
        size = self._file.id.get_filesize()
        self._folders.clear()
        self._file.close()
        if self._path is not None:
            # what was claimed beyond HDF5's end is not part of the file
            os.truncate(self._path, size)
        return Image(list(self._memory.pieces()), size, offsets, ranges)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folders.clear()
        self._file.close()


def _set(item: h5py.h5g.GroupID | h5py.h5d.DatasetID, key: bytes, content: Elements) -> None:
    """Give an object an attribute, in less time than by h5py's `attrs`."""
    # HDF5 does not overwrite attributes
    if h5py.h5a.exists(item, key):
        h5py.h5a.delete(item, key)
    attribute = h5py.h5a.create(item, key, _type(content.dtype), _space(content.shape))
    attribute.write(np.ascontiguousarray(content).reshape(content.shape))


@functools.lru_cache(256)
def _type(dtype: Dtype) -> h5py.h5t.TypeID:
    """HDF5's type of elements."""
    return h5py.h5t.py_create(dtype, logical=True)


@functools.lru_cache(64)
def _space(shape: tuple[int, ...]) -> h5py.h5s.SpaceID:
    """HDF5's shape of an attribute."""
    return h5py.h5s.create_simple(shape)


def fixed_text(text: str) -> Elements:
    """A text as HDF5's text of fixed length in UTF-8."""
    content = text.encode()
    # HDF5 has no text of length 0
    return np.array(content, h5py.string_dtype("utf-8", max(len(content), 1)))


def _ranges(dataset: h5py.Dataset) -> list[seal.Range]:
    """Where the elements of a chunked array are in the file."""
    ranges: list[seal.Range] = []
    each_chunk(dataset.id, lambda chunk: ranges.append((chunk.byte_offset, chunk.size)))
    return seal.joined(ranges)
