"""How do the samples of a session become neighbours? They are gathered by a key column.

    rows of the log   a1 b1 a2 c1 b2 a3 | c2 a4 …       sessions a, b, c; a part of the log
    of the dataset    a1 a2 a3 b1 b2 c1 | …             order of first rows; inside, of the log

RecD clusters the rows of a session in each partition of a table, so that a batch has them together:
repeated bags travel and are pooled once (`data.deduplicate`), and compression finds the repeats.
One part of so many rows is in memory at a time; sessions that cross parts stay cut.
"""

import numpy as np

from neocpu.core.errors import ConfigError
from neocpu.core.types import Elements, Ints
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import FeatureColumn, take_bags
from neocpu.ingest.formats.fields import Parsed, joined


class ClusteringWriter:
    """Appends parsed rows to a dataset, those of a session side by side.

    writer : of the dataset. column : the feature whose value names the session. rows : of a part.

    Raises ConfigError for a column that is no feature with one value a row.
    """

    def __init__(self, writer: DatasetWriter, column: str, rows: int) -> None:
        features = {feature.name: feature for feature in writer.features}
        _check_column(column, features)
        self._writer = writer
        self._column = column
        self._rows = rows
        self._waiting: list[Parsed] = []
        self._count = 0

    def append(self, parsed: Parsed) -> None:
        """Take up rows; whole parts are written."""
        self._waiting.append(parsed)
        self._count += parsed.dense.shape[0]
        if self._count >= self._rows:
            # Only whole parts: their borders are counted from the first row of the log, not of a
            # block.
            self._write(self._count - self._count % self._rows)

    def finish(self) -> None:
        """Write what is left, and note how the rows were clustered."""
        if self._count:
            self._write(self._count)
        self._writer.attributes["clustered"] = {"by": self._column, "rows": self._rows}

    def _write(self, rows: int) -> None:
        """Write the first rows that wait, part by part."""
        whole = joined(self._waiting)
        everything = np.arange(self._count, dtype=np.int64)
        # Empty fields are counts of all rows that wait: they go to the writer once.
        missing_dense = whole.missing_dense
        missing = whole.missing
        for first in range(0, rows, self._rows):
            part = everything[first : min(first + self._rows, rows)]
            # Stable, so that each session keeps the order of its rows in the log.
            order = by_session(whole.features[self._column].codes[part])
            chosen = taken(whole, part[order])
            self._writer.append(
                chosen.labels,
                chosen.dense,
                chosen.features,
                missing_dense=missing_dense,
                missing=missing,
                more_labels=chosen.more_labels,
            )
            missing_dense = chosen.missing_dense  # none: all are counted with the first part
            missing = chosen.missing
        self._waiting = [taken(whole, everything[rows:])] if rows < self._count else []
        self._count -= rows


def _check_column(column: str, features: dict[str, FeatureColumn]) -> None:
    if column not in features:
        raise ConfigError(
            f"cluster by {column!r}: no such feature; the features are {', '.join(features)}"
        )
    if features[column].hotness != 1:
        raise ConfigError(
            f"cluster by {column!r}: a row may have several values of it; choose a feature with one"
        )


def by_session(codes: Elements) -> Ints:
    """Order of rows i64[n] in which equal codes are neighbours: sessions in the order of their
    first rows, the rows of each in theirs.
    """
    _, first, session = np.unique(codes, return_index=True, return_inverse=True)
    return np.argsort(first[session], kind="stable")


def taken(parsed: Parsed, rows: Ints) -> Parsed:
    """Some of the rows, in this order; their empty fields are counted elsewhere."""
    return Parsed(
        labels=None if parsed.labels is None else parsed.labels[rows],
        dense=parsed.dense[rows],
        features={name: take_bags(bags, rows) for name, bags in parsed.features.items()},
        missing_dense=np.zeros_like(parsed.missing_dense),
        missing={},
        lines=rows.size,
        faults=[],
        more_labels={name: labels[rows] for name, labels in parsed.more_labels.items()},
    )
