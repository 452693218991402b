"""How is an HDF5 file opened that others may have made, damaged or cut?

Once, here. Its seal is verified before HDF5 sees it (a file without one is tried in another
process), all its objects are looked at, and what is wrong is one sentence with the file, the object
and what to do. Arrays are read without HDF5 where they are contiguous.
"""

import contextlib
import math
import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

import h5py
import numpy as np

from neocpu.core.errors import NeocpuError
from neocpu.core.types import Elements
from neocpu.tables.hdf5 import seal
from neocpu.tables.hdf5.disk import SIGNATURE, read_into
from neocpu.tables.hdf5.draft import SEALED
from neocpu.tables.hdf5.walk import PROBLEMS, Attributes, NotAcceptable, Object, one_line, walk

LARGEST_READ = 1 << 30  # bytes of a compressed array that are read at once
LARGEST_IMAGE = 64 << 20  # bytes of a file that HDF5 is given as a whole
Value = TypeVar("Value")


@dataclass(frozen=True)
class Kind:
    """One kind of file, and what is said about one that is not right.

    format : the root's attribute `format`; "": any HDF5 file.
    version : the newest that is read.
    error : class of all errors.
    missing, damaged, no_hdf5, foreign, newer : sentences with {path}, {why}, {version} and
        {newest}.
    """

    format: str
    version: int
    error: type[NeocpuError]
    missing: str
    damaged: str
    no_hdf5: str
    foreign: str
    newer: str


