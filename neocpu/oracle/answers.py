"""What was answered? Arrays by "case/output" from HDF5, npz, safetensors, or a mapping in memory.

    answers.h5            /lookup_ragged/output                 datasets; groups are the slashes
    answers.npz           np.savez(f, **{"lookup_ragged/output": y})
    answers.safetensors   save_file({"lookup_ragged/output": y}, f)

An array with one more leading axis has several runs, all of which are judged. Runs of an output
that is rounded stochastically have a seed each; the key CASE/OUT@repeats is for runs of one seed.

Answers are read one by one, when they are compared. Whatever is wrong with a file raises
OracleError and says what to do. Nothing is allocated for an array before its size is known to be
that of the bytes that the file has of it, at most `MOST_BYTES`.
"""

import json
import math
import os
import stat
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Literal, Self, TypedDict

import numpy as np

from neocpu.core.errors import OracleError
from neocpu.core.types import Json
from neocpu.oracle.adapters import CODES, NAMES, Array, coded, to_numpy
from neocpu.tables.hdf5.disk import SIGNATURE
from neocpu.tables.hdf5.door import File, Kind
from neocpu.tables.hdf5.walk import one_line

# Ends the key of runs of a stochastic output that all have the case's seed.
REPEATS = "@repeats"
ZIP_MAGIC = b"PK"
ADVICE = "write answers as HDF5 (.h5), NumPy (.npz) or .safetensors, with keys like case/output"

SUITE_FORMAT = "neocpu-oracle-suite"  # of files that hold the questions

# safetensors' names of element types -> NumPy's; the narrow floats are in `NAMES`.
SAFETENSORS = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}
LONGEST_HEADER = 16 << 20  # bytes, of safetensors
MOST_BYTES = 512 << 20  # of an array
KIND = Kind(
    format="",
    version=0,
    error=OracleError,
    missing="{path}: no such file",
    damaged="{path}: truncated or not readable ({why}); write the answers again",
    no_hdf5="{path}: not an HDF5 file",
    foreign="",
    newer="",
)


class Answers(Mapping[str, Array]):
    """Arrays by "case/output", read on access; a context manager."""

    source = "answers"  # what messages call them

    def __init__(self, named: Mapping[str, object] | None = None) -> None:
        self._named: Mapping[str, object] = {
            str(key).strip("/"): value for key, value in (named or {}).items()
        }

    def __getitem__(self, key: str) -> Array:
        if key not in self._named:
            raise KeyError(key)
        return self._read(key)

    def _read(self, key: str) -> Array:
        return to_numpy(self._named[key], f'answer "{key}"')

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, if there is one."""


def read_answers(path: str | Path) -> Answers:
    """Open a file of answers; its kind is told by its first bytes, not by its name.

    Raises OracleError for a file that is missing, of another kind, truncated, or holds something
    that is no array.
    """
    path = Path(path)
    head = _head(path)
    if head.startswith(SIGNATURE):
        return _HDF5(path)
    if head.startswith(ZIP_MAGIC):
        return _Npz(path)
    # safetensors has no magic number: a plausible length, and JSON behind it.
    if len(head) == 9 and head[8:] == b"{" and int.from_bytes(head[:8], "little") <= LONGEST_HEADER:
        return _Safetensors(path)
    if head.startswith(b"\x93NUMPY"):
        raise OracleError(
            f"{path}: one array without a name (.npy); use np.savez(file, **{{'case/output': "
            f"array}})"
        )
    raise OracleError(f"{path}: neither HDF5, npz nor safetensors; {ADVICE}")


def _head(path: Path) -> bytes:
    """The first bytes of a file of answers. Raises OracleError where there is no such file."""
    try:
        # A FIFO would wait for its writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OracleError(f"{path}: not a regular file; {ADVICE}")
            return os.pread(handle, 9, 0)
        finally:
            os.close(handle)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise OracleError(f"{path}: no such file; {ADVICE}") from error
    except (OSError, ValueError) as error:
        raise OracleError(f"{str(path)!r}: cannot be read: {error}") from error


def _keys(source: str, names: Iterable[str]) -> dict[str, str]:
    """Names in a file by "case/output"; raises OracleError for two that are the same."""
    keys: dict[str, str] = {}
    for name in names:
        key = name.strip("/")
        if key in keys:
            raise OracleError(f"{source}: has {key!r} twice; write the answers again")
        # Names come from a file that may be damaged, and go to the terminal.
        if not name.isprintable():
            raise OracleError(f"{source}: has a name that is no text: {name!r}")
        keys[key] = name
    return keys


class _FileAnswers(Answers):
    """Answers in a file; `_array` reads one, and may raise anything."""

    def __init__(self, path: Path) -> None:
        self.source = str(path)

    def _read(self, key: str) -> Array:
        try:
            return self._array(key)
        except OracleError:
            raise
        # NumPy, zipfile and its decompressors raise all kinds of errors for damaged bytes.
        except Exception as error:
            raise OracleError(
                f"{self.source}: {key} cannot be read ({one_line(error)}); write the answers again"
            ) from error

    def _array(self, key: str) -> Array:
        raise NotImplementedError

    def _check_size(self, key: str, size: int) -> None:
        """Raise OracleError for an array of too many bytes."""
        if size > MOST_BYTES:
            raise OracleError(
                f"{self.source}: {key} takes {size:,} bytes; arrays of answers have at most "
                f"{MOST_BYTES:,}"
            )


class _HDF5(_FileAnswers):
    """Datasets of an HDF5 file; an attribute `format` names the narrow format of integer codes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file = File(path, KIND)
        try:
            form = self._file.attributes().get("format")
            if isinstance(form, str) and form == SUITE_FORMAT:
                raise OracleError(f"{path}: a suite of questions, not answers; {ADVICE}")
            objects = self._file.objects
            self._named = _keys(
                self.source, (name for name in objects if objects[name].dtype is not None)
            )
        except BaseException:
            self._file.close()
            raise

    def _array(self, key: str) -> Array:
        stored = self._file.array(key)
        self._check_size(key, stored.nbytes)
        array = stored.read()
        form = stored.attributes.get("format", "")
        if isinstance(form, str) and form in CODES and array.dtype == np.dtype(CODES[form]):
            return coded(array, form).reshape(array.shape)
        return to_numpy(array, f"{self.source}: {key}")

    def close(self) -> None:
        self._file.close()


