"""How is a touched row updated? Its gradients are merged exactly, then its rule runs, once, while the row is in the cache.

    for each unique row of each shard:      g = exact sum of its gradients, rounded once         (pooling.round_bag)
                                            regularise, row scalars, update in place             (rules.py)

`fuse(rule)` composes a rule into one kernel; a task is a run of unique rows. The two halves exist apart too, for rows whose
scalars or gradients must first meet those of other ranks: `merge_rows`, and `fuse(rule)` with the gradients given.
"""

from functools import cache

import numpy as np
from numba import prange

from neocpu.kernels import rules
from neocpu.kernels._jit import inlined, parallel_kernel
from neocpu.kernels.pooling import TASK, round_bag, words_of_bag
from neocpu.kernels.simd import prefetch, prefetch_far
from neocpu.kernels.simd_rows import FAR, NEAR, bare, square_tree_16, square_tree_64, view

RUN = 4096  # elements


@inlined
def square_sum(g, width, parts):
    """Sum of squares over the column tree; g is zero from `width` to the next multiple of 64.

    `parts` f32[p], p a power of two with 64*p >= width: scratch."""
    if width <= 16:
        return square_tree_16(g, 0)
    blocks = 1
    while 64 * blocks < width:
        blocks *= 2
    if blocks == 1:
        return square_tree_64(g, 0)
    for i in range(blocks):
        parts[i] = square_tree_64(g, 64 * i) if 64 * i < width else np.float32(0.0)
    while blocks > 1:
        blocks //= 2
        for i in range(blocks):
            parts[i] = parts[2 * i] + parts[2 * i + 1]
    return parts[0]


@inlined
def step_row(rule, row_scalars, table, state0, state1, row_state, first, row, g, d, scalars, parts, hyper, given):
    """Update row `first` : `first + d` of the flat table; `given`: its scalars and regularised gradient came with it."""
    w, mine = view(table, first, d), view(g, 0, d)
    e0 = view(state0, first if state0.size else 0, d)
    e1 = view(state1, first if state1.size else 0, d)
    r = view(row_state, row if row_state.size else 0, 1)
    if not given:
        rules.regularise(w, mine, hyper)
        if row_scalars:
            scalars[0] = square_sum(g, d, parts)
    rule(w, mine, e0, e1, r, scalars, hyper)


@inlined
def ask_row(table, row_state, first, first_row, width, row, far):
    """Prefetch a row of the table and its row state, into the second-level cache if `far`, else into the first."""
    at = first + row * width
    for c in range(0, width, 16):
        if far:
            prefetch_far(table, at + c)
        else:
            prefetch(table, at + c)
    if row_state.size:
        prefetch(row_state, first_row + row)


