"""How is a touched row updated? The plain twin of `kernels/update.py`: row by row, exact merge,
then the rule's formula.
"""

import numpy as np

from neocpu.reference import rules
from neocpu.reference.pooling import Bag, Terms, round_bag, sum_bag


def square_tree(x, size: int) -> np.float32:
    """Sum of squares of x f32[<= size] in a binary tree over `size` (a power of two) columns,
    adjacent pairs first.
    """
    level = np.zeros(size, np.float32)
    level[: x.size] = x * x
    while level.size > 1:
        level = level[::2] + level[1::2]
    return level[0]


def _owners(first, count: int) -> np.ndarray:
    """Position in `shards` of every unique row."""
    return np.searchsorted(first, np.arange(count), side="right") - 1


def _row(tensor, at: int, columns: int):
    return tensor[at : at + columns] if tensor.size else tensor


def _root(columns) -> int:
    """Size of the column tree."""
    return 1 << (int(columns) - 1).bit_length()


def fused(name, row_scalars, row_states, limited):
    """Merge and update unique rows with a rule; see `kernels.update.fused`."""
    prepare = rules.prepare(name)
    formula = getattr(rules, name)

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
        for u, i in enumerate(_owners(first, unique.size)):
            h = shards[i]
            d = int(width[h])
            row = int(row_base[h] + unique[u])
            at = int(base[h] + unique[u] * d)
            w = table[at : at + d]
            r = _row(row_state, row * row_states, row_states)
            e0 = _row(state0, at, d)
            e1 = _row(state1, at, d)
            g = np.empty(d, np.float32)
            columns = np.float32(full_width[h])
            round_bag(
                Terms(gradient, place, weights), Bag(starts[u], starts[u + 1], 0, 1, d), g, None
            )
            prepare(w, g, e0, e1, hyper)
            if name == "partial_rowwise_lamb":
                rules.partial_rowwise_lamb_direct(
                    w, g, e0, e1, r, [square_tree(g, _root(d))], columns, hyper
                )
            squares = [square_tree(x, _root(d)) for x in (g, w)[:row_scalars]]
            formula(w, g, e0, e1, r, squares, columns, hyper)
            if limited:
                rules.limit_norm(w, g, e0, e1, r, [square_tree(w, _root(d))], columns, hyper)

    return fused_update


def merged(name, opened=False):
    """Merge and prepare, no step; see `kernels.update.merged`."""

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
        for u, i in enumerate(_owners(first, unique.size)):
            d = int(width[shards[i]])
            at = int(base[shards[i]] + unique[u] * width[shards[i]])
            g = out[to[u] : to[u] + d]
            w = int(to[u] if opened else at)
            round_bag(
                Terms(gradient, place, weights), Bag(starts[u], starts[u + 1], 0, 1, d), g, None
            )
            rules.prepare(name)(
                table[w : w + d], g, _row(state0, at, d), _row(state1, at, d), hyper
            )

    return merge_rows


def stepped(phase, row_states, opened=False):
    """One phase of a rule over merged gradients, its row scalars given; see
    `kernels.update.stepped`.
    """

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
        for u, (i, squares) in enumerate(
            zip(_owners(first, unique.size), given.reshape(max(unique.size, 1), -1))
        ):
            h = shards[i]
            d = int(width[h])
            at = int(base[h] + unique[u] * width[h])
            r = _row(row_state, int(row_base[h] + unique[u]) * row_states, row_states)
            first_weight = int(to[u] if opened else at)
            w = table[first_weight : first_weight + d]
            g = gradient[to[u] : to[u] + d]
            columns = np.float32(full_width[h])
            getattr(rules, phase)(
                w, g, _row(state0, at, d), _row(state1, at, d), r, squares, columns, hyper
            )

    return step_rows


def elementwise(name):
    """Update a flat array with an elementwise rule; see `kernels.update.elementwise`."""

    def elementwise_update(parameters, state0, state1, gradient, hyper):
        squares = np.zeros(2, np.float32)
        rules.regularise(parameters, gradient, state0, state1, hyper)
        getattr(rules, name)(
            parameters, gradient, state0, state1, squares[:1], squares, np.float32(1), hyper
        )

    return elementwise_update


def clip(gradient, limit, out):
    """out = gradient, each number moved into [-limit, limit]; see `kernels.update.clip`."""
    out[:] = np.clip(gradient, -limit, limit)


def pack(gradient, column, width, start, out):
    """The lines of each entry side by side; see `kernels.update.pack`."""
    for k in range(width.size):
        lines = gradient[:, column[k] : column[k] + width[k]]
        out[start[k] : start[k] + lines.size] = lines.reshape(-1)


def merge_words(gradient, place, weights, starts, out, used):
    """fp64 sums of merged gradients, and the words each needs; see `kernels.update.merge_words`."""
    for u in range(starts.size - 1):
        bag = Bag(starts[u], starts[u + 1], 0, 1, out.shape[1])
        used[u] = sum_bag(Terms(gradient, place, weights), bag, out[u], None)


def square_nodes(gradient, width, first, size, out):
    """out[u] = node (first, size) of the column tree of row u; see `kernels.update.square_nodes`."""
    for u, row in enumerate(gradient.reshape(-1, int(width))):
        out[u] = square_tree(row[first : first + size], int(size))
