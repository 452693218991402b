"""Where does jagged data go? The plain twin of `kernels/jagged_layout.py`: one array of sources,
then NumPy takes.
"""

from itertools import pairwise

import numpy as np


def _sources(starts, lengths):
    """Numbers starts[t], starts[t]+1, …: lengths[t] of them, one run after the other."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]) if ends.size else 0) + np.repeat(
        starts - (ends - lengths), lengths
    )


def copy_segments(values, starts, segment, offsets, width, out):
    """Segments of rows, taken in the order of `segment`; shapes as in the kernel."""
    rows = _sources(starts[segment], np.diff(offsets))
    out.reshape(-1, width)[offsets[0] : offsets[-1]] = values.reshape(-1, width)[rows]


def index_select(values, index, width, out):
    """Rows of values, taken by index; shapes as in the kernel."""
    out.reshape(-1, width)[...] = values.reshape(-1, width)[index]


def select_or_fill(values, index, width, filler, out):
    """Rows of values where the index is one, the filler elsewhere; shapes as in the kernel."""
    out[...] = filler
    out.reshape(-1, width)[index >= 0] = values.reshape(-1, width)[index[index >= 0]]


def _mask(offsets, longest):
    """Which places of [B, longest] hold a row of their bag."""
    return np.arange(longest) < np.diff(offsets)[:, None]


def jagged_to_padded_dense(values, offsets, width, longest, padding, out):
    """Bags side by side, padded or cut off; shapes as in the kernel."""
    out[...] = padding
    inside = _mask(offsets, longest)
    kept = np.minimum(np.diff(offsets), longest)
    out.reshape(-1, width)[inside.reshape(-1)] = values.reshape(-1, width)[
        _sources(offsets[:-1], kept)
    ]


def padded_dense_to_jagged(dense, offsets, width, longest, out):
    """The rows of all bags out of the dense array, zeros beyond it; shapes as in the kernel."""
    rows = out.reshape(-1, width)
    rows[offsets[0] : offsets[-1]] = 0
    kept = np.minimum(np.diff(offsets), longest)
    rows[_sources(offsets[:-1], kept)] = dense.reshape(-1, width)[
        _mask(offsets, longest).reshape(-1)
    ]


def expand_into_jagged_permute(permute, input_offsets, output_offsets, out):
    """Sources of all lookups of permuted segments; shapes as in the kernel."""
    out[output_offsets[0] : output_offsets[-1]] = _sources(
        input_offsets[permute], np.diff(output_offsets)
    )


def jagged_places(bags, offsets, longest, places):
    """Entries of all bags side by side, cut off or followed by -1; shapes as in the kernel."""
    known = (bags >= 0) & (bags < offsets.size - 1)
    counts = np.zeros_like(bags)
    starts = np.zeros_like(bags)
    counts[known] = np.diff(offsets)[bags[known]]
    starts[known] = offsets[bags[known]]
    inside = np.arange(longest)
    places.reshape(bags.size, longest)[...] = np.where(
        inside < counts[:, None], starts[:, None] + inside, -1
    )


def invert_places(places, out):
    """Which place leads to each number, -1: none; shapes as in the kernel."""
    out[:] = -1
    (used,) = np.nonzero(places >= 0)
    out[places[used]] = used


def bucketized_permute(offsets, bucket, starts, out):
    """Starts, and places among the lookups of one (rank, bag); shapes as in the kernel."""
    slot = bucket * (offsets.size - 1) + np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    order = np.argsort(slot, kind="stable")
    ascending = slot[order]
    out[order] = (
        starts[ascending]
        + np.arange(slot.size)
        - np.searchsorted(ascending, ascending, side="left")
    )
    starts += np.bincount(slot, minlength=starts.size)


def invert_permute(permute, out):
    """The permutation that undoes this one; shapes as in the kernel."""
    out[:] = np.argsort(permute, kind="stable")


def offsets_range(offsets, out):
    """Positions of lookups in their bags; shapes as in the kernel."""
    out[offsets[0] if offsets.size else 0 :] = _sources(
        np.zeros_like(offsets), np.diff(np.append(offsets, out.size))
    )


def recat(features, ranks, stagger, out):
    """Segments of (rank, feature), feature by feature; shapes as in the kernel."""
    order = np.arange(ranks).reshape(stagger, -1).T.reshape(-1) if ranks else np.empty(0, np.int64)
    out[:] = (np.arange(features)[:, None] + order * features).reshape(-1)


def reordered_bags(batch_offsets, tables, broadcast, out):
    """Bags of all batches, table by table; shapes as in the kernel."""
    blocks = []
    for b, (lo, hi) in enumerate(pairwise(batch_offsets.tolist())):
        if broadcast:
            mine = np.arange(tables)[:, None] + tables * b
        else:
            mine = tables * lo + np.arange(tables * (hi - lo)).reshape(tables, hi - lo)
        blocks.append(np.broadcast_to(mine, (tables, hi - lo)))
    out[:] = np.concatenate([*blocks, np.empty((tables, 0), np.int64)], axis=1).reshape(-1)


def mark_unique(values, order, unique, inverse, counts):
    """Different values, the way back, and how often each occurs; shapes as in the kernel."""
    found, back, count = np.unique(values, return_inverse=True, return_counts=True)
    unique[: found.size] = found
    counts[: found.size] = count
    inverse[:] = back
    return found.size
