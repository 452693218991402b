"""Do the fused kernels merge exactly and update each touched row once, by its rule, to the bit?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocpu.embedding.optimizers import SparseOptimizer
from neocpu.kernels import update
from neocpu.reference import update as twin
from neocpu.reference.exact import whole
from neocpu.reference.rules import RULES
from tests.cases import FILLS, assert_same, floats

WIDTHS = (1, 3, 4, 15, 16, 17, 33, 64, 65, 128, 150, 200)
NONE = np.empty(0, np.float32)


def segments_of(rng, heights, width, most, weighted, fill):
    """Unique rows of some shards with runs of lookups, and their gradients: (shards, first), unique, starts, …"""
    unique = [np.sort(rng.permutation(height)[: rng.integers(0, height + 1)]) for height in heights]
    first = np.append(0, np.cumsum([rows.size for rows in unique])).astype(np.int64)
    counts = rng.integers(1, most + 1, int(first[-1]))
    starts = np.append(0, np.cumsum(counts)).astype(np.int64)
    sizes = np.repeat(np.repeat(width, np.diff(first)), counts)
    blocks = np.append(0, np.cumsum(sizes)).astype(np.int64)
    gradient = floats(rng, int(blocks[-1]) + 64, fill)
    weights = floats(rng, int(counts.sum()), "normal") if weighted else NONE
    place = rng.permutation(blocks[:-1]) if len(set(width)) == 1 else blocks[:-1]
    return np.arange(len(heights)), first, np.concatenate(unique), starts, place, weights, gradient


def tables_of(rng, rule, heights, width, fill):
    """Flat table, its states and where its shards begin."""
    sizes = heights * width
    base, row_base = np.cumsum(sizes) - sizes + 16, np.cumsum(heights) - heights
    table = floats(rng, int(sizes.sum()) + 16, fill)
    states = [np.abs(floats(rng, table.size, "normal")) if i < len(rule.element_state) else NONE for i in range(2)]
    row_state = np.abs(floats(rng, int(heights.sum()), "normal")) if rule.row_state else NONE
    return [table, *states, row_state], base, row_base


@pytest.mark.parametrize("name", RULES)
@given(
    seed=st.integers(0, 2**32), fill=st.sampled_from(FILLS), most=st.sampled_from([1, 2, 40]),
    mode=st.sampled_from(["none", "l2", "decoupled"]), weighted=st.booleans(), with_scalars=st.booleans(),
)  # fmt: skip
def test_fused_update(name, seed, fill, most, mode, weighted, with_scalars):
    rng, rule = np.random.default_rng(seed), RULES[name]
    with np.errstate(all="ignore"):
        heights, width = rng.integers(1, 6, 2), rng.choice(WIDTHS, 2).astype(np.int64)
        arrays, base, row_base = tables_of(rng, rule, heights, width, "normal" if fill == "special" else fill)
        shards, first, unique, *rest = segments_of(rng, heights, width, most, weighted, fill)
        scalars = floats(rng, unique.size * rule.row_scalars, "normal") if with_scalars else NONE
        hyper = SparseOptimizer(name, 0.1, weight_decay=0.01, weight_decay_mode=mode).hyper(3)
        theirs = [a.copy() for a in arrays]
        places = (base, width, width * 2, row_base)
        update.fused(name, rule.row_scalars)(*arrays, *places, shards, first, unique, *rest, scalars, hyper)
        twin.fused(name, rule.row_scalars)(*theirs, *places, shards, first, unique, *rest, scalars, hyper)
        for a, b in zip(arrays, theirs):
            assert_same(a, b)


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if not rule.row_scalars])
@pytest.mark.parametrize("mode", ["none", "l2", "decoupled"])
@pytest.mark.parametrize("size", [0, 1, 17, 4096, 9001])
def test_elementwise_update(name, mode, size):
    rng, rule = np.random.default_rng(size), RULES[name]
    ours = [
        floats(rng, size, "normal"),
        *(np.abs(floats(rng, size, "normal")) for _ in rule.element_state),
        NONE,
        NONE,
    ][:3]
    theirs = [a.copy() for a in ours]
    for step in (1, 2):
        hyper = SparseOptimizer(name, 0.1, weight_decay=0.01, weight_decay_mode=mode).hyper(step)
        g = floats(rng, size, "normal")
        update.elementwise(name)(*ours, g.copy(), hyper)
        twin.elementwise(name)(*theirs, g.copy(), hyper)
    for a, b in zip(ours, theirs):
        assert_same(a, b)


@given(
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    mode=st.sampled_from(["none", "l2"]),
    weighted=st.booleans(),
)
def test_merged(seed, fill, mode, weighted):
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        heights, width = rng.integers(1, 6, 2), rng.choice(WIDTHS, 2).astype(np.int64)
        arrays, base, row_base = tables_of(rng, RULES["exact_sgd"], heights, width, "normal")
        shards, first, unique, *rest = segments_of(rng, heights, width, 6, weighted, fill)
        sizes = np.repeat(width, np.diff(first))
        to = np.cumsum(sizes) - sizes
        hyper = SparseOptimizer("exact_sgd", 0.1, weight_decay=0.01, weight_decay_mode=mode).hyper(1)
        ours, theirs = (np.full(int(sizes.sum()), 7, np.float32) for _ in "ab")
        for module, out in ((update, ours), (twin, theirs)):
            module.merged("exact_sgd")(*arrays, base, width, row_base, shards, first, unique, *rest, hyper, to, out)
        assert_same(ours, theirs)


@given(seed=st.integers(0, 2**32), fill=st.sampled_from(FILLS), width=st.sampled_from(WIDTHS), weighted=st.booleans())
def test_merge_words(seed, fill, width, weighted):
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        _, _, unique, starts, place, weights, gradient = segments_of(
            rng, np.array([5]), np.array([width]), 6, weighted, fill
        )
        results = []
        for module in (update, twin):
            out, used = np.full((unique.size, width), 7.0), np.zeros(unique.size, np.int64)
            module.merge_words(gradient, place, weights, starts, out, used)
            results.append((out, used))
        (ours, used), (theirs, enough) = results
        assert (used >= enough).all()
        assert_same(ours[used == 1], theirs[used == 1] + 0.0)


@pytest.mark.parametrize(
    "width, first, size", [(1, 0, 1), (5, 0, 8), (5, 4, 4), (12, 4, 2), (100, 0, 128), (130, 128, 64)]
)
def test_square_nodes(width, first, size):
    rng = np.random.default_rng(width)
    g, ours, theirs = floats(rng, 7 * width, "normal"), np.empty(7, np.float32), np.empty(7, np.float32)
    update.square_nodes(g, width, first, size, ours)
    twin.square_nodes(g, width, first, size, theirs)
    assert_same(ours, theirs)


def test_the_twin_of_the_column_tree_is_the_definition():
    assert twin.square_tree(np.float32([1, 2, 3]), 4) == 14
    big = np.float32([2.0**12, 1, -(2.0**12), 1])  # (2^24 + 1) rounds to 2^24, twice
    assert twin.square_tree(big, 4) == 2.0**25
    assert whole(2.0**-149) == 1
