"""Which column of a design matrix has a value of a log?

    sparse    each value of each feature that the train samples have (one-hot), or 2^bits hashed
              columns, which pairs of values share; an item of a list of n counts 1/n, one with a
              weight of the log that weight
    dense     the dense columns, standardised; and 1, the constant, last

A value that was not seen in training has no column. A hashed value has column
splitmix64(splitmix64(seed ^ FNV1a64(NAME)) ^ code) mod 2^bits (docs/arithmetic.md §10), a pair of
a feature A with B the same of NAME "A*B" and code h ^ b, where h is that of A's code mod 2^62.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import ConfigError, DataError, listed
from neocpu.core.types import Elements, Ints
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.file import Samples
from neocpu.ingest.dataset_layout import BagColumn
from neocpu.ingest.formats.schema import MOST_CLASSES
from neocpu.ingest.formats.table import table_schema
from neocpu.kernels.logs.hashing import hash_rows
from neocpu.kernels.records import SparseLines
from neocpu.kernels.twins.numbers.philox import feature_key
from neocpu.parallel.transport.comm import Comm
from neocpu.train.fit.design import F64, DesignMatrix, leaf_products
from neocpu.train.fit.keys import FitKeys
from neocpu.train.fit.objective import LeafSum
from neocpu.train.fit.samples import FitSamples

_MIXED = 1 << 62
SHOWN = 10  # labels in a message


@dataclass(frozen=True)
class SparsePart:
    """Sparse columns of one feature, or pair, in some samples: lengths i64[n], then the column of
    each entry, and its value (None: 1).
    """

    lengths: Ints
    columns: Ints
    values: F64 | None = None


@dataclass(frozen=True)
class DesignColumns:
    """The columns of a design matrix.

    features : that have any. codes : sorted, of each feature that is not hashed; its columns follow
        one another. pairs : of features. hashed : columns of pairs and of hashed features, 2^bits.
    mean, deviation : of the dense columns.
    """

    features: tuple[str, ...]
    codes: Mapping[str, Elements]
    pairs: tuple[tuple[str, str], ...]
    hashed: int
    seed: int
    mean: F64
    deviation: F64

    @property
    def sparse(self) -> int:
        """How many sparse columns there are."""
        return sum(codes.size for codes in self.codes.values()) + self.hashed

    @property
    def width(self) -> int:
        """How many columns there are, the constant among them."""
        return self.sparse + self.mean.size + 1

    def check(self, data: Dataset) -> None:
        """Raise DataError for data that lack a feature, or have other dense columns."""
        lacking = [name for name in self.features if name not in data.features]
        if lacking:
            raise DataError(
                f"{data.name}: no feature {lacking[0]!r}, which the fit has; its features are "
                f"{', '.join(data.features) or 'none'}"
            )
        if self.mean.size != len(data.dense_columns):
            raise DataError(
                f"{data.name}: {len(data.dense_columns)} dense columns "
                f"({', '.join(data.dense_columns) or 'none'}), but the fit has {self.mean.size}"
            )

    def matrix(self, samples: Samples, source: str = "") -> tuple[SparseLines, F64]:
        """Rows of samples: sparse columns, and dense ones f64[n, m]. Raises DataError."""
        count = samples.labels.size
        parts = list(self._parts(samples, source))
        lengths = np.zeros(count, np.int64)
        for part in parts:
            lengths += part.lengths
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.empty(starts[-1], np.int32)
        valued = any(part.values is not None for part in parts)
        values = np.ones(places.size if valued else 0)
        base = starts[:-1].copy()
        for part in parts:
            if part.columns.size == count and (part.lengths == 1).all():
                entries = base
            else:
                inside = np.arange(part.columns.size) - np.repeat(
                    np.cumsum(part.lengths) - part.lengths, part.lengths
                )
                entries = np.repeat(base, part.lengths) + inside
            places[entries] = part.columns
            if part.values is not None:
                values[entries] = part.values
            base = base + part.lengths
        dense = (samples.dense.astype(np.float64) - self.mean) / self.deviation
        constant = np.ones((count, 1))
        return SparseLines(starts, places, values), np.concatenate([dense, constant], axis=1)

    def _parts(self, samples: Samples, source: str) -> Iterator[SparsePart]:
        first = 0
        for name in self.features:
            bags = samples.features[name]
            if name in self.codes:
                yield one_hot(bags, self.codes[name], first, samples.labels.size)
                first += self.codes[name].size
            else:
                yield self._hashed(name, bags, samples.labels.size)
        for a, b in self.pairs:
            yield self._crossed(a, b, samples, source)

    def _hashed(self, name: str, bags: BagColumn, count: int) -> SparsePart:
        columns = hashed(name, bags.codes, self.seed, self.hashed)
        lengths, values = bag_values(bags, count)
        return SparsePart(lengths, self.sparse - self.hashed + columns, values)

    def _crossed(self, a: str, b: str, samples: Samples, source: str) -> SparsePart:
        count = samples.labels.size
        codes = []
        for name in (a, b):
            column = samples.features[name].codes.reshape(-1)
            if column.size != count or samples.features[name].lengths is not None:
                raise DataError(
                    f"{source}: feature {name} has several values in a sample; only features of "
                    "one value have crosses"
                )
            codes.append(column)
        name = f"{a}*{b}"
        mixed = hashed(name, codes[0], self.seed, _MIXED).view(np.uint64) ^ codes[1]
        columns = hashed(name, mixed, self.seed, self.hashed)
        return SparsePart(np.ones(count, np.int64), self.sparse - self.hashed + columns)

    def design(self, samples: FitSamples, labels: "LabelMap") -> DesignMatrix:
        """The design matrix of this rank's leaves. Raises DataError for labels that do not fit."""
        taken = samples.data.take(samples.own, self.features)
        rows, dense = self.matrix(taken, samples.data.name)
        return DesignMatrix(
            rows,
            dense,
            labels.of(taken.labels, samples.data),
            self.sparse,
            samples.ends,
            samples.count,
            samples.own_weights,
            self.hashed,
        )


