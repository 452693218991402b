"""What does a checkpoint look like inside? One plain HDF5 file that says nothing about ranks or
plans.

    /                             attributes: format, version, complete, step, seed, digest, created, ranks, dense
    /run/config                   text: the TOML file; /run/overrides, /run/header, /run/data, /run/versions: JSON
    /dense/NAME/value, sum, …     float32, shaped as the parameter; optimizer state is named as torch names it
    /tables/C1/rows               int64[n], ascending: the rows that differ from their initial values
    /tables/C1/weight, sum, …     float32[n, D] or float32[n]; weights of a narrow format: codes, the format is an attribute;
                                  quantised weights (attribute quantized): rows u8[n, bytes] of that
                                  format
    …/block, …/block_rows, …/block_sha256    int64[m], int64[m], uint8[m, 32]: for each block of 4,096 row numbers with
                                  rows in the state: its number, how many, and the SHA-256 of their
                                  numbers and fields

A file may hold only what changed since an older one (Check-N-Run's increments): attributes base,
base_step and base_digest name that; tables have the rows that were updated since, and

    /tables/C1/gone               int64[k], ascending: rows that are at their initial values (again)
    …/block, …                    only blocks with updated rows; block_rows and block_sha256 are of the whole block all the same
    …/block_written, …/block_gone int64[m]: how many rows of the block are in `rows`, and in `gone`

All datasets are contiguous and allocated early, so that every rank can write its rows at known
offsets and anybody can map them. The digest of the whole follows from header, step and block hashes
(`docs/arithmetic.md` §11), of increments from those of their base with theirs in place of them.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from neocpu.training.checkpoint.number_codes import Code
from neocpu.training.state_blocks import Blocks, Index, Ints, Tensor

FORMAT = "neocpu-checkpoint"
# of quantised files; others with changes are of version 3, whole ones with codes of 2, all others
# of 1
VERSION = 4
TEXTS = ("config", "overrides", "header", "data", "versions")
# columns of the counts of a file: of each tensor, rows and rows gone and blocks in it
ROWS, GONE, BLOCKS = range(3)
Offsets = dict[str, int]


def lay_out(
    path: Path,
    tensors: Sequence[Tensor],
    counts: Ints,
    attributes: Mapping[str, Any],
    texts: Mapping[str, str],
) -> Offsets:
    """Create a file with room for `counts` i64[T, 3]; byte offsets of its datasets by
    "TENSOR/FIELD".

    `attributes` with a base make it one of changes.
    """
    changes = "base" in attributes
    coded = 2 if any(tensor.coded for tensor in tensors) else 1
    version = VERSION if any(tensor.quantized for tensor in tensors) else 3 if changes else coded
    with h5py.File(path, "w", libver="v110", locking=False) as file:
        file.attrs.update({"format": FORMAT, "version": version, "complete": False, **attributes})
        for name in TEXTS:
            file.create_dataset(
                f"run/{name}", data=texts[name].encode(), dtype=h5py.string_dtype("utf-8")
            )
        offsets: Offsets = {}
        for tensor, (rows, gone, blocks) in zip(tensors, counts.tolist()):
            group = file.create_group(tensor.name)
            group.attrs["rows"] = tensor.rows
            group.attrs["fields"] = json.dumps(tensor.fields)
            for name, kind, shape in datasets(tensor, changes):
                count = (
                    rows
                    if name == "rows" or name in dict(tensor.fields)
                    else gone
                    if name == "gone"
                    else blocks
                )
                offsets[f"{tensor.name}/{name}"] = _allocate(group, name, (count, *shape), kind)
            if tensor.coded:
                group["weight"].attrs["format"] = tensor.format
            if tensor.quantized:
                group["weight"].attrs["quantized"] = tensor.quantized
    return offsets


def datasets(tensor: Tensor, changes: bool) -> list[tuple[str, str, tuple[int, ...]]]:
    """(name, dtype, shape of an entry) of all datasets of a tensor."""
    found: list[tuple[str, str, tuple[int, ...]]] = [("rows", "<i8", ())] if tensor.table else []
    codes = {name: Code.of(tensor, name) for name, _ in tensor.fields}
    found += [(name, code.dtype, code.entry) for name, code in codes.items()]
    if changes and tensor.table:
        found += [("gone", "<i8", ()), ("block_written", "<i8", ()), ("block_gone", "<i8", ())]
    return [*found, ("block", "<i8", ()), ("block_rows", "<i8", ()), ("block_sha256", "u1", (32,))]


def file_bytes(tensors: Sequence[Tensor], counts: Ints) -> int:
    """About how many bytes a file with such `counts` takes."""
    total = 0
    for tensor, (rows, gone, blocks) in zip(tensors, counts.tolist()):
        sizes = [Code.of(tensor, name).bytes for name, _ in tensor.fields]
        total += rows * (sum(sizes) + 8 * tensor.table) + 8 * gone + 48 * blocks
    return total


def _allocate(group: h5py.Group, name: str, shape: tuple[int, ...], dtype: str) -> int:
    """A contiguous dataset whose space exists now and is not filled; its offset in the file (0 if
    it is empty).
    """
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.CONTIGUOUS)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple(shape)
    dataset = h5py.h5d.create(
        group.id, name.encode(), h5py.h5t.py_create(np.dtype(dtype)), space, plan
    )
    return dataset.get_offset() or 0


@dataclass(frozen=True)
class Part:
    """`counts` rows, rows gone and blocks of a tensor as they are written: array by dataset."""

    tensor: int
    counts: tuple[int, int, int]
    arrays: Mapping[str, NDArray[Any]]

    @staticmethod
    def of(blocks: Blocks, tensor: Tensor) -> "Part":
        """What is written of blocks of a tensor."""
        rows = blocks.rows
        changed = blocks.changed
        values: dict[str, NDArray[Any]] = {**blocks.values, **blocks.codes}
        arrays: dict[str, NDArray[Any]] = {}
        if changed is not None:
            if not changed.all():
                rows = rows[changed]
                values = {name: value[changed] for name, value in values.items()}
            arrays = {"gone": np.ascontiguousarray(blocks.gone, "<i8")}
            arrays |= {
                "block_written": blocks.per_block(rows),
                "block_gone": blocks.per_block(blocks.gone),
            }
        if tensor.table:
            arrays["rows"] = np.ascontiguousarray(rows, "<i8")
        for name, value in values.items():
            arrays[name] = value if name in blocks.codes else Code.of(tensor, name).encode(value)
        return Part(blocks.tensor, (rows.size, blocks.gone.size, blocks.numbers.size), arrays)

    @property
    def bytes(self) -> int:
        """Memory that they take."""
        return sum(array.nbytes for array in self.arrays.values())


class RowWriter:
    """Writes the parts of one rank, in order, into a file that `lay_out` made; `before` i64[T, 3]:
    counts of what lower ranks write.
    """

    def __init__(
        self, path: Path, tensors: Sequence[Tensor], offsets: Offsets, before: Ints
    ) -> None:
        self._tensors = tensors
        self._offsets = offsets
        self._next = before.copy()
        self._file = os.open(path, os.O_RDWR)

    def write(self, part: Part) -> None:
        """Put a part behind those of the same tensor that were written before."""
        rows, gone, blocks = self._next[part.tensor].tolist()
        for name, values in part.arrays.items():
            first = blocks if name.startswith("block_") else gone if name == "gone" else rows
            self._put(f"{self._tensors[part.tensor].name}/{name}", first, values)
        self._next[part.tensor] += part.counts

    def write_index(self, index: Index) -> None:
        """Put the blocks of all ranks in their place; one rank does."""
        for number, tensor in enumerate(self._tensors):
            here = index.of(number)
            for name, values in (
                ("", index.number),
                ("_rows", index.rows),
                ("_sha256", index.sha256),
            ):
                self._put(f"{tensor.name}/block{name}", 0, np.ascontiguousarray(values[here]))

    def _put(self, name: str, row: int, values: NDArray[Any]) -> None:
        if not values.size:
            return
        data = values.reshape(-1).view(np.uint8).data
        at = self._offsets[name] + row * (values.nbytes // len(values))
        while data:
            written = os.pwrite(self._file, data, at)
            data = data[written:]
            at = at + written

    def close(self) -> None:
        """Bring what was written to the disk."""
        try:
            os.fsync(self._file)
        finally:
            os.close(self._file)


def complete(path: Path, digest: str) -> None:
    """Add the digest to a file in which all else is written, and mark it complete."""
    with h5py.File(path, "r+", locking=False) as file:
        file.attrs["digest"] = digest
        file.attrs["complete"] = True
