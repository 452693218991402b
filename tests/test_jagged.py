"""Is every lookup dealt to the shard that holds its row, once, in order, as the twin says?"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.kernels.exchange import bucketize as kernels
from neocpu.kernels.operands import Bags
from neocpu.kernels.twins.exchange import bucketize as twins

PROFILE = settings(deadline=None, derandomize=True, max_examples=30)


@PROFILE
@given(
    st.integers(0, 2**32), st.integers(0, 4), st.integers(0, 5), st.integers(0, 7), st.booleans()
)
def test_bucketize_matches_its_twin(
    seed: int, keys: int, samples: int, entries: int, weighted: bool
) -> None:
    rng = np.random.default_rng(seed)
    high = int(rng.choice([1, 10, 2**40]))
    lengths = rng.integers(0, 4, keys * samples)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    values = rng.integers(-1, high, int(offsets[-1]))
    weights = (
        rng.standard_normal(values.size).astype(np.float32) if weighted else np.empty(0, np.float32)
    )
    entries = entries if keys else 0
    key = rng.integers(0, max(keys, 1), entries)
    lo, hi = np.sort(rng.integers(0, high + 1, (2, entries)), axis=0)
    results = []
    for module in (kernels, twins):
        counts = np.full(entries * samples, -7, np.int32)
        ranges = kernels.RowRanges(key, lo, hi)
        module.bucketize_lengths(offsets, values, ranges, samples, counts)
        rows = np.full(int(counts.sum()) + 1, -7, np.int64)
        row_weights = np.zeros(rows.size if weights.size else 0, np.float32)
        module.bucketize(Bags(offsets, values, weights), ranges, samples, rows, row_weights)
        results.append((counts.tobytes(), rows[:-1].tobytes(), row_weights[:-1].tobytes()))
    assert results[0] == results[1]


def test_pruned_lookups_go_nowhere() -> None:
    offsets = np.array([0, 3, 5])
    values = np.array([-1, 4, 1, 2, -1])
    counts = np.empty(4, np.int32)
    ranges = kernels.RowRanges(np.array([0, 0]), np.array([0, 2]), np.array([2, 5]))
    kernels.bucketize_lengths(offsets, values, ranges, 2, counts)
    assert counts.tolist() == [1, 0, 1, 1]
    rows = np.empty(4, np.int64)
    none = np.empty(0, np.float32)
    kernels.bucketize(Bags(offsets, values, none), ranges, 2, rows, none)
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
    position = kernels.first_outside(offsets, values, limit, samples)
    assert position == twins.first_outside(offsets, values, limit, samples)
    assert (position >= 0) == bool(values.size and broken)


@PROFILE
@given(st.lists(st.integers(0, 2**31 - 1), max_size=20))
def test_lengths_to_offsets_matches_its_twin(lengths: list[int]) -> None:
    offsets, twin = np.empty((2, len(lengths) + 1), np.int64)
    kernels.lengths_to_offsets(np.array(lengths, np.int32), offsets)
    twins.lengths_to_offsets(np.array(lengths, np.int32), twin)
    assert offsets.tolist() == twin.tolist()


@PROFILE
@given(st.integers(0, 2**32), st.integers(0, 12))
def test_running_sums_match_their_twin(seed: int, count: int) -> None:
    lengths = np.random.default_rng(seed).integers(0, 2**40, count)
    for first, size in ((0, count + 1), (0, count), (1, count)):
        sums, expected = np.full((2, size), 7)
        kernels.running_sums(lengths, first, sums)
        twins.running_sums(lengths, first, expected)
        assert (
            sums.tolist()
            == expected.tolist()
            == np.append(0, np.cumsum(lengths))[first : first + size].tolist()
        )


def bucketized(module, bags, blocks, ranks, pruned, keep):
    """All results of a block bucketize, as lists."""
    lengths = np.full(ranks * (bags.offsets.size - 1), 7)
    module.block_bucketize_lengths(bags.offsets, bags.rows, blocks, ranks, pruned, lengths)
    n = bags.rows.size
    dealt = kernels.DealtLookups(
        rows=np.full(n, 7),
        weights=np.zeros_like(bags.weights),
        positions=np.full(n, 7),
        place=np.full(n, 7),
        rank=np.full(n, 7),
    )
    module.block_bucketize(bags, blocks, ranks, pruned, keep, lengths, dealt)
    return lengths.tolist(), dealt._replace(**{k: v.tolist() for k, v in dealt._asdict().items()})


@PROFILE
@given(st.integers(0, 2**32), st.integers(0, 4), st.integers(1, 5), st.booleans(), st.booleans())
def test_block_bucketize_matches_its_twin(
    seed: int, features: int, ranks: int, uneven: bool, weighted: bool
) -> None:
    rng = np.random.default_rng(seed)
    first = np.append(0, np.cumsum(rng.integers(0, 4, features))).astype(np.int64)
    lengths = rng.integers(0, 4, int(first[-1]))
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
    rows = rng.integers(-1, int(rng.choice([5, 40])), int(offsets[-1]))
    rows[rng.random(rows.size) < 0.05] = rng.choice([-(2**63), 2**63 - 1, -2])
    weights = (
        rng.standard_normal(rows.size).astype(np.float32) if weighted else np.empty(0, np.float32)
    )
    block = rng.integers(0, 9, features) * (rng.random(features) < 0.8)
    blocks = ranks * (
        rng.integers(1, 4, features) if rng.random() < 0.5 else np.ones(features, np.int64)
    )
    ends = [
        np.append(0, np.cumsum(rng.integers(0, 12, ranks)))
        for _ in range(features if uneven else 0)
    ]
    bounds = np.concatenate([*ends, np.empty(0, np.int64)]).astype(np.uint64)
    starts = np.arange(features + 1) * (ranks + 1 if uneven else 0)
    keep = rng.random(features) < 0.3
    pruned = int(rng.integers(-1, ranks))
    row_blocks = kernels.RowBlocks(
        first_bag=first, size=block, total=blocks, bounds=bounds, bound_start=starts
    )
    arguments = Bags(offsets, rows, weights), row_blocks, ranks, pruned, keep
    counts, dealt = bucketized(kernels, *arguments)
    assert (counts, dealt) == bucketized(twins, *arguments)
    assert sorted(dealt.place) == list(range(rows.size)) and sum(counts) == rows.size


def test_block_bucketize_knows_the_way_back() -> None:
    bags = Bags(np.array([0, 3, 4]), np.array([7, 1, -1, 4]), np.float32([1, 2, 3, 4]))
    blocks = kernels.RowBlocks(
        first_bag=np.array([0, 2]),
        size=np.array([4]),
        total=np.array([2]),
        bounds=np.empty(0, np.uint64),
        bound_start=np.zeros(2, np.int64),
    )
    lengths, dealt = bucketized(kernels, bags, blocks, 2, 0, np.array([False]))
    local, weights, positions, place, bucket = dealt
    assert lengths == [2, 0, 1, 1] and local == [1, -1, 3, 0] and positions == [1, 2, 0, 0]
    assert place == [2, 0, 1, 3] and bucket == [1, 0, 0, 1] and weights == [2, 3, 1, 4]