class File:
    """An HDF5 file of a kind, checked and open for reading; a context manager.

    whole : look at all its objects; else, where a seal covers it, at the root alone.

    Attributes: path; objects, by name ("" is the root); sealed, whether a seal covers it.

    Raises the error of its kind for a file that is missing, unreadable, of another kind, newer,
    truncated, changed or damaged.
    """

    def __init__(self, path: str | Path, kind: Kind, *, whole: bool = True) -> None:
        self.path = Path(path)
        self.kind = kind
        self._handle = self._open()
        self._h5: h5py.File | None = None
        self._opened: dict[str, h5py.Dataset] = {}
        self._map: mmap.mmap | None = None
        try:
            self._status = os.fstat(self._handle)
            self.sealed = self._check_seal()
            self.objects = self._walk(whole or not self.sealed)
            self._check_kind()
        except BaseException:
            self.close()
            raise

    # ---- what is in it ----

    def attributes(self, name: str = "") -> Attributes:
        """Attributes of an object ("": the root)."""
        return self._object(name).attributes

    def attribute(self, key: str, kind: type[Value], name: str = "") -> Value:
        """An attribute of an object, which must be there and of this type."""
        attributes = self.attributes(name)
        if key not in attributes:
            raise self.damaged(f"/{name} lacks its attribute {key}")
        value = attributes[key]
        if kind is float and isinstance(value, int):
            value = float(value)
        # True is an int to Python, but no number in a file
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.damaged(f"the attribute {key} of /{name} is {type(value).__name__}")
        return value

    def __contains__(self, name: str) -> bool:
        return name in self.objects

    def children(self, name: str = "") -> tuple[str, ...]:
        """Names in a group, in their order; none where there is no such group."""
        return self.objects[name].children if name in self.objects else ()

    def array(
        self,
        name: str,
        dtypes: str | tuple[str, ...] = (),
        shape: tuple[int | None, ...] | None = None,
    ) -> "Array":
        """An array, which must be there, of one of these dtypes and this shape (None: any)."""
        item = self._object(name)
        if item.dtype is None:
            raise self.damaged(f"/{name} is no array")
        allowed = (dtypes,) if isinstance(dtypes, str) else dtypes
        if allowed and item.dtype not in [np.dtype(each) for each in allowed]:
            raise self.damaged(
                f"/{name} has elements {item.dtype}, expected {' or '.join(allowed)}"
            )
        if shape is not None:
            fits = len(shape) == len(item.shape) and all(
                expected in (None, actual) for expected, actual in zip(shape, item.shape)
            )
            if not fits:
                expected_text = str(shape).replace("None", "any")
                raise self.damaged(f"/{name} has shape {item.shape}, expected {expected_text}")
        return Array(self, item)

    def text(self, name: str) -> str:
        """A text that is kept as an array of one element."""
        value = self.array(name, shape=()).read()
        with contextlib.suppress(UnicodeDecodeError, AttributeError):
            content = value.item()
            return content if isinstance(content, str) else content.decode()
        raise self.damaged(f"/{name} is not text in UTF-8")

    # ---- errors ----

    def damaged(self, why: object) -> NeocpuError:
        """The error that the file is broken."""
        return self._error(self.kind.damaged, why=one_line(why))

    @contextlib.contextmanager
    def readable(self) -> Iterator[None]:
        """What h5py or the system raises within means that the file is damaged."""
        try:
            yield
        except PROBLEMS as error:
            raise self.damaged(one_line(error)) from error

    def _error(self, sentence: str, **facts: object) -> NeocpuError:
        return self.kind.error(sentence.format(path=self.path, **facts))

    def unchanged(self) -> None:
        """Raise the error of a damaged file if it was cut or replaced since it was opened.

        Elements that are mapped cannot be read beyond the end of a file: the system ends the
        process.
        """
        if self._handle < 0:
            raise self.kind.error(f"{self.path}: is closed")
        size = os.fstat(self._handle).st_size
        if size < self._status.st_size:
            raise self.damaged(
                f"it was cut from {self._status.st_size:,} to {size:,} bytes while it was in use"
            )

    # ---- opening ----

    def _open(self) -> int:
        """A descriptor of the file, which must be a file and start like HDF5."""
        try:
            # A FIFO would wait for its writer.
            handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._error(self.kind.missing) from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise self.kind.error(f"{self.path}: cannot be read: {reason}") from error
        except ValueError as error:  # a NUL in the path
            raise self.kind.error(f"{str(self.path)!r}: cannot be read: {error}") from error
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise self.kind.error(f"{self.path}: not a regular file")
            if os.pread(handle, 8, 0) != SIGNATURE:
                raise self._error(self.kind.no_hdf5)
        except OSError as error:
            os.close(handle)
            raise self.kind.error(f"{self.path}: cannot be read: {error.strerror}") from error
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _check_seal(self) -> bool:
        """Whether the file has a seal, which must hold; else HDF5 is tried in another process."""
        try:
            file_seal = seal.find(self._handle)
            if file_seal is not None and not seal.holds(self._handle, file_seal):
                raise self.damaged("it has other bytes than were written")
        except seal.BrokenSeal as error:
            raise self.damaged(error) from error
        except OSError as error:
            raise self.damaged(error) from error
        if file_seal is None:
            size = self._status.st_size
            # a file that was cut is told without starting a process
            if size < (end := _end_of_hdf5(self._handle)):
                raise self.damaged(f"truncated: it has {size:,} of {end:,} bytes")
            from neocpu.tables.hdf5 import probe

            if trouble := probe.trouble(self.path):
                raise self.damaged(trouble)
        return file_seal is not None

    def _walk(self, whole: bool) -> dict[str, Object]:
        """All objects of the file, or the root."""
        try:
            # HDF5 refuses a file that is open in the process with other flags of locking, as users'
            # h5py has them; an image in memory has nothing to do with the file.
            in_memory = self._status.st_size <= LARGEST_IMAGE
            how = {"driver": "core", "backing_store": False} if in_memory else {}
            self._h5 = h5py.File(self.path, "r", locking=False, **how)
            objects = walk(self._h5, self._status.st_size, whole)
        except (NotAcceptable, *PROBLEMS) as error:
            raise self.damaged(one_line(error)) from error
        # what is left is read by plain calls
        if not any(_needs_hdf5(item) for item in objects.values()):
            self._h5.close()
            self._h5 = None
        return objects

    def _check_kind(self) -> None:
        """Refuse files of another kind, newer ones, and those that lost their seal."""
        attributes = self.attributes()
        name = attributes.get("format")
        # an attribute that is an array would compare to an array
        if self.kind.format and not (isinstance(name, str) and name == self.kind.format):
            raise self._error(self.kind.foreign)
        if self.kind.format:
            version = self.attribute("version", int)
            if version > self.kind.version:
                raise self._error(self.kind.newer, version=version, newest=self.kind.version)
        if not self.sealed and SEALED in attributes:
            raise self.damaged("it lacks the seal at its end: truncated, or changed since")

    def _object(self, name: str) -> Object:
        if name not in self.objects:
            raise self.damaged(f"it lacks /{name}")
        return self.objects[name]

    def close(self) -> None:
        """Close the file; maps of it stay valid."""
        self._opened.clear()
        if self._h5 is not None:
            with contextlib.suppress(*PROBLEMS):
                self._h5.close()
            self._h5 = None
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- elements, for `Array` ----

    def bytes_at(self, first: int, count: int) -> bytearray:
        """Bytes of the file; raises the error of a damaged file if they are not there."""
        content = bytearray(count)
        try:
            length = read_into(self._handle, memoryview(content), first)
        except OSError as error:
            raise self.damaged(error) from error
        if length < count:
            raise self.damaged(f"it ends before byte {first + count:,}")
        return content

    def mapped(self) -> mmap.mmap:
        """All bytes of the file, mapped once."""
        if self._map is None:
            self.unchanged()
            try:
                self._map = mmap.mmap(self._handle, self._status.st_size, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise self.damaged(f"it cannot be mapped: {error}") from error
        return self._map

    def elements(self, name: str, where: tuple[()] | slice) -> Elements:
        """Elements of an array that only HDF5 can read."""
        with self.readable():
            assert self._h5 is not None
            if name not in self._opened:  # which takes longer than to read a chunk
                self._opened[name] = self._h5[name]
            return np.asarray(self._opened[name][where])


class Array:
    """An array in a file: `dtype`, `shape`, `attributes`, and its elements when asked for."""

    def __init__(self, file: File, item: Object) -> None:
        assert item.dtype is not None
        self._file = file
        self._item = item
        self.name = item.name
        self.dtype = item.dtype
        self.shape = item.shape
        self.attributes = item.attributes
        self.size = math.prod(item.shape)
        self.nbytes = item.nbytes

    @property
    def mappable(self) -> bool:
        """Whether the elements are in one place of the file."""
        return not _needs_hdf5(self._item)

    def read(self) -> Elements:
        """All elements. Raises the error of a damaged file."""
        if self.mappable:
            if not self.size:
                return np.empty(self.shape, self.dtype)
            content = self._file.bytes_at(self._item.offset or 0, self.nbytes)
            return np.frombuffer(content, self.dtype).reshape(self.shape)
        # a few compressed bytes can stand for any number of zeros
        if self.nbytes > LARGEST_READ:
            raise self._file.damaged(f"/{self.name} takes {self.nbytes:,} bytes, decompressed")
        return self._file.elements(self.name, ())

    def rows(self, first: int, end: int) -> Elements:
        """Entries [first, end) along the first axis. Raises the error of a damaged file."""
        count = max(min(end, self.shape[0]) - first, 0)
        width = self.nbytes // max(self.shape[0], 1)
        if self.mappable:
            if not count or not width:
                return np.empty((count, *self.shape[1:]), self.dtype)
            content = self._file.bytes_at((self._item.offset or 0) + first * width, count * width)
            return np.frombuffer(content, self.dtype).reshape(count, *self.shape[1:])
        if count * width > LARGEST_READ:
            raise self._file.damaged(f"/{self.name}: {count:,} entries are too many at once")
        return self._file.elements(self.name, slice(first, first + count))

    def map(self) -> Elements:
        """All elements, mapped and read-only; only where `mappable`."""
        if not self.size:
            return np.empty(self.shape, self.dtype)
        assert self.mappable
        elements: Elements = np.frombuffer(
            self._file.mapped(), self.dtype, self.size, self._item.offset or 0
        )
        return elements.reshape(self.shape)


def _end_of_hdf5(handle: int) -> int:
    """How many bytes a file has at least, as its superblock says; 0 if that is unknown."""
    # padded: a file may be shorter than a superblock
    head = os.pread(handle, 52, 0).ljust(52, b"\0")
    # version of the superblock -> where it notes the size of addresses, and the end of the file
    fields = {0: (13, 40), 1: (13, 44), 2: (9, 28), 3: (9, 28)}
    size, end = fields.get(head[8], (0, 0))
    if head[size] != 8:
        return 0
    return int.from_bytes(head[end : end + 8], "little")


def _needs_hdf5(item: Object) -> bool:
    """Whether the elements of an object can only be read by HDF5: compressed, or compact."""
    if item.dtype is None or not item.nbytes:
        return False
    return item.offset is None or item.dtype.kind == "O"
