"""Does a row come into being at its first lookup, with its own values, and never again?"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neocpu.kernels.touch import first_touch
from neocpu.reference import touch as twin


@given(
    seed=st.integers(0, 2**32),
    shards=st.integers(1, 4),
    n=st.integers(0, 60),
    states=st.integers(0, 2),
    per_row=st.booleans(),
)
def test_first_touch(seed, shards, n, states, per_row):
    rng = np.random.default_rng(seed)
    width, heights = rng.integers(1, 12, shards), rng.integers(1, 20, shards)
    row_base, base = np.cumsum(heights) - heights, np.cumsum(heights * width) - heights * width
    row0, column0 = rng.integers(0, 2**40, shards), 4 * rng.integers(0, 5, shards) + (seed % 3)
    key, scale = rng.integers(0, 2**64, shards, dtype=np.uint64), rng.random(shards, dtype=np.float32)
    groups = rng.permutation(shards)[: rng.integers(1, shards + 1)]
    groups.sort()
    cuts = np.concatenate([[0], np.sort(rng.integers(0, n + 1, groups.size - 1)), [n]]).astype(np.int64)
    elements, rows_there = int((heights * width).sum()), int(heights.sum())
    results = []
    for make in (first_touch, twin.first_touch):
        again = np.random.default_rng(seed)
        touched, made = np.zeros(rows_there, np.uint8), np.zeros(shards, np.int64)
        arrays = [np.full(elements if i <= states else 0, 7, np.float32) for i in range(3)]
        row_state = np.full(rows_there if per_row else 0, 7, np.float32)
        for _ in range(2):
            rows = again.integers(-1, np.repeat(heights[groups], np.diff(cuts)), n)
            make(
                rows, cuts, groups, row_base, base, width, row0, column0, key, scale, np.float32(0.5), np.float32(0.25),
                np.float32(2), touched, *arrays, row_state, made,
            )  # fmt: skip
            arrays[0][:3] += 1  # a trained row must not be made again
        results.append([touched, made, row_state, *arrays])
    for ours, theirs in zip(*results):
        np.testing.assert_array_equal(ours, theirs)
