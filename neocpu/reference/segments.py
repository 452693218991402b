"""The plain twin of `neocpu.kernels.segments`: NumPy's stable sort and `unique`."""

from itertools import pairwise

import numpy as np


def sort_lookups(rows, cuts, heights, order, unique, starts, stops, valid, found):
    """Lookups by (shard, row, position) and where each row's run lies; shapes as in the kernel."""
    for h, (lo, hi) in enumerate(pairwise(cuts)):
        kept = lo + np.flatnonzero(rows[lo:hi] >= 0)
        kept = kept[np.argsort(rows[kept], kind="stable")]
        names, first, count = np.unique(rows[kept], return_index=True, return_counts=True)
        valid[h], found[h] = kept.size, names.size
        order[lo : lo + kept.size] = kept
        for target, values in ((unique, names), (starts, lo + first), (stops, lo + first + count)):
            target[lo : lo + names.size] = values


def gradient_places(offsets, column, stride, place):
    """Where each lookup's gradient begins; shapes as in the kernel."""
    bag = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    samples = (offsets.size - 1) // max(1, column.size)
    if bag.size:
        place[offsets[0] : offsets[-1]] = bag % samples * stride + column[bag // samples]


def gather_sorted(order, cuts, valid, place, weights, place_out, weights_out):
    """Places and weights in sorted order; shapes as in the kernel."""
    for lo, count in zip(cuts, valid):
        here = slice(lo, lo + count)
        place_out[here] = place[order[here]]
        if weights.size:
            weights_out[here] = weights[order[here]]
