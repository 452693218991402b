"""What does a suite look like to C, C++ and CUDA? The same questions in one flat binary file.

    byte 0   8s   NEOFLAT and a NUL        all numbers are little-endian
         8   u32  version of this layout
        12   u32  CRC-32 (as zlib's) of all bytes from 16 on
        16   u64  bytes of the file
        24   u32  version of the suite's format
        28   u32  cases
        32   32s  SHA-256 of the suite, the same as of its HDF5 twin
        64   i64  seed, text neocpu's version, then a record of every case
    arrays, each at a multiple of 64 bytes, row-major, so that a mapped file needs no copy

    text     u32 length, bytes of UTF-8
    case     text name, op, about; u32 options; u32 inputs; u32 outputs; then these
    option   text name; u8 kind (i: i64, f: f64, b: u8, s: text); value
    input    array, text about, text axes
    output   text name, about, axes, format; u8 exact; u32 parts; arrays of the parts
    array    text name, text format of narrow elements ("" if none), text dtype (as NumPy's, "<f4"),
             u32 axes, u64 length of each, u64 offset, u64 bytes

`neocpu_oracle.hpp` beside this file reads it in C++ and judges answers, `neocpu_oracle.h` in C
(docs/oracle.md §7).
"""

import contextlib
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

import numpy as np

from neocpu import __version__
from neocpu.core.errors import OracleError, told_as
from neocpu.oracle.adapters import CODES, Array, coded, codes_of, format_of
from neocpu.oracle.operator import Case, Field, Truth, Value
from neocpu.oracle.suite import (
    PROBLEMS,
    READABLE,
    Expected,
    Question,
    Suite,
    parts_of,
    suite_digest,
    whole_file,
)
from neocpu.oracle.suite import VERSION as SUITE_VERSION
from neocpu.tables.hdf5.walk import one_line

MAGIC = b"NEOFLAT\0"
VERSION = 2  # 2: the checksum covers what the header says, too
CHECKED_FROM = 16  # the first byte that the checksum covers
HEADER = struct.Struct("<8sIIQII32s")
ALIGNMENT = 64
HEADER_FILE = Path(__file__).with_name("neocpu_oracle.hpp")


