"""In what do two checkpoints differ, and how is one exported? Block by block, in bounded memory.

Exports: `.npz` (NumPy) and `.safetensors` (8 bytes header length, JSON header, raw little-endian
data), with the names that the file uses: "dense/bottom.0.weight/value", "tables/C1/rows",
"tables/C1/weight", "tables/C1/sum".
"""

import contextlib
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from neocpu.errors import CheckpointError, ConfigError
from neocpu.training.checkpoint.folder import bases_in
from neocpu.training.checkpoint.layout import TEXTS, Part, create, lay_out, seal
from neocpu.training.checkpoint.reading import CheckpointFile
from neocpu.training.checkpoint.snapshot import Share, write_share
from neocpu.training.initial import initial_rows
from neocpu.training.state_blocks import BLOCK, Blocks, Ints, Tensor, Values

PIECE = 16 * BLOCK  # rows of a whole table that are made at a time
# attributes that a merged file does not take over
OF_ONE_FILE = ("format", "version", "complete", "sealed", "base", "base_step", "base_digest")
Parts = Callable[[], Iterator[NDArray[Any]]]


@dataclass(frozen=True)
class Difference:
    """The first place in which two states differ, and their values there.

    column : None for a field with one number per row.
    """

    tensor: str
    row: int
    field: str
    column: int | None
    values: tuple[np.float32, np.float32]

    def __str__(self) -> str:
        where = "" if self.column is None else f" column {self.column}"
        first, second = (f"{value!s} ({value.view(np.uint32):#010x})" for value in self.values)
        return f"{self.tensor} row {self.row}, {self.field}{where}: {first} | {second}"


class _FilledTensor:
    """One tensor of a file, in which rows that the file lacks have their initial values.

    hashes : of the blocks in the file, by number.
    """

    def __init__(self, file: CheckpointFile, number: int) -> None:
        self._config = file.config()
        name = file.tensors[number].name
        specs = {f"tables/{spec.name}": spec for spec in self._config.tables}
        self._spec = specs.get(name)  # None: a dense parameter
        blocks = file.index.of(number)
        numbers = file.index.number[blocks].tolist()
        self.hashes = {
            block: sha.tobytes() for block, sha in zip(numbers, file.index.sha256[blocks])
        }

    def values(self, blocks: Iterable[Blocks], rows: Ints) -> Values:
        """Fields of `rows`: those of the blocks, else initial values.

        `rows` are ascending, and all rows of the blocks are among them.
        """
        if self._spec is None:
            return next(iter(blocks)).values
        values = initial_rows(
            self._spec, self._config.optimizer.sparse, self._config.training.seed, rows
        )
        for part in blocks:
            place = np.searchsorted(rows, part.rows)
            for name, stored in part.values.items():
                values[name][place] = stored
        return values


def first_difference(first: CheckpointFile, second: CheckpointFile) -> Difference | None:
    """The first tensor, row, field and column in which two checkpoints differ.

    None if their states are equal.

    Raises CheckpointError where they are not comparable: other tensors, or other shapes.
    """
    _refuse_other_tensors(first, second)
    for number, tensor in enumerate(first.tensors):
        left = _FilledTensor(first, number)
        right = _FilledTensor(second, number)
        for block in sorted({*left.hashes, *right.hashes}):
            if left.hashes.get(block) == right.hashes.get(block):
                continue
            row = block * BLOCK
            left_blocks = list(first.blocks(number, row, row + 1))
            right_blocks = list(second.blocks(number, row, row + 1))
            rows = np.unique(np.concatenate([b.rows for b in (*left_blocks, *right_blocks)]))
            difference = _first_in_rows(
                tensor.name, rows, left.values(left_blocks, rows), right.values(right_blocks, rows)
            )
            if difference:
                return difference
    return None


def _refuse_other_tensors(first: CheckpointFile, second: CheckpointFile) -> None:
    """Raise CheckpointError for the first tensor that the files do not share."""
    for left, right in zip_longest(first.tensors, second.tensors):
        if _description(left) != _description(right):
            raise CheckpointError(
                f"{first.path} and {second.path} hold other tensors: {_description(left)} | "
                f"{_description(right)}"
            )


def _description(tensor: Tensor | None) -> str:
    """A tensor's name and shapes."""
    if tensor is None:
        return "nothing"
    fields = ", ".join(f"{name}{list(shape)}" for name, shape in tensor.fields)
    return f"{tensor.name} with {tensor.rows} rows of {fields}"


def _first_in_rows(tensor: str, rows: Ints, left: Values, right: Values) -> Difference | None:
    """The first of some rows in which two tensors differ."""
    unequal = {
        name: (left[name].view(np.uint32) != right[name].view(np.uint32)).reshape(rows.size, -1)
        for name in left
    }
    anywhere = np.any([different.any(axis=1) for different in unequal.values()], axis=0)
    if not anywhere.any():
        return None
    row = int(np.argmax(anywhere))
    name = next(name for name, different in unequal.items() if different[row].any())
    column = int(np.argmax(unequal[name][row]))
    return Difference(
        tensor=tensor,
        row=int(rows[row]),
        field=name,
        column=column if left[name].ndim == 2 else None,
        values=(
            left[name].reshape(rows.size, -1)[row, column],
            right[name].reshape(rows.size, -1)[row, column],
        ),
    )


