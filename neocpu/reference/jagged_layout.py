"""Where does jagged data go? The plain twin of `kernels/jagged_layout.py`: one array of sources, then NumPy takes."""

from itertools import pairwise

import numpy as np


def _sources(starts, lengths):
    """Numbers starts[t], starts[t]+1, …: lengths[t] of them, one run after the other."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]) if ends.size else 0) + np.repeat(starts - (ends - lengths), lengths)


def copy_segments(values, starts, segment, offsets, width, out):
    """Segments of rows, taken in the order of `segment`; shapes as in the kernel."""
    rows = _sources(starts[segment], np.diff(offsets))
    out.reshape(-1, width)[offsets[0] : offsets[-1]] = values.reshape(-1, width)[rows]


def index_select(values, index, width, out):
    """Rows of values, taken by index; shapes as in the kernel."""
    out.reshape(-1, width)[...] = values.reshape(-1, width)[index]


def _mask(offsets, longest):
    """Which places of [B, longest] hold a row of their bag."""
    return np.arange(longest) < np.diff(offsets)[:, None]


def jagged_to_padded_dense(values, offsets, width, longest, padding, out):
    """Bags side by side, padded or cut off; shapes as in the kernel."""
    out[...] = padding
    inside = _mask(offsets, longest)
    kept = np.minimum(np.diff(offsets), longest)
    out.reshape(-1, width)[inside.reshape(-1)] = values.reshape(-1, width)[_sources(offsets[:-1], kept)]


def padded_dense_to_jagged(dense, offsets, width, longest, out):
    """The rows of all bags out of the dense array, zeros beyond it; shapes as in the kernel."""
    rows = out.reshape(-1, width)
    rows[offsets[0] : offsets[-1]] = 0
    kept = np.minimum(np.diff(offsets), longest)
    rows[_sources(offsets[:-1], kept)] = dense.reshape(-1, width)[_mask(offsets, longest).reshape(-1)]


def expand_into_jagged_permute(permute, input_offsets, output_offsets, out):
    """Sources of all lookups of permuted segments; shapes as in the kernel."""
    out[output_offsets[0] : output_offsets[-1]] = _sources(input_offsets[permute], np.diff(output_offsets))


def invert_permute(permute, out):
    """The permutation that undoes this one; shapes as in the kernel."""
    out[:] = np.argsort(permute, kind="stable")


def offsets_range(offsets, out):
    """Positions of lookups in their bags; shapes as in the kernel."""
    out[offsets[0] if offsets.size else 0 :] = _sources(np.zeros_like(offsets), np.diff(np.append(offsets, out.size)))


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
    unique[: found.size], counts[: found.size], inverse[:] = found, count, back
    return found.size
