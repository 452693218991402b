"""What is in one file of a checkpoint, and how do the rows of several files become one table?"""

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
    """Rows i64[n] of a file, their fields, and rows i64[k] that went back to initial values."""

    rows: Ints
    gone: Ints
    values: Mapping[str, F32]


class Link:
    """One complete file, opened for reading.

    Attributes: path, file (h5py), attributes, step, digest, header, tensors; base, (name, digest)
    of the file that this one is based on, or None; index, of the blocks that are in it; counts
    i64[T, 3], as `lay_out` takes them.

    Raises CheckpointError for a file that is missing, foreign, newer, incomplete or damaged.
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
        """The error that HDF5 cannot open the file."""
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
        """Read all but rows and fields."""
        attributes = {name: _plain(value) for name, value in self.file.attrs.items()}
        self.attributes = attributes
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
        self.base: tuple[str, str] | None = None
        if "base" in attributes:
            self.base = (str(attributes["base"]), str(attributes["base_digest"]))
        self.header = json.loads(self.text("header"))
        self.tensors = self._find_tensors()
        # of each tensor, where the rows, and the rows gone, of each block end in the file
        self._row_ends: list[Ints] = []
        self._gone_ends: list[Ints] = []
        parts = [self._read_index(number) for number in range(len(self.tensors))]
        self.index = Index(
            tensor=np.concatenate([part.tensor for part in parts]),
            number=np.concatenate([part.number for part in parts]),
            rows=np.concatenate([part.rows for part in parts]),
            sha256=np.concatenate([part.sha256 for part in parts]),
        )
        self.counts = np.array(
            [
                (row_ends[-1], gone_ends[-1], part.number.size)
                for row_ends, gone_ends, part in zip(self._row_ends, self._gone_ends, parts)
            ],
            np.int64,
        )

    def _read_index(self, number: int) -> Index:
        """The blocks of one tensor; raises CheckpointError where its fields have other shapes."""
        tensor = self.tensors[number]
        group = self.file[tensor.name]
        blocks = group["block"][:]
        rows = group["block_rows"][:]
        written = rows
        gone = np.zeros_like(rows)
        if self.base is not None and tensor.table:
            written = group["block_written"][:]
            gone = group["block_gone"][:]
        self._row_ends.append(np.append(0, np.cumsum(written)))
        self._gone_ends.append(np.append(0, np.cumsum(gone)))
        count = int(self._row_ends[-1][-1])
        for name, _ in tensor.fields:
            if group[name].shape != (count, *Code.of(tensor, name).entry):
                raise self.damaged(f"{tensor.name} has other shapes than noted")
        return Index(np.full(blocks.size, number), blocks, rows, group["block_sha256"][:])

    def _find_tensors(self) -> tuple[Tensor, ...]:
        """The tensors of the state, in its order."""
        names = [f"dense/{name}" for name in json.loads(self.attributes["dense"])]
        names += [f"tables/{table['name']}" for table in self.header["tables"]]
        tensors = []
        for name in names:
            group = self.file[name]
            shapes = json.loads(group.attrs["fields"])
            weight = group["weight"].attrs if name.startswith("tables/") else {}
            tensors.append(
                Tensor(
                    name=name,
                    rows=int(group.attrs["rows"]),
                    fields=tuple((field, tuple(shape)) for field, shape in shapes),
                    format=str(weight.get("format", "fp32")),
                    quantized=str(weight.get("quantized", "")),
                )
            )
        return tuple(tensors)

    def text(self, name: str) -> str:
        """One of the texts in /run."""
        content: bytes = self.file[f"run/{name}"][()]
        return content.decode()

    def rows(self, number: int) -> Ints:
        """Rows of a table that are in this file, ascending."""
        rows: Ints = self.file[f"{self.tensors[number].name}/rows"][:]
        return rows

    def gone(self, number: int) -> Ints:
        """Rows of a table that went back to their initial values, ascending."""
        return self.file[f"{self.tensors[number].name}/gone"][:] if self.base else NOTHING

    def field(self, number: int, name: str) -> Any:
        """A field of the rows in this file, mapped: f32[n, ...] or `Coded`.

        `Coded` decodes rows when they are read.
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
        group = self.file[tensor.name]
        blocks = np.searchsorted(self.index.number[self.index.of(number)], [first, end])
        place = slice(*self._row_ends[number][blocks].tolist())
        values = {
            name: Code.of(tensor, name).decode(group[name][place]) for name, _ in tensor.fields
        }
        if not tensor.table:
            return Read(np.arange(place.start, place.stop, dtype=np.int64), NOTHING, values)
        gone = NOTHING
        if self.base:
            gone = group["gone"][slice(*self._gone_ends[number][blocks].tolist())]
        return Read(group["rows"][place], gone, values)

    def close(self) -> None:
        """Close the file; maps of it stay valid."""
        self.file.close()


def merged(rows: Sequence[Ints], gone: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Rows of the state i64[n], ascending, and the place of each in the concatenation of `rows`.

    rows, gone : of each file, oldest first.
    """
    if len(rows) == 1:
        return rows[0], np.arange(rows[0].size)
    ends = np.cumsum([part.size for part in rows])
    row_parts: list[Ints] = []
    place_parts: list[Ints] = []
    for written, lost, end in zip(rows, gone, ends.tolist()):
        row_parts += [written, lost]
        place_parts += [np.arange(end - written.size, end), np.full(lost.size, -1)]
    all_rows = np.concatenate(row_parts)
    places = np.concatenate(place_parts)  # -1: gone
    order = np.argsort(all_rows, kind="stable")  # of equal rows, the newest file's comes last
    newest = order[np.append(np.diff(all_rows[order]) != 0, True)[: order.size]]
    newest = newest[places[newest] >= 0]
    return all_rows[newest], places[newest]


class Joined:
    """A field whose rows are in several files: row i is entry places[i] of their concatenation."""

    def __init__(self, parts: Sequence[Any], places: Ints) -> None:
        self._parts = parts
        self._places = places
        self._ends = np.cumsum([part.shape[0] for part in parts])
        self.shape = (places.size, *parts[0].shape[1:])

    def __getitem__(self, rows: Any) -> F32:
        places = np.atleast_1d(self._places[rows])
        values = np.empty((places.size, *self.shape[1:]), np.float32)
        part = np.searchsorted(self._ends, places, side="right")
        for i in np.unique(part).tolist():
            first = int(self._ends[i]) - self._parts[i].shape[0]
            in_part = part == i
            values[in_part] = self._parts[i][places[in_part] - first]
        return values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or np.float32, copy=False)


def _plain(value: Any) -> Any:
    """A Python number of a NumPy one."""
    return value.item() if isinstance(value, np.generic) else value
