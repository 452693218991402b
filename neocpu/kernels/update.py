"""How is a touched row updated? Its gradients are merged exactly, then its rule runs, once, while
the row is in the cache.

    for each unique row of each shard:      g = exact sum of its gradients, rounded once         (pooling.pool_bag)
                                            a rule's phases, row scalars before each             (rules.py)

`fused(rule)` composes a rule into one kernel; tasks are runs of unique rows of equal work. The
phases exist apart too, for rows whose scalars must first meet those of other columns:
`merged(rule)`, then `stepped(phase)` with the scalars given. How a row comes out of the table and
goes back is composed into the kernel too, by five functions: fp32 rows are looked at where they are
(`FP32`, below), codes are decoded and encoded (`narrow.CODES`); the loop is one.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import prange

from neocpu.kernels import rules
from neocpu.kernels._jit import inlined, parallel_kernel
from neocpu.kernels.operands import Bag, Terms
from neocpu.kernels.pooling import TASKS, pool_bag, sum_bag, task_bags, task_count
from neocpu.kernels.simd import prefetch_far, prefetch_write
from neocpu.kernels.simd.bags import bare, square_tree_16, square_tree_64, view

# rows
FAR = 24
NEAR = 4
# rows taken through a phase together: while one waits for its sums and roots, the next ones compute
GROUP = 4
RUN = 4096  # elements


@inlined
def square_sum(x, width, line, parts):
    """Sum of squares of x[:width] over the column tree.

    `line` f32, zero from `width` to the next multiple of 64; `parts` f32[p], p a power of two with
    64*p >= width: scratch.
    """
    if width < 64:
        for c in range(width):
            line[c] = x[c]
        return square_tree_16(line, 0) if width <= 16 else square_tree_64(line, 0)
    blocks = (width + 63) // 64
    for i in range(width // 64):
        parts[i] = square_tree_64(x, 64 * i)
    if width % 64:
        tail = view(x, width // 64 * 64, width % 64)
        for c in range(tail.size):
            line[c] = tail[c]
        parts[blocks - 1] = square_tree_64(line, 0)
    while blocks > 1:
        half = (blocks + 1) // 2
        for i in range(blocks // 2):
            parts[i] = parts[2 * i] + parts[2 * i + 1]
        if blocks % 2:
            parts[half - 1] = parts[blocks - 1] + np.float32(0.0)
        blocks = half
    return parts[0]


@inlined
def fetch_states(row_state, states, row_base, unique, u, last):
    """Prefetch the row states that the next updates will read and write."""
    if row_state.size:
        prefetch_write(row_state, (row_base + unique[min(u + FAR, last)]) * states)


@inlined
def state_views(state0, state1, row_state, at, d, row, states):
    """(element states, row states) of one row; of size 0 what the rule does not keep."""
    e0 = view(state0, at if state0.size else 0, d)
    e1 = view(state1, at if state1.size else 0, d)
    return e0, e1, view(row_state, row * states if row_state.size else 0, states)


@inlined
def fetch_row(rows, far, near, d):
    """Prefetch the rows from elements `far` and `near` on, of d numbers."""
    for c in range(0, d, 16):
        prefetch_far(rows, far + c)
        prefetch_write(rows, near + c)


@inlined
def open_row(rows, at, line):
    """The row from element `at` on as fp32 numbers to be changed; `line` f32[D]: room for them, if
    they need any.
    """
    return view(rows, at, line.size)


@inlined
def close_row(rows, at, h, u, line, spare):
    """Unique row u, of shard h, has its new numbers: they are where they belong."""


class RowAccess(NamedTuple):
    """How a kernel handles rows: functions as those above of fp32 rows, `share`: the table as its
    threads take it, `opened`: a row that is open already; and for how many lines a row that is open
    takes room.
    """

    share: Any
    fetch: Any
    open: Any
    opened: Any
    close: Any
    lines: int


FP32 = RowAccess(bare, fetch_row, open_row, open_row, close_row, 0)


@inlined
def find_shard(first, i, u):
    """The shard position, i or later, whose unique rows include u."""
    while first[i + 1] <= u:
        i += 1
    return i


@inlined
def widest(width, shards):
    """Largest width of some shards."""
    d = 0
    for h in shards:
        d = max(d, width[h])
    return d


def _fuse(prepare, direct, rule, finish, squares, directs, finishes, states, rows):
    """Kernel that merges and updates unique rows; `squares`: row scalars that the rule reads;
    `directs`, `finishes`: has it these phases? `states`: numbers per row in row_state; `rows`: how
    its rows are handled, as `FP32`.
    """
    share, fetch, opens, opened, close, lines = rows

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
        shards,
        first,
        unique,
        starts,
        place,
        weights,
        gradient,
        hyper,
    ):
        # one size for all rows: arrays born again in a loop get lost
        blocks = (widest(width, shards) + 63) // 64
        room = (66 + 64 * GROUP * (1 + lines)) * blocks
        tasks = task_count(starts)
        for task in prange(tasks):
            sums = np.empty(128)
            floats = np.zeros(room + 2 * GROUP + 64 * lines * (blocks + 1), np.float32)
            acc = bare(sums)
            line = view(floats, 0, 64 * blocks)
            parts = view(floats, 64 * blocks, 2 * blocks)
            merged = view(floats, 66 * blocks, 64 * GROUP * blocks)
            decoded = view(floats, (66 + 64 * GROUP) * blocks, 64 * GROUP * blocks * lines)
            scalars = view(floats, room, 2 * GROUP)
            spare = view(floats, room + 2 * GROUP, 64 * lines * (blocks + 1))
            terms = Terms(bare(gradient), bare(place), bare(weights))
            weight = share(table)
            first_state = bare(state0)
            second_state = bare(state1)
            one_state = bare(row_state)
            u, hi = task_bags(starts, task, tasks)
            i = 0
            h = -1
            while u < hi:
                i = find_shard(first, i, u)
                if shards[i] != h:
                    h = shards[i]
                    line[:] = np.float32(0.0)
                d = width[h]
                columns = np.float32(full_width[h])
                last = first[i + 1] - 1
                n = min(GROUP, hi - u, last + 1 - u)
                for j in range(n):
                    far = unique[min(u + j + FAR, last)]
                    near = unique[min(u + j + NEAR, last)]
                    fetch(weight, base[h] + far * d, base[h] + near * d, d)
                    fetch_states(one_state, states, row_base[h], unique, u + j, last)
                    g = view(merged, j * d, d)
                    at = base[h] + unique[u + j] * d
                    row = row_base[h] + unique[u + j]
                    pool_bag(terms, Bag(starts[u + j], starts[u + j + 1], 0, 1, d), g, acc)
                    w = opens(weight, at, view(decoded, j * d, d))
                    e0, e1, r = state_views(
                        first_state, second_state, one_state, at, d, row, states
                    )
                    prepare(w, g, e0, e1, hyper)
                    if directs:
                        scalars[2 * j] = square_sum(g, d, line, parts)
                        direct(w, g, e0, e1, r, view(scalars, 2 * j, 2), columns, hyper)
                for j in range(n):
                    if squares > 0:
                        scalars[2 * j] = square_sum(view(merged, j * d, d), d, line, parts)
                    if squares > 1:
                        w = opened(weight, base[h] + unique[u + j] * d, view(decoded, j * d, d))
                        scalars[2 * j + 1] = square_sum(w, d, line, parts)
                for j in range(n):
                    g = view(merged, j * d, d)
                    at = base[h] + unique[u + j] * d
                    row = row_base[h] + unique[u + j]
                    w = opened(weight, at, view(decoded, j * d, d))
                    e0, e1, r = state_views(
                        first_state, second_state, one_state, at, d, row, states
                    )
                    rule(w, g, e0, e1, r, view(scalars, 2 * j, 2), columns, hyper)
                    if finishes:
                        scalars[2 * j] = square_sum(w, d, line, parts)
                        finish(w, g, e0, e1, r, view(scalars, 2 * j, 2), columns, hyper)
                    close(weight, at, h, u + j, w, spare)
                u += n
            sums[0], floats[0] = 0.0, np.float32(0.0)  # what the views look at lives until here

    return fused_update


@cache
def _fuse_merge(prepare, opened):
    """Kernel that merges the gradients of unique rows and prepares them, and leaves the step to
    others.
    """

    @parallel_kernel
    def merge_rows(
        table,
        state0,
        state1,
        base,
        width,
        shards,
        first,
        unique,
        starts,
        place,
        weights,
        gradient,
        hyper,
        to,
        out,
    ):
        tasks = task_count(starts)
        for task in prange(tasks):
            sums = np.empty(128)
            i = 0
            acc = bare(sums)
            terms = Terms(bare(gradient), bare(place), bare(weights))
            lo, hi = task_bags(starts, task, tasks)
            for u in range(lo, hi):
                i = find_shard(first, i, u)
                h = shards[i]
                d = width[h]
                g = view(out, to[u], width[h])
                at = base[h] + unique[u] * width[h]
                pool_bag(terms, Bag(starts[u], starts[u + 1], 0, 1, d), g, acc)
                e0 = view(state0, at if state0.size else 0, d)
                e1 = view(state1, at if state1.size else 0, d)
                prepare(view(table, to[u] if opened else at, d), g, e0, e1, hyper)
            sums[0] = 0.0

    return merge_rows


def _fuse_step(phase, states, opened):
    """Kernel that takes unique rows with merged gradients through one phase, the row scalars given."""

    @parallel_kernel
    def step_rows(
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
        to,
        gradient,
        given,
        hyper,
    ):
        rows = unique.size
        scalars = given.size // max(rows, 1)
        for task in prange(TASKS):
            i = 0
            for u in range(rows * task // TASKS, rows * (task + 1) // TASKS):
                i = find_shard(first, i, u)
                h = shards[i]
                d = width[h]
                at = base[h] + unique[u] * width[h]
                row = (row_base[h] + unique[u]) * states
                e0 = view(state0, at if state0.size else 0, d)
                e1 = view(state1, at if state1.size else 0, d)
                w = view(table, to[u] if opened else at, d)
                r = view(row_state, row if row_state.size else 0, states)
                g = view(gradient, to[u], d)
                squares = view(given, u * scalars, scalars)
                phase(w, g, e0, e1, r, squares, np.float32(full_width[h]), hyper)

    return step_rows


def _fuse_elementwise(prepare, rule):
    """Kernel that updates a flat array with an elementwise rule, in runs of `RUN` elements."""

    @parallel_kernel
    def elementwise_update(parameters, state0, state1, gradient, hyper):
        n = parameters.size
        one = np.float32(1.0)
        for run in prange((n + RUN - 1) // RUN):
            lo = run * RUN
            hi = min(n, (run + 1) * RUN)
            w = view(parameters, lo, hi - lo)
            g = view(gradient, lo, hi - lo)
            e0 = view(state0, lo if state0.size else 0, hi - lo)
            e1 = view(state1, lo if state1.size else 0, hi - lo)
            prepare(w, g, e0, e1, hyper)
            rule(w, g, e0, e1, hyper, hyper, one, hyper)

    return elementwise_update


def _prepare(name):
    """The first phase of a rule."""
    return getattr(rules, f"{name}_prepare", rules.regularise)


@cache
def fused(name, row_scalars, row_states, limited, rows=FP32):
    """The fused kernel of a rule that reads `row_scalars` sums and keeps `row_states` numbers per
    row (its record in `reference.rules`); `limited`: with the phase `limit_norm`; `rows`: how its
    rows are handled.

    `fused(…)(table, state0, state1, row_state, base, width, full_width, row_base, shards, first,
    unique, starts, place, weights, gradient, hyper)`: the unique rows u in [first[i], first[i+1])
    of shard shards[i] are merged and updated in place.

    Shapes: table, state0, state1 f32[:] (states [0] if the rule has none); row_state f32[:],
    `row_states` numbers of a row beside each other, or [0]; base, row_base, width, full_width
    i64[H]: first element, first row, columns of the shard and of its table; shards i64[N], first
    i64[N+1]; unique i64[U], starts i64[U+1]; the lookups of u have their gradients at
    gradient[place[j] : + width], j in [starts[u], starts[u+1]), times weights[j] if any; hyper
    f32[28].
    Source: Neo's exact backward; docs/arithmetic.md §3 to §5. Order: none in the merge; columns in
    a tree for row scalars.
    """
    direct = getattr(rules, f"{name}_direct", rules.nothing)
    finish = rules.limit_norm if limited else rules.nothing
    directs = direct is not rules.nothing
    return _fuse(
        _prepare(name),
        direct,
        getattr(rules, name),
        finish,
        row_scalars,
        directs,
        limited,
        row_states,
        rows,
    )


def merged(name, opened=False):
    """The kernel that merges and prepares: gradients of unique rows into out[to[u] : + width], no
    step yet.

    `merged(name)(table, state0, state1, base, width, shards, first, unique, starts, place, weights,
    gradient, hyper, to, out)`. Shapes: as in `fused`; to i64[:] by u; out f32[:]; `opened`: the
    table is one of rows that are open, row u at to[u] (`narrow.open_rows`). Source:
    docs/arithmetic.md §3, §5. Order: none.
    """
    return _fuse_merge(_prepare(name), opened)


@cache
def stepped(phase, row_states, opened=False):
    """The kernel of one phase of a rule, named as in `rules.py`, over merged gradients.

    `stepped(…)(table, state0, state1, row_state, base, width, full_width, row_base, shards, first,
    unique, to, gradient, given, hyper)`. Shapes: as in `fused`; row u has its gradient at
    gradient[to[u] : + width] (written where the phase writes g) and its scalars at given[u*n : +
    n], n those that the phase reads; `opened` as in `merged`.
    Source: docs/arithmetic.md §5. Order: none.
    """
    return _fuse_step(getattr(rules, phase), row_states, opened)


@cache
def elementwise(name):
    """The kernel of an elementwise rule over a flat array: (parameters, state0, state1, gradient,
    hyper), all f32 1-D; the gradient is used as scratch.
    """
    return _fuse_elementwise(_prepare(name), getattr(rules, name))


@parallel_kernel
def clip(gradient, limit, out):
    """out = gradient, each number moved into [-limit, limit]; a NaN stays.

    Shapes: gradient, out f32[n]; limit f32. Source: FBGEMM's gradient clipping. Order: none.
    """
    for run in prange((out.size + RUN - 1) // RUN):
        for c in range(run * RUN, min(out.size, (run + 1) * RUN)):
            x = gradient[c]
            out[c] = limit if x > limit else (-limit if x < -limit else x)


@parallel_kernel
def pack(gradient, column, width, start, out):
    """The lines of each entry side by side: out[start[k] + s*width[k] : + width[k]] = gradient[s,
    column[k] : + width[k]].

    Shapes: gradient f32[S, C]; column, width, start i64[K]; out f32[:]. Order: none.
    """
    flat = gradient.reshape(-1)
    columns = gradient.shape[1]
    for s in prange(gradient.shape[0]):
        for k in range(width.size):
            source = view(flat, s * columns + column[k], width[k])
            line = view(out, start[k] + s * width[k], width[k])
            for c in range(line.size):
                line[c] = source[c]


@parallel_kernel
def merge_words(gradient, place, weights, starts, out, used):
    """fp64 sums of merged gradients, exact where used[u] (the words that row u takes) is 1.

    Shapes: gradient f32[:]; place i64[n]; weights f32[n] or f32[0]; starts i64[U+1]; out f64[U, D];
    used i64[U].
    Source: docs/arithmetic.md §3. Order: none.
    """
    width = out.shape[1]
    flat = out.reshape(-1)
    tasks = task_count(starts)
    for task in prange(tasks):
        sums = np.empty(128)
        acc = bare(sums)
        terms = Terms(bare(gradient), bare(place), bare(weights))
        lo, hi = task_bags(starts, task, tasks)
        for u in range(lo, hi):
            line = view(flat, u * width, width)
            used[u] = sum_bag(terms, Bag(starts[u], starts[u + 1], 0, 1, width), line, acc)
        sums[0] = 0.0


@parallel_kernel
def square_nodes(gradient, width, first, size, out):
    """out[u] = sum of squares of columns [first, first + size) of row u, as the column tree adds
    them; absent ones are +0.

    Shapes: gradient f32[U*width]; size a power of two; out f32[U]. Source: docs/arithmetic.md §4.
    Order: adjacent pairs first.
    """
    for task in prange(TASKS):
        level = np.zeros(size, np.float32)
        for u in range(out.size * task // TASKS, out.size * (task + 1) // TASKS):
            level[:] = np.float32(0.0)
            for c in range(min(size, width - first)):
                x = gradient[u * width + first + c]
                level[c] = x * x
            n = size
            while n > 1:
                n //= 2
                for c in range(n):
                    level[c] = level[2 * c] + level[2 * c + 1]
            out[u] = level[0]
