"""Where does each lookup go? The twin of `kernels/exchange/bucketize.py`: bucketize with masks,
and with a stable sort.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


def bucketize_lengths(
    offsets: Ints, values: Ints, ranges: Any, samples: int, lengths: NDArray[np.int32]
) -> None:
    """lengths[e*S + s] = lookups of bag (key[e], s) with lo[e] <= row < hi[e]; shapes as in the
    kernel.
    """
    bag_of = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    for e, (k, lo, hi) in enumerate(zip(*ranges)):
        inside = (values >= lo) & (values < hi)
        counts = np.bincount(bag_of[inside], minlength=offsets.size - 1)
        lengths[e * samples : (e + 1) * samples] = counts[k * samples : (k + 1) * samples]


def bucketize(bags: Any, ranges: Any, samples: int, rows: Ints, row_weights: Floats) -> None:
    """Rows (counted from lo[e]) and weights of these lookups, one after the other; shapes as in the
    kernel.
    """
    offsets, values, weights = bags
    entry_rows = [np.empty(0, np.int64)]
    entry_weights = [np.empty(0, np.float32)]
    for k, lo, hi in zip(*ranges):
        span = slice(offsets[k * samples], offsets[(k + 1) * samples])
        inside = (values[span] >= lo) & (values[span] < hi)
        entry_rows.append(values[span][inside] - lo)
        if weights.size:
            entry_weights.append(weights[span][inside])
    rows[:-1] = np.concatenate(entry_rows)
    row_weights[: rows.size - 1] = np.concatenate(entry_weights)


def first_outside(offsets: Ints, values: Ints, limit: Ints, samples: int) -> int:
    """Position of the first lookup whose row is not in [-1, limit[f]), f its key; -1 if there is
    none.
    """
    limits = np.repeat(limit, np.diff(offsets[np.arange(limit.size + 1) * samples]))
    outside = np.flatnonzero((values < -1) | (values >= limits))
    return int(outside[0]) if outside.size else -1


def lengths_to_offsets(lengths: NDArray[np.int32], offsets: Ints) -> None:
    """offsets[i] = sum of lengths[:i]; shapes as in the kernel."""
    offsets[0] = 0
    np.cumsum(lengths, out=offsets[1:])


def running_sums(lengths: Ints, first: int, out: Ints) -> None:
    """out[i] = sum of lengths[: first + i]; shapes as in the kernel."""
    out[:] = np.append(0, np.cumsum(lengths))[first : first + out.size]


def _bucket(number, size, count, bounds, ranks):
    """(rank, row there) of a row as an unsigned whole number; uneven boundaries, or none."""
    if bounds:
        below = number % count * bounds[-1] // count if size == 0 else number
        bucket = sum(end <= below for end in bounds) - 1
        rank = bucket if bucket < ranks else number % ranks
        if size == 0:
            return rank, number // count
        return rank, number - bounds[bucket] if bucket < ranks else number // ranks
    if number < size * count:
        return divmod(number, size * (count // ranks))
    return number % count // (count // ranks), number // count


def _buckets(offsets, rows, blocks, ranks, pruned, keep):
    """(bag, rank, row there) of every lookup, in whole numbers of Python."""
    bag = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    feature = np.searchsorted(blocks.first_bag, bag, side="right") - 1
    buckets = []
    for row, f in zip(rows.tolist(), feature.tolist()):
        if row == -1 and pruned >= 0:
            buckets.append((pruned, -1))
            continue
        bounds = blocks.bounds[blocks.bound_start[f] : blocks.bound_start[f + 1]].tolist()
        rank, local = _bucket(row % 2**64, int(blocks.size[f]), int(blocks.total[f]), bounds, ranks)
        local = row % 2**64 if keep[f] else local
        buckets.append((rank, local - 2**64 if local >= 2**63 else local))
    ranks_and_rows = np.array(buckets, np.int64).reshape(-1, 2)
    return bag, ranks_and_rows[:, 0], ranks_and_rows[:, 1]


def block_bucketize_lengths(offsets, rows, blocks, ranks, pruned, lengths):
    """Lookups of every (rank, bag); shapes as in the kernel."""
    keep = np.zeros(blocks.size.size, np.bool_)
    bag, rank, _ = _buckets(offsets, rows, blocks, ranks, pruned, keep)
    lengths[:] = np.bincount(rank * (offsets.size - 1) + bag, minlength=lengths.size)


def block_bucketize(bags, blocks, ranks, pruned, keep, lengths, dealt):
    """Lookups sorted by (rank, bag), and where they went; shapes as in the kernel."""
    offsets, rows, weights = bags
    bag, rank, local = _buckets(offsets, rows, blocks, ranks, pruned, keep)
    order = np.lexsort((np.arange(bag.size), bag, rank))
    dealt.rows[:] = local[order]
    dealt.positions[:] = (np.arange(bag.size) - offsets[bag])[order]
    dealt.place[order] = np.arange(bag.size)
    dealt.rank[:] = rank
    if weights.size:
        dealt.weights[:] = weights[order]
