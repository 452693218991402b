"""Does a code get the same row, count and vocabulary entry from the kernel and its twin?"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.kernels.logs import hashing
from neocpu.kernels.twins.logs import hashing as twin
from neocpu.kernels.twins.numbers.philox import feature_key

SETTINGS = settings(deadline=None, derandomize=True, max_examples=20)
SEEDS = st.integers(0, 2**32 - 1)
DTYPES = st.sampled_from([np.uint32, np.uint64])


def codes_of(seed, dtype, n=300, distinct=50):
    rng = np.random.default_rng(seed)
    ends = np.array([0, np.iinfo(dtype).max], dtype)
    pool = np.concatenate([ends, rng.integers(0, np.iinfo(dtype).max, distinct, dtype)])
    return rng.choice(pool, n)


@SETTINGS
@given(SEEDS, DTYPES, st.sampled_from([1, 2, 3, 1000, 2**31 + 11, 2**62 + 1]))
def test_rows_equal_twin(seed, dtype, rows):
    codes = codes_of(seed, dtype)
    key = feature_key(seed, "C1")
    answer = np.empty(codes.size, np.int64)
    expected = np.empty(codes.size, np.int64)
    hashing.hash_rows(codes, key, rows, answer)
    twin.hash_rows(codes, key, rows, expected)
    assert np.array_equal(answer, expected) and answer.min() >= 0 and answer.max() < rows


@pytest.mark.parametrize("seed", [0, -1, 2**70])
def test_any_integer_is_a_seed(seed):
    assert feature_key(seed, "C1") != feature_key(seed, "C2")


@SETTINGS
@given(SEEDS, DTYPES, st.sampled_from([16, 64, 256]), st.integers(0, 5))
def test_counts_equal_twin_and_stop_at_half_full(seed, dtype, slots, first):
    codes = codes_of(seed, dtype)
    calls = []
    for module in (hashing, twin):
        keys = np.zeros(slots, np.uint64)
        counts = np.zeros(slots + 1, np.int64)
        calls.append((module.count_codes(codes, keys, counts, first), keys, counts))
    assert calls[0][0] == calls[1][0]
    assert np.array_equal(calls[0][1], calls[1][1]) and np.array_equal(calls[0][2], calls[1][2])
    stop, keys, counts = calls[0]
    values, expected = np.unique(codes[first:stop], return_counts=True)
    used = counts[:-1] > 0
    assert dict(zip(keys[used].tolist(), counts[:-1][used].tolist())) == dict(
        zip(values.tolist(), expected.tolist())
    )
    assert counts[-1] == values.size and 2 * counts[-1] <= slots + 1


@SETTINGS
@given(SEEDS, DTYPES)
def test_maps_equal_twin(seed, dtype):
    codes = codes_of(seed, dtype)
    known = np.unique(codes_of(seed, dtype))[::2].astype(np.uint64)
    maps = []
    row_numbers = []
    for module in (hashing, twin):
        keys = np.zeros(128, np.uint64)
        slots = np.zeros(128, np.int64)
        out = np.empty(codes.size, np.int64)
        module.fill_map(known, np.arange(1, known.size + 1), keys, slots)
        module.look_up(codes, keys, slots, out)
        maps.append((keys, slots))
        row_numbers.append(out)
    assert np.array_equal(maps[0], maps[1]) and np.array_equal(row_numbers[0], row_numbers[1])
    at = {code: row + 1 for row, code in enumerate(known.tolist())}
    assert row_numbers[0].tolist() == [at.get(code, 0) for code in codes.tolist()]
