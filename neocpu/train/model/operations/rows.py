"""The rows of a bag as one vector, at the home of the sample: their exact sum, or mean.

What is pooled here are rows that were made of those of several tables, lookup by lookup; rows of
one table are pooled where they are kept. Sums are those of docs/arithmetic.md §3, rounded once, so
rows that stand side by side have the sums that each table would have given.
"""

import numpy as np

from neocpu.core.types import Floats, Ints
from neocpu.kernels.rows import lookup
from neocpu.tables.embedding.row_sums import SumsOfRows, summed
from neocpu.train.model.arrays import Buffer


class BagSums:
    """Pooling of rows. pooling : sum or mean. dim : of the rows."""

    def __init__(self, pooling: str, dim: int) -> None:
        self._mean = pooling == "mean"
        self._gradient = Buffer(dim)
        self._lengths: Ints = np.empty(0, np.int64)

    def forward(self, rows: Floats, offsets: Ints, out: Floats) -> None:
        """Write the pooled rows f32[n, D] of each sample into out f32[b, D].

        offsets : i64[b+1], of each sample's lookups. A mean divides by their number, pruned ones
        included; empty bags give zeros.
        """
        self._lengths = np.diff(offsets)
        # the sum of one row is the row: no exact sum is needed
        if (self._lengths == 1).all():
            np.add(rows, np.float32(0), out=out)  # of -0, too, the sum is +0
            return
        picks = np.arange(len(rows), dtype=np.int64)
        out[:] = summed(SumsOfRows(rows, picks, offsets), lookup)
        if self._mean:
            out /= self._divisors()

    def backward(self, gradient: Floats) -> Floats:
        """Gradient f32[n, D] of the rows, from that of the pooled vectors f32[b, D]; valid until
        the next call.
        """
        if self._mean:
            gradient = gradient / self._divisors()
        by_row = self._gradient.matrix(int(self._lengths.sum()))
        np.take(gradient, np.repeat(np.arange(len(gradient)), self._lengths), axis=0, out=by_row)
        return by_row

    def _divisors(self) -> Floats:
        # an empty bag has sum 0, which stays
        return np.maximum(self._lengths, 1).astype(np.float32)[:, None]
