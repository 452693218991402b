"""The plain twin of `neocpu.kernels.jagged`: bucketize with masks."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


def bucketize_lengths(
    offsets: Ints, values: Ints, key: Ints, lo: Ints, hi: Ints, samples: int, lengths: NDArray[np.int32]
) -> None:
    """lengths[e*S + s] = lookups of bag (key[e], s) with lo[e] <= row < hi[e]; shapes as in the kernel."""
    bag_of = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    for e, (k, first, end) in enumerate(zip(key.tolist(), lo.tolist(), hi.tolist())):
        mine = (values >= first) & (values < end)
        counts = np.bincount(bag_of[mine], minlength=offsets.size - 1)
        lengths[e * samples : (e + 1) * samples] = counts[k * samples : (k + 1) * samples]


def bucketize(
    offsets: Ints,
    values: Ints,
    weights: Floats,
    key: Ints,
    lo: Ints,
    hi: Ints,
    samples: int,
    rows: Ints,
    row_weights: Floats,
) -> None:
    """Rows (counted from lo[e]) and weights of these lookups, one after the other; shapes as in the kernel."""
    found, found_weights = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    for k, first, end in zip(key.tolist(), lo.tolist(), hi.tolist()):
        span = slice(offsets[k * samples], offsets[(k + 1) * samples])
        inside = (values[span] >= first) & (values[span] < end)
        found.append(values[span][inside] - first)
        if weights.size:
            found_weights.append(weights[span][inside])
    rows[:-1] = np.concatenate(found)
    row_weights[: rows.size - 1] = np.concatenate(found_weights)


def first_outside(offsets: Ints, values: Ints, limit: Ints, samples: int) -> int:
    """Position of the first lookup whose row is not in [-1, limit[f]), f its key; -1 if there is none."""
    limits = np.repeat(limit, np.diff(offsets[np.arange(limit.size + 1) * samples]))
    outside = np.flatnonzero((values < -1) | (values >= limits))
    return int(outside[0]) if outside.size else -1


def lengths_to_offsets(lengths: NDArray[np.int32], offsets: Ints) -> None:
    """offsets[i] = sum of lengths[:i]; shapes as in the kernel."""
    offsets[0] = 0
    np.cumsum(lengths, out=offsets[1:])
