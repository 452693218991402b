"""Are lookups sorted by row, stably, and are the runs of each row found?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.kernels import segments
from neocpu.reference import segments as twin
from tests.cases import bag_offsets


def sort_both(rows, cuts, heights):
    results = []
    for module in (segments, twin):
        order, unique, starts, stops = (np.full(rows.size, -7, np.int64) for _ in range(4))
        valid, found = np.full(heights.size, -7, np.int64), np.full(heights.size, -7, np.int64)
        module.sort_lookups(rows, cuts, heights, order, unique, starts, stops, valid, found)
        results.append((order, unique, starts, stops, valid, found))
    valid, found = results[1][4:]
    for ours, theirs in zip(results[0][4:], results[1][4:]):
        np.testing.assert_array_equal(ours, theirs)
    for h, lo in enumerate(cuts[:-1]):  # what stands behind the last one is nobody's business
        np.testing.assert_array_equal(results[0][0][lo : lo + valid[h]], results[1][0][lo : lo + valid[h]])
        for ours, theirs in zip(results[0][1:4], results[1][1:4]):
            np.testing.assert_array_equal(ours[lo : lo + found[h]], theirs[lo : lo + found[h]])


@given(
    seed=st.integers(0, 2**32), shards=st.integers(0, 4), most=st.sampled_from([0, 1, 5, 300]),
    height=st.sampled_from([1, 2, 3, 2048, 2049, 10**6, 2**31 + 5, 2**40 + 1]), pruned=st.booleans(),
)  # fmt: skip
def test_sort_lookups(seed, shards, most, height, pruned):
    rng = np.random.default_rng(seed)
    cuts = np.concatenate([[0], np.cumsum(rng.integers(0, most + 1, shards))]).astype(np.int64)
    heights = np.full(shards, height)
    rows = rng.integers(0, height, cuts[-1])
    rows = np.where(rng.random(rows.size) < 0.5, rows, rng.choice(np.append(rows[:4], height - 1), rows.size))
    sort_both(np.where(rng.random(rows.size) < 0.2, -1, rows) if pruned else rows, cuts, heights)


@pytest.mark.parametrize("rows", [[5] * 100, [-1] * 100, list(range(100)), list(range(99, -1, -1)), [99, -1] * 50])
def test_sort_extremes(rows):
    sort_both(np.array(rows), np.array([0, 0, 60, 100, 100]), np.array([1, 100, 100, 7]))


def test_many_lookups_of_many_rows():
    rng = np.random.default_rng(1)
    sort_both(rng.integers(0, 10**6, 50_000), np.array([0, 20_000, 50_000]), np.array([10**6, 10**7]))


@given(seed=st.integers(0, 2**32), entries=st.integers(0, 4), samples=st.integers(0, 5))
def test_places_and_gather(seed, entries, samples):
    rng = np.random.default_rng(seed)
    offsets = bag_offsets(rng, entries * samples, 4)
    n = int(offsets[-1])
    column = np.sort(rng.integers(0, 50, entries))
    places = [np.full(n, -7, np.int64) for _ in "ab"]
    for module, place in zip((segments, twin), places):
        module.gradient_places(offsets, column, 60, place)
    np.testing.assert_array_equal(*places)
    order, cuts, valid = rng.permutation(n), np.array([0, n // 2, n]), np.array([n // 2, (n - n // 2) // 2])
    for weights in (rng.standard_normal(n, dtype=np.float32), np.empty(0, np.float32)):
        found = [(np.full(n, -7, np.int64), np.full(weights.size, -7, np.float32)) for _ in "ab"]
        for module, (place_out, weights_out) in zip((segments, twin), found):
            module.gather_sorted(order, cuts, valid, places[0], weights, place_out, weights_out)
        np.testing.assert_array_equal(found[0][0], found[1][0])
        np.testing.assert_array_equal(found[0][1], found[1][1])
