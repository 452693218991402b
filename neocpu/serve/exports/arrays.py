"""How do the arrays of a checkpoint become one file for other programs? In bounded memory.

`.npz` for NumPy, `.safetensors` through the safetensors library. An `Entry` yields its array piece
by piece; what is too large for memory waits in a nameless file beside the target, mapped, until the
library writes it. Such a file takes as much disk again as the target.
"""

import contextlib
import mmap
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np

from neocpu.core.errors import CheckpointError, ConfigError, EnvironmentProblem
from neocpu.core.types import Bytes, Elements
from neocpu.tables.hdf5.disk import allocate
from neocpu.train.before.preflight import free_bytes, human
from neocpu.train.checkpoint.reading import CheckpointFile
from neocpu.train.checkpoint.tools import FilledTensor, refuse_needed_files, written
from neocpu.train.state.blocks import BLOCK

PIECE = 16 * BLOCK  # rows of a whole table that are made at a time
IN_MEMORY = 256 << 20  # bytes of a file that are kept in memory until it is written
HEADER = 1 << 20  # bytes of a file beside its arrays, about
# NumPy's dtype -> safetensors' name of the element type
TYPES = {"<f4": "float32", "<f2": "float16", "<i8": "int64", "|u1": "uint8"}
Parts = Callable[[], Iterator[Elements]]
Metadata = Mapping[str, str]


@dataclass(frozen=True)
class Entry:
    """One array of an export: `parts()` yields it in pieces along its first axis.

    dtype : of the pieces.
    type : safetensors' name of the elements, where it is not that of the dtype (codes of bfloat16
        are uint16 here).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: Parts
    type: str = ""

    @property
    def bytes(self) -> int:
        """Size of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @staticmethod
    def of(name: str, array: Elements) -> "Entry":
        """An array that is in memory."""
        return Entry(name, array.dtype.str, array.shape, lambda: iter([array]))


def entries(file: CheckpointFile, dense: bool) -> list[Entry]:
    """The arrays of a checkpoint.

    dense : whole tables, initial values filled in; else only the rows in the state.
    """
    arrays = []
    for number, tensor in enumerate(file.tensors):
        count = tensor.rows if dense else file.index.rows_of(number)
        if tensor.table and not dense:
            arrays.append(Entry(f"{tensor.name}/rows", "<i8", (count,), row_parts(file, number)))
        parts_of = whole_parts if tensor.table and dense else field_parts
        for name, shape in tensor.fields:
            parts = parts_of(file, number, name)
            arrays.append(Entry(f"{tensor.name}/{name}", "<f4", (count, *shape), parts))
    return arrays


def row_parts(file: CheckpointFile, number: int) -> Parts:
    """Row numbers in the state."""
    return lambda: (block.rows for block in file.blocks(number))


def field_parts(file: CheckpointFile, number: int, name: str) -> Parts:
    """A field of the rows in the state."""
    return lambda: (block.values[name] for block in file.blocks(number))


def whole_parts(file: CheckpointFile, number: int, name: str) -> Parts:
    """A field of all rows, initial values where the state has none."""
    return lambda: (values[name] for values in whole_values(file, number))


def whole_values(file: CheckpointFile, number: int) -> Iterator[Mapping[str, Elements]]:
    """All fields of all rows, some rows at a time."""
    filled = FilledTensor(file, number)
    total = file.tensors[number].rows
    for first in range(0, total, PIECE):
        # Tables whose rows were mostly never trained are far larger than their checkpoint.
        rows = np.arange(first, min(first + PIECE, total), dtype=np.int64)
        yield filled.values(file.blocks(number, first, first + rows.size), rows)


def export(file: CheckpointFile, target: Path, *, dense: bool = False) -> None:
    """Write a checkpoint as `.npz` or `.safetensors`, by the name of `target`.

    Verifies what it reads. Raises as `write_arrays` does.
    """
    advice = "leave out --dense, which fills in rows that were never trained" if dense else ""
    write_arrays(file, target, entries(file, dense), metadata_of(file), advice)


def metadata_of(file: CheckpointFile) -> Metadata:
    """What a file of plain arrays says of its checkpoint; "pt": torch reads it too."""
    return {"format": "pt", "neocpu_step": str(file.step), "neocpu_digest": file.digest}


