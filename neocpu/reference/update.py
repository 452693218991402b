"""How is a touched row updated? The plain twin of `kernels/update.py`: row by row, exact merge, then the rule's formula."""

import numpy as np

from neocpu.reference import rules
from neocpu.reference.pooling import round_bag, sum_bag


def square_tree(x, size: int) -> np.float32:
    """Sum of squares of x f32[<= size] in a binary tree over `size` (a power of two) columns, adjacent pairs first."""
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


def fused(name, row_scalars):
    """Merge and update unique rows with a rule; see `kernels.update.fused`."""
    formula = getattr(rules, name)

    def fused_update(
        table, state0, state1, row_state, base, width, full_width, row_base, shards, first, unique, starts, place, weights,
        gradient, given, hyper,
    ):  # fmt: skip
        for u, i in enumerate(_owners(first, unique.size)):
            h = shards[i]
            d, row = int(width[h]), int(row_base[h] + unique[u])
            at = int(base[h] + unique[u] * d)
            w, r = table[at : at + d], _row(row_state, row, 1)
            e0, e1 = _row(state0, at, d), _row(state1, at, d)
            g, squares = np.empty(d, np.float32), np.zeros(2, np.float32)
            round_bag(gradient, place, weights, starts[u], starts[u + 1], 0, 1, d, g, None)
            if given.size:
                squares[:row_scalars] = given[u * row_scalars : (u + 1) * row_scalars]
            else:
                rules.regularise(w, g, e0, e1, r, hyper)
                squares[:row_scalars] = [square_tree(x, 1 << (d - 1).bit_length()) for x in (g, w)[:row_scalars]]
            formula(w, g, e0, e1, r, squares, np.float32(full_width[h]), hyper)

    return fused_update


def merged(name):
    """Merge and regularise, no step; see `kernels.update.merged`."""

    def merge_rows(
        table, state0, state1, row_state, base, width, row_base, shards, first, unique, starts, place, weights, gradient, hyper,
        to, out,
    ):  # fmt: skip
        for u, i in enumerate(_owners(first, unique.size)):
            h = shards[i]
            d, at = int(width[h]), int(base[h] + unique[u] * width[h])
            g = out[to[u] : to[u] + d]
            round_bag(gradient, place, weights, starts[u], starts[u + 1], 0, 1, d, g, None)
            e0, e1, r = _row(state0, at, d), _row(state1, at, d), _row(row_state, int(row_base[h] + unique[u]), 1)
            rules.regularise(table[at : at + d], g, e0, e1, r, hyper)

    return merge_rows


def elementwise(name):
    """Update a flat array with an elementwise rule; see `kernels.update.elementwise`."""

    def elementwise_update(parameters, state0, state1, gradient, hyper):
        squares = np.zeros(2, np.float32)
        rules.regularise(parameters, gradient, state0, state1, squares[:1], hyper)
        getattr(rules, name)(parameters, gradient, state0, state1, squares[:1], squares, np.float32(1), hyper)

    return elementwise_update


def merge_words(gradient, place, weights, starts, out, used):
    """fp64 sums of merged gradients, and the words each needs; see `kernels.update.merge_words`."""
    for u in range(starts.size - 1):
        used[u] = sum_bag(gradient, place, weights, starts[u], starts[u + 1], 0, 1, out.shape[1], out[u], None)


def square_nodes(gradient, width, first, size, out):
    """out[u] = node (first, size) of the column tree of row u; see `kernels.update.square_nodes`."""
    for u, row in enumerate(gradient.reshape(-1, int(width))):
        out[u] = square_tree(row[first : first + size], int(size))
