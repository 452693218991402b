"""What does a checkpoint look like inside? One plain HDF5 file that says nothing about plans.

    /                      attributes: format, version, complete, step, seed, digest, created,
                           ranks, dense
    /run/config            text: the TOML file
    /run/overrides, header, data, versions
                           JSON
    /vocabularies/0, 1, …  uint32[n] or uint64[n]: codes of the features in the attribute features,
                           where these choose rows; not in a file whose base has the same ones
    /dense/NAME/value, sum, …
                           float32, shaped as the parameter; optimizer state is named as torch
                           names it
    /tables/C1/rows        int64[n], ascending: the rows that differ from their initial values
    /tables/C1/weight, sum, …
                           float32[n, D] or float32[n]; weights of a narrow format: codes, the
                           format is an attribute; quantised weights (attribute quantized): rows
                           u8[n, bytes] of that format
    …/block, block_rows, block_sha256
                           int64[m], int64[m], uint8[m, 32]: for each block of 4,096 row numbers
                           with rows in the state: its number, how many, and the SHA-256 of their
                           numbers and fields

A file may hold only what changed since an older one (Check-N-Run's increments): attributes base,
base_step and base_digest name that; tables have the rows that were updated since, and

    /tables/C1/gone        int64[k], ascending: rows that are at their initial values (again)
    …/block, block_rows, block_sha256
                           only blocks with updated rows; rows and hashes are still those of the
                           whole block
    …/block_written, block_gone
                           int64[m]: how many rows of the block are in `rows`, and in `gone`

All datasets are contiguous and allocated early, so that every rank can write its rows at known
offsets and anybody can map them. The digest of the whole follows from header, step and block hashes
(`docs/arithmetic.md` §11); that of an increment from the blocks of its base, updated by its own.

HDF5 lays the file out in memory and never opens it for writing (`tables/hdf5/draft.py`). A file
ends in a seal over all but rows and fields, which the block hashes cover.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from neocpu.core.types import Elements, Ints, JsonObject
from neocpu.tables.hdf5.disk import put_bytes
from neocpu.tables.hdf5.draft import Draft, Image
from neocpu.train.checkpoint.number_codes import Code
from neocpu.train.state.blocks import Blocks, Index, Tensor

FORMAT = "neocpu-checkpoint"
# Newest version; a file has the lowest one whose readers understand it: 4 if it is quantised, 3 if
# it holds changes, 2 if it holds codes, else 1.
VERSION = 4
WORDS = "vocabularies"  # group of the vocabularies
TEXTS = ("config", "overrides", "header", "data", "versions")
Offsets = dict[str, int]
Extents = dict[str, tuple[int, int]]  # first byte, and the one behind the last, by dataset


def lay_out(
    tensors: Sequence[Tensor],
    counts: Ints,
    attributes: JsonObject,
    texts: Mapping[str, str],
    vocabularies: Mapping[str, Elements] | None = None,
) -> Image:
    """A file with room for its datasets, as bytes; its offsets are by "TENSOR/FIELD".

    counts : i64[T, 3], of each tensor the rows, rows gone and blocks in the file.
    attributes : with "digest"; with a base, the file holds changes. texts : by name in TEXTS.
    vocabularies : codes u32[n] or u64[n] of features; entry i is looked up in row i + 1.
    """
    changes = "base" in attributes
    version = _version(tensors, changes)
    with Draft() as draft:
        draft.set("", {"format": FORMAT, "version": version, "complete": True, **attributes})
        for name in TEXTS:
            draft.text(f"run/{name}", texts[name])
        if vocabularies:
            draft.group(WORDS)
            draft.set(WORDS, {"features": json.dumps(list(vocabularies))})
            for number, codes in enumerate(vocabularies.values()):
                draft.put(f"{WORDS}/{number}", codes)
        for tensor, (rows, gone, blocks) in zip(tensors, counts.tolist()):
            draft.group(tensor.name)
            draft.set(tensor.name, {"rows": tensor.rows, "fields": json.dumps(tensor.fields)})
            for name, dtype, shape in datasets(tensor, changes):
                # rows of a table, or all of a dense parameter
                count = rows
                if name == "gone":
                    count = gone
                elif name.startswith("block"):
                    count = blocks
                # early and contiguous: offsets are known before anybody writes
                draft.reserve(f"{tensor.name}/{name}", (count, *shape), dtype)
            if tensor.coded:
                draft.set(f"{tensor.name}/weight", {"format": tensor.format})
            if tensor.quantized:
                draft.set(f"{tensor.name}/weight", {"quantized": tensor.quantized})
        return draft.image()


def create(image: Image, path: Path) -> Image:
    """Write what `lay_out` returned, with disk space for all of the file.

    Returns what `seal` needs of it. Raises OSError.
    """
    image.write(path)
    # the pieces are written; only what is hashed at the end is kept
    return replace(image, pieces=[])


def seal(image: Image, path: Path, tensors: Sequence[Tensor]) -> None:
    """Complete and sync a file in which all is written. Raises OSError."""
    hashed = [f"{tensor.name}/{name}" for tensor in tensors for name in hashed_arrays(tensor)]
    image.seal(path, hashed)


def hashed_arrays(tensor: Tensor) -> list[str]:
    """Datasets of a tensor that the hashes of its blocks cover, so that the seal need not."""
    return [*(["rows"] if tensor.table else []), *(name for name, _ in tensor.fields)]


def _version(tensors: Sequence[Tensor], changes: bool) -> int:
    """Version of a file of these tensors."""
    if any(tensor.quantized for tensor in tensors):
        return 4
    if changes:
        return 3
    return 2 if any(tensor.coded for tensor in tensors) else 1


def datasets(tensor: Tensor, changes: bool) -> list[tuple[str, str, tuple[int, ...]]]:
    """(name, dtype, shape of an entry) of all datasets of a tensor."""
    entries: list[tuple[str, str, tuple[int, ...]]] = []
    if tensor.table:
        entries.append(("rows", "<i8", ()))
    for name, _ in tensor.fields:
        code = Code.of(tensor, name)
        entries.append((name, code.dtype, code.entry))
    if changes and tensor.table:
        entries += [("gone", "<i8", ()), ("block_written", "<i8", ()), ("block_gone", "<i8", ())]
    entries += [("block", "<i8", ()), ("block_rows", "<i8", ()), ("block_sha256", "u1", (32,))]
    return entries


def file_bytes(tensors: Sequence[Tensor], counts: Ints) -> int:
    """About how many bytes a file takes; `counts` as for `lay_out`."""
    total = 0
    for tensor, (rows, gone, blocks) in zip(tensors, counts.tolist()):
        row_bytes = sum(Code.of(tensor, name).bytes for name, _ in tensor.fields)
        if tensor.table:
            row_bytes += 8  # its number
        total += rows * row_bytes + 8 * gone + 48 * blocks
    return total


@dataclass(frozen=True)
class Part:
    """Some blocks of tensor `tensor` as they are written.

    counts : their rows, rows gone and blocks. arrays : by name of the dataset.
    """

    tensor: int
    counts: tuple[int, int, int]
    arrays: Mapping[str, Elements]

    @staticmethod
    def of(blocks: Blocks, tensor: Tensor) -> "Part":
        """What is written of these blocks."""
        rows = blocks.rows
        changed = blocks.changed
        values: dict[str, Elements] = {**blocks.values, **blocks.codes}
        arrays: dict[str, Elements] = {}
        if changed is not None:
            if not changed.all():
                # hashes are of the whole block, the file has its changed rows only
                rows = rows[changed]
                values = {name: value[changed] for name, value in values.items()}
            arrays["gone"] = np.ascontiguousarray(blocks.gone, "<i8")
            arrays["block_written"] = blocks.per_block(rows)
            arrays["block_gone"] = blocks.per_block(blocks.gone)
        if tensor.table:
            arrays["rows"] = np.ascontiguousarray(rows, "<i8")
        for name, value in values.items():
            arrays[name] = value if name in blocks.codes else Code.of(tensor, name).encode(value)
        return Part(blocks.tensor, (rows.size, blocks.gone.size, blocks.numbers.size), arrays)

    @property
    def bytes(self) -> int:
        """Memory that the arrays take."""
        return sum(array.nbytes for array in self.arrays.values())


class RowWriter:
    """Writes the parts of one rank, in order, into a file that `lay_out` made.

    offsets : of what `lay_out` returned. before : i64[T, 3], counts of what lower ranks write.
    Attribute: extents, the bytes written of each dataset, which lie side by side.
    """

    def __init__(
        self, path: Path, tensors: Sequence[Tensor], offsets: Offsets, before: Ints
    ) -> None:
        self.extents: Extents = {}
        self._tensors = tensors
        self._offsets = offsets
        # ranks write disjoint ranges, lower ranks first, so none waits for another
        self._next = before.copy()
        # a host that does not see the file of rank 0 has one of its own
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def write(self, part: Part) -> None:
        """Put a part behind those of the same tensor that were written before."""
        tensor = self._tensors[part.tensor].name
        rows, gone, blocks = self._next[part.tensor].tolist()
        for name, values in part.arrays.items():
            first = rows
            if name == "gone":
                first = gone
            # `block` itself is in the index, which one rank writes whole
            elif name.startswith("block_"):
                first = blocks
            self._put(f"{tensor}/{name}", first, values)
        self._next[part.tensor] += part.counts

    def write_index(self, index: Index) -> None:
        """Write the index of the blocks of all ranks; one rank does."""
        for number, tensor in enumerate(self._tensors):
            blocks = index.of(number)
            self._put(f"{tensor.name}/block", 0, np.ascontiguousarray(index.number[blocks]))
            self._put(f"{tensor.name}/block_rows", 0, np.ascontiguousarray(index.rows[blocks]))
            self._put(f"{tensor.name}/block_sha256", 0, np.ascontiguousarray(index.sha256[blocks]))

    def _put(self, name: str, first: int, values: Elements) -> None:
        """Write entries first, first + 1, ... of a dataset."""
        if not values.size:
            return
        offset = self._offsets[name] + first * (values.nbytes // len(values))
        put_bytes(self._file, values.reshape(-1).view(np.uint8).data, offset)
        start, _ = self.extents.get(name, (offset, offset))
        self.extents[name] = (start, offset + values.nbytes)

    def close(self) -> None:
        """Sync what was written to the disk."""
        try:
            # each rank syncs what it wrote: rank 0's rename must find it on the disk
            os.fsync(self._file)
        finally:
            os.close(self._file)
