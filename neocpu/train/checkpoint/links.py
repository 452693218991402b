"""What is in one file of a checkpoint, and how do the rows of several files become one table?"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neocpu.core.errors import CheckpointError
from neocpu.core.formats import FORMATS, SCALED, SPLIT
from neocpu.core.types import Elements, Floats, Ints, JsonObject
from neocpu.tables.hdf5.door import File, Kind
from neocpu.train.checkpoint.layout import FORMAT, VERSION, WORDS, datasets
from neocpu.train.checkpoint.number_codes import Code, Coded
from neocpu.train.state.blocks import BLOCK, NOTHING, Index, Tensor

KIND = Kind(
    format=FORMAT,
    version=VERSION,
    error=CheckpointError,
    missing="{path}: no such file",
    damaged="{path}: damaged checkpoint: {why}; use another one, or a copy",
    no_hdf5="{path}: not a checkpoint (not an HDF5 file)",
    foreign="{path}: an HDF5 file, but not a neocpu checkpoint",
    newer="{path}: checkpoint version {version}; this neocpu reads up to {newest}; upgrade",
)
LONGEST_ROW = 1 << 28  # bytes


@dataclass(frozen=True)
class Read:
    """Rows i64[n] of a file, their fields, and rows i64[k] that went back to initial values."""

    rows: Ints
    gone: Ints
    values: Mapping[str, Floats]


class Link:
    """One complete file, opened for reading.

    Attributes: path, file, attributes, step, digest, header, tensors; base, (name, digest) of the
    file that this one is based on, or None; index, of the blocks that are in it; counts i64[T, 3],
    as `lay_out` takes them.

    Raises CheckpointError for a file that is missing, foreign, newer, incomplete or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = File(path, KIND)
        try:
            self._open()
        except BaseException:
            self.file.close()
            raise

    def damaged(self, why: object) -> CheckpointError:
        """The error that this file is broken."""
        return CheckpointError(str(self.file.damaged(why)))

    def _open(self) -> None:
        """Read all but rows and fields."""
        file = self.file
        self.attributes = file.attributes()
        if not file.attribute("complete", bool):
            raise CheckpointError(
                f"{self.path}: incomplete checkpoint: the run that wrote it ended too early"
            )
        self.step = file.attribute("step", int)
        self.digest = file.attribute("digest", str)
        self.base: tuple[str, str] | None = None
        if "base" in self.attributes:
            self.base = (base_in(file), file.attribute("base_digest", str))
        self.header = self._read_header()
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

    def _read_header(self) -> JsonObject:
        """The keys of the config that decide the bits; the seed is noted twice."""
        header = self.json("header")
        training = header.get("training")
        seed = training.get("seed") if isinstance(training, dict) else None
        # initial values of rows that the file lacks follow from it
        if not isinstance(seed, int) or seed != self.file.attribute("seed", int):
            raise self.damaged("its header and its attributes have different seeds")
        if self.step < 0:
            raise self.damaged(f"it has step {self.step}")
        return header

    def json(self, name: str) -> JsonObject:
        """A JSON object among the texts in /run."""
        value = self._parsed(self.text(name), f"/run/{name}")
        if not isinstance(value, dict):
            raise self.damaged(f"/run/{name} is no JSON object")
        return value

    def strings(self, text: str, what: str) -> list[str]:
        """A JSON list of texts."""
        value = self._parsed(text, what)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.damaged(f"{what} is no list of texts")
        return value

    def _parsed(self, text: str, what: str) -> object:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.damaged(f"{what} is no JSON: {error}") from error

    # ---- tensors ----

    def _find_tensors(self) -> tuple[Tensor, ...]:
        """The tensors of the state, in its order."""
        dense = self.strings(self.file.attribute("dense", str), "the attribute dense")
        tables = self.header.get("tables")
        if not isinstance(tables, list) or not all(
            isinstance(table, dict) and isinstance(table.get("name"), str) for table in tables
        ):
            raise self.damaged("its header has no list of tables")
        names = [f"dense/{name}" for name in dense]
        names += [f"tables/{table['name']}" for table in tables]
        if not names or len(set(names)) < len(names):
            raise self.damaged("it names no tensor, or one of them twice")
        return tuple(self._tensor(name) for name in names)

    def _tensor(self, name: str) -> Tensor:
        """One tensor, as its group describes it."""
        form = "fp32"
        quantized = ""
        if name.startswith("tables/"):
            weight = self.file.array(f"{name}/weight").attributes
            form = weight.get("format", form)
            quantized = weight.get("quantized", quantized)
        fields = self._fields(name)
        tensor = Tensor(
            name=name,
            rows=self.file.attribute("rows", int, name),
            fields=fields,
            format=form if isinstance(form, str) else "?",
            quantized=quantized if isinstance(quantized, str) else "?",
        )
        if tensor.format not in (*FORMATS, *SPLIT) or tensor.quantized not in ("", *SCALED):
            raise self.damaged(
                f"{name} has weights of an unknown format {tensor.quantized or tensor.format}"
            )
        if tensor.quantized and len(dict(fields)["weight"]) != 1:
            raise self.damaged(f"{name} has no rows of weights")
        # a damaged number should not make a reader ask for all memory
        if tensor.rows < 0 or tensor.row_bytes > LONGEST_ROW:
            raise self.damaged(f"{name} has {tensor.rows} rows of {tensor.row_bytes} bytes")
        return tensor

    def _fields(self, name: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(name, shape of a row) of all fields of a tensor."""
        what = f"the attribute fields of /{name}"
        entries = self._parsed(self.file.attribute("fields", str, name), what)
        fields: dict[str, tuple[int, ...]] = {}
        if not isinstance(entries, list):
            entries = []
        for entry in entries:
            match entry:
                case [str(field), list(shape)] if all(type(n) is int and n >= 0 for n in shape):
                    fields[field] = tuple(shape)
                case _:
                    raise self.damaged(f"{what} has {str(entry)[:60]}")
        widest = max((math.prod(shape) for shape in fields.values()), default=0)
        if widest * 4 > LONGEST_ROW:
            raise self.damaged(f"{what} has rows of {widest} numbers")
        first = "weight" if name.startswith("tables/") else "value"
        if next(iter(fields), None) != first or len(fields) != len(entries):
            raise self.damaged(f"{what} does not begin with {first}, or has a field twice")
        return tuple(fields.items())

    # ---- blocks ----

    def _read_index(self, number: int) -> Index:
        """The blocks of one tensor.

        Raises CheckpointError where they are none of it, or its fields have other shapes.
        """
        tensor = self.tensors[number]
        blocks = self._ints(tensor, "block")
        rows = self._ints(tensor, "block_rows", blocks.size)
        written = rows
        gone = np.zeros_like(rows)
        if self.base is not None and tensor.table:
            written = self._ints(tensor, "block_written", blocks.size)
            gone = self._ints(tensor, "block_gone", blocks.size)
        self._check_blocks(tensor, blocks, rows, written, gone)
        # from these a block's rows are found without reading the others
        self._row_ends.append(np.append(0, np.cumsum(written)))
        self._gone_ends.append(np.append(0, np.cumsum(gone)))
        counts = {"gone": int(self._gone_ends[-1][-1])}
        for name, dtype, shape in datasets(tensor, self.base is not None):
            count = blocks.size
            if not name.startswith("block"):
                count = counts.get(name, int(self._row_ends[-1][-1]))
            array = self.file.array(f"{tensor.name}/{name}")
            if (array.dtype, array.shape) != (np.dtype(dtype), (count, *shape)):
                raise self.damaged(f"{tensor.name} has other shapes than noted: {name}")
        sha256 = self.file.array(f"{tensor.name}/block_sha256").read()
        return Index(np.full(blocks.size, number), blocks, rows, sha256)

    def _check_blocks(
        self, tensor: Tensor, blocks: Ints, rows: Ints, written: Ints, gone: Ints
    ) -> None:
        """Raise CheckpointError unless a tensor can have these blocks, with so many rows."""
        ascending = not blocks.size or (
            blocks[0] >= 0 and blocks[-1] < tensor.blocks and bool((np.diff(blocks) > 0).all())
        )
        if not ascending:
            raise self.damaged(f"{tensor.name} has blocks out of order, or beyond its rows")
        heights = np.minimum(tensor.rows - blocks * BLOCK, BLOCK)
        impossible = (rows < 0) | (rows > heights) | (written < 0) | (written > rows)
        impossible |= (gone < 0) | (gone > heights - rows)
        if not tensor.table:
            impossible |= rows != heights
        if impossible.any() or not (tensor.table or blocks.size == tensor.blocks):
            raise self.damaged(f"{tensor.name} has blocks with impossible numbers of rows")

    def _ints(self, tensor: Tensor, name: str, size: int | None = None) -> Ints:
        """Whole numbers i64[size]."""
        array = self.file.array(f"{tensor.name}/{name}", "<i8", (size,))
        return array.read()

    # ---- contents ----

    def text(self, name: str) -> str:
        """One of the texts in /run."""
        return self.file.text(f"run/{name}")

    def vocabularies(self) -> dict[str, Elements]:
        """Codes of each feature whose rows are chosen by a vocabulary; {}: the file has none."""
        if WORDS not in self.file:
            return {}
        text = self.file.attribute("features", str, WORDS)
        features = self.strings(text, f"the attribute features of /{WORDS}")
        return {
            feature: self.file.array(f"{WORDS}/{number}", ("<u4", "<u8"), (None,)).read()
            for number, feature in enumerate(features)
        }

    def rows(self, number: int) -> Ints:
        """Rows of a table that are in this file, ascending."""
        return self._row_numbers(number, "rows")

    def gone(self, number: int) -> Ints:
        """Rows of a table that went back to their initial values, ascending."""
        return self._row_numbers(number, "gone") if self.base else NOTHING

    def _row_numbers(self, number: int, name: str) -> Ints:
        """Numbers of rows of a table, which ascend."""
        tensor = self.tensors[number]
        rows = self._ints(tensor, name)
        if rows.size and not (
            rows[0] >= 0 and rows[-1] < tensor.rows and bool((np.diff(rows) > 0).all())
        ):
            raise self.damaged(f"{tensor.name}/{name} are out of order, or beyond the table")
        return rows

    def field(self, number: int, name: str) -> Any:
        """A field of the rows in this file, mapped: f32[n, ...] or `Coded`.

        `Coded` decodes rows when they are read.
        """
        tensor = self.tensors[number]
        code = Code.of(tensor, name)
        array = self.file.array(f"{tensor.name}/{name}")
        # an empty dataset has no bytes in the file that could be mapped
        if not array.size:
            return np.empty((array.shape[0], *code.shape), np.float32)
        stored = array.map() if array.mappable else array.read()
        return stored if stored.dtype == np.float32 else Coded(stored, code)

    def read(self, number: int, first: int, end: int) -> Read:
        """What is in this file of the rows of blocks [first, end)."""
        tensor = self.tensors[number]
        blocks = np.searchsorted(self.index.number[self.index.of(number)], [first, end])
        span = self._row_ends[number][blocks].tolist()
        values = {
            name: Code.of(tensor, name).decode(self._entries(tensor, name, span))
            for name, _ in tensor.fields
        }
        if not tensor.table:
            return Read(np.arange(*span, dtype=np.int64), NOTHING, values)
        gone = NOTHING
        if self.base:
            gone = self._entries(tensor, "gone", self._gone_ends[number][blocks].tolist())
        return Read(self._entries(tensor, "rows", span), gone, values)

    def _entries(self, tensor: Tensor, name: str, span: Sequence[int]) -> Elements:
        """Some entries [first, end) of a dataset of a tensor."""
        return self.file.array(f"{tensor.name}/{name}").rows(*span)

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
    # in the order of the files, and a stable sort: of equal rows the newest is the last
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

    def __getitem__(self, rows: Any) -> Floats:
        places = np.atleast_1d(self._places[rows])
        values = np.empty((places.size, *self.shape[1:]), np.float32)
        part = np.searchsorted(self._ends, places, side="right")
        for i in np.unique(part).tolist():
            first = int(self._ends[i]) - self._parts[i].shape[0]
            in_part = part == i
            values[in_part] = self._parts[i][places[in_part] - first]
        return values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Elements:
        return self[:].astype(dtype or np.float32, copy=False)


def base_of(path: Path) -> str | None:
    """Name of the file that a file is based on; None for a whole file.

    Raises CheckpointError for a file that cannot be read.
    """
    # a folder is looked through after each checkpoint, and its arrays are of no use here
    with File(path, KIND, whole=False) as file:
        return base_in(file) if "base" in file.attributes() else None


def base_in(file: File) -> str:
    """The name of a file beside it that a file is based on."""
    name = file.attribute("base", str)
    if Path(name).name != name:
        raise file.damaged(f"{name}: no name of a file beside it")
    return name
