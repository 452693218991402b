"""Do the fused kernels merge exactly and update each touched row once, by its rule, to the bit?"""

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.core.rules import RULES
from neocpu.kernels.records import Segments, ShardPlaces
from neocpu.kernels.rows import update
from neocpu.kernels.twins.numbers.exact import whole
from neocpu.kernels.twins.rows import update as twin
from neocpu.tables.specs.optimizers import SparseOptimizer
from tests.cases import FILLS, assert_same, floats
from tests.workers import covered

WIDTHS = (1, 3, 4, 15, 16, 17, 33, 64, 65, 128, 150, 200)
NONE = np.empty(0, np.float32)
COUNTER = "exact_rowwise_adagrad_with_counter"


def segments_of(rng, heights, width, most, weighted, fill):
    """Unique rows of some shards with up to `most` lookups each, and the flat gradient."""
    unique = [np.sort(rng.permutation(height)[: rng.integers(0, height + 1)]) for height in heights]
    first = np.append(0, np.cumsum([rows.size for rows in unique])).astype(np.int64)
    counts = rng.integers(1, most + 1, int(first[-1]))
    starts = np.append(0, np.cumsum(counts)).astype(np.int64)
    sizes = np.repeat(np.repeat(width, np.diff(first)), counts)
    blocks = np.append(0, np.cumsum(sizes)).astype(np.int64)
    gradient = floats(rng, int(blocks[-1]) + 64, fill)
    segments = Segments(
        shards=np.arange(len(heights)),
        first=first,
        unique=np.concatenate(unique),
        starts=starts,
        place=rng.permutation(blocks[:-1]) if len(set(width)) == 1 else blocks[:-1],
        weights=floats(rng, int(counts.sum()), "normal") if weighted else NONE,
    )
    return segments, gradient


class StoredRows(NamedTuple):
    """Numbers f32[:] of some shards, and their element states."""

    table: Any
    states: Any


def tables_of(rng, rule, heights, width, fill):
    """A store of shards with the states of a rule, the row states, and where the shards are."""
    sizes = heights * width
    table = floats(rng, int(sizes.sum()) + 16, fill)
    states = [np.abs(floats(rng, table.size, "normal")) for _ in rule.element_state]
    rows = int(heights.sum())
    row_state = np.abs(floats(rng, rows * len(rule.row_state), "normal"))
    row_state.reshape(rows, -1)[:, 1:] = rng.integers(0, 3, (rows, 1))  # counters
    zero = np.zeros(heights.size, np.int64)
    places = ShardPlaces(
        base=np.cumsum(sizes) - sizes + 16,
        width=width,
        full_width=width * 2,
        row_base=np.cumsum(heights) - heights,
        row0=zero,
        column0=zero,
        key=zero.astype(np.uint64),
    )
    return StoredRows(table, rule.element_record(*states)), row_state, places


def copy_of(store):
    """The store with arrays of its own."""
    states = type(store.states)(*(state.copy() for state in store.states))
    return StoredRows(store.table.copy(), states)


def assert_same_rows(answer, expected):
    """Equal numbers and states of two stores."""
    for a, b in zip((answer.table, *answer.states), (expected.table, *expected.states)):
        assert_same(a, b)


def hyper_of(name, mode, limited=False):
    """Numbers of step 3 that let every part of a rule have an effect."""
    return SparseOptimizer(
        name,
        0.1,
        weight_decay=0.01,
        weight_decay_mode=mode,
        max_norm=0.5 * limited,
        ar_alpha=0.5,
        counter_halflife=3,
        weight_norm_coefficient=0.1,
        lower_bound=0.01,
        learning_rate_mode="tail_id_lr_increase",
        max_counter=9.0,
    ).hyper(3)


# Every way of composing phases; each kernel takes seconds to compile. The phases of the other rules
# are compiled below.
FUSED = (
    "exact_sgd",
    "exact_adagrad",
    "exact_rowwise_adagrad",
    COUNTER,
    "adam_with_cowclip",
    "lamb",
    "partial_rowwise_lamb",
)


