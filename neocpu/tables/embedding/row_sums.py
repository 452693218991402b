"""Which rows, times which factors, add up to which sum? Products on jagged data as pooled lookups.

    sum s = Σ factors[l] * rows[picks[l]],  l in [starts[s], starts[s + 1])

A product of matrices is a pooled lookup of the rows of the second one, weighted by the elements of
the first; so are its gradients, and the gradient of a selection without any factors. The kernels of
lookups therefore compute all of them: products rounded once, sums exact (`docs/arithmetic.md` §3).
"""

from types import ModuleType
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Elements, Floats, Ints
from neocpu.kernels.operands import Bags, Entries, Lines


class SumsOfRows(NamedTuple):
    """Sums of rows, described; segments may be empty."""

    rows: Elements  # f32[R, W]
    picks: Ints  # i64[m]: rows
    starts: Ints  # i64[S+1]: picks of each sum
    factors: Elements | None = None  # f32[m]


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """The ranges [starts[t], starts[t] + lengths[t]), one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(int(lengths.sum())) + np.repeat(starts - (ends - lengths), lengths)


def segment_starts(lengths: Ints) -> Ints:
    """0, then running sums: where segments of these lengths begin, and the end of the last."""
    return np.append(0, np.cumsum(lengths)).astype(np.int64)


def row_by_matrix(factors: Elements, matrices: Elements, matrix: Ints) -> SumsOfRows:
    """Row l of factors [n, K] times matrix number matrix[l] of matrices [B, K, N]: n sums [N].

    Rows with the matrix -1 give zeros.
    """
    count, inner, width = matrices.shape
    multiplied = np.flatnonzero(matrix >= 0)
    picks = matrix[multiplied, None] * inner + np.arange(inner)
    return SumsOfRows(
        rows=np.ascontiguousarray(matrices).reshape(count * inner, width),
        picks=picks.reshape(-1),
        starts=segment_starts(np.where(matrix >= 0, inner, 0)),
        factors=factors[multiplied].reshape(-1),
    )


def transposed_by_matrix(left: Elements, right: Elements, first: Ints, lengths: Ints) -> SumsOfRows:
    """Transposed rows of left [n, M] times the same rows of right [n, N], bag by bag.

    first, lengths : i64[B], the rows of each bag. B*M sums [N], bag by bag, column by column.
    """
    columns = left.shape[1]
    bag_rows = ranges(np.repeat(first, columns), np.repeat(lengths, columns))
    column = np.repeat(np.tile(np.arange(columns), lengths.size), np.repeat(lengths, columns))
    return SumsOfRows(
        rows=right,
        picks=bag_rows,
        starts=segment_starts(np.repeat(lengths, columns)),
        factors=left[bag_rows, column],
    )


def by_target(values: Elements, target: Ints, count: int) -> SumsOfRows:
    """Rows of values [n, W] added up by target i64[n]: `count` sums. Targets of -1 add nothing."""
    order = np.argsort(target, kind="stable")
    # targets of -1 sort before all others
    picks = order[np.searchsorted(target[order], 0) :]
    lengths = np.bincount(target[picks], minlength=count)
    return SumsOfRows(rows=values, picks=picks, starts=segment_starts(lengths))


def summed(sums: SumsOfRows, kernels: ModuleType) -> Floats:
    """The sums f32[S, W]: products rounded to fp32, then added exactly and rounded once.

    kernels : the module `neocpu.kernels.rows.lookup`, or its twin.
    """
    rows = np.ascontiguousarray(sums.rows, np.float32)
    out = np.zeros((sums.starts.size - 1, rows.shape[1]), np.float32)
    if not out.size or not rows.size:
        return out
    width = np.array([rows.shape[1]], np.int64)
    zero = np.zeros(1, np.int64)
    factors = np.zeros(0, np.float32) if sums.factors is None else sums.factors
    # sums of NaN and infinities are defined (docs/arithmetic.md §3): no cause for warnings
    with np.errstate(all="ignore"):
        kernels.pooled_rows(
            rows.reshape(-1),
            Entries(zero, width, width, np.array([0, len(out)], np.int64)),
            Bags(sums.starts, sums.picks, np.ascontiguousarray(factors, np.float32)),
            False,
            Lines(zero, width),
            out.reshape(-1),
        )
    return out
