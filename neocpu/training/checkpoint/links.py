"""What does one file of a checkpoint say, and how do rows of several files become one table?"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from neocpu.errors import CheckpointError
from neocpu.training.checkpoint.layout import FORMAT, VERSION
from neocpu.training.checkpoint.number_codes import Code, Coded
from neocpu.training.state_blocks import F32, NOTHING, Index, Ints, Tensor


@dataclass(frozen=True)
class Read:
    """Rows i64[n] of a file, their fields, and rows i64[k] that are no more."""

    rows: Ints
    gone: Ints
    values: Mapping[str, F32]


class Link:
    """One complete file, opened for reading.

    Attributes: path, file (h5py), attributes, step, digest, header, tensors; base: (name, digest)
    of the file that this one has the changes since, or None; index: the blocks that are in it;
    counts i64[T, 3], as `lay_out` takes them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file")
        try:
            self.file = h5py.File(path, "r", locking=False)
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            self._open()
        except (AttributeError, LookupError, ValueError, TypeError, OSError, RuntimeError) as error:
            self.file.close()
            raise self.damaged(f"its index cannot be read: {error}") from error
        except CheckpointError:
            self.file.close()
            raise

    def _unreadable(self, error: OSError) -> CheckpointError:
        with open(self.path, "rb") as file:
            foreign = file.read(8) != b"\x89HDF\r\n\x1a\n"
        if foreign:
            return CheckpointError(f"{self.path}: not a checkpoint (not an HDF5 file)")
        return self.damaged(f"truncated or not readable: {error}")

    def damaged(self, why: str) -> CheckpointError:
        """The error that this file is broken."""
        return CheckpointError(
            f"{self.path}: damaged checkpoint: {why}; use another one, or a copy"
        )

    def _open(self) -> None:
        attributes = self.attributes = {
            name: _plain(value) for name, value in self.file.attrs.items()
        }
        if attributes.get("format") != FORMAT:
            raise CheckpointError(f"{self.path}: an HDF5 file, but not a neocpu checkpoint")
        if attributes["version"] > VERSION:
            raise CheckpointError(
                f"{self.path}: checkpoint version {attributes['version']}; this neocpu reads up "
                f"to {VERSION}; upgrade"
            )
        if not attributes["complete"]:
            raise CheckpointError(
                f"{self.path}: incomplete checkpoint: the run that wrote it ended too early"
            )
        self.step = int(attributes["step"])
        self.digest = str(attributes["digest"])
        self.base = (
            (str(attributes["base"]), str(attributes["base_digest"]))
            if "base" in attributes
            else None
        )
        self.header = json.loads(self.text("header"))
        self.tensors = self._find_tensors()
        parts: list[list[NDArray[Any]]] = [[], [], [], []]
        # ends of the rows, and of the rows gone, of each block; by tensor
        self._written = []
        self._lost = []
        counts = []
        for number, tensor in enumerate(self.tensors):
            group = self.file[tensor.name]
            columns = [group[name][:] for name in ("block", "block_rows", "block_sha256")]
            for part, column in zip(parts, (np.full(columns[0].size, number), *columns)):
                part.append(column)
            changes = self.base is not None and tensor.table
            written, lost = (
                group[f"block_{x}"][:] if changes else default
                for x, default in (("written", columns[1]), ("gone", np.zeros_like(columns[1])))
            )
            self._written.append(np.append(0, np.cumsum(written)))
            self._lost.append(np.append(0, np.cumsum(lost)))
            count = int(self._written[-1][-1])
            if any(
                group[name].shape != (count, *Code.of(tensor, name).entry)
                for name, _ in tensor.fields
            ):
                raise self.damaged(f"{tensor.name} has other shapes than noted")
            counts.append((count, int(self._lost[-1][-1]), columns[0].size))
        self.index = Index(*(np.concatenate(part) for part in parts))
        self.counts = np.array(counts, np.int64)

    def _find_tensors(self) -> tuple[Tensor, ...]:
        names = [f"dense/{name}" for name in json.loads(self.attributes["dense"])]
        names += [f"tables/{table['name']}" for table in self.header["tables"]]
        found = []
        for name in names:
            group = self.file[name]
            fields = tuple(
                (field, tuple(shape)) for field, shape in json.loads(group.attrs["fields"])
            )
            values = group["weight"].attrs if name.startswith("tables/") else {}
            forms = str(values.get("format", "fp32")), str(values.get("quantized", ""))
            found.append(Tensor(name, int(group.attrs["rows"]), fields, *forms))
        return tuple(found)

    def text(self, name: str) -> str:
        """One of the texts in /run."""
        return self.file[f"run/{name}"][()].decode()

    def rows(self, number: int) -> Ints:
        """Rows of a table that are in this file, ascending."""
        return self.file[f"{self.tensors[number].name}/rows"][:]

    def gone(self, number: int) -> Ints:
        """Rows of a table that are no more, ascending."""
        return self.file[f"{self.tensors[number].name}/gone"][:] if self.base else NOTHING

    def field(self, number: int, name: str) -> Any:
        """A field of the rows in this file, mapped: f32[n, ...]; of codes, what decodes the rows
        that are asked for.
        """
        dataset = self.file[f"{self.tensors[number].name}/{name}"]
        code = Code.of(self.tensors[number], name)
        if not dataset.size:
            return np.empty((0, *code.shape), np.float32)
        stored = np.asarray(
            np.memmap(self.path, code.dtype, "r", dataset.id.get_offset(), dataset.shape)
        )
        return stored if stored.dtype == np.float32 else Coded(stored, code)

    def read(self, number: int, first: int, end: int) -> Read:
        """What is in this file of the rows of blocks [first, end)."""
        tensor = self.tensors[number]
        group = self.file[self.tensors[number].name]
        cuts = np.searchsorted(self.index.number[self.index.of(number)], [first, end])
        at, lost = (
            slice(*ends[cuts].tolist()) for ends in (self._written[number], self._lost[number])
        )
        rows = group["rows"][at] if tensor.table else np.arange(at.start, at.stop, dtype=np.int64)
        values = {name: Code.of(tensor, name).decode(group[name][at]) for name, _ in tensor.fields}
        return Read(rows, group["gone"][lost] if self.base and tensor.table else NOTHING, values)

    def close(self) -> None:
        """Close the file; maps of it stay valid."""
        self.file.close()


