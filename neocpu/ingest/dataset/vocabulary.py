"""How do frequent categories get rows of their own? Through a vocabulary of codes, by count.

A vocabulary is fitted on the train file (`--min-count N`: codes seen at least N times), stored in
it as one array of codes per feature, most frequent first and equal counts by code, and applied to
other files: entry i is row i + 1, row 0 is for the unknown. Tables then need one row more than the
vocabulary has entries, and their rows are in the order of falling frequency.

Which codes are frequent is also counted without a vocabulary (`--frequencies`), to bring their rows
into caches early.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import DataError
from neocpu.core.types import Elements, Ints
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset_layout import BLOCK
from neocpu.kernels.logs import hashing

Codes = NDArray[np.unsignedinteger]
Frequencies = tuple[NDArray[np.uint64], Ints]  # codes, and how often each occurs
SLOTS = 1 << 18  # of the largest map that counts frequent codes; half of them are used
KEPT = 1 << 16  # codes of a feature whose counts a dataset stores


class CodeCounter:
    """Counts every code of one feature; memory grows with the number of distinct codes."""

    def __init__(self) -> None:
        self._codes = np.zeros(BLOCK, np.uint64)
        self._counts = np.zeros(BLOCK + 1, np.int64)

    def add(self, codes: Codes) -> None:
        """Count codes uint32[n] or uint64[n]."""
        codes = np.ascontiguousarray(codes)
        done = 0
        # The kernel stops where its map is half full and says how far it came.
        while (done := hashing.count_codes(codes, self._codes, self._counts, done)) < codes.size:
            self._grow()

    def _grow(self) -> None:
        codes, counts = self._used()
        self._codes = np.zeros(2 * self._codes.size, np.uint64)
        self._counts = np.zeros(self._codes.size + 1, np.int64)
        hashing.fill_map(codes, counts, self._codes, self._counts[:-1])
        self._counts[-1] = codes.size

    def _used(self) -> tuple[NDArray[np.uint64], Ints]:
        used = self._counts[:-1] > 0
        return self._codes[used], self._counts[:-1][used]

    def by_count(self) -> tuple[NDArray[np.uint64], Ints]:
        """Distinct codes and their counts, most frequent first, equal counts by ascending code."""
        codes, counts = self._used()
        # Ties by code: rows must not depend on the order in which a map holds its codes.
        order = np.lexsort((codes, -counts))
        return codes[order], counts[order]

    def frequent(self, min_count: int) -> NDArray[np.uint64]:
        """The vocabulary: codes seen at least `min_count` times."""
        codes, counts = self.by_count()
        return codes[counts >= min_count]


class FrequentCodes(CodeCounter):
    """Counts in 4 MiB, however many codes there are: of 131,072 codes it drops the rarer half.

    Source: Misra and Gries, 1982. Dropping subtracts the median count from all counts, and keeps
    the positive ones. So counts are exact until then, and afterwards too small by at most `short`;
    no code seen more often than `short` is missing.
    """

    short = 0

    def _grow(self) -> None:
        if self._codes.size < SLOTS:
            return super()._grow()
        codes, counts = self._used()
        # The median halves the map at least, so dropping is rare and its cost is spread over many
        # codes.
        median = int(np.partition(counts, counts.size // 2)[counts.size // 2])
        kept = counts > median
        self.short += median
        self._codes[:] = 0
        self._counts[:] = 0
        hashing.fill_map(codes[kept], counts[kept] - median, self._codes, self._counts[:-1])
        self._counts[-1] = np.count_nonzero(kept)


def frequent_of(counter: CodeCounter) -> Frequencies:
    """The counts that a dataset stores: the most frequent codes, of those seen more than once."""
    codes, counts = counter.by_count()
    # A code that was seen once is no better to keep in a cache than any other.
    frequent = codes[counts > 1][:KEPT]
    return frequent, counts[: frequent.size]


def frequencies(dataset: Dataset, feature: str) -> Frequencies:
    """The most frequent codes of a feature and their counts: as stored, else counted now."""
    if stored := dataset.frequencies(feature):
        return _merged(stored)
    counter = FrequentCodes()
    for codes in dataset.code_blocks(feature):
        counter.add(codes)
    return frequent_of(counter)


def _merged(parts: Iterable[Frequencies]) -> Frequencies:
    codes, counts = (np.concatenate(arrays) for arrays in zip(*parts))
    # A code may be frequent in several files; where it is not, its few uses there are unknown.
    distinct, number = np.unique(codes, return_inverse=True)
    total = np.zeros(distinct.size, np.int64)
    np.add.at(total, number, counts)
    order = np.lexsort((distinct, -total))
    return distinct[order].astype(np.uint64), total[order]


class Vocabulary:
    """Rows of codes: row i + 1 for entry i, row 0 for the unknown."""

    def __init__(self, codes: Codes) -> None:
        self.size = codes.size
        # At most half full, so that probing for an unknown code ends soon; rows count from 1, as
        # row 0 is that of all unknown codes.
        slots = 1 << max(4, (2 * codes.size).bit_length())
        self._codes = np.zeros(slots, np.uint64)
        self._rows = np.zeros(slots, np.int64)
        hashing.fill_map(
            codes.astype(np.uint64), np.arange(1, codes.size + 1), self._codes, self._rows
        )

    def rows(self, codes: Codes, out: Ints) -> None:
        """Row of every code: codes uint32[n] or uint64[n], out int64[n]."""
        hashing.look_up(codes, self._codes, self._rows, out)


def fit_vocabularies(dataset: Dataset, min_count: int) -> dict[str, NDArray[np.uint64]]:
    """Vocabulary of every feature over all samples of a dataset: name -> codes."""
    vocabularies = {}
    for name in dataset.features:
        counter = CodeCounter()
        for codes in dataset.code_blocks(name):
            counter.add(codes)
        vocabularies[name] = counter.frequent(min_count)
    return vocabularies


def read_vocabularies(path: Path, features: Mapping[str, str]) -> dict[str, Elements]:
    """Vocabularies of a converted train file, for features name -> kind.

    Raises DataError if the file has no vocabulary, lacks a feature, or has codes of another kind.
    """
    dataset = Dataset(path)
    if not dataset.vocabularies:
        raise DataError(f"{path}: has no vocabulary; convert the train file with --min-count N")
    for name, kind in features.items():
        if name not in dataset.vocabularies:
            raise DataError(
                f"{path}: no vocabulary of feature {name}; it has {', '.join(dataset.vocabularies)}"
            )
        if dataset.features[name].kind != kind:
            stored_kind = dataset.features[name].kind
            raise DataError(
                f"{path}: its codes of feature {name} are of kind {stored_kind}, here they are "
                f"{kind}"
            )
    return {name: dataset.vocabularies[name] for name in features}
