"""Does a row come into being at its first lookup, with its own values, and never again?"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neocpu.core.rules import state_record
from neocpu.kernels.records import InitialValues, ShardPlaces
from neocpu.kernels.rows import touch
from neocpu.kernels.twins.rows import touch as twin


@given(
    seed=st.integers(0, 2**32),
    shards=st.integers(1, 4),
    n=st.integers(0, 60),
    element_states=st.integers(0, 2),
    per_row=st.integers(0, 3),
)
def test_rows_are_found_claimed_and_made(seed, shards, n, element_states, per_row):
    rng = np.random.default_rng(seed)
    width = rng.integers(1, 12, shards)
    heights = rng.integers(1, 20, shards)
    row_base = np.cumsum(heights) - heights
    places = ShardPlaces(
        base=np.cumsum(heights * width) - heights * width,
        width=width,
        full_width=width,
        row_base=row_base,
        row0=rng.integers(0, 2**40, shards),
        column0=4 * rng.integers(0, 5, shards) + (seed % 3),
        key=np.zeros(shards, np.uint64),
    )
    names = ("exp_avg", "exp_avg_sq")[:element_states]
    initial = InitialValues(
        key=rng.integers(0, 2**64, shards, dtype=np.uint64),
        scale=rng.random(shards, dtype=np.float32),
        mean=np.float32(rng.integers(0, 2, shards)),
        states=np.float32([0.5, 0.25][:element_states]),
        row_states=np.float32([2, 0, 3][:per_row]),
    )
    owner = np.sort(rng.integers(0, shards, rng.integers(1, 6)))
    chunk = np.concatenate([[0], np.sort(rng.integers(0, n + 1, owner.size - 1)), [n]]).astype(
        np.int64
    )
    elements = int((heights * width).sum())
    rows_there = int(heights.sum())
    results = []
    for module in (touch, twin):
        again = np.random.default_rng(seed)
        bits = np.zeros(-(-rows_there // 64), np.uint64)
        fresh = np.full(n, -7)
        count = np.zeros(owner.size, np.int64)
        table = np.full(elements, 7, np.float32)
        states = [np.full(elements, 7, np.float32) for _ in names]
        row_state = np.full(rows_there * per_row, 7, np.float32)
        fresh_rows = []
        for _ in range(2):
            rows = again.integers(-1, np.repeat(heights[owner], np.diff(chunk)), n)
            # -1: not looked at
            origin = np.where(again.random(owner.size) < 0.2, -1, row_base[owner])
            module.find_untouched(rows, chunk, origin, bits, fresh, count)
            fresh_rows += [count.copy(), *(fresh[a : a + m].copy() for a, m in zip(chunk, count))]
            new = module.claim_rows(chunk, count, bits, fresh)
            fresh_rows.append(fresh[:new].copy())
            module.make_rows(
                fresh[:new],
                places,
                initial,
                table,
                state_record(names)(*states),
                row_state,
            )
            table[:3] += 1  # a trained row must not be made again
        results.append([bits, row_state, table, *states, *fresh_rows])
    for answer, expected in zip(*results):
        np.testing.assert_array_equal(answer, expected)