def hashed(name: str, codes: Elements, seed: int, columns: int) -> Ints:
    """The hashed column of each code."""
    out = np.empty(codes.size, np.int64)
    hash_rows(codes.reshape(-1), feature_key(seed, name), columns, out)
    return out


def bag_values(bags: BagColumn, count: int) -> tuple[Ints, F64 | None]:
    """How many items each sample has, i64[n], and what each counts (None: 1)."""
    if bags.lengths is None:
        lengths = np.full(count, bags.codes.size // max(count, 1), np.int64)
    else:
        lengths = bags.lengths.astype(np.int64)
    if bags.weights is not None:
        values = bags.weights.reshape(-1).astype(np.float64)
        return lengths, None if (values == 1.0).all() else values
    if (lengths == 1).all():
        return lengths, None
    return lengths, np.repeat(1.0 / np.maximum(lengths, 1), lengths)


def one_hot(bags: BagColumn, codes: Elements, first: int, count: int) -> SparsePart:
    """Columns of a feature whose values have one each, from `first` on, in the order of codes."""
    lengths, values = bag_values(bags, count)
    entries = bags.codes.reshape(-1)
    columns = np.minimum(np.searchsorted(codes, entries), max(codes.size - 1, 0))
    known = codes[columns] == entries if codes.size else np.zeros(entries.size, bool)
    if known.all():
        return SparsePart(lengths, first + columns, values)
    samples = np.repeat(np.arange(count), lengths)[known]
    kept = np.bincount(samples, minlength=count).astype(np.int64)
    return SparsePart(kept, first + columns[known], None if values is None else values[known])


@dataclass(frozen=True)
class LabelMap:
    """What labels of a log are to a loss: their values are 0, 1, ... in order; (): as they are.

    classes : the text of each value; (): labels are numbers.
    """

    values: tuple[float, ...] = ()
    classes: tuple[str, ...] = ()

    def check(self, data: Dataset) -> None:
        """Raise DataError for data in which other numbers stand for the texts of labels."""
        texts = classes_of(data)
        if [texts[int(value)] for value in self.values if value < len(texts)] != [*self.classes]:
            raise DataError(
                f"{data.name}: its labels are {_shown(texts)}, but those of the fit are "
                f"{_shown(self.classes)}; name the raw log, or convert it with --fitted TRAIN.h5"
            )

    def of(self, labels: NDArray[np.float32], data: Dataset) -> F64:
        """Labels f64[n] of data for the loss. Raises DataError for one that training had not."""
        numbers = labels.astype(np.float64)
        if not self.values:
            return numbers
        values = np.array(self.values)
        places = np.minimum(np.searchsorted(values, numbers), values.size - 1)
        if (wrong := values[places] != numbers).any():
            first = numbers[wrong][0]
            label = classes_of(data)[int(first)] if self.classes else f"{first:g}"
            known = self.classes or [f"{value:g}" for value in self.values]
            raise DataError(
                f"{data.name}: a label is {label}, but those of the train data are {_shown(known)}"
            )
        return places.astype(np.float64)


def _shown(texts: Sequence[str]) -> str:
    return listed(texts, SHOWN) or "numbers"


def classes_of(data: Dataset) -> tuple[str, ...]:
    """The texts that labels of data stand for, by number; (): labels are numbers."""
    labels = table_schema(data.schema).labels if data.schema else ()
    named = [label for label in labels if label.name == data.label] or labels
    return named[0].classes if named else ()


def labels_of(samples: FitSamples, kind: str, comm: Comm) -> LabelMap:
    """How labels enter a loss that takes this kind. Collective. Raises DataError on all ranks."""
    distinct = np.unique(samples.data.take(samples.own, ()).labels)
    if distinct.size > MOST_CLASSES:
        distinct = distinct[: MOST_CLASSES + 1]
    gathered = comm.allgather_bytes(distinct.tobytes())
    values = np.unique(np.frombuffer(b"".join(gathered), np.float32)).astype(np.float64)
    source = samples.data.name
    if values.size < 2:
        raise DataError(f"{source}: all labels are the same; there is nothing to fit")
    texts = classes_of(samples.data)
    if kind == "number":
        if texts:
            raise DataError(
                f"{source}: labels are the texts {_shown(texts)}, and squares are of numbers; fit "
                "softmax to classes"
            )
        return LabelMap()
    classes = tuple(texts[int(value)] for value in values) if texts else ()
    if kind == "class":
        if values.size == 2:
            return LabelMap(tuple(values.tolist()), classes)
        if values[0] < 0 or values[-1] > 1:
            raise DataError(
                f"{source}: labels have {values.size} values from {values[0]:g} to {values[-1]:g}, "
                "but this loss takes two; fit softmax to classes, squares to numbers"
            )
        return LabelMap()
    if values.size > MOST_CLASSES:
        raise DataError(f"{source}: labels have more than {MOST_CLASSES:,} values; fit squares")
    return LabelMap(tuple(values.tolist()), classes)


def columns_of(
    samples: FitSamples, features: Sequence[str], keys: FitKeys, comm: Comm
) -> DesignColumns:
    """The columns of the train data. Collective. Raises ConfigError for crosses of no features."""
    data = samples.data
    pairs = keys.cross
    if keys.quadratic:
        single = [name for name in features if data.features[name].hotness == 1]
        pairs = tuple(dict.fromkeys([*pairs, *itertools.combinations(single, 2)]))
    for name in {name for pair in pairs for name in pair}:
        if name not in features:
            raise ConfigError(f"cross: no feature {name!r}; there are {', '.join(features)}")
    codes = {}
    if not keys.hashed:
        for name in features:
            seen = np.unique(data.take(samples.own, [name]).features[name].codes)
            parts = comm.allgather_bytes(seen.tobytes())
            codes[name] = np.unique(np.frombuffer(b"".join(parts), seen.dtype))
    mean, deviation = moments(samples, comm)
    return DesignColumns(
        features=tuple(features),
        codes=codes,
        pairs=pairs,
        hashed=1 << keys.bits if keys.hashed or pairs else 0,
        seed=keys.seed,
        mean=mean,
        deviation=deviation,
    )


def moments(samples: FitSamples, comm: Comm) -> tuple[F64, F64]:
    """Mean and deviation of the dense columns by the weights of samples; 1 where a column has one
    value. Collective.
    """
    dense = samples.data.take(samples.own, ()).dense.astype(np.float64)
    weights = samples.own_weights
    counts = np.ones((len(dense), 1)) if weights is None else weights[:, None]
    sums = LeafSum(comm, samples.leaves, dense.shape[1])
    sums.out[:] = leaf_products(counts, dense, samples.ends, sums.nodes)
    mean = sums.total() / samples.total
    moved = dense - mean
    sums.out[:] = leaf_products(counts, moved * moved, samples.ends, sums.nodes)
    deviation = np.sqrt(sums.total() / samples.total)
    return mean, np.where(deviation > 0, deviation, 1.0)
