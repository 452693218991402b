"""Ranking metrics by group against their definitions, ties included, and against scikit-learn."""

from itertools import permutations
from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.train.watch.ranking import ranking

AT = (1, 2, 3, 10)
# few scores, so that ties are many; groups of up to 5, whose orders can all be tried
SAMPLES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0.125, 0.25, 0.5]), st.integers(0, 1)),
    min_size=1,
    max_size=12,
)


def orders(samples):
    """All orders of a group by descending score, as lists of labels."""
    for order in permutations(samples):
        scores = [score for score, _ in order]
        if scores == sorted(scores, reverse=True):
            yield [label for _, label in order]


def of_order(labels, at):
    """Metrics of one order of labels, as textbooks define them."""
    values = {}
    clicks = sum(labels)
    for k in at:
        gain = sum(label / log2(rank + 2) for rank, label in enumerate(labels[:k]))
        best = sum(1 / log2(rank + 2) for rank in range(min(k, clicks)))
        values[f"ndcg@{k}"] = gain / best
        values[f"recall@{k}"] = sum(labels[:k]) / clicks
        values[f"hit@{k}"] = float(any(labels[:k]))
    values["mrr"] = 1 / (1 + labels.index(1))
    return values


def auc(samples):
    """Share of pairs of a click and another sample that are in order; ties count half."""
    pairs = [(p, q) for p, click in samples if click for q, other in samples if not other]
    return sum(1.0 if p > q else 0.5 if p == q else 0.0 for p, q in pairs) / len(pairs)


def by_definition(rows, at):
    groups = {}
    for group, score, label in rows:
        groups.setdefault(group, []).append((score, label))
    means = []
    areas = []
    for samples in groups.values():
        labels = [label for _, label in samples]
        if any(labels):
            each = [of_order(order, at) for order in orders(samples)]
            means.append({name: np.mean([one[name] for one in each]) for name in each[0]})
        if 0 < sum(labels) < len(labels):
            areas.append((len(samples), auc(samples)))
    names = means[0] if means else ()
    values = {name: np.mean([one[name] for one in means]) for name in names}
    if areas:
        values["gauc"] = sum(n * area for n, area in areas) / sum(n for n, _ in areas)
    counts = (len(groups), len(groups) - len(means), len(groups) - len(areas))
    return values, counts


def columns(rows):
    groups, scores, labels = zip(*rows)
    return np.float32(scores), np.float32(labels), np.int64(groups)


@given(SAMPLES.filter(lambda rows: max(np.bincount([row[0] for row in rows])) <= 6))
def test_metrics_are_their_definitions_averaged_over_the_orders_of_ties(rows):
    values, counts = by_definition(rows, AT)
    result = ranking(*columns(rows), AT)
    names = ("groups", "groups_without_clicks", "groups_of_one_label")
    assert tuple(result.pop(name) for name in names) == counts
    assert {name for name, value in result.items() if value is not None} == set(values)
    for name, value in values.items():
        assert result[name] == pytest.approx(value, abs=1e-12), name


@given(SAMPLES, st.randoms())
def test_the_order_of_samples_changes_no_bit(rows, random):
    mixed = list(rows)
    random.shuffle(mixed)
    assert ranking(*columns(rows)) == ranking(*columns(mixed))


def test_numbers_are_those_of_scikit_learn():
    # scikit-learn 1.9.1: ndcg_score([[0, 3, 1, 0, 2]], [[.5, .5, .1, .9, .3]]), and with k=2
    scores = np.float32([0.5, 0.5, 0.1, 0.9, 0.3])
    labels = np.float32([0, 3, 1, 0, 2])
    result = ranking(scores, labels, np.zeros(5, np.int64), (2, 5))
    assert result["ndcg@5"] == pytest.approx(0.6183719929833156)
    assert result["ndcg@2"] == pytest.approx(0.22206143322439892)
    # labels that are no classes have no clicks to find
    assert set(result) == {"groups", "groups_without_clicks", "ndcg@2", "ndcg@5"}
    # roc_auc_score of the whole, and of its halves: 1.0 and 0.5; ndcg_score with k=3
    scores = np.float32([0.1, 0.4, 0.35, 0.8, 0.4, 0.4, 0.2, 0.2])
    labels = np.float32([0, 1, 0, 1, 1, 0, 0, 1])
    whole = ranking(scores, labels, np.zeros(8, np.int64), (3,))
    assert whole["gauc"] == pytest.approx(0.78125)
    assert whole["ndcg@3"] == pytest.approx(0.8230929086742522)
    assert ranking(scores, labels, np.arange(8) // 4)["gauc"] == pytest.approx(0.75)


def test_a_score_that_is_no_number_has_no_order():
    result = ranking(np.float32([np.nan, 0.5]), np.float32([1, 0]), np.int64([0, 0]), (1,))
    assert result["ndcg@1"] is None
    assert result["gauc"] is None
    assert result["groups"] == 1


def test_no_samples_have_no_metrics():
    none = np.empty(0, np.float32)
    result = ranking(none, none, np.empty(0, np.int64), (1,))
    assert result["groups"] == 0
    assert result["mrr"] is None
