"""How are rows of a dataset read? Mapped from the file where it is plain, through h5py where it is
compressed.

A `Dataset` is one or several files in one row space: file 2 goes on where file 1 ends. `take(rows)`
gathers any rows in any order; a rank therefore touches only the pages of its own samples. The
layout is in `neocpu.ingest.dataset_layout`.
"""

import contextlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from neocpu.errors import DataError
from neocpu.ingest.dataset_layout import BLOCK, FORMAT, VERSION, BagColumn, FeatureColumn
from neocpu.ingest.writer import DatasetWriter

__all__ = ["BagColumn", "Dataset", "DatasetWriter", "FeatureColumn", "Samples", "is_dataset"]

KEPT_BLOCKS = 40  # decompressed blocks kept per column: two windows of 16 and a little


def is_dataset(path: str | Path) -> bool:
    """Whether the file starts like HDF5."""
    with open(path, "rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class Samples:
    """Some rows: labels float32[n], dense float32[n, Nd], bags of the chosen features."""

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    features: dict[str, BagColumn]


class _Compressed:
    """A chunked column: decompresses blocks of 4,096 entries as they are needed and keeps the
    latest.
    """

    def __init__(self, dataset: h5py.Dataset) -> None:
        self._dataset = dataset
        self.dtype = dataset.dtype
        self.shape = dataset.shape
        self._kept: OrderedDict[int, NDArray[Any]] = OrderedDict()

    def _block(self, index: int) -> NDArray[Any]:
        if index in self._kept:
            self._kept.move_to_end(index)
        else:
            self._kept[index] = self._dataset[index * BLOCK : (index + 1) * BLOCK]
            if len(self._kept) > KEPT_BLOCKS:
                self._kept.popitem(last=False)
        return self._kept[index]

    def __getitem__(self, which: Any) -> NDArray[Any]:
        """Entries at indices int64[n], or a slice."""
        if isinstance(which, slice):
            return self._dataset[which]
        out = np.empty((which.size, *self.shape[1:]), self.dtype)
        blocks = which // BLOCK
        for index in np.unique(blocks):
            here = np.flatnonzero(blocks == index)
            out[here] = self._block(int(index))[which[here] - index * BLOCK]
        return out


Column = NDArray[Any] | _Compressed


def _starts_to_indices(starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """Positions of all codes of bags that begin at `starts`, one bag after the other."""
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if ends.size else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total, dtype=np.int64)


class _Feature:
    """The columns of one feature in one file."""

    def __init__(
        self, hotness: int, columns: dict[str, Column], block_offsets: NDArray[np.int64] | None
    ) -> None:
        self.hotness = hotness
        self._columns = columns
        self._offsets = block_offsets
        self._starts: OrderedDict[int, NDArray[np.int64]] = OrderedDict()

    @property
    def codes(self) -> Column:
        return self._columns["codes"]

    def _starts_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """First code of each of these rows: the block's offset plus the lengths before the row
        inside its block.
        """
        assert self._offsets is not None
        starts = np.empty(rows.size, np.int64)
        blocks = rows // BLOCK
        for index in np.unique(blocks):
            block = int(index)
            if block not in self._starts:
                lengths = self._columns["lengths"][block * BLOCK : (block + 1) * BLOCK]
                self._starts[block] = (
                    self._offsets[block] + np.cumsum(lengths, dtype=np.int64) - lengths
                )
                if len(self._starts) > KEPT_BLOCKS:
                    self._starts.popitem(last=False)
            here = np.flatnonzero(blocks == index)
            starts[here] = self._starts[block][rows[here] - block * BLOCK]
        return starts

    def lengths(self, first: int, count: int) -> NDArray[np.int32]:
        """Bag lengths of rows [first, first + count)."""
        if self.hotness:
            return np.full(count, self.hotness, np.int32)
        return self._columns["lengths"][first : first + count]

    def take(self, rows: NDArray[np.int64]) -> BagColumn:
        """Bags of these rows, in their order."""
        weights = self._columns.get("weights")
        if self.hotness:
            return BagColumn(
                self.codes[rows].reshape(-1),
                None,
                None if weights is None else weights[rows].reshape(-1),
            )
        lengths = self._columns["lengths"][rows]
        indices = _starts_to_indices(self._starts_of(rows), lengths)
        return BagColumn(
            self.codes[indices], lengths, None if weights is None else weights[indices]
        )


class _File:
    """One dataset file: its attributes checked, its columns mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._h5 = self._open()
        attributes = dict(self._h5.attrs.items())
        if attributes.get("format") != FORMAT:
            raise DataError(
                f"{path}: an HDF5 file, but not a neocpu dataset; make one with `neocpu data "
                "convert`"
            )
        if int(attributes["version"]) > VERSION:
            raise DataError(
                f"{path}: dataset version {attributes['version']}; this neocpu reads up to "
                f"{VERSION}; upgrade"
            )
        self.attributes = {key: _plain(value) for key, value in attributes.items()}
        try:
            self._read(int(self.attributes["rows"]))
        except KeyError as error:
            raise self._broken(f"it lacks {error}") from error
        if not self._compressed:
            self._h5.close()

    def _open(self) -> h5py.File:
        with contextlib.suppress(ImportError):
            import hdf5plugin  # noqa: F401  (registers zstd)
        try:
            if not is_dataset(self.path):
                raise DataError(
                    f"{self.path}: not an HDF5 file; a raw log must be converted first: `neocpu "
                    "data convert --help`"
                )
            return h5py.File(self.path, "r")
        except FileNotFoundError as error:
            raise DataError(f"{self.path}: no such file") from error
        except OSError as error:
            raise self._broken(str(error)) from error

    def _broken(self, why: str) -> DataError:
        return DataError(
            f"{self.path}: truncated or damaged dataset ({why}); copy it again or convert it again"
        )

    def _read(self, rows: int) -> None:
        file = self._h5
        self.rows = rows
        self._compressed = False
        self._size = self.path.stat().st_size
        self.labels = self._column(file["labels"], (rows,)) if "labels" in file else None
        self.dense_columns = tuple(json.loads(file["dense"].attrs["columns"]))
        self.missing_dense = [int(count) for count in file["dense"].attrs["missing"]]
        self.dense = self._column(file["dense"], (rows, len(self.dense_columns)))
        self.features: dict[str, _Feature] = {}
        self.columns: dict[str, FeatureColumn] = {}
        self.missing: dict[str, int] = {}
        self.vocabularies: dict[str, NDArray[Any]] = {}
        self.frequencies: dict[str, tuple[NDArray[Any], NDArray[np.int64]]] = {}
        for name, group in file.get("features", {}).items():
            hotness = int(group.attrs["hotness"])
            offsets = group["block_offsets"][:] if hotness == 0 else None
            total = int(offsets[-1]) if offsets is not None else rows
            shape = (total,) if hotness < 2 else (rows, hotness)
            columns = {"codes": self._column(group["codes"], shape)}
            if "weights" in group:
                columns["weights"] = self._column(group["weights"], shape)
            if hotness == 0:
                columns["lengths"] = self._column(group["lengths"], (rows,))
            self.features[name] = _Feature(hotness, columns, offsets)
            kind = str(group.attrs["kind"])
            dtype = group["codes"].dtype.name
            self.columns[name] = FeatureColumn(name, dtype, hotness, "weights" in group, kind)
            self.missing[name] = int(group.attrs["missing"])
            if "vocabulary" in group:
                self.vocabularies[name] = group["vocabulary"][:]
            if "frequent" in group:
                self.frequencies[name] = group["frequent"][:], group["frequent_counts"][:]

    def _column(self, dataset: h5py.Dataset, shape: tuple[int, ...]) -> Column:
        if dataset.shape != shape:
            raise self._broken(f"{dataset.name} has shape {dataset.shape}, expected {shape}")
        if dataset.chunks is not None:
            self._compressed = True
            return _Compressed(dataset)
        if dataset.size == 0:
            return np.empty(shape, dataset.dtype)
        offset = dataset.id.get_offset()
        if offset is None or offset + dataset.nbytes > self._size:
            raise self._broken(f"{dataset.name} ends beyond the file")
        return np.asarray(np.memmap(self.path, dataset.dtype, "r", offset, shape))


def _plain(value: Any) -> Any:
    """An attribute as Python: JSON where it is JSON, else text or a number."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, str) and value[:1] in "[{":
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(value)
    return value


def _other_dense(first: _File, other: _File) -> str:
    """How the dense columns of a file differ from those of the first; "" if they mean the same."""
    for what, one, two in (
        ("dense columns", first.dense_columns, other.dense_columns),
        ("dense transforms", *(file.attributes.get("dense_transform") for file in (first, other))),
    ):
        if one != two:
            return f"{what} differ ({two} against {one})"
    return ""


class Dataset:
    """One or several dataset files in one row space; read-only.

    rows: N over all files. dense_columns: names. features: name -> `FeatureColumn` (hotness 0 where
    any file is ragged or files differ). vocabularies: name -> codes, entry i is row i + 1 (empty
    when there is none). attributes: of the first file. missing, missing_dense: empty fields of the
    log, over all files. skipped: for each file, the faulty lines of the log that it lacks.

    Raises DataError for a missing, foreign, truncated or damaged file, and for files with different
    columns.
    """

    def __init__(self, paths: str | Path | Sequence[str | Path]) -> None:
        given = [paths] if isinstance(paths, str | Path) else list(paths)
        if not given:
            raise DataError("no dataset file was given")
        self.paths = [Path(path) for path in given]
        self._files = [_File(path) for path in self.paths]
        first = self._files[0]
        for other in self._files[1:]:
            self._check_same(first, other)
        self._first_rows = np.cumsum([0, *(file.rows for file in self._files)], dtype=np.int64)
        self.rows = int(self._first_rows[-1])
        self.dense_columns = first.dense_columns
        self.attributes = first.attributes
        self.labelled = first.labels is not None
        self.vocabularies = first.vocabularies
        self.features: dict[str, FeatureColumn] = {}
        for name, column in first.columns.items():
            same = all(file.columns[name].hotness == column.hotness for file in self._files)
            hotness = column.hotness if same else 0
            self.features[name] = FeatureColumn(
                name, column.dtype, hotness, column.weighted, column.kind
            )
        self.missing = {
            name: sum(file.missing[name] for file in self._files) for name in self.features
        }
        self.missing_dense: NDArray[np.int64] = np.sum(
            [file.missing_dense for file in self._files], axis=0, dtype=np.int64
        )
        self.skipped = [int(file.attributes.get("skipped", 0)) for file in self._files]

    def other_dense(self, other: "Dataset") -> str:
        """How the dense inputs of another dataset differ from these ("" if they mean the same)."""
        return _other_dense(self._files[0], other._files[0])

    @staticmethod
    def _check_same(first: _File, other: _File) -> None:
        if found := _other_dense(first, other):
            raise DataError(f"{other.path} does not go with {first.path}: {found}")
        for what, one, two in (
            ("features", tuple(first.columns), tuple(other.columns)),
            (
                "code types",
                [c.dtype for c in first.columns.values()],
                [c.dtype for c in other.columns.values()],
            ),
            (
                "kinds",
                [c.kind for c in first.columns.values()],
                [c.kind for c in other.columns.values()],
            ),
            ("labels", first.labels is not None, other.labels is not None),
        ):
            if one != two:
                raise DataError(
                    f"{other.path} does not go with {first.path}: {what} differ ({two} against "
                    f"{one})"
                )
        for name, codes in first.vocabularies.items():
            if not np.array_equal(codes, other.vocabularies.get(name, [])):
                raise DataError(
                    f"{other.path} does not go with {first.path}: feature {name} has another "
                    "vocabulary; convert all "
                    f"files together, or with --vocabulary"
                )

    def take(self, rows: NDArray[np.int64], features: Iterable[str] | None = None) -> Samples:
        """Gather rows int64[n] (0 <= row < N, any order), with the bags of `features` (default:
        all).

        Raises DataError for a feature that the files do not have.
        """
        names = list(self.features) if features is None else list(features)
        if unknown := [name for name in names if name not in self.features]:
            raise DataError(
                f"{self.paths[0]}: no feature {unknown[0]!r}; its features are "
                f"{', '.join(self.features)}"
            )
        which = np.searchsorted(self._first_rows[1:], rows, side="right")
        used = np.unique(which)
        if used.size == 1:
            return self._take(int(used[0]), rows - self._first_rows[used[0]], names)
        return self._join(rows, which, used, names)

    def _take(self, index: int, rows: NDArray[np.int64], names: list[str]) -> Samples:
        file = self._files[index]
        labels = file.labels[rows] if file.labels is not None else np.zeros(rows.size, np.float32)
        return Samples(
            labels, file.dense[rows], {name: file.features[name].take(rows) for name in names}
        )

    def _join(
        self, rows: NDArray[np.int64], which: NDArray[Any], used: NDArray[Any], names: list[str]
    ) -> Samples:
        """Rows of several files (or none): gather from each, then put them in order."""
        labels = np.zeros(rows.size, np.float32)
        dense = np.zeros((rows.size, len(self.dense_columns)), np.float32)
        places = [np.flatnonzero(which == index) for index in used]
        parts = [
            self._take(int(i), rows[place] - self._first_rows[i], names)
            for i, place in zip(used, places)
        ]
        for place, part in zip(places, parts):
            labels[place] = part.labels
            dense[place] = part.dense
        return Samples(
            labels, dense, {name: self._join_bags(name, parts, places, rows.size) for name in names}
        )

    def _join_bags(
        self, name: str, parts: list[Samples], places: list[NDArray[np.int64]], size: int
    ) -> BagColumn:
        column = self.features[name]
        bags = [part.features[name] for part in parts]
        codes = np.concatenate([np.empty(0, column.dtype), *(bag.codes for bag in bags)])
        lengths = np.empty(size, np.int32)
        starts = np.empty(size, np.int64)
        first = 0
        for bag, place in zip(bags, places):
            here = bag.lengths
            if here is None:
                here = np.full(place.size, bag.codes.size // max(place.size, 1), np.int32)
            lengths[place] = here
            starts[place] = first + np.cumsum(here, dtype=np.int64) - here
            first += bag.codes.size
        indices = _starts_to_indices(starts, lengths)
        weights = None
        if column.weighted:
            parts_weights = [bag.weights for bag in bags if bag.weights is not None]
            weights = np.concatenate([np.empty(0, np.float32), *parts_weights])[indices]
        return BagColumn(codes[indices], None if column.hotness else lengths, weights)

    def code_blocks(
        self, feature: str, entries: int = 1 << 20
    ) -> Iterator[NDArray[np.unsignedinteger]]:
        """All codes of a feature in row order, some at a time: for counting."""
        for file in self._files:
            codes = file.features[feature].codes
            for first in range(0, codes.shape[0], entries):
                yield codes[first : first + entries].reshape(-1)

    def frequencies(self, feature: str) -> list[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Frequent codes and their counts of each file, or nothing where a file has not counted
        them.
        """
        if any(feature not in file.frequencies for file in self._files):
            return []
        return [file.frequencies[feature] for file in self._files]

    def lookups(self, feature: str) -> int:
        """Codes of a feature over all rows."""
        return sum(
            file.features[feature].codes.shape[0] * (file.columns[feature].hotness or 1)
            for file in self._files
        )

    def length_blocks(self, feature: str, entries: int = 1 << 20) -> Iterator[NDArray[np.int32]]:
        """Bag lengths of a feature in row order, some at a time."""
        for file in self._files:
            for first in range(0, file.rows, entries):
                yield file.features[feature].lengths(first, min(entries, file.rows - first))

    def row_blocks(self, entries: int = 1 << 16) -> Iterator[Samples]:
        """Labels and dense columns in row order, some rows at a time, without features."""
        for first in range(0, self.rows, entries):
            yield self.take(np.arange(first, min(first + entries, self.rows), dtype=np.int64), ())
