"""How is a touched row updated? The plain twin of `kernels/rows/update.py`: row by row, exact
merge, then the rule's formula.
"""

import numpy as np

from neocpu.kernels.twins.rows import rules
from neocpu.kernels.twins.rows.pooling import Bag, Terms, round_bag, sum_bag


def square_tree(x, size: int) -> np.float32:
    """Sum of squares of x f32[<= size] in a binary tree over `size` (a power of two) columns,
    adjacent pairs first.
    """
    level = np.zeros(size, np.float32)
    # absent columns are +0
    level[: x.size] = x * x
    while level.size > 1:
        level = level[::2] + level[1::2]
    return level[0]


def _shards_of(segments):
    """The shard of every unique row."""
    return np.repeat(segments.shards, np.diff(segments.first))


def _elements(record, at: int, columns: int):
    """Views of elements [at, at + columns) of every array of a record."""
    return type(record)(*(array[at : at + columns] for array in record))


def row_views(row_record, row_state, row: int):
    """Views of the states of a row, f32[1] each, as a record."""
    at = row * len(row_record._fields)
    return row_record(*(row_state[at + i : at + i + 1] for i in range(len(row_record._fields))))


def _tree_size(columns) -> int:
    """Size of the column tree."""
    return 1 << (int(columns) - 1).bit_length()


def _merge(segments, gradient, u: int, out) -> None:
    """out = the exact sum of the gradients of unique row u, rounded once."""
    terms = Terms(gradient, segments.place, segments.weights)
    bag = Bag(segments.starts[u], segments.starts[u + 1], 0, 1, out.size)
    round_bag(terms, bag, out, None)


def fused(rule, limited):
    """Merge and update unique rows with a rule; see `kernels.rows.update.fused`."""
    prepare = rules.prepare(rule.name)
    step = getattr(rules, rule.name)

    def fused_update(table, states, row_state, places, segments, gradient, hyper):
        for u, h in enumerate(_shards_of(segments)):
            d = int(places.width[h])
            at = int(places.base[h] + segments.unique[u] * d)
            w = table[at : at + d]
            g = np.empty(d, np.float32)
            element_states = _elements(states, at, d)
            row = row_views(
                rule.row_record, row_state, int(places.row_base[h] + segments.unique[u])
            )
            columns = np.float32(places.full_width[h])
            _merge(segments, gradient, u, g)
            prepare(w, g, element_states, hyper)
            if rule.direct:
                direct = getattr(rules, f"{rule.name}_direct")
                direct(w, g, element_states, row, [square_tree(g, _tree_size(d))], columns, hyper)
            squares = [square_tree(x, _tree_size(d)) for x in (g, w)[: rule.row_scalars]]
            if rule.counts:
                squares.append(np.float32(segments.starts[u + 1] - segments.starts[u]))
            step(w, g, element_states, row, squares, columns, hyper)
            if limited:
                squares = [square_tree(w, _tree_size(d))]
                rules.limit_norm(w, g, element_states, row, squares, columns, hyper)

    return fused_update


def merged(rule, opened=False):
    """Merge and prepare, no step; see `kernels.rows.update.merged`."""

    def merge_rows(table, states, places, segments, gradient, hyper, offsets, out):
        for u, h in enumerate(_shards_of(segments)):
            d = int(places.width[h])
            at = int(places.base[h] + segments.unique[u] * d)
            first_weight = int(offsets[u] if opened else at)
            w = table[first_weight : first_weight + d]
            g = out[offsets[u] : offsets[u] + d]
            _merge(segments, gradient, u, g)
            rules.prepare(rule.name)(w, g, _elements(states, at, d), hyper)

    return merge_rows


def stepped(rule, phase, opened=False):
    """One phase of a rule over merged gradients, its row scalars given; see
    `kernels.rows.update.stepped`.
    """

    def step_rows(table, states, row_state, places, segments, offsets, gradient, squares, hyper):
        row_squares = squares.reshape(max(segments.unique.size, 1), -1)
        for u, h in enumerate(_shards_of(segments)):
            d = int(places.width[h])
            at = int(places.base[h] + segments.unique[u] * d)
            first_weight = int(offsets[u] if opened else at)
            w = table[first_weight : first_weight + d]
            g = gradient[offsets[u] : offsets[u] + d]
            element_states = _elements(states, at, d)
            row = row_views(
                rule.row_record, row_state, int(places.row_base[h] + segments.unique[u])
            )
            columns = np.float32(places.full_width[h])
            getattr(rules, phase)(w, g, element_states, row, row_squares[u], columns, hyper)

    return step_rows


def elementwise(rule):
    """Update a flat array with an elementwise rule; see `kernels.rows.update.elementwise`."""

    def elementwise_update(parameters, states, gradient, hyper):
        squares = np.zeros(2, np.float32)
        one = np.float32(1)
        rules.regularise(parameters, gradient, states, hyper)
        step = getattr(rules, rule.name)
        step(parameters, gradient, states, rule.row_record(), squares, one, hyper)

    return elementwise_update


def clip(gradient, limit, out):
    """out = gradient, each number moved into [-limit, limit]; see `kernels.rows.update.clip`."""
    out[:] = np.clip(gradient, -limit, limit)


def pack(gradient, column, width, start, out):
    """The lines of each entry side by side; see `kernels.rows.update.pack`."""
    for k in range(width.size):
        lines = gradient[:, column[k] : column[k] + width[k]]
        out[start[k] : start[k] + lines.size] = lines.reshape(-1)


def merge_words(segments, gradient, out, used):
    """fp64 sums of merged gradients, and the words each needs; see
    `kernels.rows.update.merge_words`.
    """
    width = out.shape[1]
    terms = Terms(gradient, segments.place, segments.weights)
    for u in range(out.shape[0]):
        bag = Bag(segments.starts[u], segments.starts[u + 1], 0, 1, width)
        used[u] = sum_bag(terms, bag, out[u], None)


def square_nodes(gradient, width, first, size, out):
    """out[u] = node (first, size) of row u's column tree.

    See `kernels.rows.update.square_nodes`.
    """
    for u, row in enumerate(gradient.reshape(-1, int(width))):
        out[u] = square_tree(row[first : first + size], int(size))
