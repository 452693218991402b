"""Is a dataset file what it should be, and what do some of its samples hold?

Names, types, shapes and attributes are compared with the layout (`neocpu.ingest.dataset_layout`)
as a file is opened. Elements are verified by blocks of 4,096 samples, when a sample of a block is
first taken: their checksums, and that the lengths of bags agree with `block_offsets`, before
anything is made of a length that they say.
"""

import contextlib
import hashlib
import json
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import DataError
from neocpu.core.types import Bools, Elements, Floats, Ints
from neocpu.ingest.dataset.columns import Column, FeatureReader, open_column
from neocpu.ingest.dataset_layout import BLOCK, FORMAT, VERSION, BagColumn, FeatureColumn
from neocpu.tables.hdf5.door import File, Kind
from neocpu.tables.hdf5.draft import SEALED

DATASET = Kind(
    format=FORMAT,
    version=VERSION,
    error=DataError,
    missing="{path}: no such file",
    damaged="{path}: truncated or damaged dataset ({why}); copy it again or convert it again",
    no_hdf5=(
        "{path}: not an HDF5 file; a raw log must be converted first: `neocpu data convert --help`"
    ),
    foreign=(
        "{path}: an HDF5 file, but not a neocpu dataset, and no log that is read; write its "
        "columns to Parquet, or its arrays with numpy.savez"
    ),
    newer="{path}: dataset version {version}; this neocpu reads up to {newest}; upgrade",
)
CODES = ("uint32", "uint64")
MOST_HOTNESS = (1 << 31) - 1  # lengths are int32


@dataclass(frozen=True)
class Samples:
    """Some samples: labels float32[n], dense float32[n, Nd], and the bags of chosen features.

    more : further labels float32[n], by name.
    """

    labels: Floats
    dense: Floats
    features: dict[str, BagColumn]
    more: dict[str, Floats] = field(default_factory=dict)

    def part(self, first: int, last: int) -> "Samples":
        """Samples [first, last) of them: views."""
        return Samples(
            self.labels[first:last],
            self.dense[first:last],
            {name: self._bags(name, column, first, last) for name, column in self.features.items()},
            {name: values[first:last] for name, values in self.more.items()},
        )

    def _bags(self, name: str, column: BagColumn, first: int, last: int) -> BagColumn:
        if column.lengths is None:
            hotness = column.codes.size // max(self.labels.size, 1)
            begin = first * hotness
            end = last * hotness
        else:
            begin, end = self._ends[name][[first, last]].tolist()
        return BagColumn(
            column.codes[begin:end],
            None if column.lengths is None else column.lengths[first:last],
            None if column.weights is None else column.weights[begin:end],
        )

    @cached_property
    def _ends(self) -> dict[str, Ints]:
        """Where the bags of features with bags of several lengths begin, and the last one ends."""
        return {
            name: np.concatenate([[0], np.cumsum(column.lengths, dtype=np.int64)])
            for name, column in self.features.items()
            if column.lengths is not None
        }


