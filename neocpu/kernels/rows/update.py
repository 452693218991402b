"""How is a touched row updated? Its gradients are merged exactly, then its rule runs, once, while
the row is in the cache.

    for each unique row of each shard:
        g = exact sum of its gradients, rounded once        few.pool_bag
        a rule's phases, row scalars before each            rules.py

`fused(rule)` composes a rule into one kernel; tasks are runs of unique rows of equal work. The
phases exist apart too, for rows whose scalars must first be added to those of other column shards:
`merged(rule)`, then `stepped(rule, phase)` with the scalars given. How a row comes out of the table
and goes back is composed into the kernel by five functions, `RowAccess`: fp32 rows are changed in
place (`FP32`), codes are decoded and encoded (`narrow.CODES`); the loop is one.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from neocpu.kernels.compile.jit import inlined, parallel_kernel
from neocpu.kernels.operands import Bag, Terms
from neocpu.kernels.rows import rules
from neocpu.kernels.rows.few import pool_bag_in_eights
from neocpu.kernels.rows.pooling import TASKS, sum_bag, task_bags, task_count
from neocpu.kernels.scratch import task_body
from neocpu.kernels.simd import prefetch_far, prefetch_write
from neocpu.kernels.simd.bags import bare, view
from neocpu.kernels.simd.record_views import bare_record, view_fields, view_record
from neocpu.kernels.simd.square_sums import square_tree_16, square_tree_64

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]

# Rows are prefetched this many unique rows ahead: into the second-level cache, into the first.
FAR = 24
NEAR = 4
# Rows taken through a phase together: while one waits for its sums and roots, others compute.
GROUP = 8
RUN = 4096  # elements


@inlined
def square_sum(x, width, line, parts):
    """Sum of squares of x[:width] over the column tree.

    `line` f32, zero from `width` to the next multiple of 64; `parts` f32[p], p a power of two with
    64*p >= width: scratch.
    """
    # what is stored in pieces cannot be loaded whole at once: a row of 16 is not copied
    if width == 16:
        return square_tree_16(x, 0)
    # narrow rows are copied to a line that ends in zeros: trees of two widths serve them all
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
            # beside it is a column that is absent, +0: the tree is that of the next power of two
            parts[half - 1] = parts[blocks - 1] + np.float32(0.0)
        blocks = half
    return parts[0]


@inlined
def fetch_states(row_state, states, row_base, unique, u, last):
    """Prefetch the row states that the next updates will read and write."""
    # rules without row states hand in an array of none
    if row_state.size:
        prefetch_write(row_state, (row_base + unique[min(u + FAR, last)]) * states)


@inlined
def fetch_row(table, far, near, d):
    """Prefetch the rows from elements `far` and `near` on, of d numbers."""
    for c in range(0, d, 16):
        # Twice: into the second level long before the row is needed (`FAR`), into the first when
        # its turn is near (`NEAR`).
        prefetch_far(table, far + c)
        prefetch_write(table, near + c)


@inlined
def share_table(table, places):
    """The table as the body of a task takes it."""
    return bare(table)


@inlined
def open_row(table, at, line):
    """The row from element `at` on as fp32 numbers to be changed; `line` f32[D]: room for them, if
    they need any.
    """
    return view(table, at, line.size)


@inlined
def close_row(table, at, h, u, line, drawn):
    """Put back unique row u, of shard h, its new numbers in `line`: here, they are in place."""


class RowAccess(NamedTuple):
    """How a kernel handles the rows of a format: functions as those above of fp32 rows.

    opened : `open` of a row that is open already
    lines  : 1 if an open row needs room, else 0
    """

    share: Callable
    fetch: Callable
    open: Callable
    opened: Callable
    close: Callable
    lines: int


FP32 = RowAccess(share_table, fetch_row, open_row, open_row, close_row, lines=0)


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


class UpdateScratch(NamedTuple):
    """What one task of the fused update works in.

    sums   : f64[128], of `pool_bag_in_eights`
    floats : f32, all else
    width  : i64, the largest width of a shard, rounded up to a multiple of 64
    """

    sums: Doubles
    floats: Floats
    width: int


class GroupMemory(NamedTuple):
    """Where a task takes a group of rows through their phases; views of its `UpdateScratch`.

    sums    : f64[128], of `pool_bag_in_eights`
    line    : f32[W], of `square_sum`; W is the largest width, rounded up to a multiple of 64
    parts   : f32[W/32], of `square_sum`
    merged  : f32[GROUP*W], gradients
    opened  : f32[GROUP*W], rows, if they need room
    squares : f32[3*GROUP], the row scalars
    drawn   : f32[W+64], random words of an encoder, if there is one
    """

    sums: Doubles
    line: Floats
    parts: Floats
    merged: Floats
    opened: Floats
    squares: Floats
    drawn: Floats


@inlined
def new_scratch(width, lines):
    """The scratch of one task for rows of up to `width` columns, a multiple of 64."""
    size = width + width // 32 + GROUP * width * (1 + lines) + 3 * GROUP + lines * (width + 64)
    return UpdateScratch(np.empty(128), np.zeros(size, np.float32), width)


@inlined
def group_memory(scratch, lines):
    """The scratch of a task, cut."""
    width = scratch.width
    parts = width
    merged = parts + width // 32
    opened = merged + GROUP * width
    squares = opened + GROUP * width * lines
    drawn = squares + 3 * GROUP
    return GroupMemory(
        bare(scratch.sums),
        view(scratch.floats, 0, width),
        view(scratch.floats, parts, width // 32),
        view(scratch.floats, merged, GROUP * width),
        view(scratch.floats, opened, GROUP * width * lines),
        view(scratch.floats, squares, 3 * GROUP),
        view(scratch.floats, drawn, lines * (width + 64)),
    )


@inlined
def merge_row(terms, starts, u, out, sums):
    """out = the exact sum of the gradients of unique row u, rounded once; `sums` f64[128].

    terms `operands.Terms`, starts i64[U+1] : row u has the terms starts[u] .. starts[u+1].
    """
    pool_bag_in_eights(terms, Bag(starts[u], starts[u + 1], 0, 1, out.size), False, out, sums)


def _fuse(prepare, direct, step, finish, rule, limited, rows):
    """Kernel that merges and updates unique rows: `rule` through these phases, its rows handled as
    `rows` says.
    """
    share, fetch, opens, opened, close, lines = rows
    directs = rule.direct
    row_scalars = rule.row_scalars
    counts = rule.counts
    row_record = rule.row_record
    row_states = len(rule.row_state)

    @task_body
    def update_task(span, scratch, table, states, row_state, places, segments, gradient, hyper):
        memory = group_memory(scratch, lines)
        weight = share(table, places)
        element_states = bare_record(states)
        one_state = bare(row_state)
        where = bare_record(places)
        lookups = bare_record(segments)
        unique = lookups.unique
        terms = Terms(bare(gradient), lookups.place, lookups.weights)
        u, end = span
        i = 0
        h = -1
        while u < end:
            i = find_shard(lookups.first, i, u)
            # shards have widths of their own; most tasks stay in one
            if lookups.shards[i] != h:
                h = lookups.shards[i]
                memory.line[:] = np.float32(0.0)  # `square_sum` reads zeros beyond the width
            d = where.width[h]
            base = where.base[h]
            row_base = where.row_base[h]
            columns = np.float32(where.full_width[h])
            last = lookups.first[i + 1] - 1
            n = min(GROUP, end - u, last + 1 - u)
            # Three passes over a group of rows: the sums and roots of one row are long chains, and
            # those of several rows overlap.
            for j in range(n):
                far = unique[min(u + j + FAR, last)]
                near = unique[min(u + j + NEAR, last)]
                fetch(weight, base + far * d, base + near * d, d)
                fetch_states(one_state, row_states, row_base, unique, u + j, last)
                at = base + unique[u + j] * d
                g = view(memory.merged, j * d, d)
                merge_row(terms, lookups.starts, u + j, g, memory.sums)
                w = opens(weight, at, view(memory.opened, j * d, d))
                state = view_record(element_states, at, d)
                prepare(w, g, state, hyper)
                if directs:
                    row = view_fields(
                        row_record, one_state, (row_base + unique[u + j]) * row_states
                    )
                    squares = view(memory.squares, 3 * j, 3)
                    squares[0] = square_sum(g, d, memory.line, memory.parts)
                    direct(w, g, state, row, squares, columns, hyper)
            for j in range(n):
                squares = view(memory.squares, 3 * j, 3)
                if row_scalars > 0:
                    g = view(memory.merged, j * d, d)
                    squares[0] = square_sum(g, d, memory.line, memory.parts)
                if row_scalars > 1:
                    w = opened(weight, base + unique[u + j] * d, view(memory.opened, j * d, d))
                    squares[1] = square_sum(w, d, memory.line, memory.parts)
                if counts:
                    # the row's, over all keys that share the table: segments are by row
                    lookups_of_row = lookups.starts[u + j + 1] - lookups.starts[u + j]
                    squares[2] = np.float32(lookups_of_row)
            for j in range(n):
                at = base + unique[u + j] * d
                g = view(memory.merged, j * d, d)
                w = opened(weight, at, view(memory.opened, j * d, d))
                state = view_record(element_states, at, d)
                row = view_fields(row_record, one_state, (row_base + unique[u + j]) * row_states)
                squares = view(memory.squares, 3 * j, 3)
                step(w, g, state, row, squares, columns, hyper)
                if limited:
                    squares[0] = square_sum(w, d, memory.line, memory.parts)
                    finish(w, g, state, row, squares, columns, hyper)
                close(weight, at, h, u + j, w, memory.drawn)
            u += n

    @parallel_kernel
    def fused_update(table, states, row_state, places, segments, gradient, hyper):
        width = (widest(places.width, segments.shards) + 63) // 64 * 64
        tasks = task_count(segments.starts)
        for task in prange(tasks):
            span = task_bags(segments.starts, np.int64(task), tasks)
            scratch = new_scratch(width, lines)
            update_task(span, scratch, table, states, row_state, places, segments, gradient, hyper)

    return fused_update


@cache
def _fuse_merge(prepare, opened):
    """Kernel that merges the gradients of unique rows and prepares them, and leaves the step to
    others.
    """

    @task_body
    def merge_task(span, sums, table, states, places, segments, gradient, hyper, merged):
        offsets, out = merged
        acc = bare(sums)
        element_states = bare_record(states)
        where = bare_record(places)
        lookups = bare_record(segments)
        terms = Terms(bare(gradient), lookups.place, lookups.weights)
        begin, end = span
        i = 0
        for u in range(begin, end):
            i = find_shard(lookups.first, i, u)
            h = lookups.shards[i]
            d = where.width[h]
            at = where.base[h] + lookups.unique[u] * d
            g = view(out, offsets[u], d)
            merge_row(terms, lookups.starts, u, g, acc)
            # coded rows were decoded to a buffer before, since they wait for other columns between
            # phases
            w = view(table, offsets[u] if opened else at, d)
            prepare(w, g, view_record(element_states, at, d), hyper)

    @parallel_kernel
    def merge_rows(table, states, places, segments, gradient, hyper, offsets, out):
        tasks = task_count(segments.starts)
        for task in prange(tasks):
            span = task_bags(segments.starts, np.int64(task), tasks)
            sums = np.empty(128)
            merged = (offsets, out)
            merge_task(span, sums, table, states, places, segments, gradient, hyper, merged)

    return merge_rows


def _fuse_step(phase, row_record, opened):
    """Kernel that takes unique rows with merged gradients through one phase, given row scalars."""
    row_states = len(row_record._fields)

    @parallel_kernel
    def step_rows(table, states, row_state, places, segments, offsets, gradient, squares, hyper):
        shards = segments.shards
        first = segments.first
        unique = segments.unique
        # as many as the phase reads; a step without rows has none
        scalars = squares.size // max(unique.size, 1)
        for task in prange(TASKS):
            where = bare_record(places)
            i = 0
            for u in range(unique.size * task // TASKS, unique.size * (task + 1) // TASKS):
                i = find_shard(first, i, u)
                h = shards[i]
                d = where.width[h]
                at = where.base[h] + unique[u] * d
                w = view(table, offsets[u] if opened else at, d)
                g = view(gradient, offsets[u], d)
                state = view_record(states, at, d)
                number = where.row_base[h] + unique[u]
                row = view_fields(row_record, row_state, number * row_states)
                columns = np.float32(where.full_width[h])
                phase(w, g, state, row, view(squares, u * scalars, scalars), columns, hyper)

    return step_rows


def _prepare(name):
    """The first phase of a rule."""
    return getattr(rules, f"{name}_prepare", rules.regularise)


@cache
def fused(rule, limited, rows=FP32):
    """The fused kernel of a rule (a record of `core.rules.RULES`); `limited`: with the phase
    `limit_norm`; `rows`: how its rows are handled.

    `fused(...)(table, states, row_state, places, segments, gradient, hyper)`: the unique rows of
    `segments` are merged and updated in place.

    Shapes: table f32[:] (or what `rows` says); states: a record of the rule's element states,
    f32[:] like the table; row_state f32[R*n], the n row states of a row beside each other, row r of
    shard h being row places.row_base[h] + r of R; places `records.ShardPlaces`; segments
    `records.Segments`; gradient f32[:], that of a lookup at place[j] : + width, times weights[j] if
    there are weights; hyper `core.rules.HyperParameters`.
    Source: Neo's exact backward; docs/arithmetic.md §3 to §5. Order: none in the merge; columns in
    a tree for row scalars.
    """
    direct = getattr(rules, f"{rule.name}_direct", rules.nothing)
    finish = rules.limit_norm if limited else rules.nothing
    return _fuse(
        _prepare(rule.name), direct, getattr(rules, rule.name), finish, rule, limited, rows
    )


def merged(rule, opened=False):
    """The kernel that merges and prepares: gradients of unique rows into out[offsets[u] : + width],
    no step yet.

    `merged(rule)(table, states, places, segments, gradient, hyper, offsets, out)`. Shapes: as in
    `fused`; offsets i64[U]; out f32[:]; `opened`: the table is one of rows that are open, row u at
    offsets[u] (`narrow.open_rows`). Source: docs/arithmetic.md §3, §5. Order: none.
    """
    return _fuse_merge(_prepare(rule.name), opened)


@cache
def stepped(rule, phase, opened=False):
    """The kernel of one phase of a rule, named as in `rows/rules.py`, over merged gradients.

    `stepped(...)(table, states, row_state, places, segments, offsets, gradient, squares, hyper)`.
    Shapes: as in `fused`; row u has its gradient at gradient[offsets[u] : + width] (written where
    the phase writes g) and its scalars at squares[u*n : + n], n those that the phase reads;
    `opened` as in `merged`. Source: docs/arithmetic.md §5. Order: none.
    """
    return _fuse_step(getattr(rules, phase), rule.row_record, opened)


def _fuse_elementwise(prepare, step, row_record):
    """Kernel that updates a flat array with an elementwise rule, in runs of `RUN` elements."""

    @parallel_kernel
    def elementwise_update(parameters, states, gradient, hyper):
        n = parameters.size
        for run in prange((n + RUN - 1) // RUN):
            lo = run * RUN
            size = min(n - lo, RUN)
            w = view(parameters, lo, size)
            g = view(gradient, lo, size)
            state = view_record(states, lo, size)
            # a record of no fields, which needs some array all the same: elementwise rules have no
            # row states
            row = view_fields(row_record, gradient, 0)
            prepare(w, g, state, hyper)
            step(w, g, state, row, g, np.float32(1.0), hyper)

    return elementwise_update


@cache
def elementwise(rule):
    """The kernel of an elementwise rule over a flat array: (parameters, states, gradient, hyper).

    Shapes: parameters, gradient f32[n], the gradient being used as scratch; states: a record of
    the rule's element states f32[n]; hyper `core.rules.HyperParameters`.
    Source: docs/arithmetic.md §5.
    """
    return _fuse_elementwise(_prepare(rule.name), getattr(rules, rule.name), rule.row_record)


@parallel_kernel
def clip(gradient, limit, out):
    """out = gradient, each number moved into [-limit, limit]; a NaN stays.

    Shapes: gradient, out f32[n]; limit f32. Source: FBGEMM's gradient clipping. Order: none.
    """
    for run in prange((out.size + RUN - 1) // RUN):
        for c in range(run * RUN, min(out.size, (run + 1) * RUN)):
            x = gradient[c]
            # two comparisons that are false for NaN, which so stays
            out[c] = limit if x > limit else (-limit if x < -limit else x)


@parallel_kernel
def pack(gradient, column, width, start, out):
    """The lines of each entry side by side: out[start[k] + s*width[k] : + width[k]] = gradient[s,
    column[k] : + width[k]].

    Shapes: gradient f32[S, C]; column, width, start i64[K]; out f32[:]. Order: none.
    """
    flat = gradient.reshape(-1)
    columns = gradient.shape[1]
    # Packed once: lines of the gradient lie a power of two apart, and share a few sets of the cache
    # when tables read them again and again.
    for s in prange(gradient.shape[0]):
        for k in range(width.size):
            source = view(flat, s * columns + column[k], width[k])
            line = view(out, start[k] + s * width[k], width[k])
            for c in range(line.size):
                line[c] = source[c]


@task_body
def merge_words_task(task, tasks, sums, segments, gradient, out, used):
    """One task of `merge_words`."""
    acc = bare(sums)
    lookups = bare_record(segments)
    terms = Terms(bare(gradient), lookups.place, lookups.weights)
    width = out.shape[1]
    flat = out.reshape(-1)
    begin, end = task_bags(lookups.starts, task, tasks)
    for u in range(begin, end):
        bag = Bag(lookups.starts[u], lookups.starts[u + 1], 0, 1, width)
        used[u] = sum_bag(terms, bag, view(flat, u * width, width), acc)


@parallel_kernel
def merge_words(segments, gradient, out, used):
    """fp64 sums of merged gradients, exact where used[u] (the words that row u takes) is 1.

    Shapes: segments `records.Segments` of one shard; gradient f32[:]; out f64[U, D]; used i64[U].
    Source: docs/arithmetic.md §3. Order: none.
    """
    tasks = task_count(segments.starts)
    for task in prange(tasks):
        merge_words_task(np.int64(task), tasks, np.empty(128), segments, gradient, out, used)


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
