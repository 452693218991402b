"""How far off is a long fp32 sum usually? The statistical bound beside the proven one.

The proven bound of n terms lets all roundings point the same way: n·u·Σ|terms|. They hardly ever
do. Each addition is off by at most u·|its result|; if these errors are independent and of mean 0,
P(|their sum| > λ·u·sqrt(Σ results²)) <= 2·exp(-λ²/2) (Hoeffding, Azuma; Higham and Mary, A new
approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41, 2019). The mean square
of the results is taken as the largest of three: of the partial sums from the first term on, from
the last one on, and in a random order. Two things break the assumption and are added:

* equal terms are rounded alike: their errors add up (a bag that reads one row all the time);
* the mean is not 0 where terms are alike modulo the unit in the last place of the partial sums, or
  smaller than half of it: a term is off by what it lacks to a multiple of that unit, so these
  residues are added up, for each unit that partial sums may have.
"""

import numpy as np

from neocpu.core.types import Ints
from neocpu.oracle.truth.numbers import Real, U

# λ: an honest sum passes the bound with a chance of at most 2·exp(-18) = 3e-8
DEVIATIONS = 6.0
# sums of fewer terms: the proven bound is as good
LEAST_TERMS = 16
# units in the last place of partial sums whose residues are added up: of the largest, its half, …
UNITS = 12
# partial sums in a random order are seldom beyond so many times their mean square
MEAN_SQUARES = 3.0


def usual_error_of_additions(terms: Real, starts: Ints, additions: int) -> Real:
    """Bounds [S, width] of what adding up rows starts[s]:starts[s+1] of terms f64[m, width] costs.

    Infinite for short segments and those with NaN or infinities.
    additions : of each term.
    """
    out = np.full((starts.size - 1, terms.shape[1]), np.inf)
    for s in np.flatnonzero(np.diff(starts) >= LEAST_TERMS).tolist():
        rows = terms[starts[s] : starts[s + 1]]
        columns = np.flatnonzero(np.isfinite(rows).all(axis=0))
        if columns.size:
            out[s, columns] = _usual_error(rows[:, columns], additions)
    return out


def _usual_error(rows: Real, additions: int) -> Real:
    """The bound [width] of one segment, rows f64[n, width] of numbers."""
    forward = np.cumsum(rows, axis=0)
    total = forward[-1]
    # Kernels add from either end.
    backward = total - forward
    mean_square = np.maximum.reduce(
        [
            np.square(forward).mean(axis=0),
            np.square(backward).mean(axis=0),
            MEAN_SQUARES * _mean_square_at_random(rows),
        ]
    )
    largest = np.maximum(np.abs(forward).max(axis=0), np.abs(backward).max(axis=0))
    # In a random order partial sums may pass those in order.
    largest = np.maximum(largest, np.sqrt(mean_square))
    # By magnitude: x and -x are rounded alike, too.
    alike = _squared_multiplicities(np.abs(rows))
    random_part = DEVIATIONS * U * np.sqrt(mean_square * alike)
    return additions * _residues(rows, largest) + np.sqrt(additions) * random_part


def _residues(rows: Real, largest: Real) -> Real:
    """Sums of the residues of terms modulo a unit, over the worst stretch of rows: [width].

    The unit is that in the last place of partial sums up to `largest` [width], or the one below it,
    …, whichever gives most. A residue of half a unit may always be rounded the same way.
    """
    unit = np.ldexp(1.0, np.frexp(largest)[1] - 24)
    worst = np.zeros(largest.shape)
    for _ in range(UNITS):
        # What a term lacks to a multiple of the unit is lost when it is added.
        residue = rows - unit * np.rint(rows / unit)
        tie = np.abs(residue) == unit / 2
        running = np.cumsum(np.where(tie, 0.0, residue), axis=0)
        stretch = np.fmax(running.max(axis=0), 0.0) - np.fmin(running.min(axis=0), 0.0)
        worst = np.maximum(worst, stretch + np.count_nonzero(tie, axis=0) * unit / 2)
        unit = unit / 2
    return worst


def _mean_square_at_random(rows: Real) -> Real:
    """Mean square [width] of the partial sums of rows in a random order.

    The k-th one has the mean k/n·total and the variance k·(n - k)/(n - 1) times that of a term.
    """
    count = len(rows)
    total = rows.sum(axis=0)
    variance = np.square(rows - total / count).mean(axis=0)
    # Means of k^2/n^2 and of k*(n - k)/(n - 1) over all k.
    return np.square(total) / 3 + variance * count / 6


def _squared_multiplicities(size: Real) -> Real:
    """Per column, the squares of how often each number occurs, added up: n if all differ."""
    count, width = size.shape
    in_order = np.sort(size, axis=0).T
    first = np.ones(in_order.shape, bool)
    first[:, 1:] = in_order[:, 1:] != in_order[:, :-1]
    place = np.flatnonzero(first)
    occurrences = np.diff(np.append(place, in_order.size))
    squares = np.bincount(place // count, np.square(occurrences.astype(float)), width)
    return np.asarray(squares, np.float64)
