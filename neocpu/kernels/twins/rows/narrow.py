"""How are rows of 8- or 16-bit floats updated? The plain twin of `kernels/rows/narrow.py`: decoded,
updated as fp32, encoded.
"""

from itertools import pairwise

import numpy as np

from neocpu.kernels.twins.codecs.small_floats import (
    decode_rows,
    encode_rows,
    encode_rows_randomly,
    join_rows,
    split_rows,
)
from neocpu.kernels.twins.rows import update


def _elements(places, segments):
    """(shard, its slice of the unique rows, their elements [rows, D]) of each shard."""
    for h, (lo, hi) in zip(segments.shards, pairwise(segments.first)):
        rows = slice(lo, hi)
        first = places.base[h] + segments.unique[rows, None] * places.width[h]
        yield h, rows, first + np.arange(places.width[h])


def _read(table, elements):
    """The numbers of some elements."""
    numbers = np.empty(elements.shape, np.float32)
    if table.low.size:
        join_rows(table.codes[elements], table.low[elements], numbers)
    else:
        decode_rows(table.codes[elements], table.layout, numbers)
    return numbers


def _write(table, places, h, rows, elements, numbers):
    """Elements [rows, D] of a shard = numbers, rounded."""
    codes = np.empty(elements.shape, table.codes.dtype)
    if table.low.size:
        halves = np.empty(elements.shape, np.uint16)
        split_rows(numbers, codes, halves)
        table.low[elements] = halves
    elif table.rounding:
        encode_rows_randomly(
            numbers,
            table.layout,
            table.rounding,
            places.key[h],
            places.row0[h] + table.rows[rows],
            places.column0[h],
            table.step,
            codes,
        )
    else:
        encode_rows(numbers, table.layout, table.rounding, codes)
    table.codes[elements] = codes


def fused(rule, limited):
    """Merge and update unique rows with a rule; see `kernels.rows.narrow.fused`."""
    update_numbers = update.fused(rule, limited)

    def fused_update(table, states, row_state, places, segments, gradient, hyper):
        # a whole fp32 table, so that the twin of fp32 rows updates this one too
        numbers = np.zeros(table.codes.size, np.float32)
        for _, _, elements in _elements(places, segments):
            numbers[elements] = _read(table, elements)
        update_numbers(numbers, states, row_state, places, segments, gradient, hyper)
        for h, rows, elements in _elements(places, segments):
            _write(table, places, h, rows, elements, numbers[elements])

    return fused_update


def open_rows(table, places, segments, offsets, out):
    """The numbers of unique rows; see `kernels.rows.narrow.open_rows`."""
    for h, rows, elements in _elements(places, segments):
        lines = offsets[rows, None] + np.arange(places.width[h])
        out[lines] = _read(table, elements)


def close_rows(table, places, segments, offsets, numbers):
    """Unique rows encoded; see `kernels.rows.narrow.close_rows`."""
    for h, rows, elements in _elements(places, segments):
        lines = offsets[rows, None] + np.arange(places.width[h])
        _write(table, places, h, rows, elements, numbers[lines])
