"""What is in an HDF5 file, and is it something that a file of ours, or of answers, may have?

Every object is looked at once, before anything of it is used. Refused are: links to other files and
symbolic ones, two names of one object, datatypes with names, elements other than numbers and text,
virtual and external data, filters that are not ours, attributes and objects without measure, and
data that is said to be where the file is not.

The file is also a program: `python walk.py FILE` walks a file and prints nothing if it may be used,
else one line of JSON. It imports nothing of neocpu, so that it starts quickly (`probe.py`).
"""

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import h5py
import numpy as np

MOST_OBJECTS = 200_000
MOST_DEPTH = 16  # of groups in groups
MOST_TEXT = 64 << 20  # bytes of all attributes
MOST_CHUNK = 256 << 20  # bytes of a chunk, decompressed
# of the processor, for a small file, and a second more for so many bytes of objects
SECONDS = 4
BYTES_PER_SECOND = 2 << 20
MOST_SECONDS = 56
FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32015: "zstd"}
# numbers, text, arrays of numbers, lists of text
Attributes: TypeAlias = dict[str, Any]
# what h5py raises for files that HDF5 cannot read
PROBLEMS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


class NotAcceptable(Exception):
    """An object of a file is of a kind that is not read."""


@dataclass(frozen=True)
class Object:
    """A group (dtype None) or an array of a file.

    name : its path, without the first slash; "" is the root.
    attributes : numbers, text, arrays of them.
    children : names in a group, in their order.
    offset : first byte of the elements where they are contiguous, else None.
    """

    name: str
    attributes: Attributes
    children: tuple[str, ...] = ()
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()
    offset: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize if self.dtype is not None else 0


def one_line(error: object) -> str:
    """HDF5's texts, which may go over several lines, as one line without control characters."""
    text = " ".join(str(error).split())
    return "".join(c if c.isprintable() else "?" for c in text) or type(error).__name__


def walk(file: h5py.File, size: int, whole: bool = True) -> dict[str, Object]:
    """All objects of a file of `size` bytes, by name; not the whole of it: the root alone.

    Raises NotAcceptable, or one of PROBLEMS.
    """
    objects = _Walk(size).group(file["/"].id, "", 0)
    return {item.name: item for item in (objects if whole else islice(objects, 1))}


def each_chunk(dataset: h5py.h5d.DatasetID, note: Callable[[h5py.h5d.StoreInfo], None]) -> None:
    """Call `note` for each chunk of a dataset that has a place in its file."""
    if hasattr(dataset, "chunk_iter"):
        dataset.chunk_iter(note)
        return
    for number in range(dataset.get_num_chunks()):  # HDF5 before 1.12.3
        note(dataset.get_chunk_info(number))


