"""Which lookups touch the same row? The plain twin of `kernels/segments.py`, group by group with
NumPy's sort.
"""

import numpy as np


def count_groups(rows, chunk, shift, counts):
    """counts[t, q] = lookups of chunk t with row >> shift[t] == q; see
    `kernels.segments.count_groups`.
    """
    counts[...] = 0
    for t in range(shift.size):
        mine = rows[chunk[t] : chunk[t + 1]]
        np.add.at(counts[t], mine[mine >= 0] >> shift[t], 1)


def place_chunks(counts, shard_chunk, groups, group_start):
    """counts become places, group_start the groups' first; see `kernels.segments.place_chunks`."""
    blocks = [(slice(*shard_chunk[h : h + 2]), slice(0, groups[h])) for h in range(groups.size)]
    sizes = np.concatenate(
        [counts[block].sum(axis=0) for block in blocks] + [np.empty(0, np.int64)]
    )
    group_start[:] = np.append(0, np.cumsum(sizes))
    ordered = np.concatenate(
        [counts[block].T.reshape(-1) for block in blocks] + [np.empty(0, np.int64)]
    )
    places = np.cumsum(ordered) - ordered
    at = 0
    for block in blocks:
        columns, chunks = counts[block].T.shape
        counts[block] = places[at : at + columns * chunks].reshape(columns, chunks).T
        at += columns * chunks


def deal_lookups(rows, offsets, by_bag, chunk, bags, shift, bits, places, keys):
    """keys = low bits of the row << bits | id, group by group; see `kernels.segments.deal_lookups`."""
    ids = (
        np.repeat(np.arange(offsets.size - 1), np.diff(offsets)) if by_bag else np.arange(rows.size)
    )
    for t in range(shift.size):
        mine = np.arange(chunk[t], chunk[t + 1])
        mine = mine[rows[mine] >= 0]
        group = rows[mine] >> shift[t]
        low = rows[mine] % (1 << int(shift[t]))
        order = np.argsort(group, kind="stable")
        rank = np.arange(mine.size) - np.searchsorted(group[order], group[order])
        keys[places[t, group[order]] + rank] = (low[order] << bits) + ids[mine][order]
        np.add.at(places[t], group, 1)


def sort_groups(keys, spare, group_start, height, bits, found):
    """Sort each group by row, stable; found = unique rows; see `kernels.segments.sort_groups`."""
    for g in range(found.size):
        mine = keys[group_start[g] : group_start[g + 1]]
        mine[:] = mine[np.argsort(mine >> bits, kind="stable")]
        found[g] = np.unique(mine >> bits).size


def write_segments(
    keys, group_start, group_row, first, bits, place_of, weights, unique, starts, place, weights_out
):
    """Unique rows, their runs, places and weights; see `kernels.segments.write_segments`."""
    ids = keys & ((1 << int(bits)) - 1)
    place[:] = place_of[ids]
    weights_out[:] = weights[ids] if weights.size else weights
    starts[-1] = keys.size
    for g in range(group_row.size):
        mine = slice(*group_start[g : g + 2])
        out = slice(*first[g : g + 2])
        names, at = np.unique(keys[mine] >> bits, return_index=True)
        unique[out] = group_row[g] + names.astype(np.int64)
        starts[out] = group_start[g] + at