class DatasetFile:
    """One dataset file: its layout checked, its columns mapped.

    label : which of the labels is the samples' ("": the first). more : names of labels that are
    read besides; those that the file lacks are not in `more_labels`.

    Raises DataError, naming the file, the object and the remedy.
    """

    def __init__(self, path: Path, label: str = "", more: Sequence[str] = ()) -> None:
        self.path = path
        # It stays open: compressed columns are read through it, and mapped ones ask for its size.
        self._file = File(path, DATASET)
        self._sums = hashlib.sha256()
        try:
            self.attributes = {
                key: _plain(value)
                for key, value in self._file.attributes().items()
                if key != SEALED
            }
            self.samples = self._count("rows")
            # A file without columns could claim any number, by which bitmaps of blocks are
            # allocated.
            if self.samples > BLOCK * path.stat().st_size:
                raise self._file.damaged(f"{self.samples:,} rows are more than it can hold")
            self.skipped = self._count("skipped") if "skipped" in self.attributes else 0
            self._read_invalid()
            self._read_extreme()
            self._read_labels(label)
            self._read_more_labels(more)
            self._read_schema()
            self._read_dense()
            self._read_features()
            # Which blocks still need their checksums compared; all are once, so later epochs only
            # look here.
            self._verified = self._nothing_verified()
            self._unverified = (~self._verified).sum(axis=1).tolist()
        # The caller never gets the object, so nobody else could close the file.
        except BaseException:
            self._file.close()
            raise
        self.close = weakref.finalize(self, self._file.close)

    # ---- the layout ----

    def _count(self, key: str, name: str = "") -> int:
        """An attribute that counts something."""
        count = self._file.attribute(key, int, name)
        if count < 0:
            raise self._file.damaged(f"the attribute {key} of /{name} is {count}")
        return count

    def _column(self, name: str, dtypes: str | tuple[str, ...], shape: tuple[int, ...]) -> Column:
        column = open_column(self._file, self._file.array(name, dtypes, shape))
        self._sums.update(column.checksums.tobytes())
        return column

    @property
    def checksum(self) -> str:
        """SHA-256 of the checksums of all columns that are read."""
        return self._sums.hexdigest()

    def _check_names(self, names: Sequence[str]) -> None:
        """Refuse names of columns that are not text."""
        for name in names:
            # HDF5 hands over bytes that are no UTF-8 as surrogates, which nothing can print or
            # write again.
            if any("\ud800" <= character <= "\udfff" for character in name):
                raise self._file.damaged(f"the name of the column {name!r} is not text in UTF-8")

    def _read_labels(self, label: str) -> None:
        """Choose the label of this name ("": the first), and find the range of its values."""
        file = self._file
        self.labels: Column | None = None
        self.label_range: tuple[float, float] | None = None
        self.label_names = list[str]()
        if "labels" not in file:
            return
        entries = self.attributes.get("labels", [])
        match entries:
            case [*triples] if all(_is_range(triple) for triple in triples):
                self.label_names = [name for name, _, _ in triples]
            case _:
                raise file.damaged("the attribute labels is no list of names and ranges")
        name = "labels"
        if label and label not in self.label_names:
            names = ", ".join(self.label_names) or "one, without a name"
            raise DataError(f"{self.path}: no label {label!r}; its labels are {names}")
        number = self.label_names.index(label) if label else 0
        if number:
            name = f"more_labels/{label}"
        if entries:
            self.label_range = (float(entries[number][1]), float(entries[number][2]))
        self.labels = self._column(name, "float32", (self.samples,))

    def _read_more_labels(self, names: Sequence[str]) -> None:
        """Labels besides the chosen one, and the ranges of their values."""
        self.more_labels: dict[str, Column] = {}
        self.more_ranges: dict[str, tuple[float, float]] = {}
        for name in names:
            if name in self.label_names:
                number = self.label_names.index(name)
                place = f"more_labels/{name}" if number else "labels"
                _, low, high = self.attributes["labels"][number]
                self.more_labels[name] = self._column(place, "float32", (self.samples,))
                self.more_ranges[name] = (float(low), float(high))

    def _read_schema(self) -> None:
        """The tree of the schema that the samples were read by, where it is noted."""
        self.schema: dict[str, Any] | None = None
        if "schema" not in self._file:
            return
        try:
            tree = json.loads(self._file.array("schema", "uint8", (None,)).read().tobytes())
        # JSON may be nested so deep that Python's parser gives up.
        except (ValueError, RecursionError) as error:
            raise self._file.damaged("/schema is no JSON") from error
        if not isinstance(tree, dict):
            raise self._file.damaged("/schema is no table of keys")
        self.schema = tree

    def _read_invalid(self) -> None:
        """Texts that are no numbers and counted as missing, by dense column."""
        self.invalid: dict[str, int] = self.attributes.get("invalid", {})
        counts = self.invalid.values() if isinstance(self.invalid, dict) else [None]
        if not all(isinstance(count, int) for count in counts):
            raise self._file.damaged("the attribute invalid is no table of counts")

    def _read_extreme(self) -> None:
        """The largest size of a number, by dense column that has extreme ones."""
        self.extreme: dict[str, float] = self.attributes.get("extreme", {})
        sizes = self.extreme.values() if isinstance(self.extreme, dict) else [None]
        if not all(isinstance(size, float) for size in sizes):
            raise self._file.damaged("the attribute extreme is no table of numbers")

    def _read_dense(self) -> None:
        file = self._file
        names = _plain(file.attribute("columns", str, "dense"))
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise file.damaged("the attribute columns of /dense is no list of names")
        self.dense_columns = tuple(names)
        self._check_names(names)
        if len({*names}) != len(names):
            raise file.damaged("the attribute columns of /dense has a name twice")
        self.dense = self._column("dense", "float32", (self.samples, len(names)))
        missing = file.attribute("missing", np.ndarray, "dense")
        if missing.shape != (len(names),) or missing.dtype != np.int64 or (missing < 0).any():
            raise file.damaged(f"the attribute missing of /dense is not {len(names)} counts")
        self.missing_dense: list[int] = missing.tolist()

    def _read_features(self) -> None:
        self.features: dict[str, FeatureReader] = {}
        self.columns: dict[str, FeatureColumn] = {}
        self.missing: dict[str, int] = {}
        self.vocabularies: dict[str, Elements] = {}
        self.frequencies: dict[str, tuple[Elements, Ints]] = {}
        names = self._file.children("features")
        self._check_names(names)
        for name in names:
            self._read_feature(name, f"features/{name}")

    def _read_feature(self, name: str, group: str) -> None:
        file = self._file
        hotness = self._count("hotness", group)
        if hotness > MOST_HOTNESS:
            raise file.damaged(f"the attribute hotness of /{group} is {hotness:,}")
        columns: dict[str, Column] = {}
        offsets = None
        codes = file.array(f"{group}/codes", CODES)
        shape: tuple[int, ...] = (self.samples, hotness) if hotness > 1 else (self.samples,)
        if hotness == 0:
            shape = codes.shape[:1]
            # With them a bag is found by at most 4,095 lengths, instead of those of all samples
            # before it.
            offsets = self._block_offsets(f"{group}/block_offsets", codes.size)
            columns["lengths"] = self._column(f"{group}/lengths", "int32", (self.samples,))
        columns["codes"] = self._column(codes.name, CODES, shape)
        if f"{group}/weights" in file:
            columns["weights"] = self._column(f"{group}/weights", "float32", shape)
        self.features[name] = FeatureReader(file, hotness, columns, offsets)
        self.columns[name] = FeatureColumn(
            name=name,
            dtype=codes.dtype.name,
            hotness=hotness,
            weighted="weights" in columns,
            kind=file.attribute("kind", str, group),
        )
        self.missing[name] = self._count("missing", group)
        if f"{group}/vocabulary" in file:
            vocabulary = file.array(f"{group}/vocabulary", codes.dtype.name, (None,))
            self.vocabularies[name] = vocabulary.read()
        if f"{group}/frequent" in file:
            frequent = file.array(f"{group}/frequent", codes.dtype.name, (None,))
            counts = file.array(f"{group}/frequent_counts", "int64", frequent.shape)
            self.frequencies[name] = frequent.read(), counts.read()

    def _block_offsets(self, name: str, codes: int) -> Ints:
        """The first code of each block: ascending from 0 to the number of codes."""
        blocks = -(-self.samples // BLOCK)
        offsets = self._file.array(name, "int64", (blocks + 1,)).read()
        if offsets[0] != 0 or offsets[-1] != codes or (offsets[1:] < offsets[:-1]).any():
            raise self._file.damaged(f"/{name} does not ascend from 0 to {codes:,} codes")
        return offsets

    # ---- the elements ----

    def _all_labels(self) -> list[Column]:
        """Columns of labels that are read."""
        return [*([] if self.labels is None else [self.labels]), *self.more_labels.values()]

    def _nothing_verified(self) -> Bools:
        """bool[1 + features, blocks]: whether a block is verified; row 0: labels and dense."""
        blocks = -(-self.samples // BLOCK)
        verified = np.zeros((1 + len(self.features), blocks), bool)
        verified[0] = not any(column.checked for column in (self.dense, *self._all_labels()))
        for row, feature in enumerate(self.features.values(), 1):
            verified[row] = not feature.checked
        self._rows = {"": 0, **{name: row for row, name in enumerate(self.features, 1)}}
        return verified

    def _verify(self, names: Sequence[str], blocks: Ints) -> None:
        """Verify labels, dense columns and these features in these blocks, each once."""
        for name in ("", *names):
            row = self._rows[name]
            # A number, not an array: the check costs nothing once all blocks of a column are
            # verified.
            if self._unverified[row]:
                for block in blocks[~self._verified[row, blocks]].tolist():
                    self._verify_block(name, block)
                    self._verified[row, block] = True
                    self._unverified[row] -= 1

    def _verify_block(self, name: str, block: int) -> None:
        if name:
            self.features[name].verify(block, self.samples)
            return
        first = block * BLOCK
        end = min(first + BLOCK, self.samples)
        self.dense.verify(first, end)
        for labels in self._all_labels():
            labels.verify(first, end)

    def take(self, samples: Ints, names: Sequence[str]) -> Samples:
        """Labels, dense columns and the bags of some features of samples i64[n], in that order."""
        self._file.unchanged()
        blocks = np.empty(0, np.int64)
        if any(self._unverified[self._rows[name]] for name in ("", *names)) or any(
            self.features[name].hotness == 0 for name in names
        ):
            blocks = np.unique(samples // BLOCK)
            self._verify(names, blocks)
        labels = np.zeros(samples.size, np.float32)
        if self.labels is not None:
            labels = self.labels.gather(samples)
        bags = {name: self.features[name].take(samples, blocks) for name in names}
        more = {name: column.gather(samples) for name, column in self.more_labels.items()}
        return Samples(labels, self.dense.gather(samples), bags, more)

    def codes(self, name: str, first: int, end: int) -> NDArray[np.unsignedinteger]:
        """Entries [first, end) of a feature's codes, flat and verified."""
        self._file.unchanged()
        column = self.features[name].codes
        column.verify(first, end)
        entries = column.read(first, end).reshape(-1)
        # A mapped column may begin at any byte of the file; kernels take aligned arrays only.
        return entries if entries.flags.aligned else entries.copy()

    def label_ranges(self, entries: int = 1 << 20) -> Iterator[tuple[float, float]]:
        """The least and the greatest label of blocks of samples, verified."""
        self._file.unchanged()
        assert self.labels is not None
        for first in range(0, self.samples, entries):
            end = min(first + entries, self.samples)
            self.labels.verify(first, end)
            labels = self.labels.read(first, end)
            yield float(labels.min()), float(labels.max())

    def lengths(self, name: str, first: int, end: int) -> NDArray[np.int32]:
        """Bag lengths of samples [first, end) of a feature, verified."""
        self._file.unchanged()
        return self.features[name].lengths(first, end)


def _is_range(entry: object) -> bool:
    """Whether an entry of the attribute labels is a name, a least and a most value."""
    match entry:
        case [str(), int() | float(), int() | float()]:
            return True
    return False


def _plain(value: object) -> Any:
    """An attribute as Python: JSON where it is JSON, else text or a number."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value.tolist() if isinstance(value, np.ndarray) else value
