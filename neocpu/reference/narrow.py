"""How are rows of 8- or 16-bit floats updated? The plain twin of `kernels/narrow.py`: decoded, updated as fp32, encoded."""

from itertools import pairwise

import numpy as np

from neocpu.reference import update
from neocpu.reference.codecs import decode_rows, encode_rows, encode_rows_randomly, join_rows, split_rows


def fused(name, row_scalars, row_states, limited):
    """Merge and update unique rows with a rule; see `kernels.narrow.fused`."""
    wide = update.fused(name, row_scalars, row_states, limited)

    def fused_update(
        codes, low, state0, state1, row_state, base, width, full_width, row_base, shards, first, unique, starts, place, weights,
        gradient, hyper, layout, rounding, key, row0, column0, step,
    ):  # fmt: skip
        table = np.zeros(codes.size, np.float32)
        rows = [unique[lo:hi] for lo, hi in pairwise(first)]
        places = [base[h] + mine[:, None] * width[h] + np.arange(width[h]) for h, mine in zip(shards, rows)]
        for at in places:
            numbers = np.empty(at.shape, np.float32)
            if low.size:
                join_rows(codes[at], low[at], numbers)
            else:
                decode_rows(codes[at], layout, numbers)
            table[at] = numbers
        wide(
            table, state0, state1, row_state, base, width, full_width, row_base, shards, first, unique, starts, place, weights,
            gradient, hyper,
        )  # fmt: skip
        for h, mine, at in zip(shards, rows, places):
            new, half = np.empty(at.shape, codes.dtype), np.empty(at.shape, np.uint16)
            if low.size:
                split_rows(table[at], new, half)
                low[at] = half
            elif rounding:
                encode_rows_randomly(table[at], layout, rounding, key[h], row0[h] + mine, column0[h], step, new)
            else:
                encode_rows(table[at], layout, rounding, new)
            codes[at] = new

    return fused_update
