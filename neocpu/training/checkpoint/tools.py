"""In what do two checkpoints differ, and how does one leave for other programs? Block by block, in
bounded memory.

Exports: `.npz` (NumPy) and `.safetensors` (8 bytes header length, JSON header, raw little-endian
data), with the names that the file uses: "dense/bottom.0.weight/value", "tables/C1/rows",
"tables/C1/weight", "tables/C1/sum".
"""

import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from neocpu.errors import CheckpointError, ConfigError
from neocpu.training.checkpoint.layout import TEXTS, Part, complete, lay_out
from neocpu.training.checkpoint.reading import CheckpointFile
from neocpu.training.checkpoint.snapshot import write_parts
from neocpu.training.initial import initial_rows
from neocpu.training.state_blocks import BLOCK, Blocks, Ints, Values

PIECE = 16 * BLOCK  # rows of a whole table that are made at a time


@dataclass(frozen=True)
class Difference:
    """The first place in which two states differ; `column` None: one number per row. Values as f32."""

    tensor: str
    row: int
    field: str
    column: int | None
    values: tuple[np.float32, np.float32]

    def __str__(self) -> str:
        where = "" if self.column is None else f" column {self.column}"
        first, second = (f"{value!s} ({value.view(np.uint32):#010x})" for value in self.values)
        return f"{self.tensor} row {self.row}, {self.field}{where}: {first} | {second}"


class _Filled:
    """Blocks of one tensor of a file with any rows filled in."""

    def __init__(self, file: CheckpointFile, number: int) -> None:
        self._config = file.config()
        name = file.tensors[number].name
        self._spec = next(
            (spec for spec in self._config.tables if f"tables/{spec.name}" == name), None
        )
        here = file.index.of(number)
        self.hashes = {
            int(b): sha.tobytes()
            for b, sha in zip(file.index.number[here], file.index.sha256[here])
        }

    def values(self, blocks: Iterable[Blocks], rows: Ints) -> Values:
        """Fields of `rows` (ascending, among them all of the blocks): those of the blocks, else
        initial values.
        """
        if self._spec is None:
            return next(iter(blocks)).values
        found = initial_rows(
            self._spec, self._config.optimizer.sparse, self._config.training.seed, rows
        )
        for block in blocks:
            at = np.searchsorted(rows, block.rows)
            for name, values in block.values.items():
                found[name][at] = values
        return found


def first_difference(first: CheckpointFile, second: CheckpointFile) -> Difference | None:
    """The first tensor, row, field and column in which two checkpoints differ; None if their states
    are equal.

    Raises CheckpointError where they are not comparable: other tensors, or other shapes.
    """
    shapes = [[(t.name, t.rows, t.fields) for t in file.tensors] for file in (first, second)]
    if shapes[0] != shapes[1]:
        one, two = next(pair for pair in zip_longest(*shapes) if pair[0] != pair[1])
        raise CheckpointError(
            f"{first.path} and {second.path} hold other tensors: {_words(one)} | {_words(two)}"
        )
    for number, tensor in enumerate(first.tensors):
        sides = _Filled(first, number), _Filled(second, number)
        for block in sorted({*sides[0].hashes, *sides[1].hashes}):
            if sides[0].hashes.get(block) == sides[1].hashes.get(block):
                continue
            stored = [
                list(file.blocks(number, block * BLOCK, block * BLOCK + 1))
                for file in (first, second)
            ]
            rows = np.unique(np.concatenate([b.rows for blocks in stored for b in blocks]))
            values = [side.values(blocks, rows) for side, blocks in zip(sides, stored)]
            if found := _first(tensor.name, rows, values[0], values[1]):
                return found
    return None


def _words(shape: Any) -> str:
    if shape is None:
        return "nothing"
    name, rows, fields = shape
    return (
        f"{name} with {rows} rows of {', '.join(f'{field}{list(size)}' for field, size in fields)}"
    )


def _first(tensor: str, rows: Ints, one: Values, two: Values) -> Difference | None:
    unequal = {
        name: (one[name].view(np.uint32) != two[name].view(np.uint32)).reshape(rows.size, -1)
        for name in one
    }
    anywhere = np.any([different.any(axis=1) for different in unequal.values()], axis=0)
    if not anywhere.any():
        return None
    row = int(np.argmax(anywhere))
    name = next(name for name, different in unequal.items() if different[row].any())
    column = int(np.argmax(unequal[name][row]))
    values = tuple(side[name].reshape(rows.size, -1)[row, column] for side in (one, two))
    return Difference(
        tensor,
        int(rows[row]),
        name,
        column if one[name].ndim == 2 else None,
        (values[0], values[1]),
    )


# ---- exports ----


