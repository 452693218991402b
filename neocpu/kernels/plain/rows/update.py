"""How does a textbook update the rows of a step? Row by row: add up its gradients, take the row
scalars, apply the optimizer's rule.

The rules are those of the tuned kernel (`kernels/rows/rules.py`): they are plain already.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from neocpu.kernels.compile.jit import inlined, parallel_kernel
from neocpu.kernels.plain.rows.lookup import pool_bag
from neocpu.kernels.rows import rules
from neocpu.kernels.rows.update import FP32
from neocpu.kernels.scratch import task_body
from neocpu.kernels.simd.record_views import view_fields, view_record

Floats = NDArray[np.float32]


class RowScratch(NamedTuple):
    """One row's merged gradient and numbers f32[D], row scalars f32[3], random words f32[D+64]."""

    gradient: Floats
    line: Floats
    squares: Floats
    drawn: Floats


@inlined
def square_sum(x):
    """Sum of squares over the column tree: adjacent pairs first (docs/arithmetic.md §4)."""
    size = 1
    while size < x.size:
        size *= 2
    level = np.zeros(size, np.float32)
    for c in range(x.size):
        level[c] = x[c] * x[c]
    while size > 1:
        size //= 2
        for c in range(size):
            level[c] = level[2 * c] + level[2 * c + 1]
    return level[0]


def _fuse(prepare, direct, step, finish, rule, rows):
    """Kernel that merges and updates unique rows: `rule` through these phases."""
    share, _, opens, _, close, _ = rows
    has_direct = rule.direct
    row_record = rule.row_record
    row_states = len(rule.row_state)

    @task_body
    def update_row(u, scratch, table, states, row_state, places, segments, gradient, hyper):
        i = np.searchsorted(segments.first, u, side="right") - 1
        h = segments.shards[i]
        d = places.width[h]
        at = places.base[h] + segments.unique[u] * d
        columns = np.float32(places.full_width[h])
        g = scratch.gradient[:d]
        lo = segments.starts[u]
        hi = segments.starts[u + 1]
        pool_bag(gradient, 0, 1, segments.place, segments.weights, lo, hi, g)
        memory = share(table, places)
        w = opens(memory, at, scratch.line[:d])
        state = view_record(states, at, d)
        row = view_fields(
            row_record, row_state, (places.row_base[h] + segments.unique[u]) * row_states
        )
        squares = scratch.squares
        prepare(w, g, state, hyper)
        if has_direct:
            squares[0] = square_sum(g)
            direct(w, g, state, row, squares, columns, hyper)
        # all three, whether the rule reads them or not
        squares[0] = square_sum(g)
        squares[1] = square_sum(w)
        squares[2] = np.float32(hi - lo)
        step(w, g, state, row, squares, columns, hyper)
        squares[0] = square_sum(w)
        finish(w, g, state, row, squares, columns, hyper)
        close(memory, at, h, u, w, scratch.drawn)

    @parallel_kernel
    def fused_update(table, states, row_state, places, segments, gradient, hyper):
        width = places.width.max()
        for u in prange(segments.unique.size):
            scratch = RowScratch(
                np.empty(width, np.float32),
                np.empty(width, np.float32),
                np.empty(3, np.float32),
                np.empty(width + 64, np.float32),
            )
            update_row(u, scratch, table, states, row_state, places, segments, gradient, hyper)

    return fused_update


@cache
def fused(rule, limited, rows=FP32):
    """The kernel that merges and updates unique rows.

    Arguments as of `kernels.rows.update.fused`.
    """
    prepare = getattr(rules, f"{rule.name}_prepare", rules.regularise)
    direct = getattr(rules, f"{rule.name}_direct", rules.nothing)
    finish = rules.limit_norm if limited else rules.nothing
    return _fuse(prepare, direct, getattr(rules, rule.name), finish, rule, rows)
