"""Below how many seconds can no plan stay? A bound for all plans, whatever their rectangles.

Let a plan take T seconds beside what is fixed, on R ranks, with the candidate c(t) for table t.
Candidate c has s(c, p) seconds in phase p in all, q(c, p) of its dearest rectangle in that phase,
q(c) of its dearest rectangle in all phases, and m(c, k) bytes of memory k, of which a rank has
M(k), in the mean where ranks are unequal. The slowest rank of phase p takes M_p seconds, and T is
the sum of M_p over the phases.

1. M_p >= mean load of the phase = (1/R) sum over t of s(c(t), p): a maximum is at least the mean.
   (Where rank r takes h(r) times as long, it has at most M_p / h(r) of these seconds, so R here is
   sum over r of 1/h(r), and q is multiplied by the least h.)
2. M_p >= q(c(t), p) for every t: some rank has that rectangle. (Where ranks share cores the model
   divides the slowest rank's seconds by their crowding, but never below the mean; then q is divided
   likewise, here and in 6.)
3. So for weights w(t, p) >= 0 with z(p) = 1 - sum over t of w(t, p) >= 0, as M_p is at least every
   weighted mean of these,
       T >= sum over t of [ sum over p of z(p) s(c(t), p) / R + w(t, p) q(c(t), p) ]
   and at least the same with each table's candidate chosen so that its bracket is least.
4. Memory: sum over t of m(c(t), k) <= R M(k). So for prices u(k) >= 0 the bracket may hold
   sum over k of u(k) m(c(t), k) as well, if sum over k of u(k) R M(k) is subtracted from the whole
   (Lagrange). A candidate with a rectangle larger than any rank's memory is in no plan at all.
5. What holds for a candidate holds for a range of rectangles (`relaxed.py`): of a table that is cut
   in any way the brackets of 3 and 4 are a mean over its ranges, and at least the least of them.
   So with ranges in the place of candidates the bound is one for all cuts.
6. T >= q(c(t)) for every t: the rank of that rectangle has its load in every phase. So no table of
   the plan has a candidate with q(c) > T.

Let f(x) be the bound of 3 and 4 with candidates of q(c) <= x only. By 6 every plan has T >= f(T). f
does not rise with x, so T is at least max(x, f(x)) for the first x, among the values of q, for
which f(x) is below the next of them. Any weights and prices give a bound; those used are found for
the candidates, by multiplicative updates, as for a game between the maxima and the tables (Freund
and Schapire 1999).
Where ranks wait once a step, its only phase is the sum of all.
"""

from typing import NamedTuple

import numpy as np

from neocpu.core.types import Ints
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.work import Flags, Floats
from neocpu.plan.search.options import Options
from neocpu.plan.search.prices import cheapest, memory_prices
from neocpu.plan.search.relaxed import CutRanges

# Updates of the weights, and their rate.
UPDATES = 100
RATE = 1.0
# Updates before which the tables' choices are kept.
CHOICES = (5, 15, 40, 99)
# Weight of all tables together before the first update.
FIRST = 0.1
# Sums of floats in different orders may differ by such a part: the bound is lowered by it.
ROUNDING = 1e-9


class Bound(NamedTuple):
    """seconds : that no plan can stay below, beside what is fixed. choices : i64[tables] each, what
    the tables chose in some rounds of the game, which a search may start from.
    """

    seconds: float
    choices: list[Ints]


class _Weights(NamedTuple):
    """mean : of each phase's mean load, f64[phases]. peak : of each table's dearest rectangle,
    f64[tables, phases].
    """

    mean: Floats
    peak: Floats


def bounded(
    options: Options, layout: Layout, limits: Floats, ranges: CutRanges | None = None
) -> Bound:
    """The lower bound in seconds, beside what is fixed, and choices on the way to it.

    limits : f64[ranks, memories], bytes of each rank. ranges : of all cuts; None: plans of the
    candidates only. Infinite where no candidate of a table, or no cut, fits a rank.
    """
    possible = np.logical_and.reduce(options.peak_bytes <= limits.max(axis=0), axis=1)
    heads = options.start[:-1]
    if not np.logical_or.reduceat(possible, heads).all():
        if ranges is None:
            return Bound(float("inf"), [])
        # cuts may fit that no candidate has: the prices and weights of all candidates do as well
        possible = np.ones(possible.size, bool)
    # 4 is a statement about all ranks together, so prices are looked for against their whole memory
    budgets = limits.sum(axis=0)
    seconds = np.where(possible, options.seconds.sum(axis=1), np.inf)
    prices = memory_prices(options, seconds, budgets)
    speed = _speed(options, layout)
    weights, choices = _play(options, speed, possible, prices / layout.ranks)
    if ranges is None:
        ranges = _of_candidates(options)
    return Bound(_least(ranges, speed, limits, prices / layout.ranks, weights), choices)


