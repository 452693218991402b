"""What does a checkpoint look like inside? One plain HDF5 file that says nothing about ranks or plans.

    /                             attributes: format, version, complete, step, seed, digest, created, position, …
    /run/config                   text: the TOML file; /run/overrides, /run/header, /run/data, /run/versions: JSON
    /dense/NAME/value, sum, …     float32, shaped as the parameter; optimizer state is named as torch names it
    /tables/C1/rows               int64[n], ascending: the rows that differ from their initial values
    /tables/C1/weight, sum, …     float32[n, D] or float32[n]; weights of a narrow format: codes, the format is an attribute
    …/block, …/block_rows, …/block_sha256    int64[m], int64[m], uint8[m, 32]: for each block of 4,096 row numbers with
                                  rows in the state: its number, how many, and the SHA-256 of their numbers and fields

All datasets are contiguous and allocated early, so that every rank can write its blocks at known offsets and anybody
can map them. The digest of the whole follows from header, step and block hashes (`docs/arithmetic.md` §11).
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from neocpu.config import Config, loads
from neocpu.errors import CheckpointError
from neocpu.training.blocks import BLOCK, Blocks, Index, Ints, Tensor, digest_of
from neocpu.training.checkpoint_codes import Coded, decode, dtype_of, encode

FORMAT = "neocpu-checkpoint"
VERSION = 2  # of files with codes; those without are of version 1
TEXTS = ("config", "overrides", "header", "data", "versions")
READ = 4 << 20  # bytes of rows that are read at a time
Offsets = dict[str, int]


def lay_out(
    path: Path, tensors: Sequence[Tensor], index: Index, attributes: Mapping[str, Any], texts: Mapping[str, str]
) -> Offsets:
    """Create a file with room for all rows; byte offsets of its datasets by "TENSOR/FIELD"."""
    version = VERSION if any(tensor.coded for tensor in tensors) else 1
    with h5py.File(path, "w", libver="v110", locking=False) as file:
        file.attrs.update({"format": FORMAT, "version": version, "complete": False, **attributes})
        for name in TEXTS:
            file.create_dataset(f"run/{name}", data=texts[name].encode(), dtype=h5py.string_dtype("utf-8"))
        offsets: Offsets = {}
        for number, tensor in enumerate(tensors):
            group = file.create_group(tensor.name)
            group.attrs["rows"] = tensor.rows
            group.attrs["fields"] = json.dumps(tensor.fields)
            here = index.of(number)
            count, blocks = int(index.rows[here].sum()), here.stop - here.start
            if tensor.table:
                offsets[f"{tensor.name}/rows"] = _allocate(group, "rows", (count,), "<i8")
            for name, shape in tensor.fields:
                offsets[f"{tensor.name}/{name}"] = _allocate(group, name, (count, *shape), dtype_of(tensor.of(name)))
            if tensor.coded:
                group["weight"].attrs["format"] = tensor.format
            _allocate(group, "block", (blocks,), "<i8")
            _allocate(group, "block_rows", (blocks,), "<i8")
            _allocate(group, "block_sha256", (blocks, 32), "u1")
    return offsets


def _allocate(group: h5py.Group, name: str, shape: tuple[int, ...], dtype: str) -> int:
    """A contiguous dataset whose space exists now and is not filled; its offset in the file (0 if it is empty)."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.CONTIGUOUS)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple(shape)
    dataset = h5py.h5d.create(group.id, name.encode(), h5py.h5t.py_create(np.dtype(dtype)), space, plan)
    return dataset.get_offset() or 0


