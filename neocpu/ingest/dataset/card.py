"""What is in a dataset? A `Card` summarises its samples, labels, dense columns and features."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from neocpu.ingest.dataset.dataset import Dataset
from neocpu.ingest.dataset.vocabulary import CodeCounter

TOP = 10  # most frequent codes whose share is reported


@dataclass(frozen=True)
class FeatureCard:
    """One feature.

    top_share, top10_share : share of the most frequent code, and of the ten most frequent, among
    all its codes. bag_least, bag_mean, bag_most : codes per sample. once : distinct codes that
    occur a single time. missing : samples whose field was empty in the log. vocabulary : its size
    or 0.
    """

    name: str
    kind: str
    codes: int
    distinct: int
    once: int
    top_share: float
    top10_share: float
    bag_least: int
    bag_mean: float
    bag_most: int
    missing: int
    weighted: bool
    vocabulary: int


@dataclass(frozen=True)
class DenseCard:
    """One dense column as stored, that is, after its transform."""

    name: str
    least: float
    mean: float
    most: float
    missing: int


@dataclass(frozen=True)
class Card:
    """A dataset at a glance.

    rows : its samples, one row of the log each. positive_rate : mean of the labels, None without
    labels.
    """

    files: list[str]
    rows: int
    positive_rate: float | None
    dense: list[DenseCard]
    features: list[FeatureCard]
    attributes: dict[str, object]

    def as_dict(self) -> dict[str, object]:
        """The card as a dict of values that JSON can hold."""
        return asdict(self)


def make_card(dataset: Dataset, progress: Callable[[int, int], None] | None = None) -> Card:
    """Read a dataset once, column by column; memory grows with the number of distinct codes.

    progress(done, total): called with counts of columns.
    """
    total = len(dataset.features) + 1
    labels, dense = _numbers(dataset)
    features = []
    for done, name in enumerate(dataset.features, 1):
        if progress is not None:
            progress(done, total)
        features.append(_feature(dataset, name))
    if progress is not None:
        progress(total, total)
    files = [str(path) for path in dataset.paths]
    return Card(files, dataset.rows, labels, dense, features, dataset.attributes)


def _numbers(dataset: Dataset) -> tuple[float | None, list[DenseCard]]:
    column_count = len(dataset.dense_columns)
    positive = 0.0
    total = np.zeros(column_count)
    least = np.full(column_count, np.inf)
    most = np.full(column_count, -np.inf)
    for block in dataset.sample_blocks():
        # In fp64: a sum of ones in fp32 ends at 2^24.
        positive += float(block.labels.sum(dtype=np.float64))
        total += block.dense.sum(axis=0, dtype=np.float64)
        least = np.minimum(least, block.dense.min(axis=0))
        most = np.maximum(most, block.dense.max(axis=0))
    # Infinities are no JSON.
    if not dataset.rows:
        least = total
        most = total
    mean = total / max(dataset.rows, 1)
    columns = zip(
        dataset.dense_columns,
        least.tolist(),
        mean.tolist(),
        most.tolist(),
        dataset.missing_dense.tolist(),
    )
    rate = positive / dataset.rows if dataset.labelled and dataset.rows else None
    return rate, [DenseCard(*values) for values in columns]


def _feature(dataset: Dataset, name: str) -> FeatureCard:
    column = dataset.features[name]
    counter = CodeCounter()
    codes = 0
    for block in dataset.code_blocks(name):
        counter.add(block)
        codes += block.size
    # Exact counts of all codes: a card is read by people who choose table sizes by it.
    _, counts = counter.by_count()
    shortest = column.hotness
    longest = column.hotness
    # Only ragged features store lengths.
    if column.hotness == 0 and dataset.rows:
        ends = [(int(block.min()), int(block.max())) for block in dataset.length_blocks(name)]
        shortest = min(low for low, _ in ends)
        longest = max(high for _, high in ends)
    return FeatureCard(
        name=name,
        kind=column.kind,
        codes=codes,
        distinct=counts.size,
        once=int((counts == 1).sum()),
        top_share=float(counts[:1].sum()) / max(codes, 1),
        top10_share=float(counts[:TOP].sum()) / max(codes, 1),
        bag_least=shortest,
        bag_mean=codes / max(dataset.rows, 1),
        bag_most=longest,
        missing=dataset.missing[name],
        weighted=column.weighted,
        vocabulary=dataset.vocabularies[name].size if name in dataset.vocabularies else 0,
    )
