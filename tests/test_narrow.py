"""Are rows of small floats updated as fp32 rows are, rounded once afterwards, and nothing else
written?
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_update import NONE, WIDTHS, hyper_of, segments_of, tables_of

from neocpu.kernels import narrow
from neocpu.reference import narrow as twin
from neocpu.reference import update
from neocpu.reference.codecs import LAYOUTS, ROUNDINGS, decode_rows, encode_rows, split_rows
from neocpu.reference.rules import RULES
from tests.cases import FILLS, assert_same, floats

HALVES = np.empty(0, np.uint16)
LAMB = "partial_rowwise_lamb"


def coded(table, name):
    """Codes of an fp32 array."""
    layout = LAYOUTS[name]
    out = np.empty(table.size, np.uint16 if layout[0] == 16 else np.uint8)
    encode_rows(table.reshape(1, -1), layout, 0, out.reshape(1, -1))
    return out


def case(rng, name, fill, weighted):
    """Arguments of `fused` from the states on, up to the gradient; and the table, of ordinary
    numbers.
    """
    heights = rng.integers(1, 6, 2)
    width = rng.choice(WIDTHS, 2).astype(np.int64)
    (table, *states), base, row_base = tables_of(rng, RULES[name], heights, width, "normal")
    segments = segments_of(rng, heights, width, 6, weighted, fill)
    return table, states, (base, width, width * 2, row_base, *segments)


@pytest.mark.parametrize(
    ("name", "form"),  # one rule per width of codes: each compiles for seconds
    [
        (LAMB, "fp16"),
        (LAMB, "bf16"),
        ("exact_rowwise_adagrad", "fp8_e4m3"),
        ("exact_rowwise_adagrad", "fp8_e5m2"),
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
        table, states, rest = case(rng, name, fill, weighted)
        key = rng.integers(0, 2**63, 2).astype(np.uint64)
        row0 = rng.integers(0, 2**40, 2)
        column0 = np.array([0, 5])
        rows = rng.permutation(rest[6].size) + 10
        last = (
            hyper_of(name, mode, limited),
            LAYOUTS[form],
            ROUNDINGS[rounding],
            key,
            row0,
            column0,
            7,
            rows,
        )
        results = []
        for module in (narrow, twin):
            mine = [coded(table, form), HALVES.copy(), *(a.copy() for a in states)]
            module.fused(name, rule.row_scalars, len(rule.row_state), limited)(*mine, *rest, *last)
            results.append(mine)
        for a, b in zip(*results):
            assert_same(a, b) if a.dtype == np.float32 else np.testing.assert_array_equal(a, b)


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
    (table, *_), base, _ = tables_of(rng, RULES["exact_sgd"], heights, width, fill)
    shards, first, unique, *_ = segments_of(rng, heights, width, 1, False, fill)
    to = rng.permutation(unique.size) * int(width.max())
    key = rng.integers(0, 2**63, 2).astype(np.uint64)
    row0 = rng.integers(0, 2**40, 2)
    column0 = np.array([0, 5])
    with np.errstate(all="ignore"):
        codes = coded(table, form.replace("split", "bf16"))
        low = HALVES
        if form == "split":
            low = rng.integers(0, 2**16, codes.size).astype(np.uint16)
        new = floats(rng, int(to.size * width.max()), fill)
        results = []
        for module in (narrow, twin):
            mine = codes.copy()
            halves = low.copy()
            numbers = np.zeros(new.size, np.float32)
            module.open_rows(mine, halves, base, width, shards, first, unique, layout, to, numbers)
            last = (
                layout,
                ROUNDINGS[rounding],
                key,
                row0,
                column0,
                7,
                to // int(width.max()),
                to,
                new,
            )
            module.close_rows(mine, halves, base, width, shards, first, unique, *last)
            results.append((numbers, mine, halves))
    for a, b in zip(*results):
        assert_same(a, b) if a.dtype == np.float32 else np.testing.assert_array_equal(a, b)


@given(seed=st.integers(0, 2**32), fill=st.sampled_from(FILLS))
@settings(max_examples=20)
def test_split_weights_train_as_fp32(seed, fill):
    rng = np.random.default_rng(seed)
    hyper = hyper_of(LAMB, "decoupled", True)
    with np.errstate(all="ignore"):
        table, states, rest = case(rng, LAMB, fill, False)
        high, low = np.empty((2, table.size), np.uint16)
        split_rows(table, high, low)
        zero = np.zeros(2, np.int64)
        mine = [a.copy() for a in states]
        last = LAYOUTS["bf16"], 0, zero.astype(np.uint64), zero, zero, 3, rest[6]
        narrow.fused(LAMB, 2, 1, True)(high, low, *mine, *rest, hyper, *last)
        update.fused(LAMB, 2, 1, True)(table, *states, *rest, hyper)
    assert_same((high.astype(np.uint32) << 16 | low).view(np.float32), table)
    for a, b in zip(mine, states):
        assert_same(a, b)


def test_small_steps_are_lost_by_nearest_and_kept_on_average_by_stochastic_rounding():
    name = "exact_sgd"
    form = "bf16"
    width = 4096
    zero = np.zeros(1, np.int64)
    one = np.array([1])
    none = np.array([0])
    segments = (
        none,
        np.array([0, 1]),
        none,
        np.array([0, 1]),
        none,
        NONE,
        np.full(width, -(2.0**-10), np.float32),
    )
    found = {}
    for rounding in ("nearest", "stochastic"):
        codes = coded(np.ones(width, np.float32), form)
        for step in range(1, 9):
            hyper = np.zeros(28, np.float32)
            hyper[[0, 9]] = 1.0  # lr, keep
            last = (
                hyper,
                LAYOUTS[form],
                ROUNDINGS[rounding],
                np.array([9], np.uint64),
                zero,
                zero,
                step,
                none,
            )
            places = (none, one * width, one * width, none)
            twin.fused(name, 0, 0, False)(
                codes, HALVES, NONE, NONE, NONE, *places, *segments, *last
            )
        numbers = np.empty((1, width), np.float32)
        decode_rows(codes.reshape(1, -1), LAYOUTS[form], numbers)
        found[rounding] = numbers
    assert (found["nearest"] == 1).all()
    # 8 steps, each up with probability 1/8
    mean = 8 * 2.0**-10
    spread = 2.0**-7 * np.sqrt(8 / 8) / np.sqrt(width)
    assert abs(found["stochastic"].mean() - 1 - mean) < 4 * spread
