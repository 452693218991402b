"""How does a network see a piece of a table? As 20 numbers: its reuse, dimension, pooling and rows.

    bin_0 .. bin_16   parts of the distinct rows by reuse (`reuse.py`)
    dimension, mean lookups per sample, log2 rows

NeuroShard takes rows as they are; their logarithm is ours, since tables here have from 3 to 5
billion rows. AutoShard's 21st number is the size, which rows and dimension determine; the policy
sees sizes beside the features. All are standardised with the mean and the deviation of the
training set.
"""

from typing import NamedTuple

import numpy as np

from neocpu.core.types import Ints
from neocpu.plan.cost.work import Floats, TableArrays
from neocpu.plan.learned.reuse import BINS, histograms

FEATURES = BINS + 3


class Pieces(NamedTuple):
    """Rectangles of tables that a planner may place, [n] each.

    table : its number. rows, width : of the rectangle. samples : part of the batch that its rank
    looks up: 1, or 1/ranks for a copy of a data_parallel table.
    """

    table: Ints
    rows: Floats
    width: Floats
    samples: Floats


def whole(arrays: TableArrays) -> Pieces:
    """Every table as one piece."""
    count = arrays.rows.size
    return Pieces(np.arange(count), arrays.rows.copy(), arrays.dim.copy(), np.ones(count))


def describe(
    pieces: Pieces, arrays: TableArrays, batch: int, reuse: Floats | None = None
) -> Floats:
    """Features of pieces, f64[n, FEATURES], not standardised.

    batch : samples of a step. reuse : measured histograms f64[tables, BINS]; None: by law.
    """
    table = pieces.table
    share = pieces.rows / arrays.rows[table] * pieces.samples
    lookups = arrays.lookups[table] * share
    if reuse is None:
        # A copy sees fewer lookups of all rows, a row block its part of both.
        distinct = np.minimum(arrays.distinct[table] * np.minimum(share, 1.0), lookups)
        bins = histograms(lookups, distinct)
    else:
        # measured for whole tables: their blocks share the histogram
        bins = reuse[table]
    height = np.log2(np.maximum(pieces.rows, 1.0))
    sizes = np.stack([pieces.width, lookups / batch, height], axis=1)
    return np.concatenate([bins, sizes], axis=1)


class Scaling(NamedTuple):
    """Mean and deviation by which features are standardised."""

    mean: Floats
    deviation: Floats

    @classmethod
    def of(cls, features: Floats) -> "Scaling":
        """Those of a training set; what does not vary is left as it is."""
        deviation = features.std(axis=0)
        return cls(features.mean(axis=0), np.where(deviation > 1e-9, deviation, 1.0))

    def __call__(self, features: Floats) -> Floats:
        """Standardised features."""
        return (features - self.mean) / self.deviation