def write_arrays(
    file: CheckpointFile,
    target: Path,
    arrays: Sequence[Entry],
    metadata: Metadata,
    advice: str = "",
) -> None:
    """Write arrays of a checkpoint as `.npz` or `.safetensors`, by the name of `target`.

    metadata : of the file, texts by name; .npz files have none.
    advice : what would make it smaller, for a disk that is too small.

    Raises ConfigError for another name, CheckpointError where the checkpoint cannot be read, the
    target not be written, or where it is a checkpoint that is needed.
    """
    refuse_needed_files(file, target)
    if target.suffix not in WRITERS:
        raise ConfigError(f"{target}: an export ends in one of {', '.join(WRITERS)}")
    size = sum(entry.bytes for entry in arrays)
    check_disk(target, size, advice, target.suffix == ".safetensors" and size > IN_MEMORY)
    with written(target) as partial:
        WRITERS[target.suffix](arrays, metadata, partial)


def check_disk(target: Path, size: int, advice: str = "", twice: bool = False) -> None:
    """Raise CheckpointError where the disk has no room for a file of about `size` bytes.

    twice : it takes as much again while it is written.
    advice : what would make it smaller.
    """
    need = size * (1 + twice) + HEADER
    free = free_bytes(target.parent)
    if need > free:
        beside = ", half of it while it is written" if twice else ""
        raise CheckpointError(
            f"{target} needs {human(need)} of disk{beside}, but {human(free)} are free"
            f"{'; ' + advice if advice else ''}"
        )


def _write_npz(arrays: Sequence[Entry], metadata: Metadata, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for entry in arrays:
            # Sizes are unknown before the pieces were written, so members may be larger than 4 GiB.
            with archive.open(f"{entry.name}.npy", "w", force_zip64=True) as member:
                head = {"descr": entry.dtype, "fortran_order": False, "shape": entry.shape}
                # np.savez would need whole arrays in memory; here they come piece by piece.
                np.lib.format.write_array_header_1_0(member, head)
                for piece in entry.parts():
                    member.write(np.ascontiguousarray(piece, entry.dtype).tobytes())


def _write_safetensors(arrays: Sequence[Entry], metadata: Metadata, path: Path) -> None:
    library = file_library("safetensors")
    total = sum(entry.bytes for entry in arrays)
    with _buffer(total, path) as data:
        specs = {}
        start = 0
        for entry in arrays:
            tensor = data[start : start + entry.bytes]
            start += entry.bytes
            _fill(tensor, entry)
            specs[entry.name] = library.TensorSpec(
                dtype=entry.type or TYPES[entry.dtype],
                shape=list(entry.shape),
                data_ptr=tensor.ctypes.data,
                data_len=entry.bytes,
            )
        try:
            library.serialize_file(specs, path, metadata=dict(metadata))
        except library.SafetensorError as error:
            # As the other writer fails, so that one handler says it.
            raise OSError(str(error)) from error
    # the mask can only be read by setting it
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)  # the library lets only its owner read a file


def _fill(tensor: Bytes, entry: Entry) -> None:
    """Put the pieces of an array into its bytes."""
    done = 0
    for part in entry.parts():
        piece = np.ascontiguousarray(part, entry.dtype).reshape(-1).view(np.uint8)
        tensor[done : done + piece.size] = piece
        done += piece.size


@contextlib.contextmanager
def _buffer(size: int, path: Path) -> Iterator[Bytes]:
    """Bytes to fill: in memory, or in a nameless file where they are many. Raises OSError."""
    if size <= IN_MEMORY:
        yield np.empty(size, np.uint8)
        return
    scratch = path.with_name(f"{path.name}.scratch")
    handle = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # Nameless from here on: a killed export leaves nothing behind.
        os.unlink(scratch)
        os.ftruncate(handle, size)
        # A full disk must be an error here, and not a SIGBUS at some page of the mapping.
        allocate(handle, 0, size)
        yield np.frombuffer(mmap.mmap(handle, size), np.uint8)
    finally:
        # the map keeps the file open
        os.close(handle)


def file_library(name: str) -> ModuleType:
    """The module onnx, or safetensors. Raises EnvironmentProblem that says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise EnvironmentProblem(
            f".{name} files need the {name} library: pip install 'neocpu[export]'"
        ) from error


WRITERS: dict[str, Callable[[Sequence[Entry], Metadata, Path], None]] = {
    ".npz": _write_npz,
    ".safetensors": _write_safetensors,
}
