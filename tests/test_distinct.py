"""Do repeated lookups travel once, and arrive as if each had travelled?"""

from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.kernels.exchange import distinct as kernels
from neocpu.kernels.operands import Bags
from neocpu.kernels.twins.exchange import distinct as twins
from neocpu.parallel.exchange.wire_formats import message_words

PROFILE = settings(deadline=None, derandomize=True, max_examples=30)
MODULES = (kernels, twins)


def packed(module: ModuleType, rows: np.ndarray, starts: np.ndarray, always: bool) -> tuple:
    message = np.full(rows.size + rows.size // 2 + starts.size, -7, np.int64)
    distinct = np.full(starts.size - 1, -7, np.int32)
    size = int(np.diff(starts).max(initial=0))
    slots = np.empty(1 << max(2 * size - 1, 1).bit_length(), np.int32)
    scratch = kernels.UniqueScratch(slots, np.empty(size, np.int32))
    words = module.pack_unique_rows(rows, starts, always, scratch, message, distinct)
    return message[:words], distinct


@PROFILE
@given(st.integers(0, 2**32), st.integers(0, 6), st.booleans())
def test_unique_rows_travel_and_come_out_again(seed: int, segments: int, always: bool) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, rng.choice([2, 9, 400]), segments)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    rows = rng.integers(0, rng.choice([1, 2, 5, 300, 2**40]), int(starts[-1]))
    results = [packed(module, rows, starts, always) for module in MODULES]
    for left, right in zip(*results):
        assert np.array_equal(left, right)
    message, distinct = results[0]
    words = message_words(np.diff(starts), distinct.astype(np.int64))
    assert words.sum() == message.size
    if always:
        unique = [np.unique(rows[lo:hi]).size for lo, hi in pairwise(starts)]
        assert distinct.tolist() == unique
    else:
        assert (words <= np.diff(starts)).all()
    # one rank that has each segment as one entry
    entries = np.arange(segments + 1)
    for module in MODULES:
        out = np.full(rows.size, -7, np.int64)
        spans = np.stack([starts[:-1], starts[1:]], axis=1)
        module.unpack_unique_rows(message, distinct[None, :], entries, spans, out)
        assert np.array_equal(out, rows)


@pytest.mark.parametrize("module", MODULES)
def test_a_segment_with_one_position_in_its_last_word_ends_behind_it(module: ModuleType) -> None:
    """One bit each: 64 positions fill a word."""
    sizes = (1, 65, 0, 129, 64, 1)
    starts = np.cumsum([0, *sizes])
    rows = np.arange(starts[-1]) % 2 + 5
    message, distinct = packed(module, rows, starts, always=True)
    out = np.full(rows.size, -7, np.int64)
    spans = np.stack([starts[:-1], starts[1:]], axis=1)
    module.unpack_unique_rows(message, distinct[None, :], np.arange(len(sizes) + 1), spans, out)
    assert np.array_equal(out, rows)


@PROFILE
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 40), st.booleans())
def test_distinct_bags_are_numbered_and_taken(
    seed: int, keys: int, samples: int, weighted: bool
) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 3, keys * samples)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    rows = rng.integers(-1, 2, int(offsets[-1]))
    weights = rng.integers(0, 2, rows.size if weighted else 0).astype(np.float32)
    bags = Bags(offsets, rows, weights)
    chosen = np.sort(rng.choice(keys, rng.integers(1, keys + 1), replace=False))
    results = []
    for module in MODULES:
        slots = np.empty(1 << max(2 * samples - 1, 1).bit_length(), np.int32)
        inverse = np.empty(samples, np.int32)
        first = np.empty(samples, np.int32)
        count = module.distinct_bags(bags, chosen, samples, slots, inverse, first)
        results.append((count, inverse.tolist(), first[:count].tolist()))
    assert results[0] == results[1]
    count, inverse, first = results[0]

    def contents(key: int, sample: int) -> tuple:
        span = slice(offsets[key * samples + sample], offsets[key * samples + sample + 1])
        return rows[span].tobytes(), weights[span].tobytes() if weighted else b""

    bags_of = [tuple(contents(key, s) for key in chosen) for s in range(samples)]
    assert len(set(bags_of)) == count
    assert [bags_of[first[u]] for u in inverse] == bags_of
    taken = (chosen[:, None] * samples + np.array(first, np.int64)).reshape(-1)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[taken])])
    outs = []
    for module in MODULES:
        out = np.empty(int(ends[-1]), np.int64)
        out_weights = np.empty(out.size if weighted else 0, np.float32)
        module.take_bags(bags, taken, ends[:-1], out, out_weights)
        outs.append((out.tolist(), out_weights.tolist()))
    assert outs[0] == outs[1]


def test_distinct_columns_are_expanded() -> None:
    rng = np.random.default_rng(1)
    source = rng.standard_normal((3, 9)).astype(np.float32)
    inverse = np.array([0, 1, 0, 2, 2], np.int32)
    columns = np.array([[1, 3], [6, 2]])
    outs = []
    for module in MODULES:
        out = np.zeros((5, 9), np.float32)
        module.expand_columns(source, inverse, columns, out)
        outs.append(out)
    assert np.array_equal(*outs)
    assert np.array_equal(outs[0][:, 1:4], source[inverse, 1:4])
    assert not outs[0][:, [0, 4, 5, 8]].any()