class _Directory:
    """The records of a file that is being written, and where its arrays will stand."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self.arrays: list[Array] = []
        # where in `bytes` the offset of each array goes, once the directory's size is known
        self.holes: list[int] = []

    def number(self, form: str, value: float) -> None:
        """One number of a struct format."""
        self.bytes += struct.pack("<" + form, value)

    def text(self, value: str) -> None:
        """A length and UTF-8."""
        data = value.encode()
        self.number("I", len(data))
        self.bytes += data

    def option(self, name: str, value: Value) -> None:
        """An option with its kind."""
        self.text(name)
        # By exact type: a bool is an int, too.
        kind = {bool: "b", int: "i", float: "f", str: "s"}[type(value)]
        self.bytes += kind.encode()
        if isinstance(value, str):
            self.text(value)
        else:
            self.number({"b": "B", "i": "q", "f": "d"}[kind], value)

    def array(self, name: str, array: Array) -> None:
        """An array; its elements follow the directory."""
        codes = np.ascontiguousarray(codes_of(array))
        codes = codes.astype(codes.dtype.newbyteorder("<"), copy=False)
        self.text(name)
        self.text(format_of(array))
        self.text(codes.dtype.str)
        self.number("I", np.ndim(array))
        for length in np.shape(array):
            self.number("Q", length)
        # Where arrays begin depends on the size of this directory.
        self.holes.append(len(self.bytes))
        self.number("Q", 0)
        self.number("Q", codes.nbytes)
        self.arrays.append(codes)

    def question(self, question: Question) -> None:
        """A case with its inputs and outputs."""
        from neocpu.oracle.ops import OPERATORS

        case = question.case
        fields = OPERATORS[case.op].inputs
        for text in (case.name, case.op, case.about):
            self.text(text)
        for count in (len(case.options), len(case.inputs), len(question.outputs)):
            self.number("I", count)
        for name, value in case.options.items():
            self.option(name, value)
        for name, array in case.inputs.items():
            field = fields.get(name.rsplit("/", 1)[-1], Field(""))
            self.array(name, array)
            self.text(field.about)
            self.text(", ".join(field.axes))
        for name, expected in question.outputs.items():
            truth = expected.truth
            field = expected.field
            for text in (name, field.about, ", ".join(field.axes), truth.format):
                self.text(text)
            self.number("B", truth.exact)
            parts = parts_of(expected)
            self.number("I", len(parts))
            for part, array in parts.items():
                self.array(part, array)

    def body(self) -> bytes:
        """Directory and arrays: everything after the header."""
        end = HEADER.size + len(self.bytes)
        places = []
        for codes in self.arrays:
            start = -(-end // ALIGNMENT) * ALIGNMENT
            places.append(start)
            end = start + codes.nbytes
        for hole, start in zip(self.holes, places):
            struct.pack_into("<Q", self.bytes, hole, start)
        whole = bytearray(end - HEADER.size)
        whole[: len(self.bytes)] = self.bytes
        for codes, start in zip(self.arrays, places):
            first = start - HEADER.size
            whole[first : first + codes.nbytes] = codes.tobytes()
        return bytes(whole)


def write_flat(path: str | Path, questions: Iterable[Question], seed: int) -> str:
    """Write a suite as a flat file, under its final name once it is whole; returns its SHA-256.

    Raises OracleError where it cannot be written.
    """
    directory = _Directory()
    directory.number("q", seed)
    directory.text(__version__)
    hashes = []
    for question in questions:
        directory.question(question)
        hashes.append((question.case.name, question.sha256))
    digest = suite_digest(hashes, seed)
    body = directory.body()
    size = HEADER.size + len(body)
    facts = (size, SUITE_VERSION, len(hashes), bytes.fromhex(digest))
    unchecked = HEADER.pack(MAGIC, VERSION, 0, *facts)
    crc = zlib.crc32(body, zlib.crc32(unchecked[CHECKED_FROM:]))
    with whole_file(Path(path)) as partial:
        partial.write_bytes(HEADER.pack(MAGIC, VERSION, crc, *facts) + body)
    return digest


def _dtype(name: str) -> np.dtype[np.generic]:
    """The element type of that name. Raises ValueError for what no array of a suite has."""
    # NumPy would take many more names, some of which it parses as Python
    if len(name) != 3 or name[0] not in "<|" or name[1] not in "fiub" or name[2] not in "1248":
        raise ValueError(f"elements of type {name!r}")
    return np.dtype(name)


class _Cursor:
    """Reads the records of a flat file, one after the other. Raises ValueError beyond its end."""

    def __init__(self, data: memoryview, place: int) -> None:
        self.data = data
        self.place = place

    def number(self, form: str) -> int:
        """One whole number of a struct format."""
        return int(self._unpacked(form))

    def _unpacked(self, form: str) -> int | float:
        size = struct.calcsize("<" + form)
        if self.place + size > len(self.data):
            raise ValueError("a record goes beyond the file's end")
        value: int | float = struct.unpack_from("<" + form, self.data, self.place)[0]
        self.place += size
        return value

    def text(self) -> str:
        """A length and UTF-8."""
        size = self.number("I")
        if self.place + size > len(self.data):
            raise ValueError("a text goes beyond the file's end")
        self.place += size
        return str(self.data[self.place - size : self.place], "utf-8")

    def axes(self) -> tuple[str, ...]:
        """Names of axes."""
        return tuple(axis for axis in self.text().split(", ") if axis)

    def option(self) -> tuple[str, Value]:
        """Name and value of an option."""
        name = self.text()
        kind = chr(self.number("B"))
        if kind == "s":
            return name, self.text()
        value = self._unpacked({"b": "B", "i": "q", "f": "d"}[kind])
        return name, bool(value) if kind == "b" else value

    def array(self) -> tuple[str, Array]:
        """Name and elements of an array, without a copy."""
        name = self.text()
        form = self.text()
        dtype = _dtype(self.text())
        shape = [self.number("Q") for _ in range(self.number("I"))]
        start = self.number("Q")
        size = self.number("Q")
        count = 1
        for length in shape:
            # Python's whole numbers do not overflow, as NumPy's product of damaged sizes would.
            count *= length
        if count * dtype.itemsize != size:
            raise ValueError(f"{name} has not the bytes of its shape")
        if start + size > len(self.data):
            raise ValueError(f"{name} goes beyond the file's end")
        codes = np.frombuffer(self.data, dtype, count, start).reshape(shape)
        return name, coded(codes, form).reshape(shape) if form in CODES else codes

    def question(self) -> Question:
        """A case with its inputs and outputs."""
        name = self.text()
        op = self.text()
        about = self.text()
        options, inputs, outputs = (self.number("I") for _ in range(3))
        case = Case(name, op, {}, dict(self.option() for _ in range(options)), about)
        for _ in range(inputs):
            key, array = self.array()
            case.inputs[key] = array
            self.text()
            self.text()
        return Question(case, dict(self.output() for _ in range(outputs)))

    def output(self) -> tuple[str, Expected]:
        """Name of an output, and what it must be."""
        name = self.text()
        about = self.text()
        axes = self.axes()
        form = self.text()
        exact = bool(self.number("B"))
        parts = dict(self.array() for _ in range(self.number("I")))
        canonical = parts.pop("canonical", None)
        bare = Truth(parts.pop("reference"), parts.pop("bound"), exact=exact, format=form)
        return name, Expected(bare.with_arrays(parts), canonical, Field(about, axes))


class FlatSuite(Mapping[str, Question]):
    """Questions of a flat file by name; a context manager.

    Attributes: path, seed, sha256, neocpu (the version that wrote it).
    Raises OracleError for a file that is missing, foreign, newer, truncated or damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with told_as(OracleError, path, "cannot be read"):
            data = self.path.read_bytes()
        cases = self._check(data)
        try:
            cursor = _Cursor(memoryview(data), HEADER.size)
            self.seed = int(cursor.number("q"))
            self.neocpu = cursor.text()
            questions = [cursor.question() for _ in range(cases)]
        except PROBLEMS as error:
            raise self._damaged(one_line(error)) from error
        self._questions = {question.case.name: question for question in questions}
        hashes = [(name, question.sha256) for name, question in self._questions.items()]
        if suite_digest(hashes, self.seed, self._suite_version) != self.sha256:
            raise self._damaged("its hash is not that of its content")

    def _check(self, data: bytes) -> int:
        """The number of cases of a file whose header and checksum are sound."""
        if len(data) < HEADER.size or not data.startswith(MAGIC):
            raise OracleError(f"{self.path}: not a flat suite; `neocpu oracle export --flat`")
        _, version, crc, size, self._suite_version, cases, sha256 = HEADER.unpack_from(data)
        if version != VERSION or self._suite_version not in READABLE:
            raise OracleError(
                f"{self.path}: flat suite of version {version} ({self._suite_version}), this "
                f"neocpu reads {VERSION} ({SUITE_VERSION}): export again"
            )
        if size != len(data) or crc != zlib.crc32(memoryview(data)[CHECKED_FROM:]):
            raise self._damaged(f"{len(data):,} of {size:,} bytes, or others than were written")
        self.sha256 = sha256.hex()
        return int(cases)

    def _damaged(self, why: str) -> OracleError:
        return OracleError(f"{self.path}: a damaged flat suite ({why}); export it again")

    def __getitem__(self, name: str) -> Question:
        return self._questions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._questions)

    def __len__(self) -> int:
        return len(self._questions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def open_suite(path: str | Path) -> Suite | FlatSuite:
    """A suite of either form, told apart by its first bytes. Raises OracleError."""
    flat = False
    # `Suite` says what is wrong with a file that is none or cannot be read; a FIFO would wait
    with contextlib.suppress(OSError):
        if Path(path).is_file():
            with open(path, "rb") as file:
                flat = file.read(len(MAGIC)) == MAGIC
    return FlatSuite(path) if flat else Suite(path)