@dataclass(frozen=True)
class Entry:
    """One array of an export: `parts()` yields it in pieces along its first axis."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: Callable[[], Iterator[NDArray[Any]]]

    @property
    def bytes(self) -> int:
        """Size of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def entries(file: CheckpointFile, dense: bool) -> list[Entry]:
    """The arrays of a checkpoint: rows in the state, or (`dense`) whole tables with initial values
    filled in.
    """
    found = []
    for number, tensor in enumerate(file.tensors):
        here = file.index.of(number)
        count = int(file.index.rows[here].sum())
        table = tensor.name.startswith("tables/")
        if table and not dense:
            found.append(Entry(f"{tensor.name}/rows", "<i8", (count,), _row_parts(file, number)))
        for name, shape in tensor.fields:
            parts = (
                _whole_parts(file, number, name)
                if table and dense
                else _field_parts(file, number, name)
            )
            found.append(
                Entry(
                    f"{tensor.name}/{name}", "<f4", (tensor.rows if dense else count, *shape), parts
                )
            )
    return found


def _row_parts(file: CheckpointFile, number: int) -> Callable[[], Iterator[NDArray[Any]]]:
    return lambda: (block.rows for block in file.blocks(number))


def _field_parts(
    file: CheckpointFile, number: int, name: str
) -> Callable[[], Iterator[NDArray[Any]]]:
    return lambda: (block.values[name] for block in file.blocks(number))


def _whole_parts(
    file: CheckpointFile, number: int, name: str
) -> Callable[[], Iterator[NDArray[Any]]]:
    def parts() -> Iterator[NDArray[Any]]:
        filled = _Filled(file, number)
        total = file.tensors[number].rows
        for first in range(0, total, PIECE):
            rows = np.arange(first, min(first + PIECE, total), dtype=np.int64)
            yield filled.values(file.blocks(number, first, first + rows.size), rows)[name]

    return parts


def export(file: CheckpointFile, target: Path, *, dense: bool = False) -> None:
    """Write a checkpoint as `.npz` or `.safetensors`, whichever `target` is called. Verifies what
    it reads.
    """
    if target.suffix not in WRITERS:
        raise ConfigError(f"{target}: an export ends in one of {', '.join(WRITERS)}")
    partial = target.with_name(f".{target.name}.partial")
    try:
        with open(partial, "wb") as out:
            WRITERS[target.suffix](file, entries(file, dense), out)
        os.replace(partial, target)
    except OSError as error:
        raise CheckpointError(
            f"{target} could not be written: {error.strerror or error}"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def merge(file: CheckpointFile, target: Path) -> None:
    """Write a checkpoint, whatever files it is in, as one whole file; quantised weights as float32.
    Verifies what it reads.
    """
    blocks = file.index.of
    tensors = [replace(tensor, quantized="") for tensor in file.tensors]
    counts = np.array(
        [(file.index.rows_of(i), 0, (h := blocks(i)).stop - h.start) for i in range(len(tensors))],
        np.int64,
    )
    own = ("format", "version", "complete", "digest", "base", "base_step", "base_digest")
    attributes = {name: value for name, value in file.attributes.items() if name not in own}
    attributes["seed"] = np.uint64(attributes["seed"])
    partial = target.with_name(f".{target.name}.partial")
    try:
        offsets = lay_out(
            partial, tensors, counts, attributes, {name: file.text(name) for name in TEXTS}
        )
        parts = (
            Part.of(some, tensor) for i, tensor in enumerate(tensors) for some in file.blocks(i)
        )
        error = write_parts(partial, tensors, offsets, np.zeros_like(counts), file.index, parts)
        if error is not None:
            raise error
        complete(partial, file.digest)
        os.replace(partial, target)
    # HDF5 reports some failures of the disk as RuntimeError
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"{target} could not be written: {getattr(error, 'strerror', None) or error}"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _write_npz(file: CheckpointFile, arrays: list[Entry], out: BinaryIO) -> None:
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for entry in arrays:
            with archive.open(f"{entry.name}.npy", "w", force_zip64=True) as member:
                head = {"descr": entry.dtype, "fortran_order": False, "shape": entry.shape}
                np.lib.format.write_array_header_1_0(member, head)
                for part in entry.parts():
                    member.write(np.ascontiguousarray(part, entry.dtype).tobytes())


def _write_safetensors(file: CheckpointFile, arrays: list[Entry], out: BinaryIO) -> None:
    facts = {"format": "pt", "neocpu_step": str(file.step), "neocpu_digest": file.digest}
    header: dict[str, Any] = {"__metadata__": facts}
    at = 0
    for entry in arrays:
        kind = {"<i8": "I64", "<f4": "F32"}[entry.dtype]
        header[entry.name] = {
            "dtype": kind,
            "shape": list(entry.shape),
            "data_offsets": [at, at + entry.bytes],
        }
        at += entry.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    out.write(len(text).to_bytes(8, "little") + text)
    for entry in arrays:
        for part in entry.parts():
            out.write(np.ascontiguousarray(part, entry.dtype).tobytes())


WRITERS: dict[str, Callable[[CheckpointFile, list[Entry], BinaryIO], None]] = {
    ".npz": _write_npz,
    ".safetensors": _write_safetensors,
}
