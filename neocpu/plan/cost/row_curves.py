"""How are the lookups of a table spread over its rows?

Hashed rows are looked up nearly alike. Rows that a vocabulary numbers by frequency, or that are
the codes of a log themselves, are not: the first block of equal rows may have nearly all lookups.
A curve says which part of the lookups the rows before any row have, so that a planner prices each
block of rows by what it is asked, and can cut blocks of equal work.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Ints

Floats = NDArray[np.float64]

# An empirical distribution of n lookups is within 1.36 / sqrt(n) of the true one 19 times in 20
# (Kolmogorov and Smirnov): what deviates less may be chance.
DEVIATION = 1.36
# Straight parts that a curve has at most.
MOST_PARTS = 64


class RowCurve(NamedTuple):
    """Rows between two points are looked up alike.

    rows : ascending, from 0 to the table's rows. shares : of the lookups, of the rows before each,
    from 0 to 1.
    """

    rows: tuple[float, ...]
    shares: tuple[float, ...]

    def below(self, rows: Floats | Ints) -> Floats:
        """Part of the lookups that go to rows below each, f64[n]."""
        return np.interp(rows, self.rows, self.shares)

    def distinct_below(self, rows: Floats | Ints, lookups: float) -> Floats:
        """Part of the distinct rows of so many lookups that are below each row, f64[n]."""
        heights = np.diff(self.rows)
        each = touched(lookups * np.diff(self.shares), heights)
        sums = np.concatenate([[0.0], each.cumsum()])
        return np.interp(rows, self.rows, sums / max(float(sums[-1]), 1e-300))

    def edges(self, blocks: int, evenness: float) -> list[int]:
        """First rows of at most so many blocks, and the end.

        evenness : 1 for blocks of equal lookups, 0 for equal rows, between for the mean of both
        shares. Blocks are fewer where one row has more than a block's share.
        """
        rows = np.array(self.rows)
        mixed = evenness * np.array(self.shares) + (1.0 - evenness) * rows / rows[-1]
        targets = np.arange(1, blocks) / blocks
        inner = np.rint(np.interp(targets, mixed, rows)).astype(np.int64)
        return np.unique(np.concatenate([[0], inner, [int(rows[-1])]])).tolist()


def curve_of(lookups: Ints, rows: int) -> RowCurve | None:
    """The curve of some lookups i64[n] of a table of so many rows; None where rows may be alike.

    The curve has a point wherever it would else deviate by more than chance alone makes it.
    """
    if not lookups.size or rows < 2:
        return None
    # the true curve is a stair, with a step at each row that is looked up
    looked_up = np.sort(lookups)
    corners = np.concatenate([[0], looked_up, looked_up + 1, [rows]])
    x = np.unique(corners).astype(np.float64)
    y = np.searchsorted(looked_up, x) / lookups.size
    points = _points(x, y, DEVIATION / np.sqrt(lookups.size))
    if len(points) == 2:
        return None
    return RowCurve(tuple(x[points].tolist()), tuple(y[points].tolist()))


def _points(x: Floats, y: Floats, tolerance: float) -> list[int]:
    """Ends of straight lines within a tolerance of y, at most MOST_PARTS of them.

    The widest gap is closed first (Douglas and Peucker's splitting, by worst first).
    """

    def farthest(first: int, last: int) -> tuple[float, int, int, int]:
        line = np.interp(x[first : last + 1], x[[first, last]], y[[first, last]])
        gaps = np.abs(y[first : last + 1] - line)
        middle = int(gaps.argmax())
        return float(gaps[middle]), first, first + middle, last

    parts = [farthest(0, x.size - 1)]
    while len(parts) < MOST_PARTS:
        gap, first, middle, last = max(parts)
        if gap <= tolerance:
            break
        parts.remove((gap, first, middle, last))
        parts += [farthest(first, middle), farthest(middle, last)]
    return sorted({end for _, first, _, last in parts for end in (first, last)})


def touched(lookups: Floats, rows: Floats) -> Floats:
    """Expected distinct rows of so many uniform lookups: h (1 - (1 - 1/h)^n)."""
    return -rows * np.expm1(lookups * np.log1p(-1.0 / np.maximum(rows, 2.0)))
