"""How are the samples of a dataset read? Mapped, or through HDF5 where the file is compressed.

A `Dataset` is one or several files whose samples are numbered through: file 2 continues where
file 1 ends. `take(samples)` gathers any samples in any order; a rank therefore touches only the
pages of its own samples. One file is read in `neocpu.ingest.dataset.file`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import DataError, listed
from neocpu.core.types import Elements, Ints
from neocpu.ingest.dataset.columns import starts_to_indices
from neocpu.ingest.dataset.file import DatasetFile, Samples
from neocpu.ingest.dataset_layout import BLOCK, BagColumn, FeatureColumn

SHOWN = 3  # files in a message
__all__ = ["BagColumn", "Dataset", "FeatureColumn", "Samples"]


def _dense_difference(first: DatasetFile, second: DatasetFile) -> str:
    """How the dense columns of a file differ from those of the first; "" if they mean the same."""
    transforms = [file.attributes.get("dense_transform") for file in (first, second)]
    for subject, expected, actual in (
        ("dense columns", first.dense_columns, second.dense_columns),
        ("dense transforms", *transforms),
    ):
        if expected != actual:
            return f"{subject} differ ({actual} against {expected})"
    return ""


class Dataset:
    """One or several dataset files whose samples are numbered through; read-only.

    rows : N, the samples of all files (a sample is a row of a file). dense_columns : names.
    features : name -> `FeatureColumn` (hotness 0 where any file is ragged or files differ).
    vocabularies : name -> codes, entry i is table row i + 1 (empty when there is none).
    attributes : of the first file. missing, missing_dense : empty fields of the log, over all
    files. skipped, invalid : for each file, how many faulty lines of the log were left out, and how
    many texts of dense columns count as missing, by column. label_names : of
    the labels of a table, of which `label` chooses one ("": the first); more_labels : those of the
    names `more` that all files have, which `take` gives besides. schema : the tree of the table's
    schema, or None. fingerprint : of the samples, where another host told it that has the files.
    sources : the logs of which the files are copies, as messages name them; (): the files.

    Raises DataError for a missing, foreign, truncated or damaged file, and for files with different
    columns.
    """

    fingerprint = ""
    sources: Sequence[str] = ()

    def __init__(
        self, paths: str | Path | Sequence[str | Path], label: str = "", more: Sequence[str] = ()
    ) -> None:
        path_list = [paths] if isinstance(paths, str | Path) else list(paths)
        if not path_list:
            raise DataError("no dataset file was given")
        self.paths = [Path(path) for path in path_list]
        self.label = label
        self._files = [DatasetFile(path, label, more) for path in self.paths]
        first = self._files[0]
        for file in self._files[1:]:
            self._check_same(first, file)
        self._first_samples = np.cumsum(
            [0, *(file.samples for file in self._files)], dtype=np.int64
        )
        self.rows = int(self._first_samples[-1])
        self.dense_columns = first.dense_columns
        self.attributes = first.attributes
        self.labelled = first.labels is not None
        self.label_names = first.label_names
        self.more_labels = [
            name for name in more if all(name in file.more_labels for file in self._files)
        ]
        self.schema = first.schema
        self.vocabularies = first.vocabularies
        self.features: dict[str, FeatureColumn] = {}
        for name, column in first.columns.items():
            same = all(file.columns[name].hotness == column.hotness for file in self._files)
            # Bags of different fixed lengths are ragged ones together.
            hotness = column.hotness if same else 0
            self.features[name] = FeatureColumn(
                name, column.dtype, hotness, column.weighted, column.kind
            )
        self.missing = {
            name: sum(file.missing[name] for file in self._files) for name in self.features
        }
        self.missing_dense: Ints = np.sum(
            [file.missing_dense for file in self._files], axis=0, dtype=np.int64
        )
        self.skipped = [file.skipped for file in self._files]
        self.invalid = [file.invalid for file in self._files]
        self.extreme = [file.extreme for file in self._files]
        self._first = 0  # sample of the files that is sample 0

    @property
    def name(self) -> str:
        """What messages call it: the logs that it was made of, where known, else its files."""
        return listed(self.sources or [*map(str, self.paths)], SHOWN)

    def part(self, first: int, last: int) -> "Dataset":
        """Samples [first, last) as a dataset: the same files, numbered from 0.

        Vocabularies and counts of empty fields stay those of the whole files.
        """
        # Shallow: the parts of a log share its mapped columns and what is verified of them.
        part = copy(self)
        part._first = self._first + first
        part.rows = last - first
        return part

    @property
    def span(self) -> tuple[int, int]:
        """Samples [first, last) of the files that these are."""
        return self._first, self._first + self.rows

    @property
    def _is_part(self) -> bool:
        return self.rows < int(self._first_samples[-1])

    @property
    def contents(self) -> list[tuple[int, str]]:
        """Samples of each file, and a checksum of them; none where files have no checksums."""
        return [(file.samples, file.checksum) for file in self._files]

    def close(self) -> None:
        """Close the files, as the last reference does; nothing can be taken any more."""
        for file in self._files:
            file.close()

    def other_dense(self, other: "Dataset") -> str:
        """How the dense inputs of another dataset differ from these ("" if they mean the same)."""
        return _dense_difference(self._files[0], other._files[0])

    @staticmethod
    def _check_same(first: DatasetFile, second: DatasetFile) -> None:
        """Raises DataError where the columns of two files differ."""
        conflict = f"{second.path} does not go with {first.path}"
        if difference := _dense_difference(first, second):
            raise DataError(f"{conflict}: {difference}")
        columns = list(first.columns.values())
        second_columns = list(second.columns.values())
        for subject, expected, actual in (
            ("features", tuple(first.columns), tuple(second.columns)),
            ("code types", [c.dtype for c in columns], [c.dtype for c in second_columns]),
            ("kinds", [c.kind for c in columns], [c.kind for c in second_columns]),
            ("labels", first.labels is not None, second.labels is not None),
        ):
            if expected != actual:
                raise DataError(f"{conflict}: {subject} differ ({actual} against {expected})")
        for name, codes in first.vocabularies.items():
            if not np.array_equal(codes, second.vocabularies.get(name, [])):
                raise DataError(
                    f"{conflict}: feature {name} has another vocabulary; convert all files "
                    "together, or with --vocabulary"
                )

    def take(self, samples: Ints, features: Iterable[str] | None = None) -> Samples:
        """Gather samples int64[n] (0 <= sample < N, any order), with the bags of `features`.

        features : names (default: all). Raises DataError for a feature that the files do not have.
        """
        names = list(self.features) if features is None else list(features)
        if unknown := [name for name in names if name not in self.features]:
            raise DataError(
                f"{self.name}: no feature {unknown[0]!r}; its features are "
                f"{', '.join(self.features)}"
            )
        # Adding 0 would copy the samples of every step.
        samples = samples + self._first if self._first else samples
        file_of = np.searchsorted(self._first_samples[1:], samples, side="right")
        file_indices = np.unique(file_of)
        self._turn_to(file_indices)
        # The usual case, without a copy: most steps lie inside one file.
        if file_indices.size == 1:
            index = int(file_indices[0])
            return self._files[index].take(samples - self._first_samples[index], names)
        return self._join(samples, file_of, file_indices, names)

    def _turn_to(self, files: Ints) -> None:
        """These files are taken from next. Converted ones have nothing to forget."""

    def _join(
        self, samples: Ints, file_of: Elements, file_indices: Elements, names: list[str]
    ) -> Samples:
        """Samples of several files (or none): gather from each, then restore their order."""
        labels = np.zeros(samples.size, np.float32)
        dense = np.zeros((samples.size, len(self.dense_columns)), np.float32)
        places = [np.flatnonzero(file_of == index) for index in file_indices]
        parts = [
            self._files[i].take(samples[place] - self._first_samples[i], names)
            for i, place in zip(file_indices, places)
        ]
        for place, part in zip(places, parts):
            labels[place] = part.labels
            dense[place] = part.dense
        bags = {name: self._join_bags(name, parts, places, samples.size) for name in names}
        more = {name: np.zeros(samples.size, np.float32) for name in self.more_labels}
        for name, values in more.items():
            for place, part in zip(places, parts):
                values[place] = part.more[name]
        return Samples(labels, dense, bags, more)

    def _join_bags(
        self, name: str, parts: list[Samples], places: list[Ints], size: int
    ) -> BagColumn:
        column = self.features[name]
        bags = [part.features[name] for part in parts]
        codes = np.concatenate([np.empty(0, column.dtype), *(bag.codes for bag in bags)])
        lengths = np.empty(size, np.int32)
        starts = np.empty(size, np.int64)
        first = 0
        for bag, place in zip(bags, places):
            bag_lengths = bag.lengths
            if bag_lengths is None:
                # This file has bags of one length and stores none.
                bag_lengths = np.full(place.size, bag.codes.size // max(place.size, 1), np.int32)
            lengths[place] = bag_lengths
            starts[place] = first + np.cumsum(bag_lengths, dtype=np.int64) - bag_lengths
            first += bag.codes.size
        indices = starts_to_indices(starts, lengths)
        weights = None
        if column.weighted:
            parts_weights = [bag.weights for bag in bags if bag.weights is not None]
            weights = np.concatenate([np.empty(0, np.float32), *parts_weights])[indices]
        # One gather restores the order of the samples, whichever file their codes came from.
        return BagColumn(codes[indices], None if column.hotness else lengths, weights)

    def code_blocks(
        self, feature: str, entries: int = 1 << 20
    ) -> Iterator[NDArray[np.unsignedinteger]]:
        """All codes of a feature in file order, in blocks of about `entries`: for counting."""
        if self._is_part:
            for first in range(0, self.rows, BLOCK):
                samples = np.arange(first, min(first + BLOCK, self.rows), dtype=np.int64)
                yield self.take(samples, [feature]).features[feature].codes
            return
        for file in self._files:
            shape = file.features[feature].codes.shape
            # Rows of several codes: as many as have about so many entries together.
            step = max(1, entries // max(1, math.prod(shape[1:])))
            for first in range(0, shape[0], step):
                yield file.codes(feature, first, min(first + step, shape[0]))

    def frequencies(self, feature: str) -> list[tuple[Elements, Ints]]:
        """Frequent codes and their counts by file; empty if one of the files lacks them."""
        # Counts of whole files say nothing about a part, and those of some files nothing about all.
        if self._is_part or any(feature not in file.frequencies for file in self._files):
            return []
        return [file.frequencies[feature] for file in self._files]

    def lookups(self, feature: str) -> int:
        """Number of codes of a feature over all samples; of a part with bags, at most."""
        if self._is_part and (hotness := self.features[feature].hotness):
            return self.rows * hotness
        return sum(
            file.features[feature].codes.shape[0] * (file.columns[feature].hotness or 1)
            for file in self._files
        )

    def label_range(self) -> tuple[float, float]:
        """The least and the greatest label: as noted, else looked for in all samples; (0, 0): none.

        Raises DataError for a damaged file.
        """
        ranges = []
        for file in self._files:
            if file.label_range is not None:
                ranges.append(file.label_range)
            elif file.labels is not None:
                ranges += file.label_ranges()
        low, high = zip(*ranges) if ranges else ((0.0,), (0.0,))
        return min(low), max(high)

    def more_range(self, name: str) -> tuple[float, float]:
        """The least and the greatest of the further labels `name`."""
        low, high = zip(*(file.more_ranges[name] for file in self._files))
        return min(low), max(high)

    def more_label(self, name: str) -> NDArray[np.float32]:
        """The further label `name` of all samples, f32[n]."""
        firsts = range(0, self.rows, BLOCK)
        blocks = [np.arange(first, min(first + BLOCK, self.rows)) for first in firsts]
        parts = [self.take(block, ()).more[name] for block in blocks]
        return np.concatenate([np.empty(0, np.float32), *parts])

    def check_more(self, key: str, names: Sequence[str]) -> None:
        """Raise DataError where one of these further labels, which `key` asks for, is missing."""
        lacking = [name for name in names if name not in self.more_labels]
        if lacking:
            known = ", ".join(self.label_names) or "one, without a name"
            entry = f'[[data.schema.label]] with column = "{lacking[0]}" and kind = "number"'
            raise DataError(
                f"{self.name}: no label {lacking[0]!r} ({key}); its labels are {known}. A column "
                f"is one by an entry {entry} beside that of the first label (which then is in "
                "double brackets, too), and should be no dense column; `neocpu init --weight "
                "COLUMN` writes it for weights"
            )

    def length_blocks(self, feature: str, entries: int = 1 << 20) -> Iterator[NDArray[np.int32]]:
        """Bag lengths of a feature in file order, in blocks; of a part, those of its files."""
        for file in self._files:
            for first in range(0, file.samples, entries):
                yield file.lengths(feature, first, min(first + entries, file.samples))

    def sample_blocks(self, entries: int = 1 << 16) -> Iterator[Samples]:
        """Labels and dense columns in file order, in blocks, without features."""
        for first in range(0, self.rows, entries):
            yield self.take(np.arange(first, min(first + entries, self.rows), dtype=np.int64), ())
