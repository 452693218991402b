"""Is every lookup dealt to the shard that holds its row, once, in order, as the twin says?"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.kernels import jagged as kernels
from neocpu.reference import jagged as twins

PROFILE = settings(deadline=None, derandomize=True, max_examples=30)


@PROFILE
@given(st.integers(0, 2**32), st.integers(0, 4), st.integers(0, 5), st.integers(0, 7), st.booleans())
def test_bucketize_matches_its_twin(seed: int, keys: int, samples: int, entries: int, weighted: bool) -> None:
    rng = np.random.default_rng(seed)
    high = int(rng.choice([1, 10, 2**40]))
    lengths = rng.integers(0, 4, keys * samples)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    values = rng.integers(-1, high, int(offsets[-1]))
    weights = rng.standard_normal(values.size).astype(np.float32) if weighted else np.empty(0, np.float32)
    entries = entries if keys else 0
    key = rng.integers(0, max(keys, 1), entries)
    lo, hi = np.sort(rng.integers(0, high + 1, (2, entries)), axis=0)
    found = []
    for module in (kernels, twins):
        counts = np.full(entries * samples, -7, np.int32)
        module.bucketize_lengths(offsets, values, key, lo, hi, samples, counts)
        rows = np.full(int(counts.sum()) + 1, -7, np.int64)
        row_weights = np.zeros(rows.size if weights.size else 0, np.float32)
        module.bucketize(offsets, values, weights, key, lo, hi, samples, rows, row_weights)
        found.append((counts.tobytes(), rows[:-1].tobytes(), row_weights[:-1].tobytes()))
    assert found[0] == found[1]


def test_pruned_lookups_go_nowhere() -> None:
    offsets, values = np.array([0, 3, 5]), np.array([-1, 4, 1, 2, -1])
    counts = np.empty(4, np.int32)
    asked = np.array([0, 0]), np.array([0, 2]), np.array([2, 5])
    kernels.bucketize_lengths(offsets, values, *asked, 2, counts)
    assert counts.tolist() == [1, 0, 1, 1]
    rows, none = np.empty(4, np.int64), np.empty(0, np.float32)
    kernels.bucketize(offsets, values, none, *asked, 2, rows, none)
    assert rows[:3].tolist() == [1, 2, 0]


@PROFILE
@given(st.integers(0, 2**32), st.integers(0, 4), st.integers(0, 5), st.integers(0, 2))
def test_first_outside_matches_its_twin(seed: int, keys: int, samples: int, broken: int) -> None:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(rng.integers(0, 4, keys * samples))])
    limit = rng.integers(1, 9, keys)
    per_key = np.diff(offsets[np.arange(keys + 1) * samples])
    values = rng.integers(-1, np.repeat(limit, per_key))
    if values.size:
        values[rng.integers(0, values.size, broken)] = rng.choice([-2, 9, -(2**63), 2**63 - 1])
    found = kernels.first_outside(offsets, values, limit, samples)
    assert found == twins.first_outside(offsets, values, limit, samples)
    assert (found >= 0) == bool(values.size and broken)


@PROFILE
@given(st.lists(st.integers(0, 2**31 - 1), max_size=20))
def test_lengths_to_offsets_matches_its_twin(lengths: list[int]) -> None:
    offsets, twin = np.empty((2, len(lengths) + 1), np.int64)
    kernels.lengths_to_offsets(np.array(lengths, np.int32), offsets)
    twins.lengths_to_offsets(np.array(lengths, np.int32), twin)
    assert offsets.tolist() == twin.tolist()
