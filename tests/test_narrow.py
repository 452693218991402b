"""Are rows of small floats updated as fp32 rows are, rounded once afterwards, and nothing else
written?
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_update import NONE, WIDTHS, copy_of, hyper_of, segments_of, tables_of

from neocpu.core.codecs import LAYOUTS, ROUNDINGS
from neocpu.core.rules import RULES
from neocpu.kernels.records import CodedTable, one_by_one, whole_table
from neocpu.kernels.rows import narrow
from neocpu.kernels.twins.codecs.small_floats import decode_rows, encode_rows, split_rows
from neocpu.kernels.twins.rows import narrow as twin
from neocpu.kernels.twins.rows import update
from neocpu.tables.specs.optimizers import SparseOptimizer
from tests.cases import FILLS, assert_same, floats
from tests.workers import covered

HALVES = np.empty(0, np.uint16)
ROWWISE = "exact_rowwise_adagrad"
LAMB = "partial_rowwise_lamb"


def coded(table, name):
    """Codes of an fp32 array."""
    layout = LAYOUTS[name]
    out = np.empty(table.size, np.uint16 if layout[0] == 16 else np.uint8)
    encode_rows(table.reshape(1, -1), layout, 0, out.reshape(1, -1))
    return out


def case(rng, name, fill, weighted):
    """A store of ordinary numbers, its row states, where its shards are, lookups and gradient."""
    heights = rng.integers(1, 6, 2)
    width = rng.choice(WIDTHS, 2).astype(np.int64)
    store, row_state, places = tables_of(rng, RULES[name], heights, width, "normal")
    segments, gradient = segments_of(rng, heights, width, 6, weighted, fill)
    return store, row_state, places, segments, gradient


def anywhere(rng, places):
    """The places, as those of shards somewhere in large tables."""
    return places._replace(
        key=rng.integers(0, 2**63, 2).astype(np.uint64),
        row0=rng.integers(0, 2**40, 2),
        column0=np.array([0, 5]),
    )


def assert_same_arrays(answers, expected):
    """Equal bits of arrays of numbers or codes."""
    for a, b in zip(answers, expected):
        assert_same(a, b) if a.dtype == np.float32 else np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("name", "form"),  # each rule compiles for seconds for each width of codes
    [
        *((ROWWISE, form) for form in ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2")),
        *(pytest.param(LAMB, form, marks=pytest.mark.long(LAMB)) for form in ("fp16", "bf16")),
    ],
)
@given(
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    mode=st.sampled_from(["none", "l2", "decoupled"]),
    rounding=st.sampled_from(["nearest", "stochastic", "fbgemm"]),
    weighted=st.booleans(),
)
@settings(max_examples=20)
def test_fused_update_of_codes(name, form, seed, fill, mode, rounding, weighted):
    rng = np.random.default_rng(seed)
    rule = RULES[name]
    limited = name == LAMB
    rounding = "stochastic" if rounding == "fbgemm" and form != "fp16" else rounding
    with np.errstate(all="ignore"):
        store, row_state, places, segments, gradient = case(rng, name, fill, weighted)
        places = anywhere(rng, places)
        rows = rng.permutation(segments.unique.size) + 10
        hyper = hyper_of(name, mode, limited)
        results = []
        for module in (narrow, twin):
            codes = coded(store.table, form)
            table = CodedTable(codes, HALVES, LAYOUTS[form], ROUNDINGS[rounding], 7, rows)
            states = copy_of(store).states
            row_states = row_state.copy()
            fused = module.fused(rule, limited)
            fused(table, states, row_states, places, segments, gradient, hyper)
            results.append((codes, *states, row_states))
    assert_same_arrays(*results)


@pytest.mark.parametrize("form", ["bf16", "fp8_e4m3", "split"])
@given(
    seed=st.integers(0, 2**32),
    fill=st.sampled_from(FILLS),
    rounding=st.sampled_from(["nearest", "stochastic"]),
)
@settings(max_examples=20)
def test_rows_opened_and_closed_in_one_go(form, seed, fill, rounding):
    rng = np.random.default_rng(seed)
    layout = LAYOUTS[form.replace("split", "bf16")]
    heights = rng.integers(1, 6, 2)
    width = rng.choice(WIDTHS, 2).astype(np.int64)
    store, _, places = tables_of(rng, RULES["exact_sgd"], heights, width, fill)
    places = anywhere(rng, places)
    segments, _ = segments_of(rng, heights, width, 1, False, fill)
    rows = rng.permutation(segments.unique.size)
    offsets = rows * int(width.max())
    with np.errstate(all="ignore"):
        codes = coded(store.table, form.replace("split", "bf16"))
        low = HALVES
        if form == "split":
            low = rng.integers(0, 2**16, codes.size).astype(np.uint16)
        new = floats(rng, int(rows.size * width.max()), fill)
        results = []
        for module in (narrow, twin):
            table = CodedTable(codes.copy(), low.copy(), layout, ROUNDINGS[rounding], 7, rows)
            numbers = np.zeros(new.size, np.float32)
            module.open_rows(table, places, segments, offsets, numbers)
            module.close_rows(table, places, segments, offsets, new)
            results.append((numbers, table.codes, table.low))
    assert_same_arrays(*results)


@pytest.mark.parametrize("name", covered((ROWWISE, LAMB), always=(ROWWISE,)))
@given(seed=st.integers(0, 2**32), fill=st.sampled_from(FILLS))
@settings(max_examples=20)
def test_split_weights_train_as_fp32(name, seed, fill):
    rng = np.random.default_rng(seed)
    rule = RULES[name]
    limited = name == LAMB
    hyper = hyper_of(name, "decoupled", limited)
    with np.errstate(all="ignore"):
        store, row_state, places, segments, gradient = case(rng, name, fill, False)
        high, low = np.empty((2, store.table.size), np.uint16)
        split_rows(store.table, high, low)
        table = CodedTable(high, low, LAYOUTS["bf16"], 0, 3, segments.unique)
        states = copy_of(store).states
        row_states = row_state.copy()
        narrow.fused(rule, limited)(table, states, row_states, places, segments, gradient, hyper)
        update.fused(rule, limited)(
            store.table, store.states, row_state, places, segments, gradient, hyper
        )
    assert_same((high.astype(np.uint32) << 16 | low).view(np.float32), store.table)
    assert_same_arrays((*states, row_states), (*store.states, row_state))


def test_small_steps_are_lost_by_nearest_and_kept_on_average_by_stochastic_rounding():
    rule = RULES["exact_sgd"]
    form = "bf16"
    width = 4096
    none = np.array([0])
    places = whole_table(width)._replace(key=np.array([9], np.uint64))
    segments = one_by_one(0, none, none)
    gradient = np.full(width, -(2.0**-10), np.float32)
    hyper = SparseOptimizer("exact_sgd", 1.0).hyper(1)
    results = {}
    for rounding in ("nearest", "stochastic"):
        codes = coded(np.ones(width, np.float32), form)
        for step in range(1, 9):
            table = CodedTable(codes, HALVES, LAYOUTS[form], ROUNDINGS[rounding], step, none)
            states = rule.element_record()
            twin.fused(rule, False)(table, states, NONE, places, segments, gradient, hyper)
        numbers = np.empty((1, width), np.float32)
        decode_rows(codes.reshape(1, -1), LAYOUTS[form], numbers)
        results[rounding] = numbers
    assert (results["nearest"] == 1).all()
    # 8 steps, each up with probability 1/8
    mean = 8 * 2.0**-10
    spread = 2.0**-7 * np.sqrt(8 / 8) / np.sqrt(width)
    assert abs(results["stochastic"].mean() - 1 - mean) < 4 * spread
