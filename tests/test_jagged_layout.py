"""Does jagged data arrive where it should? Kernels against twins, and both against words said in
plain Python.
"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.core.errors import IndexRangeError
from neocpu.kernels.exchange import jagged_layout as kernels
from neocpu.kernels.twins.exchange import jagged_layout as twins
from neocpu.tables.embedding import layouts

DTYPES = (np.int64, np.float32)


def same(name: str, *arguments, out: int, dtype=np.int64) -> np.ndarray:
    """What a kernel writes into `out` elements; its twin must write the same bytes."""
    lines = []
    for module in (kernels, twins):
        line = np.full(out, 7, dtype)
        getattr(module, name)(*arguments, line)
        lines.append(line)
    assert lines[0].tobytes() == lines[1].tobytes()
    return lines[0]


def jagged(seed: int, bags: int):
    """Random generator, and offsets of some bags."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, bags) * (rng.random(bags) < 0.8)
    return rng, np.append(0, np.cumsum(lengths)).astype(np.int64)


def some(rng: np.random.Generator, size: int, dtype) -> np.ndarray:
    """Random bytes as numbers of a dtype."""
    return rng.integers(0, 256, size * np.dtype(dtype).itemsize, dtype=np.uint8).view(dtype)


CASES = given(
    seed=st.integers(0, 2**32),
    bags=st.integers(0, 80),
    width=st.sampled_from([1, 2, 7]),
    dtype=st.sampled_from(DTYPES),
)


@CASES
def test_segments_are_copied(seed: int, bags: int, width: int, dtype) -> None:
    rng, offsets = jagged(seed, bags)
    segment = rng.integers(0, max(bags, 1), rng.integers(0, 90) if bags else 0)
    target = np.append(0, np.cumsum(np.diff(offsets)[segment])).astype(np.int64)
    values = some(rng, int(offsets[-1]) * width, dtype)
    out = same(
        "copy_segments",
        values,
        offsets[:-1],
        segment,
        target,
        width,
        out=int(target[-1]) * width,
        dtype=dtype,
    )
    bagged = [values[lo * width : hi * width] for lo, hi in pairwise(offsets)]
    assert out.tobytes() == b"".join(bagged[s].tobytes() for s in segment)
    sources = same("expand_into_jagged_permute", segment, offsets, target, out=int(target[-1]))
    assert out.tobytes() == values.reshape(-1, width)[sources].tobytes()
    chosen = same("index_select", values, sources, width, out=sources.size * width, dtype=dtype)
    assert chosen.tobytes() == out.tobytes()


@CASES
def test_padding_and_back(seed: int, bags: int, width: int, dtype) -> None:
    rng, offsets = jagged(seed, bags)
    longest = int(rng.integers(0, 6))
    values = some(rng, int(offsets[-1]) * width, dtype)
    padding = dtype(rng.choice([0, -1, 3]))
    dense = same(
        "jagged_to_padded_dense",
        values,
        offsets,
        width,
        longest,
        padding,
        out=bags * longest * width,
        dtype=dtype,
    )
    back = same(
        "padded_dense_to_jagged", dense, offsets, width, longest, out=values.size, dtype=dtype
    )
    rows, returned, table = (a.reshape(-1, width) for a in (values, back, dense))
    for b, (lo, hi) in enumerate(pairwise(offsets.tolist())):
        kept = min(hi - lo, longest)
        assert table[b * longest : b * longest + kept].tobytes() == rows[lo : lo + kept].tobytes()
        assert (table[b * longest + kept : (b + 1) * longest] == padding).all()
        assert returned[lo : lo + kept].tobytes() == rows[lo : lo + kept].tobytes()
        assert not returned[lo + kept : hi].any()


@given(seed=st.integers(0, 2**32), bags=st.integers(0, 30), width=st.sampled_from([1, 3]))
def test_several_jagged_dimensions(seed: int, bags: int, width: int) -> None:
    rng, outer = jagged(seed, bags)
    dtype = np.int32  # words: what an element means is nothing to a kernel that moves it
    _, inner = jagged(seed + 1, int(outer[-1]))
    most = rng.integers(0, 5, 2).tolist()
    place = np.arange(bags)
    for ends, longest in zip((outer, inner), most):
        place = same("jagged_places", place, ends, longest, out=place.size * longest)
    values = some(rng, int(inner[-1]) * width, dtype)
    filler = dtype(rng.choice([0, -1, 3]))
    dense = same(
        "select_or_fill", values, place, width, filler, out=place.size * width, dtype=dtype
    )
    source = same("invert_places", place, out=int(inner[-1]))
    back = same(
        "select_or_fill", dense, source, width, dtype(0), out=values.size, dtype=dtype
    ).reshape(-1, width)
    whole = dense.reshape(bags, *most, width)
    rows = values.reshape(-1, width)
    for b, i, j in np.ndindex(bags, *most):
        entry = int(outer[b]) + i if i < outer[b + 1] - outer[b] else -1
        held = entry >= 0 and j < inner[entry + 1] - inner[entry]
        row = rows[inner[entry] + j] if held else np.full(width, filler)
        assert whole[b, i, j].tobytes() == row.tobytes()
        assert not held or back[inner[entry] + j].tobytes() == row.tobytes()
    assert not back[source < 0].any() and (source >= 0).sum() == (place >= 0).sum()


