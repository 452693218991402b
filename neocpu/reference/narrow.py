"""How are rows of 8- or 16-bit floats updated? The plain twin of `kernels/narrow.py`: decoded,
updated as fp32, encoded.
"""

from itertools import pairwise

import numpy as np

from neocpu.reference import update
from neocpu.reference.codecs import (
    decode_rows,
    encode_rows,
    encode_rows_randomly,
    join_rows,
    split_rows,
)


def _places(base, width, shards, first, unique):
    """(shard, its rows, element numbers [rows, D] of them) for each run of unique rows."""
    for h, (lo, hi) in zip(shards, pairwise(first)):
        rows = unique[lo:hi]
        yield h, rows, base[h] + rows[:, None] * width[h] + np.arange(width[h])


def _numbers(codes, low, at, layout):
    """The numbers of the codes `at`."""
    numbers = np.empty(at.shape, np.float32)
    if low.size:
        join_rows(codes[at], low[at], numbers)
    else:
        decode_rows(codes[at], layout, numbers)
    return numbers


def _write(codes, low, at, numbers, layout, rounding, key, rows, column0, step):
    """Codes `at` = numbers, rounded."""
    new = np.empty(at.shape, codes.dtype)
    half = np.empty(at.shape, np.uint16)
    if low.size:
        split_rows(numbers, new, half)
        low[at] = half
    elif rounding:
        encode_rows_randomly(numbers, layout, rounding, key, rows, column0, step, new)
    else:
        encode_rows(numbers, layout, rounding, new)
    codes[at] = new


def fused(name, row_scalars, row_states, limited):
    """Merge and update unique rows with a rule; see `kernels.narrow.fused`."""
    wide = update.fused(name, row_scalars, row_states, limited)

    def fused_update(
        codes,
        low,
        state0,
        state1,
        row_state,
        base,
        width,
        full_width,
        row_base,
        shards,
        first,
        unique,
        starts,
        place,
        weights,
        gradient,
        hyper,
        layout,
        rounding,
        key,
        row0,
        column0,
        step,
        rows,
    ):
        table = np.zeros(codes.size, np.float32)
        places = list(_places(base, width, shards, first, unique))
        for _, _, at in places:
            table[at] = _numbers(codes, low, at, layout)
        wide(
            table,
            state0,
            state1,
            row_state,
            base,
            width,
            full_width,
            row_base,
            shards,
            first,
            unique,
            starts,
            place,
            weights,
            gradient,
            hyper,
        )
        for i, (h, _, at) in enumerate(places):
            number = row0[h] + rows[first[i] : first[i + 1]]
            _write(codes, low, at, table[at], layout, rounding, key[h], number, column0[h], step)

    return fused_update


def open_rows(codes, low, base, width, shards, first, unique, layout, to, out):
    """The numbers of unique rows; see `kernels.narrow.open_rows`."""
    for i, (h, _, at) in enumerate(_places(base, width, shards, first, unique)):
        out[to[first[i] : first[i + 1], None] + np.arange(width[h])] = _numbers(
            codes, low, at, layout
        )


def close_rows(
    codes,
    low,
    base,
    width,
    shards,
    first,
    unique,
    layout,
    rounding,
    key,
    row0,
    column0,
    step,
    rows,
    to,
    numbers,
):
    """Unique rows encoded; see `kernels.narrow.close_rows`."""
    for i, (h, _, at) in enumerate(_places(base, width, shards, first, unique)):
        mine = slice(first[i], first[i + 1])
        values = numbers[to[mine, None] + np.arange(width[h])]
        _write(
            codes, low, at, values, layout, rounding, key[h], row0[h] + rows[mine], column0[h], step
        )