# compiled in every run; of the others a day draws some
CORE_RULES = ("exact_sgd", "exact_adagrad", "exact_rowwise_adagrad", "adam")
PHASES = [
    *(name for name, rule in RULES.items() if rule.updates and name not in FUSED),
    *FUSED[:1],
    *FUSED[-1:],
]


@pytest.mark.parametrize("name", covered(FUSED, CORE_RULES))
@given(
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    most=st.sampled_from([1, 2, 40]),
    mode=st.sampled_from(["none", "l2", "decoupled"]),
    weighted=st.booleans(),
)
def test_fused_update(name, seed, fill, most, mode, weighted):
    rng = np.random.default_rng(seed)
    rule = RULES[name]
    limited = name == "partial_rowwise_lamb"
    with np.errstate(all="ignore"):
        heights = rng.integers(1, 6, 2)
        width = rng.choice(WIDTHS, 2).astype(np.int64)
        store, row_state, places = tables_of(
            rng, rule, heights, width, "normal" if fill == "special" else fill
        )
        segments, gradient = segments_of(rng, heights, width, most, weighted, fill)
        hyper = hyper_of(name, mode, limited)
        results = []
        for module in (update, twin):
            rows = copy_of(store)
            row_states = row_state.copy()
            kernel = module.fused(rule, limited)
            kernel(rows.table, rows.states, row_states, places, segments, gradient, hyper)
            results.append((rows, row_states))
    (answer, answer_row_states), (expected, expected_row_states) = results
    assert_same_rows(answer, expected)
    assert_same(answer_row_states, expected_row_states)


@pytest.mark.parametrize("name", covered(PHASES, CORE_RULES))
@given(
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    mode=st.sampled_from(["none", "l2", "decoupled"]),
)
@settings(max_examples=12)
def test_phases(name, seed, fill, mode):
    rng = np.random.default_rng(seed)
    optimizer = SparseOptimizer(name, max_norm=0.5 * (name == "exact_sgd"))
    rule = optimizer.rule
    with np.errstate(all="ignore"):
        heights = rng.integers(1, 90, 2)
        width = rng.choice(WIDTHS, 2).astype(np.int64)
        store, row_state, places = tables_of(
            rng, rule, heights, width, "normal" if fill == "special" else fill
        )
        segments, _ = segments_of(rng, heights, width, 1, False, fill)
        count = segments.unique.size
        offsets = np.arange(count) * width.max()
        hyper = hyper_of(name, mode, limited=True)
        gradient = floats(rng, count * int(width.max()), fill)
        squares = [
            np.abs(floats(rng, count * (len(of) + counts), fill))
            for _, of, counts in optimizer.rounds
        ]
        results = []
        for module in (update, twin):
            rows = copy_of(store)
            row_states = row_state.copy()
            g = gradient.copy()
            for (phase, *_), sums in zip(optimizer.rounds, squares):
                step = module.stepped(rule, phase)
                step(rows.table, rows.states, row_states, places, segments, offsets, g, sums, hyper)
            results.append((rows, row_states, g))
    (answer, *answer_arrays), (expected, *expected_arrays) = results
    assert_same_rows(answer, expected)
    for a, b in zip(answer_arrays, expected_arrays):
        assert_same(a, b)


@pytest.mark.parametrize("name", ["exact_sgd", "momentum_sgd", "exact_adagrad", "adam"])
@pytest.mark.parametrize("mode", ["none", "l2", "decoupled"])
@pytest.mark.parametrize("size", [0, 1, 17, 4096, 9001])
def test_elementwise_update(name, mode, size):
    rng = np.random.default_rng(size)
    rule = RULES[name]
    parameters = floats(rng, size, "normal")
    states = [np.abs(floats(rng, size, "normal")) for _ in rule.element_state]
    answer = StoredRows(parameters, rule.element_record(*states))
    expected = copy_of(answer)
    for step in (1, 2):
        hyper = SparseOptimizer(name, 0.1, weight_decay=0.01, weight_decay_mode=mode).hyper(step)
        g = floats(rng, size, "normal")
        update.elementwise(rule)(answer.table, answer.states, g.copy(), hyper)
        twin.elementwise(rule)(expected.table, expected.states, g.copy(), hyper)
    assert_same_rows(answer, expected)


