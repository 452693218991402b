"""Which lookups touch the same row? The plain twin of `kernels/rows/segments.py`, group by group
with NumPy's sort.
"""

import numpy as np


def count_groups(rows, chunks, counts):
    """Lookups of each chunk in each group; see `kernels.rows.segments.count_groups`."""
    counts[...] = 0
    for t, shift in enumerate(chunks.shift):
        chunk_rows = rows[chunks.start[t] : chunks.start[t + 1]]
        np.add.at(counts[t], chunk_rows[chunk_rows >= 0] >> shift, 1)


def place_chunks(counts, shard_chunk, groups, group_start):
    """counts become places, group_start the groups' first; see
    `kernels.rows.segments.place_chunks`.
    """
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


def deal_lookups(rows, offsets, by_bag, chunks, bits, places, keys):
    """keys = low bits of the row << bits | id, by group.

    See `kernels.rows.segments.deal_lookups`.
    """
    ids = np.arange(rows.size)
    if by_bag:
        ids = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    for t, shift in enumerate(chunks.shift):
        lookups = np.arange(chunks.start[t], chunks.start[t + 1])
        lookups = lookups[rows[lookups] >= 0]
        group = rows[lookups] >> shift
        low = rows[lookups] % (1 << int(shift))
        order = np.argsort(group, kind="stable")
        rank = np.arange(lookups.size) - np.searchsorted(group[order], group[order])
        keys[places[t, group[order]] + rank] = (low[order] << bits) + ids[lookups][order]
        np.add.at(places[t], group, 1)


def sort_groups(keys, spare, groups, bits, unique_counts):
    """Sort each group by row, stable, and count its rows.

    See `kernels.rows.segments.sort_groups`.
    """
    for g in range(unique_counts.size):
        group_keys = keys[groups.start[g] : groups.start[g + 1]]
        group_keys[:] = group_keys[np.argsort(group_keys >> bits, kind="stable")]
        unique_counts[g] = np.unique(group_keys >> bits).size


def write_segments(keys, groups, first, bits, place_of, weights, segments):
    """Unique rows, their runs, places and weights; see `kernels.rows.segments.write_segments`."""
    ids = keys & ((1 << int(bits)) - 1)
    segments.place[:] = place_of[ids]
    segments.weights[:] = weights[ids] if weights.size else weights
    segments.starts[-1] = keys.size
    for g in range(groups.row.size):
        group_keys = keys[groups.start[g] : groups.start[g + 1]]
        rows, at = np.unique(group_keys >> bits, return_index=True)
        unique_rows = slice(first[g], first[g + 1])
        segments.unique[unique_rows] = groups.row[g] + rows.astype(np.int64)
        segments.starts[unique_rows] = groups.start[g] + at
