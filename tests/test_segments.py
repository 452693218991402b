"""Are lookups sorted by row in every shard, all of them, and are the runs of each row found?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.kernels.records import LookupChunks, RowGroups, Segments
from neocpu.kernels.rows import segments
from neocpu.kernels.twins.rows import segments as twin
from neocpu.tables.embedding import sorting
from neocpu.tables.embedding.lookups import EntryLayout, Lookups
from tests.cases import bag_offsets

NONE = np.empty(0, np.float32)


@given(
    seed=st.integers(0, 2**32),
    shards=st.integers(0, 3),
    chunks=st.integers(0, 4),
    split=st.integers(0, 3),
    height=st.sampled_from([1, 2, 5, 3000, 2**40]),
    by_bag=st.booleans(),
)
def test_every_kernel_is_its_twin(seed, shards, chunks, height, split, by_bag):
    rng = np.random.default_rng(seed)
    offsets = bag_offsets(rng, 8, 30)
    n = int(offsets[-1])
    chunk = np.sort(
        np.concatenate([[0, n], rng.integers(0, n + 1, max(shards * chunks - 1, 0))])
    ).astype(np.int64)
    owner = np.repeat(np.arange(max(shards, 1)), chunks if shards and chunks else 1)[
        : chunk.size - 1
    ]
    shards = int(owner.max()) + 1
    bits = 6 if by_bag else 10
    height_bits = max(height - 1, 0).bit_length()
    split = min(split, height_bits)
    rows = rng.integers(-1, height, n)
    shift = np.full(owner.size, height_bits - split)
    groups = np.full(shards, 1 << split)
    weights = np.empty(0, np.float32) if by_bag else rng.standard_normal(n, dtype=np.float32)
    place_of = rng.integers(0, 1000, 8 if by_bag else n)
    chunks = LookupChunks(
        start=chunk, bag=np.searchsorted(offsets, chunk[:-1], "right") - 1, shift=shift
    )
    results = []
    for module in (segments, twin):
        counts = np.full((owner.size, 1 << split), -7)
        start = np.full(int(groups.sum()) + 1, -7)
        module.count_groups(rows, chunks, counts)
        kept = [counts.copy()]
        module.place_chunks(counts, np.searchsorted(owner, np.arange(shards + 1)), groups, start)
        kept.append(counts.copy())
        keys = np.full(int(start[-1]), 7, np.uint64)
        unique_counts = np.zeros(start.size, np.int64)
        module.deal_lookups(rows, offsets, by_bag, chunks, bits, counts, keys)
        kept.append(keys.copy())
        row_groups = RowGroups(
            start=start,
            row=(np.arange(start.size - 1) % (1 << split)) << (height_bits - split),
            bits=np.full(start.size - 1, height_bits - split),
        )
        module.sort_groups(keys, np.empty_like(keys), row_groups, bits, unique_counts[1:])
        first = np.cumsum(unique_counts)
        written = Segments(
            shards=np.arange(shards),
            first=first[np.append(0, np.cumsum(groups))],
            unique=np.full(first[-1], -7),
            starts=np.full(first[-1] + 1, -7),
            place=np.full(keys.size, -7),
            weights=np.zeros(keys.size if weights.size else 0, np.float32),
        )
        module.write_segments(keys, row_groups, first, bits, place_of, weights, written)
        results.append([*kept, counts, start, keys, unique_counts, *written])
    for answer, expected in zip(*results):
        np.testing.assert_array_equal(answer, expected)


def check(layout, lookups, heights, stride=1000):
    """`sorting.sort` against a dictionary of rows."""
    runs = sorting.sort(layout, lookups, heights, stride, sorting.Scratch())
    expected: dict[tuple[int, int], list] = {}
    for k, shard in enumerate(layout.shard.tolist()):
        for s in range(lookups.samples):
            for j in range(*lookups.offsets[k * lookups.samples + s :][:2].tolist()):
                if lookups.rows[j] >= 0:
                    weight = float(lookups.weights[j]) if lookups.weights.size else 1.0
                    place = (int(layout.column[k]) + s * stride, weight)
                    expected.setdefault((shard, int(lookups.rows[j])), []).append(place)
    owner = np.repeat(runs.shards, np.diff(runs.first)).tolist()
    assert list(zip(owner, runs.unique.tolist())) == sorted(expected)
    assert runs.starts[0] == 0 and runs.starts[-1] == runs.place.size
    weights = runs.weights.tolist() if runs.weights.size else [1.0] * runs.place.size
    pairs = list(zip(runs.place.tolist(), weights))
    for u, key in enumerate(sorted(expected)):
        assert sorted(pairs[runs.starts[u] : runs.starts[u + 1]]) == sorted(expected[key])


@given(
    seed=st.integers(0, 2**32),
    entries=st.integers(1, 4),
    samples=st.integers(0, 5),
    longest=st.sampled_from([0, 1, 4, 60]),
    height=st.sampled_from([1, 2, 3, 2048, 2049, 10**6, 2**31 + 5, 2**40 + 1, 2**62]),
    weighted=st.booleans(),
    pruned=st.booleans(),
)
def test_sort(seed, entries, samples, longest, height, weighted, pruned):
    rng = np.random.default_rng(seed)
    offsets = bag_offsets(rng, entries * samples, longest)
    n = int(offsets[-1])
    rows = rng.integers(0, height, n)
    rows = np.where(rng.random(n) < 0.5, rows, rng.choice(np.append(rows[:4], height - 1), n))
    rows = np.where(rng.random(n) < 0.2, -1, rows) if pruned else rows
    weights = rng.standard_normal(n, dtype=np.float32) if weighted else NONE
    layout = EntryLayout(np.sort(rng.integers(0, 3, entries)), rng.permutation(entries) * 10)
    check(layout, Lookups(offsets, rows, weights, samples), np.full(3, height))


@pytest.mark.parametrize(
    "rows", [[5] * 100, [-1] * 100, list(range(100)), list(range(99, -1, -1)), [99, -1] * 50]
)
def test_sort_extremes(rows):
    lookups = Lookups(np.array([0, 0, 60, 100, 100]), np.array(rows), NONE, 1)
    check(EntryLayout(np.array([0, 1, 2, 3]), np.arange(4)), lookups, np.array([1, 100, 100, 7]))


@pytest.mark.parametrize("weighted", [False, True])
def test_one_big_table_is_dealt_to_groups(weighted):
    rng = np.random.default_rng(1)
    n = 70_000
    rows = np.concatenate([rng.integers(0, 10**7, n // 2), rng.integers(0, 50, n // 2)])
    weights = rng.standard_normal(n, dtype=np.float32) if weighted else NONE
    lookups = Lookups(np.arange(0, n + 1, 7), rows, weights, n // 14)
    check(EntryLayout(np.array([0, 0]), np.array([0, 5])), lookups, np.array([10**7]))
