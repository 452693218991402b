"""How often does a step look up the same row? Histograms of reuse, of lookups or by law.

Bin j is the part of the distinct rows of a step that are looked up (2^(j-1), 2^j] times; the last
bin is open (NeuroShard and AutoShard describe every table by these 17 numbers).
"""

import math

import numpy as np

from neocpu.core.types import Ints
from neocpu.plan.cost.work import Floats

BINS = 17
# Means of counts above which a Poisson law is reckoned as a normal one.
NORMAL = 64.0


def histogram(rows: Ints) -> Floats:
    """Reuse of the rows of one step's lookups, f64[BINS]; zeros where there are none."""
    _, counts = np.unique(rows, return_counts=True)
    bins = np.minimum(np.ceil(np.log2(counts)).astype(np.int64), BINS - 1)
    return np.bincount(bins, minlength=BINS) / max(counts.size, 1)


def histograms(lookups: Floats, distinct: Floats) -> Floats:
    """Reuse by law, f64[tables, BINS]: counts of a Poisson law, of which zeros are not seen.

    lookups, distinct : of a step. For uniform lookups the law is exact; for measured distinct rows
    it has their mean reuse, and not their spread.
    """
    # a row that is looked up at all is looked up once or more
    reuse = np.maximum(lookups / np.maximum(distinct, 1e-9), 1.0)
    # many tables share a mean reuse, and the law of each is dear
    unique, inverse = np.unique(np.round(reuse, 6), return_inverse=True)
    rates = _rates(unique.astype(np.float64))
    return np.array([_poisson_bins(rate) for rate in rates.tolist()])[inverse]


def _rates(reuse: Floats) -> Floats:
    """Poisson rates whose counts, zeros left out, have these means: r / (1 - e^-r) = mean."""
    low = np.zeros_like(reuse)
    high = reuse.copy()
    for _ in range(60):
        middle = (low + high) / 2
        mean = middle / -np.expm1(-np.maximum(middle, 1e-12))
        low = np.where(mean < reuse, middle, low)
        high = np.where(mean < reuse, high, middle)
    return high


def _poisson_bins(rate: float) -> Floats:
    """A Poisson law without its zeros, by bins of counts."""
    if rate < 1e-9:
        return np.eye(1, BINS)[0]
    edges = 2.0 ** np.arange(BINS)
    if rate > NORMAL:
        # the sum would need counts far beyond a thousand
        scale = math.sqrt(2 * rate)
        below = np.array([0.5 + 0.5 * math.erf((edge + 0.5 - rate) / scale) for edge in edges])
    else:
        counts = np.arange(1, 1024)
        # in logarithms: powers and factorials of hundreds overflow
        logarithms = counts * math.log(rate) - rate - np.cumsum(np.log(counts))
        sums = np.cumsum(np.exp(logarithms)) / -math.expm1(-rate)
        below = sums[np.minimum(edges, counts.size).astype(np.int64) - 1]
    below = np.minimum(below, 1.0)
    below[-1] = 1.0
    return np.diff(below, prepend=0.0)
