"""The plain twin of `neocpu.kernels.update`: merge all rows of a shard, then apply the rule to all of them at once."""

import numpy as np

from neocpu.reference import rules
from neocpu.reference.exact import exact_sum
from neocpu.reference.pooling import terms_of_bag, words_of_terms


def merged(gradient, place, weights, starts, stops, width):
    """Exact sums of the gradients of each row, rounded once: f32[U, width]."""
    out = np.empty((starts.size, width), np.float32)
    for u, (lo, hi) in enumerate(zip(starts, stops)):
        out[u] = [exact_sum(t) for t in terms_of_bag(gradient, place, weights, lo, hi, 0, 1, width).T]
    return out


def _rows(values, base, unique, width):
    """Copies of rows of a flat table, and the places they came from; empty where the table is."""
    places = base + unique[:, None] * width + np.arange(width)
    return (values[places], places) if values.size else (np.empty((unique.size, 0), np.float32), places)


def fused(name, row_scalars):
    """Merge and update with rule `name`; arguments of the result as in the kernel."""
    rule = getattr(rules, name)

    def fused_update(
        table, state0, state1, row_state, base, width, full_width, row_base, task_shard, task_lo, task_hi, unique, starts,
        stops, place, weights, gradient, given, hyper,
    ):  # fmt: skip
        for h, lo, hi in zip(task_shard, task_lo, task_hi):
            span = slice(lo, hi)
            g = merged(gradient, place, weights, starts[span], stops[span], width[h])
            w, places = _rows(table, base[h], unique[span], width[h])
            (e0, _), (e1, _) = (_rows(s, base[h], unique[span], width[h]) for s in (state0, state1))
            r = row_state[row_base[h] + unique[span], None] if row_state.size else np.empty((hi - lo, 0), np.float32)
            if not given.size:
                rules.regularise(w, g, hyper)
            mean = (given[span] if given.size else rules.square_sum(g))[:, None] / np.float32(full_width[h])
            rule(w, g, e0, e1, r, mean, hyper)
            for target, values in ((table, w), (state0, e0), (state1, e1)):
                if target.size:
                    target[places] = values
            if row_state.size:
                row_state[row_base[h] + unique[span]] = r[:, 0]

    return fused_update


def elementwise(name):
    """Update a flat array with rule `name`; arguments of the result as in the kernel."""
    rule = getattr(rules, name)

    def elementwise_update(parameters, state0, state1, gradient, hyper):
        rules.regularise(parameters, gradient, hyper)
        rule(parameters, gradient, state0, state1, None, None, hyper)

    return elementwise_update


def merge_rows(
    table, base, width, task_shard, task_lo, task_hi, unique, starts, stops, place, weights, gradient, hyper, to, out
):
    """Merged and regularised gradients, without an update; shapes as in the kernel."""
    for h, lo, hi in zip(task_shard, task_lo, task_hi):
        g = merged(gradient, place, weights, starts[lo:hi], stops[lo:hi], width[h])
        rules.regularise(_rows(table, base[h], unique[lo:hi], width[h])[0], g, hyper)
        out[to[lo:hi, None] + np.arange(width[h])] = g


def merge_words(gradient, place, weights, starts, stops, out, used):
    """First words of merged gradients, and how few words could hold each; shapes as in the kernel."""
    for u, (lo, hi) in enumerate(zip(starts, stops)):
        words = words_of_terms(terms_of_bag(gradient, place, weights, lo, hi, 0, 1, out.shape[1]))
        used[u], out[u] = len(words), words[0]


def square_nodes(gradient, width, first, size, out):
    """Sums of squares of columns [first, first + size) of every row; shapes as in the kernel."""
    rows = gradient.reshape(-1, width)[:, first : first + size]
    out[:] = rules.square_sum(np.pad(rows, ((0, 0), (0, size - rows.shape[1]))))