def merged(rows: Sequence[Ints], gone: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Rows of files from old to new put together, and where in all of them, one after the other,
    each is: i64[n].
    """
    if len(rows) == 1:
        return rows[0], np.arange(rows[0].size)
    ends = np.cumsum([part.size for part in rows])
    parts = []
    sources = []
    for new, old, end in zip(rows, gone, ends.tolist()):
        parts += [new, old]
        sources += [np.arange(end - new.size, end), np.full(old.size, -1)]
    everything = np.concatenate(parts)
    source = np.concatenate(sources)
    order = np.argsort(everything, kind="stable")
    last = order[np.append(np.diff(everything[order]) != 0, True)[: order.size]]
    last = last[source[last] >= 0]
    return everything[last], source[last]


class Joined:
    """A field whose rows are in several files: row i is number source[i] in all of them, one after
    the other.
    """

    def __init__(self, parts: Sequence[Any], source: Ints) -> None:
        self._parts = parts
        self._source = source
        self._ends = np.cumsum([part.shape[0] for part in parts])
        self.shape = (source.size, *parts[0].shape[1:])

    def __getitem__(self, rows: Any) -> F32:
        wanted = np.atleast_1d(self._source[rows])
        found = np.empty((wanted.size, *self.shape[1:]), np.float32)
        part = np.searchsorted(self._ends, wanted, side="right")
        for i in np.unique(part).tolist():
            first = int(self._ends[i]) - self._parts[i].shape[0]
            found[part == i] = self._parts[i][wanted[part == i] - first]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or np.float32, copy=False)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