class _Speed(NamedTuple):
    """ranks : how many of those that pieces are priced for do as much as all ranks. peak : what the
    fastest takes of a rectangle's seconds, at least.
    """

    ranks: float
    peak: float


def _speed(options: Options, layout: Layout) -> _Speed:
    """Of the ranks of the options."""
    slowness = np.ones(layout.ranks) if options.slowness is None else options.slowness
    if options.crowding > 1:
        # a phase takes the mean of all ranks at least, but less than its slowest
        return _Speed(layout.ranks / slowness.min(), slowness.min() / options.crowding)
    return _Speed(float((1.0 / slowness).sum()), float(slowness.min()))


def _of_candidates(options: Options) -> CutRanges:
    """Each candidate as a range of its own."""
    return CutRanges(
        start=options.start,
        table=options.table,
        seconds=options.seconds,
        peak=np.maximum.reduceat(options.piece_seconds, options.piece[:-1]),
        whole_peak=options.peak,
        bytes=options.bytes,
        peak_bytes=options.peak_bytes,
    )


def _least(
    ranges: CutRanges,
    speed: _Speed,
    limits: Floats,
    prices: Floats,
    weights: _Weights,
) -> float:
    """The bound under weights and prices f64[memories], seconds a byte of each rank; infinite where
    a table has no range that fits.
    """
    heads = ranges.start[:-1]
    possible = (ranges.peak_bytes <= limits.max(axis=0)).all(axis=1)
    if not np.logical_or.reduceat(possible, heads).all():
        return float("inf")
    budgets = limits.sum(axis=0)
    limited = np.isfinite(budgets)
    # an unlimited memory has a price of 0 and an infinite budget, whose product would be NaN
    saved = float(prices[limited] @ budgets[limited])
    brackets = ranges.seconds @ weights.mean / speed.ranks
    brackets += (ranges.peak * speed.peak * weights.peak[ranges.table]).sum(axis=1)
    brackets = np.where(possible, brackets + ranges.bytes @ prices, np.inf)
    dearest = ranges.whole_peak * speed.peak

    def bound_of(peak: float) -> float:
        """f(peak)."""
        least = np.minimum.reduceat(np.where(dearest <= peak, brackets, np.inf), heads)
        return float(least.sum()) - saved

    # f changes at values of q only, so no other T has to be asked
    peaks = np.unique(dearest[possible])
    # the first interval [peaks[i], peaks[i + 1]) that can hold the seconds of a plan
    low = 0
    high = peaks.size - 1
    # f falls where the peaks rise, so the crossing is found by halving
    while low < high:
        middle = (low + high) // 2
        if bound_of(peaks[middle]) < peaks[middle + 1]:
            high = middle
        else:
            low = middle + 1
    # prices that are too high make the sum of 4 negative, and 0 is a bound as well
    bound = max(float(peaks[low]), bound_of(peaks[low]), 0.0)
    return bound * (1.0 - ROUNDING)


def _play(
    options: Options, speed: _Speed, possible: Flags, prices: Floats
) -> tuple[_Weights, list[Ints]]:
    """The best weights found for the brackets of 3 and 4, and some choices.

    possible : candidates that may be in a plan, bool[n]. prices : as of `_least`.
    """
    priced = np.where(possible, options.bytes @ prices, np.inf)
    heads = options.start[:-1]
    tables = heads.size
    mean = options.seconds / speed.ranks
    peak = np.maximum.reduceat(options.piece_seconds, options.piece[:-1]) * speed.peak
    # weights of the mean, and of each table's dearest rectangle, by phase; each column's sum is 1
    gains = np.zeros((tables + 1, mean.shape[1]))
    gains[1:] = np.log(FIRST / tables)
    best = np.zeros_like(gains)
    best_value = -np.inf
    choices: list[Ints] = []
    for update in range(UPDATES):
        # less the largest of the column, or exp would overflow
        weights = np.exp(gains - gains.max(axis=0))
        weights = weights / weights.sum(axis=0)
        # the mean alone first: what the game finds is then never weaker than the plain bound
        if update == 0:
            weights[:] = 0.0
            weights[0] = 1.0
        brackets = mean @ weights[0] + (peak * weights[1:][options.table]).sum(axis=1) + priced
        choice = cheapest(options, brackets)
        value = float(brackets[choice].sum())
        if value > best_value:
            best_value = value
            best = weights
        if update in CHOICES and not any((choice == earlier).all() for earlier in choices):
            choices.append(choice)
        payoff = np.concatenate([mean[choice].sum(axis=0)[None], peak[choice]])
        # in parts of the phase's largest payoff, so that one rate suits seconds of any size
        gains += RATE * payoff / np.maximum(payoff.max(axis=0), 1e-300)
    return _Weights(best[0], best[1:]), choices
