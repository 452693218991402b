"""Do rows find their slots, and records their places and tags, bit for bit as their plain twins
say?
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.kernels.tiers import row_index, row_records, slots
from neocpu.kernels.twins.tiers import row_index as index_twin
from neocpu.kernels.twins.tiers import row_records as records_twin
from neocpu.kernels.twins.tiers import slots as slots_twin

BOTH_INDEXES = (row_index, index_twin)
BOTH_RECORDS = (row_records, records_twin)


@given(
    seed=st.integers(0, 2**32),
    n=st.integers(0, 40),
    height=st.sampled_from([30, 1000, 2**40]),
    k=st.integers(6, 8),
)
def test_rows_are_placed_found_moved_and_listed(seed, n, height, k):
    shift = 64 - height.bit_length()
    results = []
    for module in BOTH_INDEXES:
        rng = np.random.default_rng(seed)
        words = np.zeros(2**k, np.uint64)
        status = np.zeros(150, np.uint8)
        status[rng.random(150) < 0.2] = index_twin.HELD
        places = []
        first = int(rng.integers(150))
        for _ in range(3):
            rows = np.unique(rng.integers(0, height, min(n, 12)))
            slots, old, seen = (np.full(rows.size, -7) for _ in range(3))
            first = module.place_rows(rows, words, shift, status, first, slots, old)
            module.find_slots(rows, words, shift, seen)
            np.testing.assert_array_equal(seen, slots)
            if rng.random() < 0.5:
                status[status == index_twin.FRESH] = index_twin.LIVE  # a commit
            places += [slots, old, np.array([first])]
        asked = rng.integers(0, height, n)
        seen = np.zeros(n, np.int64)
        module.find_slots(asked, words, shift, seen)
        larger = np.zeros(2 * words.size, np.uint64)
        out = np.zeros(words.size, np.int64)
        module.rehash(words, shift, larger)
        wide = max(0, height.bit_length() - 5)
        counts = np.zeros((height >> wide) + 1, np.int64)
        module.count_ranges(words, shift, wide, counts)
        m = module.rows_between(words, shift, height // 4, height, out)
        results.append([words, status, *places, seen, np.sort(larger), counts, np.sort(out[:m])])
    for answer, expected in zip(*results):
        np.testing.assert_array_equal(answer, expected)


def test_rows_are_inserted_once():
    for module in BOTH_INDEXES:
        words = np.zeros(64, np.uint64)
        assert module.insert_rows(np.array([5, 9, 2**33]), np.array([0, 7, 3]), words, 20) == -1
        assert module.insert_rows(np.array([6, 9]), np.array([1, 2]), words, 20) == 1
        slots = np.zeros(5, np.int64)
        module.find_slots(np.array([5, 6, 9, 2**33, 8]), words, 20, slots)
        assert slots.tolist() == [0, 1, 7, 3, -1]


@given(
    seed=st.integers(0, 2**32),
    n=st.integers(1, 20),
    size=st.integers(1, 150),
    pad=st.integers(0, 9),
)
def test_records_travel_and_carry_tags(seed, n, size, pad):
    results = []
    for module in BOTH_RECORDS:
        rng = np.random.default_rng(seed)
        per = int(rng.integers(1, 9))
        stride = size + pad
        origin = rng.permutation(30 // per + 1) * (per * stride + 3)
        file = rng.integers(0, 256, int(origin.max()) + per * stride, np.uint8)
        slots = rng.permutation(30)[:n]
        records = rng.integers(0, 256, n * size, np.uint8)
        rows = rng.integers(0, 2**62, n)
        module.scatter_records(
            records, np.where(rng.random(n) < 0.2, -1, slots), origin, per, stride, size, file
        )
        asked = np.where(rng.random(n) < 0.2, -1, slots)
        out = np.full(n * size, 7, np.uint8)
        module.gather_records(file, asked, origin, per, stride, size, out)
        tags = np.zeros(n * 16, np.uint8)
        seen = np.zeros(n, np.int64)
        module.make_tags(records, size, rows, slots, 3, tags)
        assert module.rows_of_tags(tags, slots, 3, seen) == -1
        np.testing.assert_array_equal(seen, rows)
        flip = int(rng.integers(tags.size * 8))
        tags[flip // 8] ^= 1 << flip % 8
        assert module.rows_of_tags(tags, slots, 3, seen) == flip // 128
        results.append([file, out, tags])
    for answer, expected in zip(*results):
        np.testing.assert_array_equal(answer, expected)


@pytest.mark.parametrize(
    ("text", "seed", "expected"),
    [  # as the xxHash specification's own program gives them
        (b"", 0, 0xEF46DB3751D8E999),
        (b"a", 0, 0xD24EC4F1A98C6E5B),
        (b"abc", 0, 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0, 0xFBCEA83C8A378BF1),
    ],
)
def test_the_hash_is_xxh64(text, seed, expected):
    records = np.frombuffer(text, np.uint8).reshape(1, -1)
    assert int(records_twin.xxh64(records, np.array([seed], np.uint64))[0]) == expected


@given(
    seed=st.integers(0, 2**32),
    n=st.integers(0, 20),
    size=st.integers(1, 70),
    at=st.integers(0, 9),
    pad=st.integers(0, 9),
)
def test_rows_travel_between_slots_and_records(seed, n, size, at, pad):
    results = []
    record = at + size + pad
    for module in (slots, slots_twin):
        rng = np.random.default_rng(seed)
        field = rng.integers(0, 256, 50 * size).astype(np.uint8)
        order = rng.permutation(50)
        records = rng.integers(0, 256, n * record).astype(np.uint8)
        module.copy_slots(field, size, order[:n], order[25 : 25 + n])
        module.pack_slots(field, size, order[:n], records, record, at)
        module.unpack_slots(np.roll(records, 1), record, at, size, order[5 : 5 + n], field)
        results.append((field, records))
    for answer, expected in zip(*results):
        np.testing.assert_array_equal(answer, expected)