class _Walk:
    """A walk over a file, with what it has seen so far."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._addresses: set[int] = set()
        self._text = 0

    def group(self, group: h5py.h5g.GroupID, name: str, depth: int) -> Iterator[Object]:
        """A group and all that is below it."""
        if depth > MOST_DEPTH:
            raise NotAcceptable(f"/{name} is nested deeper than {MOST_DEPTH} groups")
        self._note(group, name)
        entries = h5py.Group(group)
        children = list(entries)
        if not all(isinstance(child, str) for child in children):
            raise NotAcceptable(f"/{name} has an object whose name is not text in UTF-8")
        if len(self._addresses) + len(children) > MOST_OBJECTS:
            raise NotAcceptable(f"more than {MOST_OBJECTS:,} objects")
        yield Object(name, self._attributes(group, name), tuple(children))
        for child in children:
            path = f"{name}/{child}" if name else child
            link = group.links.get_info(child.encode("utf-8", "surrogateescape"))
            # other links could lead to any file of the machine
            if link.type != h5py.h5l.TYPE_HARD:
                raise NotAcceptable(f"/{path} is a link to another place or file")
            item = h5py.h5o.open(group, child.encode("utf-8", "surrogateescape"))
            if isinstance(item, h5py.h5g.GroupID):
                yield from self.group(item, path, depth + 1)
            elif isinstance(item, h5py.h5d.DatasetID):
                yield self._array(item, path)
            else:
                raise NotAcceptable(f"/{path} is neither a group nor an array")

    def _note(self, item: h5py.h5g.GroupID | h5py.h5d.DatasetID, name: str) -> None:
        """Refuse an object that has been seen under another name."""
        info = h5py.h5o.get_info(item)
        address = info.addr
        # also what makes the walk end: a group may contain itself
        if address in self._addresses:
            raise NotAcceptable(f"/{name} is a second name of another object")
        self._addresses.add(address)

    def _attributes(self, item: h5py.h5g.GroupID | h5py.h5d.DatasetID, name: str) -> Attributes:
        """All attributes of an object, as Python's numbers and text, or arrays of them."""
        values = {}
        ordered = item.get_create_plist().get_attr_creation_order() & h5py.h5p.CRT_ORDER_TRACKED
        by = h5py.h5.INDEX_CRT_ORDER if ordered else h5py.h5.INDEX_NAME
        for number in range(h5py.h5a.get_num_attrs(item)):
            attribute = h5py.h5a.open(item, index=number, index_type=by)
            key = attribute.name.decode("utf-8", "backslashreplace")
            where = f"attribute {key} of /{name}"
            kind = attribute.get_type()
            self._check_type(kind, where)
            count = math.prod(attribute.shape)
            # counted before they are read: a damaged shape could ask for all memory
            self._text += count * kind.get_size()
            if self._text > MOST_TEXT:
                raise NotAcceptable(f"{where}: attributes of more than {MOST_TEXT >> 20} MiB")
            values[key] = _plain(_attribute_value(attribute, kind), where)
        return values

    def _check_type(self, kind: h5py.h5t.TypeID, where: str) -> np.dtype[Any]:
        """The dtype of elements; raises NotAcceptable unless they are numbers or text."""
        if isinstance(kind, h5py.h5t.TypeStringID):
            return np.dtype("O" if kind.is_variable_str() else f"S{kind.get_size()}")
        if isinstance(kind, h5py.h5t.TypeEnumID):
            dtype = np.dtype(kind.dtype)
            if dtype == np.dtype(bool):
                return dtype
        elif isinstance(kind, h5py.h5t.TypeIntegerID | h5py.h5t.TypeFloatID):
            dtype = np.dtype(kind.dtype)
            if dtype.kind in "iuf" and dtype.itemsize == kind.get_size() <= 8:
                return dtype
        raise NotAcceptable(f"{where} has elements that are neither numbers nor text")

    def _array(self, item: h5py.h5d.DatasetID, name: str) -> Object:
        """An array: where its elements are, checked against the file."""
        self._note(item, name)
        where = f"/{name}"
        dtype = self._check_type(item.get_type(), where)
        if item.get_space().get_simple_extent_type() == h5py.h5s.NULL:
            raise NotAcceptable(f"{where} has no shape")
        shape = tuple(int(n) for n in item.shape)
        properties = item.get_create_plist()
        if properties.get_external_count():
            raise NotAcceptable(f"{where} has its elements in other files")
        layout = properties.get_layout()
        attributes = self._attributes(item, name)
        count = math.prod(shape)
        # kept in a heap that has no checksums
        if dtype.kind == "O" and count > 1:
            raise NotAcceptable(f"{where} has text of variable length")
        if layout == h5py.h5d.CHUNKED:
            self._check_chunks(item, properties, where, dtype, shape)
            return Object(name, attributes, (), dtype, shape)
        if layout == h5py.h5d.COMPACT or count == 0:
            return Object(name, attributes, (), dtype, shape)
        if layout != h5py.h5d.CONTIGUOUS:
            raise NotAcceptable(f"{where} is a view of other arrays")
        offset = item.get_offset()
        if offset is None:
            raise NotAcceptable(f"{where} was never written")
        size = item.get_storage_size()
        if dtype.kind != "O" and size != count * dtype.itemsize:
            raise NotAcceptable(f"{where} of shape {shape} has {size:,} bytes")
        self._check_inside([(offset, size)], where)
        return Object(name, attributes, (), dtype, shape, offset)

    def _check_chunks(
        self,
        item: h5py.h5d.DatasetID,
        properties: h5py.h5p.PropDCID,
        where: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
    ) -> None:
        """Refuse chunks that this HDF5 cannot read, or that were not all written."""
        for number in range(properties.get_nfilters()):
            code = properties.get_filter(number)[0]
            if code not in FILTERS:
                raise NotAcceptable(
                    f"{where} is compressed by a filter (number {code}) that is none of "
                    f"{', '.join(FILTERS.values())}"
                )
            if not h5py.h5z.filter_avail(code):
                with contextlib.suppress(ImportError):
                    import hdf5plugin  # noqa: F401  (registers zstd)
            if not h5py.h5z.filter_avail(code):
                raise NotAcceptable(
                    f"{where} is compressed by {FILTERS[code]}, which this HDF5 lacks: "
                    'pip install "neocpu[zstd]"'
                )
        chunks = tuple(int(n) for n in properties.get_chunk())
        if math.prod(chunks) * dtype.itemsize > MOST_CHUNK:
            raise NotAcceptable(f"{where} has chunks of more than {MOST_CHUNK >> 20} MiB")
        stored: list[tuple[int, int]] = []
        expected = math.prod(-(-n // chunk) for n, chunk in zip(shape, chunks))

        def note(chunk: h5py.h5d.StoreInfo) -> None:
            stored.append((chunk.byte_offset, chunk.size))
            if len(stored) > expected:
                raise NotAcceptable(f"{where} has more chunks than its shape")

        # a chunk takes a byte at least, so a damaged shape is known before its chunks are counted
        if expected > self._size:
            raise NotAcceptable(f"{where} has a shape of more chunks than the file has bytes")
        each_chunk(item, note)
        if len(stored) != expected:
            raise NotAcceptable(f"{where} lacks {expected - len(stored)} of {expected} chunks")
        self._check_inside(stored, where)

    def _check_inside(self, ranges: list[tuple[int, int]], where: str) -> None:
        """Refuse elements that are said to be beyond the end of the file."""
        for first, count in ranges:
            if first < 0 or count < 0 or first + count > self._size:
                raise NotAcceptable(
                    f"{where} ends at byte {first + count:,} of {self._size:,}: truncated"
                )


def _attribute_value(attribute: h5py.h5a.AttrID, kind: h5py.h5t.TypeID) -> Any:
    """The value of an attribute as h5py gives it."""
    if attribute.get_space().get_simple_extent_type() == h5py.h5s.NULL:
        return ""
    variable = isinstance(kind, h5py.h5t.TypeStringID) and kind.is_variable_str()
    dtype = h5py.string_dtype() if variable else np.dtype(kind.dtype)
    value = np.empty(attribute.shape, dtype)
    attribute.read(value)
    return value


def _plain(value: object, where: str) -> Any:
    """Numbers and text of Python; arrays of numbers stay arrays, those of text become lists."""
    array = np.asarray(value)
    if array.dtype.kind in "SO":
        texts = [_text(each, where) for each in array.reshape(-1).tolist()]
        return texts if array.ndim else texts[0]
    return array if array.ndim else array.item()


def _text(value: str | bytes | None, where: str) -> str:
    """Text of HDF5's bytes."""
    try:
        text: str = value if isinstance(value, str) else bytes(value or b"").decode()
        text.encode()
    except UnicodeError as error:
        raise NotAcceptable(f"{where} is not text in UTF-8") from error
    return text


def main(path: str) -> int:
    """Walk a file in a process of its own, which may use some seconds and 3 GiB.

    Raises OSError if the file is gone.
    """
    import os

    size = os.stat(path).st_size

    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        seconds = SECONDS + min(size // BYTES_PER_SECOND, MOST_SECONDS)
        # soft before hard: the status then says that it was time (`probe.ENDED`)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
        # a crash is one of the answers, and needs no dump
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with h5py.File(path, "r", locking=False) as file:
            walk(file, size)
    except (NotAcceptable, *PROBLEMS) as error:
        print(json.dumps([isinstance(error, NotAcceptable), one_line(error)]))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
