"""Which order of rows puts those side by side that are looked up together?

Tables of kind `tt` make the product of two cores once for all rows of a batch that share their
first digits, and rows that stand side by side do. By falling frequency the popular rows are
neighbours, but rare ones are scattered. Here rows that most batches ask for stay in front, by
frequency; the others are put together by the groups that they occur in, the bags of a feature of
several values, else windows of neighbouring samples:

    labels go from rows to groups and back, each time the most frequent one among the neighbours,
    of equal ones the least; rows of one label are a community, and stand together

Nothing is drawn, so one log gives one order. Source: EL-Rec (Wang et al., SC 2022), which finds
communities of rows in the same place; label propagation (Raghavan et al. 2007) between rows and
groups is ours, as its work grows with the lookups and not with their pairs.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Ints
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.vocabulary import Codes, Vocabulary

ROUNDS = 8  # of labels, at most
EVERYWHERE = 16  # a row in one of so many groups, or more, belongs to no community


class Occurrences(NamedTuple):
    """Row rows[i] occurs in group groups[i], i64[n] each; a pair occurs once."""

    rows: Ints
    groups: Ints


def occurrences(dataset: Dataset, feature: str, window: int) -> Occurrences:
    """Rows of a feature's vocabulary (0: its first entry) by bags, or windows of samples.

    Codes without a row are left out.
    """
    vocabulary = Vocabulary(dataset.vocabularies[feature])
    bags = dataset.features[feature].hotness != 1
    parts = []
    for first, codes, lengths in _blocks(dataset, feature):
        rows = np.empty(codes.size, np.int64)
        vocabulary.rows(codes, rows)
        samples = first + np.repeat(np.arange(lengths.size, dtype=np.int64), lengths)
        groups = samples if bags else samples // window
        parts.append(np.stack([groups[rows > 0], rows[rows > 0] - 1]))
    groups, rows = np.unique(np.concatenate([np.empty((2, 0), np.int64), *parts], 1), axis=1)
    return Occurrences(rows, groups)


def _blocks(dataset: Dataset, feature: str) -> Iterator[tuple[int, Codes, NDArray[np.int32]]]:
    """First sample, codes and bag lengths of each block of samples."""
    size = 1 << 16
    for first in range(0, dataset.rows, size):
        samples = np.arange(first, min(first + size, dataset.rows), dtype=np.int64)
        bag = dataset.take(samples, [feature]).features[feature]
        lengths = bag.lengths
        if lengths is None:
            lengths = np.full(samples.size, bag.codes.size // samples.size, np.int32)
        yield first, bag.codes.reshape(-1), lengths


def order_together(size: int, lookups: Occurrences) -> Ints:
    """Rows 0 ... size - 1 in an order that has those of a community side by side, i64[size].

    Rows are in the order of falling frequency, and stay so in front and inside a community.
    """
    counts = np.bincount(lookups.rows, minlength=size)
    groups = np.unique(lookups.groups).size
    # rows that are nowhere in this log have no neighbours: they stay behind
    common = counts * EVERYWHERE >= max(groups, 1)
    labels = _communities(size, Occurrences(*(array[~common[lookups.rows]] for array in lookups)))
    total = np.zeros(size, np.int64)
    np.add.at(total, labels, counts)
    rows = np.arange(size)
    keys = np.where(common, 0, 1 + (counts == 0))
    labels = np.where(keys == 1, labels, 0)
    return np.lexsort((rows, labels, -np.where(keys == 1, total[labels], 0), keys))


def _communities(size: int, pairs: Occurrences) -> Ints:
    """The label of every row, i64[size]."""
    labels = np.arange(size, dtype=np.int64)
    _, groups = np.unique(pairs.groups, return_inverse=True)
    for _ in range(ROUNDS):
        before = labels.copy()
        of_groups = _most_frequent(groups, labels[pairs.rows])
        # of each row that occurs, in their order
        labels[np.unique(pairs.rows)] = _most_frequent(pairs.rows, of_groups[groups])
        if np.array_equal(labels, before):
            break
    return labels


def _most_frequent(keys: Ints, labels: Ints) -> Ints:
    """Of each distinct key, ascending, the most frequent of its labels, of equal ones the least."""
    pairs, counts = np.unique(np.stack([keys, labels]), axis=1, return_counts=True)
    order = np.lexsort((pairs[1], -counts, pairs[0]))
    _, first = np.unique(pairs[0][order], return_index=True)
    return pairs[1][order][first]


def prefixes(lookups: Occurrences, order: Ints | None, last: int) -> float:
    """Different products of the first cores that a group of lookups needs, on average.

    order : of the rows (None: as they are). last : rows of the last core.
    """
    if not lookups.rows.size:
        return 0.0
    place = lookups.rows
    if order is not None:
        place = np.argsort(order, kind="stable")[lookups.rows]
    # entry i of a vocabulary is row i + 1
    products = np.unique(np.stack([lookups.groups, (place + 1) // last]), axis=1)
    return products.shape[1] / np.unique(lookups.groups).size