@pytest.mark.parametrize("name", covered(("exact_sgd", "lars_sgd", "lamb"), CORE_RULES))
@given(
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    mode=st.sampled_from(["none", "l2", "decoupled"]),
    weighted=st.booleans(),
)
def test_merged(name, seed, fill, mode, weighted):
    rng = np.random.default_rng(seed)
    rule = RULES[name]
    with np.errstate(all="ignore"):
        heights = rng.integers(1, 6, 2)
        width = rng.choice(WIDTHS, 2).astype(np.int64)
        store, _, places = tables_of(rng, rule, heights, width, "normal")
        segments, gradient = segments_of(rng, heights, width, 6, weighted, fill)
        sizes = np.repeat(width, np.diff(segments.first))
        offsets = np.cumsum(sizes) - sizes
        hyper = hyper_of(name, mode)
        results = []
        for module in (update, twin):
            rows = copy_of(store)
            out = np.full(int(sizes.sum()), 7, np.float32)
            module.merged(rule)(
                rows.table, rows.states, places, segments, gradient, hyper, offsets, out
            )
            results.append((rows, out))
    (answer, answer_gradient), (expected, expected_gradient) = results
    assert_same_rows(answer, expected)
    assert_same(answer_gradient, expected_gradient)


@given(
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    limit=st.sampled_from([0.5, 1e-40, 3e38]),
)
@settings(max_examples=10)
def test_clip(seed, fill, limit):
    g = floats(np.random.default_rng(seed), 5000, fill)
    answer = np.empty_like(g)
    expected = np.empty_like(g)
    update.clip(g, np.float32(limit), answer)
    twin.clip(g, np.float32(limit), expected)
    assert_same(answer, expected)


def test_pack():
    rng = np.random.default_rng(0)
    width = np.array([3, 16, 1, 40])
    gradient = floats(rng, 7 * 70, "normal").reshape(7, 70)
    column = np.array([60, 0, 50, 20])
    start = 7 * (np.cumsum(width) - width)
    answer = np.zeros(7 * 60, np.float32)
    expected = np.zeros(7 * 60, np.float32)
    update.pack(gradient, column, width, start, answer)
    twin.pack(gradient, column, width, start, expected)
    assert_same(answer, expected)
    assert_same(answer[start[2] : start[2] + 7], gradient[:, 50])


@given(
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    width=st.sampled_from(WIDTHS),
    weighted=st.booleans(),
)
def test_merge_words(seed, fill, width, weighted):
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        segments, gradient = segments_of(rng, np.array([5]), np.array([width]), 6, weighted, fill)
        count = segments.unique.size
        results = []
        for module in (update, twin):
            out = np.full((count, width), 7.0)
            used = np.zeros(count, np.int64)
            module.merge_words(segments, gradient, out, used)
            results.append((out, used))
        (answer, used), (expected, enough) = results
        assert (used >= enough).all()
        assert_same(answer[used == 1], expected[used == 1] + 0.0)


@pytest.mark.parametrize(
    ("width", "first", "size"),
    [(1, 0, 1), (5, 0, 8), (5, 4, 4), (12, 4, 2), (100, 0, 128), (130, 128, 64)],
)
def test_square_nodes(width, first, size):
    rng = np.random.default_rng(width)
    g = floats(rng, 7 * width, "normal")
    answer = np.empty(7, np.float32)
    expected = np.empty(7, np.float32)
    update.square_nodes(g, width, first, size, answer)
    twin.square_nodes(g, width, first, size, expected)
    assert_same(answer, expected)


def test_the_twin_of_the_column_tree_is_the_definition():
    assert twin.square_tree(np.float32([1, 2, 3]), 4) == 14
    big = np.float32([2.0**12, 1, -(2.0**12), 1])  # (2^24 + 1) rounds to 2^24, twice
    assert twin.square_tree(big, 4) == 2.0**25
    assert whole(2.0**-149) == 1
