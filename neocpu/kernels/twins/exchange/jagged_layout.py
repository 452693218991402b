"""Where does jagged data go? The plain twin of `kernels/exchange/jagged_layout.py`.

One array holds the source of every row; NumPy indexing does the rest.
"""

from itertools import pairwise

import numpy as np


def _sources(starts, lengths):
    """Concatenated ranges: starts[t], starts[t]+1, ..., lengths[t] numbers for each t."""
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
    """bool[B, longest]: is there such a row in the bag?"""
    return np.arange(longest) < np.diff(offsets)[:, None]


def jagged_to_padded_dense(values, offsets, width, longest, padding, out):
    """Bags padded or cut off to one length; shapes as in the kernel."""
    out[...] = padding
    inside = _mask(offsets, longest)
    lengths = np.minimum(np.diff(offsets), longest)
    out.reshape(-1, width)[inside.reshape(-1)] = values.reshape(-1, width)[
        _sources(offsets[:-1], lengths)
    ]


def padded_dense_to_jagged(dense, offsets, width, longest, out):
    """Rows of all bags from the dense array, zeros beyond it; shapes as in the kernel."""
    rows = out.reshape(-1, width)
    rows[offsets[0] : offsets[-1]] = 0
    lengths = np.minimum(np.diff(offsets), longest)
    rows[_sources(offsets[:-1], lengths)] = dense.reshape(-1, width)[
        _mask(offsets, longest).reshape(-1)
    ]


def expand_into_jagged_permute(permute, input_offsets, output_offsets, out):
    """Sources of all lookups of permuted segments; shapes as in the kernel."""
    out[output_offsets[0] : output_offsets[-1]] = _sources(
        input_offsets[permute], np.diff(output_offsets)
    )


def jagged_places(bags, offsets, longest, places):
    """Entries of all bags, cut off or padded with -1; shapes as in the kernel."""
    valid = (bags >= 0) & (bags < offsets.size - 1)
    counts = np.zeros_like(bags)
    starts = np.zeros_like(bags)
    counts[valid] = np.diff(offsets)[bags[valid]]
    starts[valid] = offsets[bags[valid]]
    entry = np.arange(longest)
    places.reshape(bags.size, longest)[...] = np.where(
        entry < counts[:, None], starts[:, None] + entry, -1
    )


def invert_places(places, out):
    """The inverse of a partial map, -1 where there is none; shapes as in the kernel."""
    out[:] = -1
    (used,) = np.nonzero(places >= 0)
    out[places[used]] = used


def bucketized_permute(offsets, bucket, starts, out):
    """Start of each (rank, bag) plus the lookup's number in it; shapes as in the kernel."""
    segment = bucket * (offsets.size - 1) + np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    order = np.argsort(segment, kind="stable")
    ascending = segment[order]
    out[order] = (
        starts[ascending]
        + np.arange(segment.size)
        - np.searchsorted(ascending, ascending, side="left")
    )
    starts += np.bincount(segment, minlength=starts.size)


def invert_permute(permute, out):
    """The inverse permutation; shapes as in the kernel."""
    out[:] = np.argsort(permute, kind="stable")


def offsets_range(offsets, out):
    """Positions of lookups in their bags; shapes as in the kernel."""
    out[offsets[0] if offsets.size else 0 :] = _sources(
        np.zeros_like(offsets), np.diff(np.append(offsets, out.size))
    )


def recat(features, ranks, stagger, out):
    """Feature-major order of (rank, feature) segments; shapes as in the kernel."""
    order = np.arange(ranks).reshape(stagger, -1).T.reshape(-1) if ranks else np.empty(0, np.int64)
    out[:] = (np.arange(features)[:, None] + order * features).reshape(-1)


def reordered_bags(batch_offsets, tables, broadcast, out):
    """Bags of all batches, table by table; shapes as in the kernel."""
    blocks = []
    for b, (lo, hi) in enumerate(pairwise(batch_offsets.tolist())):
        if broadcast:
            bags = np.arange(tables)[:, None] + tables * b
        else:
            bags = tables * lo + np.arange(tables * (hi - lo)).reshape(tables, hi - lo)
        blocks.append(np.broadcast_to(bags, (tables, hi - lo)))
    out[:] = np.concatenate([*blocks, np.empty((tables, 0), np.int64)], axis=1).reshape(-1)


def mark_unique(values, order, unique, inverse, counts):
    """Unique values, their inverse and their counts; shapes as in the kernel."""
    unique_values, positions, occurrences = np.unique(
        values, return_inverse=True, return_counts=True
    )
    unique[: unique_values.size] = unique_values
    counts[: unique_values.size] = occurrences
    inverse[:] = positions
    return unique_values.size
