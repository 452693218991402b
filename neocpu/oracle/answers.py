"""What was answered? Arrays by "case/output" from HDF5, npz, safetensors, or a mapping in memory.

    answers.h5            /lookup_ragged/output                 datasets; groups are the slashes
    answers.npz           np.savez(f, **{"lookup_ragged/output": y})
    answers.safetensors   save_file({"lookup_ragged/output": y}, f)

Answers are read one by one, when they are compared. Whatever is wrong with a file raises
OracleError and says what to do.
"""

import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np

from neocpu.errors import OracleError
from neocpu.oracle.adapters import CODES, NAMES, Array, coded, to_numpy

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
ZIP_MAGIC = b"PK"
ADVICE = "write answers as HDF5 (.h5), NumPy (.npz) or .safetensors, with keys like case/output"

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
LONGEST_HEADER = 100 << 20  # bytes; safetensors' own limit


class Answers(Mapping[str, Array]):
    """Arrays by "case/output", read on access; a context manager."""

    source = "answers"  # what messages call them

    def __init__(self, named: Mapping[str, Any] | None = None) -> None:
        self._named: Mapping[str, Any] = {
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
    if not path.is_file():
        raise OracleError(f"{path}: no such file; {ADVICE}")
    with open(path, "rb") as file:
        head = file.read(9)
    if head.startswith(HDF5_MAGIC):
        return _HDF5(path)
    if head.startswith(ZIP_MAGIC):
        return _Npz(path)
    if len(head) == 9 and head[8:] == b"{" and int.from_bytes(head[:8], "little") <= LONGEST_HEADER:
        return _Safetensors(path)
    if head.startswith(b"\x93NUMPY"):
        raise OracleError(
            f"{path}: one array without a name (.npy); use np.savez(file, **{{'case/output': "
            f"array}})"
        )
    raise OracleError(f"{path}: neither HDF5, npz nor safetensors; {ADVICE}")


class _HDF5(Answers):
    """Datasets of an HDF5 file; an attribute `format` names the narrow format of integer codes."""

    def __init__(self, path: Path) -> None:
        self.source = str(path)
        try:
            self._file = h5py.File(path, "r", locking=False)
        except OSError as error:
            raise OracleError(
                f"{path}: truncated or not readable ({error}); write the answers again"
            ) from error
        names: list[str] = []
        self._file.visititems(
            lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
        )
        self._named = dict.fromkeys(names)

    def _read(self, key: str) -> Array:
        dataset = self._file[key]
        form = str(dataset.attrs.get("format", ""))
        try:
            array = np.asarray(dataset[()])
        except (OSError, TypeError, ValueError) as error:
            raise OracleError(
                f"{self.source}: {key} cannot be read ({error}); write the answers again"
            ) from error
        if form in CODES and array.dtype == np.dtype(CODES[form]):
            return coded(array, form)
        return to_numpy(array, f"{self.source}: {key}")

    def close(self) -> None:
        self._file.close()


class _Npz(Answers):
    """Arrays of an npz file."""

    def __init__(self, path: Path) -> None:
        self.source = str(path)
        stream = open(path, "rb")  # noqa: SIM115 (closed by close)
        try:
            self._file = np.load(stream, allow_pickle=False)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            stream.close()
            raise OracleError(
                f"{path}: truncated or not an npz file ({error}); write the answers again"
            ) from error
        self._stream = stream
        self._members = {name.strip("/"): name for name in self._file.files}
        self._named = dict.fromkeys(self._members)

    def _read(self, key: str) -> Array:
        try:
            return to_numpy(self._file[self._members[key]], f"{self.source}: {key}")
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise OracleError(
                f"{self.source}: {key} cannot be read ({error}); write the answers again"
            ) from error

    def close(self) -> None:
        self._file.close()
        self._stream.close()


class _Safetensors(Answers):
    """Tensors of a safetensors file.

    8 bytes with the length of the header, the header as JSON, then raw little-endian elements.
    """

    def __init__(self, path: Path) -> None:
        self.source = str(path)
        self._size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            text = file.read(length)
        self._start = 8 + length
        try:
            header = json.loads(text)
            header.pop("__metadata__", None)
            self._entries = {
                name.strip("/"): self._entry(name, entry) for name, entry in header.items()
            }
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise self._damaged(f"its header is no valid JSON of tensors ({error})") from error
        self._named = dict.fromkeys(self._entries)

    def _damaged(self, what: str) -> OracleError:
        return OracleError(
            f"{self.source}: a damaged or truncated safetensors file: {what}; write the answers "
            "again"
        )

    def _entry(self, name: str, entry: dict[str, Any]) -> tuple[str, tuple[int, ...], int]:
        """Element type, shape and first byte of a tensor, checked against both sizes."""
        kind = entry["dtype"]
        shape = tuple(int(n) for n in entry["shape"])
        first, last = entry["data_offsets"]
        if kind not in SAFETENSORS and kind not in NAMES:
            raise OracleError(
                f"{self.source}: {name}: elements of type {kind} are not known; give F32 or bytes "
                "as U8"
            )
        itemsize = _dtype(kind).itemsize
        if not 0 <= first <= last or last - first != math.prod(shape) * itemsize:
            raise self._damaged(f"{name} of shape {list(shape)} {kind} in {last - first} bytes")
        if self._start + last > self._size:
            raise self._damaged(f"{name} ends at byte {self._start + last} of {self._size}")
        return kind, shape, self._start + first

    def _read(self, key: str) -> Array:
        kind, shape, first_byte = self._entries[key]
        count = math.prod(shape)
        elements = np.fromfile(self.source, _dtype(kind), count, offset=first_byte).reshape(shape)
        return coded(elements, NAMES[kind]) if kind in NAMES else elements


def _dtype(kind: str) -> np.dtype[Any]:
    """dtype of a safetensors element type; of its codes where it is a narrow float."""
    return np.dtype(CODES[NAMES[kind]] if kind in NAMES else SAFETENSORS[kind])
