"""In which slot is a row? The plain twin of `kernels/tiers/row_index.py`, with the status of
slots.
"""

import numpy as np

from neocpu.kernels.twins.numbers.philox import splitmix64

FREE = 0
LIVE = 1
FRESH = 2
REPLACED = 3
HELD = 4
NEW = -1
STAYED = -2


def _slot_of_row(words, shift):
    """Slot of every row of the map."""
    return {int(w) >> shift: int(w) % 2**shift - 1 for w in words[words != 0]}


def _position(row, words, shift):
    """Position of the word of `row`, or of the empty word where it would be entered."""
    order = (np.arange(words.size) + splitmix64(row) % words.size) % words.size
    probed = words[order]
    return order[(probed == 0) | (probed >> np.uint64(shift) == row)][0]


def _enter(row, slot, words, shift):
    words[_position(row, words, shift)] = row << shift | (slot + 1)


def find_slots(rows, words, shift, slots):
    """Slot of every row, or -1; see `kernels.tiers.row_index.find_slots`."""
    slot_of_row = _slot_of_row(words, shift)
    slots[:] = [slot_of_row.get(row, -1) for row in rows.tolist()]


def place_rows(rows, words, shift, status, first, slots, old):
    """Choose the slot in which each row is written; see `kernels.tiers.row_index.place_rows`."""
    slot_of_row = _slot_of_row(words, shift)
    free = int(first)
    for i, row in enumerate(rows.tolist()):
        slot = slot_of_row.get(row, -1)
        old[i] = STAYED
        if slot < 0 or status[slot] != FRESH:
            old[i] = NEW
            if slot >= 0:
                status[slot] = REPLACED
                old[i] = slot
            free = int((free + np.flatnonzero(np.roll(status, -free) == FREE)[0]) % status.size)
            slot = free
            status[slot] = FRESH
            _enter(row, slot, words, shift)
        slots[i] = slot
    return free


def insert_rows(rows, slots, words, shift):
    """Enter rows with their slots, up to one that is there; see
    `kernels.tiers.row_index.insert_rows`.
    """
    stored_rows = set(_slot_of_row(words, shift))
    for i, (row, slot) in enumerate(zip(rows.tolist(), slots.tolist())):
        if row in stored_rows:
            return i
        stored_rows.add(row)
        _enter(row, slot, words, shift)
    return -1


def rehash(words, shift, larger):
    """Enter every word of a map into an empty one; see `kernels.tiers.row_index.rehash`."""
    for row, slot in _slot_of_row(words, shift).items():
        _enter(row, slot, larger, shift)


def count_ranges(words, shift, wide, counts):
    """How many rows are in each range of row numbers.

    See `kernels.tiers.row_index.count_ranges`.
    """
    rows = words[words != 0] >> np.uint64(shift)
    counts += np.bincount((rows >> np.uint64(wide)).astype(np.int64), minlength=counts.size)


def rows_between(words, shift, low, high, out):
    """Rows in [low, high) of the map; see `kernels.tiers.row_index.rows_between`."""
    rows = (words[words != 0] >> np.uint64(shift)).astype(np.int64)
    rows = rows[(rows >= low) & (rows < high)]
    out[: rows.size] = rows
    return rows.size