class _Npz(_FileAnswers):
    """Arrays of an npz file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self._archive = zipfile.ZipFile(path)
        except Exception as error:
            raise OracleError(
                f"{path}: truncated or not an npz file ({one_line(error)}); write the answers again"
            ) from error
        try:
            members = [info.filename for info in self._archive.infolist()]
            self._named = _keys(self.source, (name.removesuffix(".npy") for name in members))
        except BaseException:
            self._archive.close()
            raise

    def _array(self, key: str) -> Array:
        member = self._archive.getinfo(f"{self._named[key]}.npy")
        self._check_size(key, member.file_size)
        with self._archive.open(member) as stream:
            shape, fortran, dtype = _npy_header(stream)
            # Python's whole numbers: a damaged header may name any size.
            size = math.prod(shape) * dtype.itemsize
            if dtype.hasobject or min(shape, default=0) < 0:
                raise OracleError(f"{self.source}: {key} is no array of numbers")
            if stream.tell() + size != member.file_size:
                raise OracleError(
                    f"{self.source}: {key} of shape {list(shape)} {dtype} does not have "
                    f"{member.file_size - stream.tell()} bytes; write the answers again"
                )
            data = stream.read()
        order: Literal["F", "C"] = "F" if fortran else "C"
        array = np.frombuffer(data, dtype).reshape(shape, order=order)
        return to_numpy(array, f"{self.source}: {key}")

    def close(self) -> None:
        self._archive.close()


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Shape, whether in Fortran's order, and dtype, from the beginning of a member of an npz."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"a header of version {version}")


class TensorEntry(TypedDict):
    """What the header of a sound safetensors file says of a tensor."""

    dtype: str
    shape: list[int]
    data_offsets: list[int]  # of the first byte and the one after the last


class _Safetensors(_FileAnswers):
    """Tensors of a safetensors file.

    8 bytes with the length of the header, the header as JSON, then raw little-endian elements.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self._size = path.stat().st_size
            with open(path, "rb") as file:
                length = int.from_bytes(file.read(8), "little")
                text = file.read(length)
        except OSError as error:
            raise self._damaged(one_line(error)) from error
        self._start = 8 + length
        if len(text) < length:
            raise self._damaged(f"its header ends at byte {self._start} of {self._size}")
        try:
            header = json.loads(text, object_pairs_hook=_unique)
            header.pop("__metadata__", None)
            names = _keys(self.source, header)
            self._entries = {key: self._entry(key, header[name]) for key, name in names.items()}
        except (ValueError, AttributeError, KeyError, RecursionError, TypeError) as error:
            problem = f"its header is no valid JSON of tensors ({one_line(error)})"
            raise self._damaged(problem) from error
        self._refuse_overlaps()
        self._named = dict.fromkeys(self._entries)

    def _damaged(self, what: str) -> OracleError:
        return OracleError(
            f"{self.source}: a damaged or truncated safetensors file: {what}; write the answers "
            "again"
        )

    def _entry(self, name: str, entry: TensorEntry) -> tuple[str, tuple[int, ...], int]:
        """Element type, shape and first byte of a tensor, checked against both sizes."""
        kind = entry["dtype"]
        shape = tuple(entry["shape"])
        first, last = entry["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (*shape, first, last)):
            raise ValueError(f"{name}: sizes that are no whole numbers")
        if kind not in SAFETENSORS and kind not in NAMES:
            raise OracleError(
                f"{self.source}: {name}: elements of type {kind} are not known; give F32 or bytes "
                "as U8"
            )
        size = math.prod(shape) * _dtype(kind).itemsize
        if last - first != size:
            raise self._damaged(f"{name} of shape {list(shape)} {kind} in {last - first} bytes")
        if self._start + last > self._size:
            raise self._damaged(f"{name} ends at byte {self._start + last} of {self._size}")
        self._check_size(name, size)
        return kind, shape, self._start + first

    def _refuse_overlaps(self) -> None:
        """Raise OracleError where two tensors share bytes."""
        end = 0
        by_place = sorted(self._entries.items(), key=lambda item: item[1][2])
        for name, (kind, shape, first) in by_place:
            size = math.prod(shape) * _dtype(kind).itemsize
            if size and first < end:
                raise self._damaged(f"{name} begins within another tensor")
            end = max(end, first + size)

    def _array(self, key: str) -> Array:
        kind, shape, first_byte = self._entries[key]
        count = math.prod(shape)
        elements = np.fromfile(self.source, _dtype(kind), count, offset=first_byte).reshape(shape)
        return coded(elements, NAMES[kind]).reshape(shape) if kind in NAMES else elements


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """A JSON object; raises ValueError for a name that is there twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a name is there twice")
    return value


def _dtype(kind: str) -> np.dtype[np.generic]:
    """dtype of a safetensors element type; of its codes where it is a narrow float."""
    return np.dtype(CODES[NAMES[kind]] if kind in NAMES else SAFETENSORS[kind])
