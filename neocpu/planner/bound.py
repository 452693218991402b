"""Below how many seconds can no plan stay? A bound for all plans that are made of the candidates.

Let a plan take T seconds beside what is fixed, R ranks, candidate c(t) of table t with s(c) seconds
in all, p(c) of its dearest rectangle, and m(c, k) bytes of memory k, of which a rank has M(k).

1. T >= sum over phases of the mean load = (1/R) sum over t of s(c(t)), since a maximum is at least
   the mean. Where ranks wait once a step the same holds of the sums.
2. T >= p(c(t)) for every t: the rank of that rectangle has its load in every phase. So no table of
   the plan uses a candidate with p(c) > T.
3. Memory: sum over t of m(c(t), k) <= R M(k), so for all prices u(k) >= 0
   T >= sum over t of [ s(c(t)) / R + sum over k of u(k) m(c(t), k) ] - sum over k of u(k) R M(k)
   (Lagrange). A candidate with a rectangle larger than M(k) is in no plan at all.

Let f(x) be the right side of 3 with the least candidate of each table among those with p(c) <= x.
By 2 every plan satisfies T >= f(T); f does not rise with x, so T is at least any x with f(x) >= x,
and at least f(x) for the first x with f(x) <= x. The bound is found by halving between the values
of p at which f changes. Prices are chosen well, but any would do.
"""

import numpy as np

from neocpu.planner.options import Options
from neocpu.planner.prices import memory_prices
from neocpu.planner.seconds import Layout
from neocpu.planner.work import Floats

# Sums of floats in different orders may differ by such a part: the bound is lowered by it.
ROUNDING = 1e-9


def lower_bound(options: Options, layout: Layout, limits: Floats) -> float:
    """Seconds, beside what is fixed, that no plan of these candidates can stay below.

    limits : f64[memories], bytes of a rank. Infinite where no candidate of a table fits a rank.
    """
    ranks = layout.ranks
    heads = options.start[:-1]
    possible = (options.peak_bytes <= limits).all(axis=1)
    seconds = np.where(possible, options.seconds.sum(axis=1), np.inf)
    budgets = limits * ranks
    prices = memory_prices(options, seconds, budgets)
    limited = np.isfinite(budgets)
    cost = seconds + options.bytes @ prices
    saved = float(prices[limited] @ budgets[limited])

    def mean_load(peak: float) -> float:
        """f(peak)."""
        least = np.minimum.reduceat(np.where(options.peak <= peak, cost, np.inf), heads)
        return (float(least.sum()) - saved) / ranks

    peaks = np.unique(options.peak[possible])
    if not peaks.size or not np.isfinite(mean_load(np.inf)):
        return float("inf")
    # the first interval [peaks[i], peaks[i + 1]) that can hold the seconds of a plan
    low = 0
    high = peaks.size - 1
    while low < high:
        middle = (low + high) // 2
        if mean_load(peaks[middle]) < peaks[middle + 1]:
            high = middle
        else:
            low = middle + 1
    bound = max(float(peaks[low]), mean_load(peaks[low]))
    return bound * (1.0 - ROUNDING)
