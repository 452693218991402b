"""Where does each lookup go? The plain twin of `neocpu.kernels.bucketize`: bucketize with masks, and
with a stable sort.
"""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


def bucketize_lengths(
    offsets: Ints,
    values: Ints,
    key: Ints,
    lo: Ints,
    hi: Ints,
    samples: int,
    lengths: NDArray[np.int32],
) -> None:
    """lengths[e*S + s] = lookups of bag (key[e], s) with lo[e] <= row < hi[e]; shapes as in the
    kernel.
    """
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
    """Rows (counted from lo[e]) and weights of these lookups, one after the other; shapes as in the
    kernel.
    """
    found = [np.empty(0, np.int64)]
    found_weights = [np.empty(0, np.float32)]
    for k, first, end in zip(key.tolist(), lo.tolist(), hi.tolist()):
        span = slice(offsets[k * samples], offsets[(k + 1) * samples])
        inside = (values[span] >= first) & (values[span] < end)
        found.append(values[span][inside] - first)
        if weights.size:
            found_weights.append(weights[span][inside])
    rows[:-1] = np.concatenate(found)
    row_weights[: rows.size - 1] = np.concatenate(found_weights)


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


def _buckets(offsets, rows, first_bag, block, blocks, ranks, bounds, bound_start, pruned, keep):
    """(bag, rank, row there) of every lookup, in whole numbers of Python."""
    bag = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    feature = np.searchsorted(first_bag, bag, side="right") - 1
    found = []
    for row, f in zip(rows.tolist(), feature.tolist()):
        size = int(block[f])
        count = int(blocks[f])
        ends = bounds[bound_start[f] : bound_start[f + 1]].tolist()
        number = row % 2**64  # as unsigned
        if row == -1 and pruned >= 0:
            found.append((pruned, -1))
            continue
        if ends:
            below = number % count * ends[-1] // count if size == 0 else number
            part = sum(end <= below for end in ends) - 1
            rank = part if part < ranks else number % ranks
            local = (
                number // count
                if size == 0
                else number - ends[part]
                if part < ranks
                else number // ranks
            )
        elif number < size * count:
            rank, local = divmod(number, size * (count // ranks))
        else:
            rank = number % count // (count // ranks)
            local = number // count
        chosen = number if keep[f] else local
        found.append((rank, chosen - 2**64 if chosen >= 2**63 else chosen))
    where = np.array(found, np.int64).reshape(-1, 2)
    return bag, where[:, 0], where[:, 1]


def block_bucketize_lengths(
    offsets, rows, first_bag, block, blocks, ranks, bounds, bound_start, pruned, lengths
):
    """Lookups of every (rank, bag); shapes as in the kernel."""
    keep = np.zeros(block.size, np.bool_)
    bag, rank, _ = _buckets(
        offsets, rows, first_bag, block, blocks, ranks, bounds, bound_start, pruned, keep
    )
    lengths[:] = np.bincount(rank * (offsets.size - 1) + bag, minlength=lengths.size)


def block_bucketize(
    offsets,
    rows,
    weights,
    first_bag,
    block,
    blocks,
    ranks,
    bounds,
    bound_start,
    pruned,
    keep,
    lengths,
    rows_out,
    weights_out,
    positions,
    place,
    bucket,
):
    """Lookups sorted by (rank, bag), and where they went; shapes as in the kernel."""
    bag, rank, local = _buckets(
        offsets, rows, first_bag, block, blocks, ranks, bounds, bound_start, pruned, keep
    )
    order = np.lexsort((np.arange(bag.size), bag, rank))
    rows_out[:], positions[:], bucket[:] = (
        local[order],
        (np.arange(bag.size) - offsets[bag])[order],
        rank,
    )
    place[order] = np.arange(bag.size)
    if weights.size:
        weights_out[:] = weights[order]