def test_bags_that_do_not_exist_have_no_places() -> None:
    assert same("jagged_places", np.array([2, -1, 0]), np.array([5, 6]), 2, out=6).tolist() == [
        -1
    ] * 4 + [5, -1]
    assert same("jagged_places", np.array([0]), np.array([3]), 1, out=1).tolist() == [-1]


@given(seed=st.integers(0, 2**32), bags=st.integers(0, 30), ranks=st.integers(1, 4))
def test_lookups_find_their_places_among_the_ranks(seed: int, bags: int, ranks: int) -> None:
    rng, offsets = jagged(seed, bags)
    bucket = rng.integers(0, ranks, int(offsets[-1]))
    slot = bucket * bags + np.repeat(np.arange(bags), np.diff(offsets))
    lengths = np.bincount(slot, minlength=ranks * bags)
    starts = layouts.exclusive_cumsum(lengths)
    moved = []

    for module in (kernels, twins):
        moved.append((starts.copy(), np.empty(bucket.size, np.int64)))
        module.bucketized_permute(offsets, bucket, *moved[-1])
    assert (moved[0][0] == moved[1][0]).all() and (moved[0][0] == starts + lengths).all()
    assert (moved[0][1] == moved[1][1]).all() and slot[np.argsort(moved[0][1])].tolist() == sorted(
        slot.tolist()
    )
    assert (
        layouts.bucketized_permute(np.diff(offsets), lengths, bucket).tolist()
        == moved[0][1].tolist()
    )


@given(seed=st.integers(0, 2**32), bags=st.integers(0, 30))
def test_permutations_and_positions(seed: int, bags: int) -> None:
    rng, offsets = jagged(seed, bags)
    permute = rng.permutation(bags)
    inverse = same("invert_permute", permute, out=bags)
    assert permute[inverse].tolist() == list(range(bags))
    positions = same("offsets_range", offsets[:-1], out=int(offsets[-1]) if bags else 0)
    assert positions.tolist() == [i for n in np.diff(offsets).tolist() for i in range(n)]


@pytest.mark.parametrize(
    ("features", "ranks", "stagger", "order"),
    [
        (2, 4, 1, [0, 2, 4, 6, 1, 3, 5, 7]),
        (2, 4, 2, [0, 4, 2, 6, 1, 5, 3, 7]),  # both are the examples in TorchRec's documentation
        (0, 4, 2, []),
        (3, 1, 1, [0, 1, 2]),
    ],
)
def test_recat(features: int, ranks: int, stagger: int, order: list[int]) -> None:
    assert same("recat", features, ranks, stagger, out=features * ranks).tolist() == order


@given(
    seed=st.integers(0, 2**32),
    batches=st.integers(0, 4),
    tables=st.integers(0, 4),
    broadcast=st.booleans(),
)
def test_batches_become_one(seed: int, batches: int, tables: int, broadcast: bool) -> None:
    sizes = np.random.default_rng(seed).integers(0, 4, batches)
    ends = np.append(0, np.cumsum(sizes)).astype(np.int64)
    order = same("reordered_bags", ends, tables, broadcast, out=tables * int(ends[-1]))
    expected = [
        tables * b + t if broadcast else tables * ends[b] + t * n + i
        for t in range(tables)
        for b, n in enumerate(sizes.tolist())
        for i in range(n)
    ]
    assert order.tolist() == expected
    assert layouts.reordered_bags(ends, tables, broadcast).tolist() == expected


@given(seed=st.integers(0, 2**32), count=st.integers(0, 60))
def test_unique(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    values = (
        rng.choice([-(2**63), -1, 0, 3, 2**40, 2**63 - 1], count)
        if seed % 2
        else rng.integers(0, 50, count)
    )
    order = np.argsort(values, kind="stable")
    answers = []
    for module in (kernels, twins):
        unique, inverse, counts = np.full((3, count), 7)
        n = module.mark_unique(values, order, unique, inverse, counts)
        answers.append((n, unique[:n].tolist(), inverse.tolist(), counts[:n].tolist()))
        assert (unique[:n][inverse] == values).all() and counts[:n].sum() == count
    assert answers[0] == answers[1]


def test_rows_by_number_or_a_filler() -> None:
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    chosen = layouts.select_or_fill(values, np.array([[2, -1], [0, 1]]), 7)
    assert chosen.dtype == np.float32
    assert chosen.tolist() == [[[4, 5], [7, 7]], [[0, 1], [2, 3]]]
    with pytest.raises(IndexRangeError, match="segments 0 to 3 are asked for; there are 3"):
        layouts.select_or_fill(values, np.array([-1, 0, 3]), 7)


def test_running_sums_of_fractions_round_at_no_step():
    values = np.array([2.0**24, 1, 1, -(2.0**24)], np.float32)
    assert layouts.running_sums(values, 0, 5).tolist() == [0, 2.0**24, 2.0**24 + 1, 2.0**24 + 2, 2]
    assert layouts.running_sums(values, 1, 4).tolist() == [2.0**24, 2.0**24 + 1, 2.0**24 + 2, 2]


def test_running_sums_before_with_and_around():
    for lengths in ([], [3], [2, 0, 5, 1]):
        complete = layouts.complete_cumsum(np.array(lengths, np.int32))
        assert complete.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        assert (
            layouts.exclusive_cumsum(np.array(lengths, np.int32)).tolist() == complete[:-1].tolist()
        )
        assert (
            layouts.inclusive_cumsum(np.array(lengths, np.int32)).tolist() == complete[1:].tolist()
        )