class RowWriter:
    """Writes the rows of one rank, in order, into a file that `lay_out` made; `before` i64[T]: rows of each tensor that lower
    ranks write."""

    def __init__(self, path: Path, tensors: Sequence[Tensor], offsets: Offsets, before: Ints) -> None:
        self._tensors, self._offsets, self._next = tensors, offsets, before.copy()
        self._file = os.open(path, os.O_RDWR)

    def write(self, part: "Part") -> None:
        """Put rows behind those of the same tensor that were written before."""
        first, tensor = int(self._next[part.tensor]), self._tensors[part.tensor]
        for name, values in part.arrays.items():
            self._put(f"{tensor.name}/{name}", first, values)
        self._next[part.tensor] += part.rows

    def _put(self, name: str, row: int, values: NDArray[Any]) -> None:
        if not values.size:
            return
        data = values.reshape(-1).view(np.uint8).data
        at = self._offsets[name] + row * (values.nbytes // len(values))
        while data:
            written = os.pwrite(self._file, data, at)
            data, at = data[written:], at + written

    def close(self) -> None:
        """Bring what was written to the disk."""
        try:
            os.fsync(self._file)
        finally:
            os.close(self._file)


@dataclass(frozen=True)
class Part:
    """`rows` rows of a tensor as they are written: array by dataset."""

    tensor: int
    rows: int
    arrays: Mapping[str, NDArray[Any]]

    @staticmethod
    def of(blocks: Blocks, tensor: Tensor) -> "Part":
        """What is written of blocks of a tensor."""
        arrays = {"rows": np.ascontiguousarray(blocks.rows, "<i8")} if tensor.table else {}
        arrays |= {name: encode(values, tensor.of(name)) for name, values in blocks.values.items()}
        return Part(blocks.tensor, blocks.rows.size, arrays)

    @property
    def bytes(self) -> int:
        """Memory that they take."""
        return sum(array.nbytes for array in self.arrays.values())


def complete(path: Path, tensors: Sequence[Tensor], index: Index, digest: str) -> None:
    """Add the block hashes and the digest to a file whose blocks are all written, and mark it complete."""
    with h5py.File(path, "r+", locking=False) as file:
        for number, tensor in enumerate(tensors):
            here = index.of(number)
            if here.stop > here.start:
                group = file[tensor.name]
                group["block"][...] = index.number[here]
                group["block_rows"][...] = index.rows[here]
                group["block_sha256"][...] = index.sha256[here]
        file.attrs["digest"] = digest
        file.attrs["complete"] = True


class CheckpointFile:
    """A complete checkpoint, opened for reading; use it as a context manager.

    Attributes: path, step, digest, header (JSON), tensors, index.
    Raises CheckpointError for a file that is missing, truncated, foreign, newer, incomplete or damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise CheckpointError(f"{self.path}: no such file")
        try:
            self._file = h5py.File(self.path, "r", locking=False)
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            self._read()
        except (AttributeError, LookupError, ValueError, TypeError, OSError, RuntimeError) as error:
            self._file.close()
            raise self.damaged(f"its index cannot be read: {error}") from error
        except CheckpointError:
            self._file.close()
            raise

    def _unreadable(self, error: OSError) -> CheckpointError:
        with open(self.path, "rb") as file:
            foreign = file.read(8) != b"\x89HDF\r\n\x1a\n"
        if foreign:
            return CheckpointError(f"{self.path}: not a checkpoint (not an HDF5 file)")
        return self.damaged(f"truncated or not readable: {error}")

    def damaged(self, why: str) -> CheckpointError:
        """The error that this file is broken."""
        return CheckpointError(f"{self.path}: damaged checkpoint: {why}; use another one, or a copy")

    def _read(self) -> None:
        attributes = self.attributes = {name: _plain(value) for name, value in self._file.attrs.items()}
        if attributes.get("format") != FORMAT:
            raise CheckpointError(f"{self.path}: an HDF5 file, but not a neocpu checkpoint")
        if attributes["version"] > VERSION:
            raise CheckpointError(
                f"{self.path}: checkpoint version {attributes['version']}; this neocpu reads up to {VERSION}; upgrade"
            )
        if not attributes["complete"]:
            raise CheckpointError(f"{self.path}: incomplete checkpoint: the run that wrote it ended too early")
        self.step, self.digest = int(attributes["step"]), str(attributes["digest"])
        self.header = json.loads(self.text("header"))
        self.tensors = self._find_tensors()
        parts: list[list[NDArray[Any]]] = [[], [], [], []]
        for number, tensor in enumerate(self.tensors):
            group = self._file[tensor.name]
            blocks = group["block"][:]
            for part, column in zip(
                parts, (np.full(blocks.size, number), blocks, group["block_rows"][:], group["block_sha256"][:])
            ):
                part.append(column)
        numbers, block, rows, sha = (np.concatenate(part) for part in parts)
        self.index = Index(numbers, block, rows, sha)
        if digest_of(self.header, self.step, self.tensors, self.index) != self.digest:
            raise self.damaged("its index does not have the digest that is noted in it")
        for number, tensor in enumerate(self.tensors):
            count = self.index.rows_of(number)
            if any(self._file[f"{tensor.name}/{name}"].shape != (count, *shape) for name, shape in tensor.fields):
                raise self.damaged(f"{tensor.name} has other shapes than noted")

    def _find_tensors(self) -> tuple[Tensor, ...]:
        names = [f"dense/{name}" for name in self.header_dense()]
        names += [f"tables/{table['name']}" for table in self.header["tables"]]
        found = []
        for name in names:
            group = self._file[name]
            fields = tuple((field, tuple(shape)) for field, shape in json.loads(group.attrs["fields"]))
            values = group["weight"].attrs if name.startswith("tables/") else {}
            found.append(Tensor(name, int(group.attrs["rows"]), fields, str(values.get("format", "fp32"))))
        return tuple(found)

    def header_dense(self) -> list[str]:
        """Names of the dense parameters, in their order."""
        return json.loads(self.attributes["dense"])

    def text(self, name: str) -> str:
        """One of the texts in /run."""
        return self._file[f"run/{name}"][()].decode()

    def config(self, overrides: Sequence[str] = ()) -> Config:
        """The config of the run that wrote the checkpoint, with further overrides."""
        given = [*json.loads(self.text("overrides")), *overrides]
        return loads(self.text("config"), f"{self.path} (config)", given)

    def number(self, name: str) -> int:
        """Index of a tensor by name, for example "tables/C1". Raises CheckpointError if there is none."""
        for number, tensor in enumerate(self.tensors):
            if tensor.name == name:
                return number
        raise CheckpointError(f"{self.path}: has no {name}; it has {', '.join(t.name for t in self.tensors)}")

    def rows(self, number: int) -> Ints:
        """Row numbers of a tensor in the state: i64[n], ascending."""
        tensor = self.tensors[number]
        if tensor.table:
            return self._file[f"{tensor.name}/rows"][:]
        return np.arange(tensor.rows, dtype=np.int64)

    def field(self, number: int, name: str) -> Any:
        """A field of all rows in the state, mapped from the file, read-only and not verified: f32[n, ...]; of codes, what
        decodes the rows that are asked for."""
        dataset, form = self._file[f"{self.tensors[number].name}/{name}"], self.tensors[number].of(name)
        if not dataset.size:
            return np.empty(dataset.shape, np.float32)
        stored = np.asarray(np.memmap(self.path, dtype_of(form), "r", dataset.id.get_offset(), dataset.shape))
        return stored if stored.dtype == np.float32 else Coded(stored, form)

    def blocks(self, number: int, lo: int = 0, hi: int | None = None) -> Iterator[Blocks]:
        """Blocks of a tensor with rows in [lo, hi), whole and verified, some megabytes at a time. Raises CheckpointError for a
        broken one."""
        tensor, here, group = self.tensors[number], self.index.of(number), self._file[self.tensors[number].name]
        numbers, counts, shas = self.index.number[here], self.index.rows[here], self.index.sha256[here]
        ends = np.cumsum(counts)
        first, last = np.searchsorted(numbers, [lo // BLOCK, -(-(tensor.rows if hi is None else hi) // BLOCK)]).tolist()
        while first < last:
            begin = int(ends[first] - counts[first])
            till = max(int(np.searchsorted(ends[:last], begin + READ // tensor.row_bytes, "right")), first + 1)
            at, some = slice(begin, int(ends[till - 1])), slice(first, till)
            rows = group["rows"][at] if "rows" in group else np.arange(at.start, at.stop, dtype=np.int64)
            values = {name: decode(group[name][at], tensor.of(name)) for name, _ in tensor.fields}
            yield self._verified(Blocks(number, numbers[some], counts[some], rows, values), shas[some])
            first = till

    def _verified(self, blocks: Blocks, shas: NDArray[np.uint8]) -> Blocks:
        found = np.frombuffer(b"".join(blocks.sha256()), np.uint8).reshape(-1, 32)
        wrong = np.flatnonzero((found != shas).any(axis=1))
        if wrong.size:
            tensor, block = self.tensors[blocks.tensor], int(blocks.numbers[wrong[0]])
            raise self.damaged(
                f"{tensor.name}, block {block} (rows {block * BLOCK} to {min((block + 1) * BLOCK, tensor.rows) - 1}), "
                "has other bytes than were written"
            )
        return blocks

    def recomputed_digest(self) -> str:
        """The digest from all rows in the file. Raises CheckpointError if any of them changed."""
        shas = [sha for number in range(len(self.tensors)) for b in self.blocks(number) for sha in b.sha256()]
        sha = np.frombuffer(b"".join(shas), np.uint8).reshape(-1, 32)
        index = Index(self.index.tensor, self.index.number, self.index.rows, sha)
        return digest_of(self.header, self.step, self.tensors, index)

    def close(self) -> None:
        """Close the file; maps of it stay valid."""
        self._file.close()

    def __enter__(self) -> "CheckpointFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