# ---- exports ----


@dataclass(frozen=True)
class Entry:
    """One array of an export: `parts()` yields it in pieces along its first axis."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: Parts

    @property
    def bytes(self) -> int:
        """Size of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def entries(file: CheckpointFile, dense: bool) -> list[Entry]:
    """The arrays of a checkpoint.

    dense : whole tables, initial values filled in; else only the rows in the state.
    """
    arrays = []
    for number, tensor in enumerate(file.tensors):
        count = tensor.rows if dense else file.index.rows_of(number)
        if tensor.table and not dense:
            arrays.append(Entry(f"{tensor.name}/rows", "<i8", (count,), _row_parts(file, number)))
        parts_of = _whole_parts if tensor.table and dense else _field_parts
        for name, shape in tensor.fields:
            parts = parts_of(file, number, name)
            arrays.append(Entry(f"{tensor.name}/{name}", "<f4", (count, *shape), parts))
    return arrays


def _row_parts(file: CheckpointFile, number: int) -> Parts:
    """Row numbers in the state."""
    return lambda: (block.rows for block in file.blocks(number))


def _field_parts(file: CheckpointFile, number: int, name: str) -> Parts:
    """A field of the rows in the state."""
    return lambda: (block.values[name] for block in file.blocks(number))


def _whole_parts(file: CheckpointFile, number: int, name: str) -> Parts:
    """A field of all rows."""

    def parts() -> Iterator[NDArray[Any]]:
        filled = _FilledTensor(file, number)
        total = file.tensors[number].rows
        for first in range(0, total, PIECE):
            rows = np.arange(first, min(first + PIECE, total), dtype=np.int64)
            yield filled.values(file.blocks(number, first, first + rows.size), rows)[name]

    return parts


def export(file: CheckpointFile, target: Path, *, dense: bool = False) -> None:
    """Write a checkpoint as `.npz` or `.safetensors`, by the name of `target`.

    Verifies what it reads.

    Raises ConfigError for another name, CheckpointError where it cannot be read or written, or
    where `target` is a checkpoint that is needed.
    """
    _refuse_sources(file, target)
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
        _remove(partial)


def merge(file: CheckpointFile, target: Path) -> None:
    """Write a checkpoint, whatever files it is in, as one whole file; quantised weights as float32.

    Verifies what it reads.

    Raises CheckpointError where it cannot be read or written, or where `target` is a checkpoint
    that is needed.
    """
    _refuse_sources(file, target)
    tensors = [replace(tensor, quantized="") for tensor in file.tensors]
    counts = np.zeros((len(tensors), 3), np.int64)
    for number in range(len(tensors)):
        blocks = file.index.of(number)
        counts[number] = file.index.rows_of(number), 0, blocks.stop - blocks.start
    texts = {name: file.text(name) for name in TEXTS}
    attributes = {k: value for k, value in file.attributes.items() if k not in OF_ONE_FILE}
    attributes["seed"] = np.uint64(attributes["seed"])
    partial = target.with_name(f".{target.name}.partial")
    image = lay_out(tensors, counts, attributes, texts, file.vocabularies())
    try:
        image = create(image, partial)
        share = Share(
            path=partial,
            tensors=tensors,
            offsets=image.offsets,
            before=np.zeros_like(counts),
            index=file.index,
            parts=_all_parts(file, tensors),
        )
        error = write_share(share)
        if error is not None:
            raise error
        seal(image, partial, tensors)
        os.replace(partial, target)
    except OSError as error:
        raise CheckpointError(
            f"{target} could not be written: {error.strerror or error}"
        ) from error
    finally:
        _remove(partial)


def _refuse_sources(file: CheckpointFile, target: Path) -> None:
    """Raise CheckpointError where a target is one of the files of `file`, or of another chain."""
    try:
        status = os.stat(target)
    except OSError:  # there is no such file, or writing it will say what is wrong
        return
    needed = {link.path for link in file.links}
    for folder in {file.path.parent, target.parent, target.resolve().parent}:
        needed.update(bases_in(folder))
    for path in sorted(needed):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(path), status):
                raise CheckpointError(
                    f"{target}: writing it would overwrite {path.name}, of which {file.path} or "
                    "another checkpoint consists; choose another name"
                )


def _remove(partial: Path) -> None:
    """Remove a file that was not completed, if it is there."""
    with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)


def _all_parts(file: CheckpointFile, tensors: Sequence[Tensor]) -> Iterator[Part]:
    """What a whole file of these tensors has."""
    for number, tensor in enumerate(tensors):
        for blocks in file.blocks(number):
            yield Part.of(blocks, tensor)


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
    offset = 0
    for entry in arrays:
        header[entry.name] = {
            "dtype": {"<i8": "I64", "<f4": "F32"}[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [offset, offset + entry.bytes],
        }
        offset += entry.bytes
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