def _fuse(rule, row_scalars):
    """Kernel that merges and updates the unique rows of some tasks with `rule`; `row_scalars`: does the rule read any?"""

    @parallel_kernel
    def fused_update(
        table,
        state0,
        state1,
        row_state,
        base,
        width,
        full_width,
        row_base,
        task_shard,
        task_lo,
        task_hi,
        unique,
        starts,
        stops,
        place,
        weights,
        gradient,
        given,
        hyper,
    ):
        for task in prange(task_shard.size):
            h = task_shard[task]
            d = width[h]
            row, sums = np.zeros((d + 63) // 64 * 64, np.float32), np.empty(128)
            blocks, numbers = np.empty(2 * ((d + 63) // 64), np.float32), np.zeros(2, np.float32)
            g, acc, parts, scalars = bare(row), bare(sums), bare(blocks), bare(numbers)
            weight, e0, e1, r = bare(table), bare(state0), bare(state1), bare(row_state)
            grads, index, scale = bare(gradient), bare(place), bare(weights)
            scalars[1] = np.float32(full_width[h])
            for u in range(task_lo[task], task_hi[task]):
                ask_row(weight, r, base[h], row_base[h], d, unique[min(u + FAR, unique.size - 1)], True)
                ask_row(weight, r, base[h], row_base[h], d, unique[min(u + NEAR, unique.size - 1)], False)
                round_bag(grads, index, scale, starts[u], stops[u], 0, 1, d, g, acc)
                if given.size:
                    scalars[0] = given[u]
                at, number = base[h] + unique[u] * d, row_base[h] + unique[u]
                step_row(rule, row_scalars, weight, e0, e1, r, at, number, g, d, scalars, parts, hyper, given.size > 0)
            row[0], sums[0], blocks[0], numbers[0] = 0.0, 0.0, 0.0, 0.0  # what is bare is alive until here

    return fused_update


def _fuse_elementwise(rule):
    """Kernel that updates a flat array with an elementwise rule, in runs of `RUN` elements."""

    @parallel_kernel
    def elementwise_update(parameters, state0, state1, gradient, hyper):
        n = parameters.size
        for run in prange((n + RUN - 1) // RUN):
            lo, hi = run * RUN, min(n, (run + 1) * RUN)
            w, g = view(parameters, lo, hi - lo), view(gradient, lo, hi - lo)
            e0 = view(state0, lo if state0.size else 0, hi - lo)
            e1 = view(state1, lo if state1.size else 0, hi - lo)
            rules.regularise(w, g, hyper)
            rule(w, g, e0, e1, e0, hyper, hyper)

    return elementwise_update


@cache
def fused(name, row_scalars):
    """The fused kernel of a rule that reads `row_scalars` numbers per row (its record in `reference.rules`).

    `fused(name, row_scalars)(table, state0, state1, row_state, base, width, full_width, row_base,
    task_shard, task_lo, task_hi, unique,
    starts, stops, place, weights, gradient, given, hyper)`: for each task, unique rows u in [task_lo, task_hi) of its shard
    are merged and updated in place.

    Shapes: table, state0, state1 f32[:] (states [0] if the rule has none); row_state f32[:] or [0]; base, row_base, width,
    full_width i64[H]: first element, first row, columns of the shard and of its table; unique, starts, stops i64[:]; the
    lookups of u have their gradients at gradient[place[j] : + width], j in [starts[u], stops[u]), times weights[j] if any;
    given f32[0], or f32[:] row scalars by u, and then gradients are already regularised; hyper f32[10].
    Source: Neo's exact backward; docs/arithmetic.md §3 to §5. Order: none in the merge; columns in a tree for row scalars.
    """
    return _fuse(getattr(rules, name), row_scalars > 0)


@cache
def elementwise(name):
    """The kernel of an elementwise rule over a flat array: (parameters, state0, state1, gradient, hyper), all f32 1-D;
    the gradient is used as scratch."""
    return _fuse_elementwise(getattr(rules, name))


@parallel_kernel
def merge_rows(
    table, base, width, task_shard, task_lo, task_hi, unique, starts, stops, place, weights, gradient, hyper, to, out
):
    """Merged and regularised gradients of unique rows, without an update: out[to[u] : + width] for every u of the tasks.

    Shapes: as in `fused`; to i64[:] by u; out f32[:]. Source: docs/arithmetic.md §3, §5. Order: none.
    """
    for task in prange(task_shard.size):
        h = task_shard[task]
        d = width[h]
        sums = np.empty(128)
        acc, grads, index, scale = bare(sums), bare(gradient), bare(place), bare(weights)
        for u in range(task_lo[task], task_hi[task]):
            g = view(out, to[u], d)
            round_bag(grads, index, scale, starts[u], stops[u], 0, 1, d, g, acc)
            rules.regularise(view(table, base[h] + unique[u] * d, d), g, hyper)
        sums[0] = 0.0  # what `acc` looks at is alive until here


@parallel_kernel
def merge_words(gradient, place, weights, starts, stops, out, used):
    """Exact words of merged gradients: out[u] is the sum where one word is enough; used[u] tells how many it takes.

    Shapes: gradient f32[:]; place i64[n]; weights f32[n] or f32[0]; starts, stops i64[U]; out f64[U, D]; used u8[U].
    Source: docs/arithmetic.md §3. Order: none.
    """
    width, flat = out.shape[1], out.reshape(-1)
    for task in prange((starts.size + TASK - 1) // TASK):
        sums = np.empty(128)
        acc, grads, index, scale = bare(sums), bare(gradient), bare(place), bare(weights)
        for u in range(task * TASK, min((task + 1) * TASK, starts.size)):
            line = view(flat, u * width, width)
            used[u] = words_of_bag(grads, index, scale, starts[u], stops[u], 0, 1, width, line, acc)
        sums[0] = 0.0  # what `acc` looks at is alive until here


@parallel_kernel
def square_nodes(gradient, width, first, size, out):
    """out[u] = sum of squares of columns [first, first + size) of row u, as the column tree adds them; absent ones are +0.

    Shapes: gradient f32[U*width]; size a power of two; out f32[U]. Source: docs/arithmetic.md §4. Order: adjacent pairs first.
    """
    for u in prange(out.size):
        level = np.zeros(size, np.float32)
        for c in range(min(size, width - first)):
            x = gradient[u * width + first + c]
            level[c] = x * x
        n = size
        while n > 1:
            n //= 2
            for c in range(n):
                level[c] = level[2 * c] + level[2 * c + 1]
        out[u] = level[0]
