"""Are the samples of each group, a user or a request, in the right order?

    ndcg@k     sum over the first k of label / log2(1 + rank), divided by that of the best order
               (Järvelin & Kekäläinen 2002), with the label itself as gain
    recall@k   clicks among the first k / clicks
    hit@k      1 where one of the first k is a click
    mrr        1 / rank of the first click
    gauc       AUC of a group, weighted by its samples (Zhou et al. 2018, Deep Interest Network)

Each is a mean over groups. Groups without a click, for gauc those of one label, say nothing of the
order: they are left out and counted (torchmetrics calls that `empty_target_action="skip"`). Equal
predictions have no order: they get the mean over all their orders (McSherry & Najork 2008), as in
scikit-learn's `ndcg_score` and in AUC, so that a constant prediction is not rewarded for the order
of the log. Labels other than 0 and 1 have ndcg only.

One process computes them from all samples, in fp64 whose sums do not depend on the samples' order.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Bools, Doubles, Floats, Ints
from neocpu.kernels.twins.numbers.elementary import log
from neocpu.train.watch.metrics import binned, exact_sum

AT = (5, 10)


class _Ties(NamedTuple):
    """Runs of equal predictions in groups, in descending order.

    group : number of each run's group. before : samples of the group ahead of it. size : its
    samples. gain : sum of its labels.
    """

    group: Ints
    before: Ints
    size: Ints
    gain: Doubles


def ranking(
    scores: Floats, labels: Floats, groups: Ints, at: Sequence[int] = AT
) -> dict[str, float | int | None]:
    """Ranking metrics by name; None where no group has one.

    scores, labels : f32[n]. groups : i64[n], which group each sample is of. at : the ks.

    `groups` counts all of them, `groups_without_clicks` and `groups_of_one_label` those left out.
    """
    _, group = np.unique(groups, return_inverse=True)
    count = int(group.max()) + 1 if group.size else 0
    ties = _ties(scores, labels, group)
    sizes = np.bincount(group, minlength=count)
    gains = binned(ties.group, ties.gain, count)
    ranked = gains > 0
    clicks = bool(np.isin(labels, (0, 1)).all())
    # a NaN has no place in an order, and a negative label no gain
    sound = not (np.isnan(scores).any() or (labels < 0).any())
    values: dict[str, float | int | None] = {}
    ideal = _ties(labels, labels, group)
    for k in at:
        best = _dcg(ideal, k, count)
        ndcg = _dcg(ties, k, count)[ranked] / best[ranked]
        values[f"ndcg@{k}"] = _mean(ndcg) if sound else None
    if clicks:
        for k in at:
            recall = binned(ties.group, ties.gain * _share(ties, k), count)
            values[f"recall@{k}"] = _mean(recall[ranked] / gains[ranked]) if sound else None
        for k in at:
            values[f"hit@{k}"] = _mean(_hits(ties, k, count)[ranked]) if sound else None
        both = ranked & (gains < sizes)
        values["mrr"] = _mean(_reciprocal_ranks(ties)) if sound else None
        values["gauc"] = _gauc(ties, gains, sizes, both) if sound else None
        values["groups_of_one_label"] = int(count - both.sum())
    return values | {"groups": count, "groups_without_clicks": int(count - ranked.sum())}


def _ties(scores: Floats, labels: Floats, group: Ints) -> _Ties:
    """Runs of equal scores, by group and descending."""
    # the labels' order within a run decides nothing but the order of an exact sum
    order = np.lexsort((labels, -scores, group))
    sorted_group = group[order]
    sorted_scores = scores[order]
    new = np.ones(order.size, bool)
    new[1:] = (np.diff(sorted_group) != 0) | (sorted_scores[1:] != sorted_scores[:-1])
    first = np.flatnonzero(new)
    run = np.cumsum(new) - 1
    size = np.diff([*first, order.size])
    run_group = sorted_group[first]
    group_first = np.searchsorted(sorted_group, run_group)
    gain = binned(run, labels[order].astype(np.float64), first.size)
    return _Ties(run_group, first - group_first, size, gain)


def _discounts(length: int) -> Doubles:
    """Sums of the first 0, 1, … `length` discounts 1 / log2(1 + rank), f64[length + 1]."""
    ranks = np.arange(1, length + 1, dtype=np.float64)
    terms = log(np.full(length, 2.0)) / log(1.0 + ranks)
    return np.concatenate([[0.0], np.add.accumulate(terms)])


def _dcg(ties: _Ties, k: int, count: int) -> Doubles:
    """Discounted gain of the first k of each group, f64[count]."""
    sums = _discounts(k)
    discounts = sums[np.minimum(ties.before + ties.size, k)] - sums[np.minimum(ties.before, k)]
    return binned(ties.group, ties.gain / ties.size * discounts, count)


def _share(ties: _Ties, k: int) -> Doubles:
    """Share of each run that is among the first k."""
    return np.clip(k - ties.before, 0, ties.size) / ties.size


def _hits(ties: _Ties, k: int, count: int) -> Doubles:
    """Chance that one of the first k of each group is a click."""
    seats = np.clip(k - ties.before, 0, ties.size)
    miss = np.ones(ties.size.size)
    others = ties.size - ties.gain
    # a run of n with c clicks, cut to s seats: no click with (n-c choose s) / (n choose s)
    for seat in range(min(k, int(seats.max(initial=0)))):
        taken = seat < seats
        miss[taken] *= np.maximum(others[taken] - seat, 0.0) / (ties.size[taken] - seat)
    missed = np.ones(count)
    np.multiply.at(missed, ties.group, miss)
    return 1.0 - missed


def _reciprocal_ranks(ties: _Ties) -> Doubles:
    """1 / rank of the first click of each group with one."""
    clicked = np.flatnonzero(ties.gain > 0)
    # a group's first run with a click; runs of a group follow one another
    _, first = np.unique(ties.group[clicked], return_index=True)
    runs = clicked[first]
    result: Doubles = 1.0 / (1.0 + ties.before[runs].astype(np.float64))
    for index in np.flatnonzero((ties.size[runs] > 1) & (ties.gain[runs] < ties.size[runs])):
        run = runs[index]
        result[index] = _first_click(int(ties.before[run]), int(ties.size[run]), ties.gain[run])
    return result


def _first_click(before: int, size: int, clicks: float) -> float:
    """Mean of 1 / rank of the first click, over the orders of a run behind `before` samples."""
    total = 0.0
    none_yet = 1.0  # chance that the samples up to here are no clicks
    for seat in range(size - int(clicks) + 1):
        chance = clicks / (size - seat)
        total += none_yet * chance / (before + seat + 1)
        none_yet *= 1.0 - chance
    return total


def _gauc(ties: _Ties, clicks: Doubles, sizes: Ints, both: Bools) -> float | None:
    """AUC of the groups with both labels, weighted by their samples."""
    before = np.cumsum(clicks) - clicks  # clicks of the groups ahead
    # runs descend: clicks ahead of a run, and half of its own, are above its other samples
    ahead = np.cumsum(ties.gain) - ties.gain - before[ties.group]
    halves = (ties.size - ties.gain) * (2 * ahead + ties.gain)
    # counts of clicks are whole numbers: exact in fp64
    half_pairs = binned(ties.group, halves, clicks.size)[both]
    weight = sizes[both].astype(np.float64)
    auc = half_pairs / (2 * clicks[both] * (weight - clicks[both]))
    total = exact_sum(auc * weight)
    return float(total / int(sizes[both].sum())) if total is not None and auc.size else None


def _mean(values: Doubles) -> float | None:
    """The mean, rounded once; None of none."""
    total = exact_sum(values)
    return None if total is None or not values.size else float(total / values.size)
