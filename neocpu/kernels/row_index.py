"""In which slot is a row? An open-addressing hash map of one word per row, for rows that are few
among very many.

A word is row * 2^shift + slot + 1, 0 where nothing is; row r belongs at splitmix64(r) mod 2^k and
on to the next free word. A slot's status is a byte: FREE, LIVE (of the last commit), FRESH (written
since), REPLACED (its row is elsewhere since), HELD (replaced before the last commit). A row is
written where it is if that slot is fresh, else it moves to a free slot: what was committed is never
touched. The free slots are taken in ascending order, round and round, so that new records lie
together.
"""

import numpy as np
from numba.extending import register_jitable

from neocpu.kernels._jit import kernel
from neocpu.kernels.philox import splitmix64
from neocpu.kernels.simd import prefetch

AHEAD = 12  # rows
FREE = 0
LIVE = 1
FRESH = 2
REPLACED = 3
HELD = 4
NEW = -1
STAYED = -2


@register_jitable
def _place(row, words, shift):
    """Where the word of `row` is, or the free place where it belongs."""
    mask = np.uint64(words.size - 1)
    bits = np.uint64(shift)
    at = splitmix64(np.uint64(row)) & mask
    while words[at] != 0 and words[at] >> bits != np.uint64(row):
        at = (at + np.uint64(1)) & mask
    return at


@register_jitable
def _slot(word, shift):
    """Slot in a word; -1 in an empty one."""
    return np.int64(word & ((np.uint64(1) << np.uint64(shift)) - np.uint64(1))) - 1


@register_jitable
def _word(row, slot, shift):
    return (np.uint64(row) << np.uint64(shift)) | np.uint64(slot + 1)


@kernel
def find_slots(rows, words, shift, slots):
    """Slot of every row, -1 for a row that has none.

    Shapes: rows i64[n], >= 0; words u64[2^k], not full; slots i64[n].
    """
    mask = np.uint64(words.size - 1)
    for i in range(rows.size):
        prefetch(words, np.int64(splitmix64(np.uint64(rows[min(i + AHEAD, rows.size - 1)])) & mask))
        slots[i] = _slot(words[_place(rows[i], words, shift)], shift)


@kernel
def place_rows(rows, words, shift, status, first, slots, old):
    """Give every row a slot to be written in: the one it has if that is fresh, else the next free
    one.

    Returns where the search for free slots stopped.
    Shapes: rows i64[n], distinct; words u64[2^k] with room for them; status u8[slots] with a free
    slot for each; first i64: where the search begins; slots i64[n]; old i64[n]: the slot that a row
    left, NEW if it had none, STAYED if it stays.
    Order: rows ascending in i.
    """
    at = np.int64(first)
    mask = np.uint64(words.size - 1)
    for i in range(rows.size):
        prefetch(words, np.int64(splitmix64(np.uint64(rows[min(i + AHEAD, rows.size - 1)])) & mask))
        place = _place(rows[i], words, shift)
        slot = _slot(words[place], shift)
        if slot >= 0 and status[slot] == FRESH:
            slots[i] = slot
            old[i] = STAYED
            continue
        old[i] = NEW
        if slot >= 0:
            status[slot] = REPLACED
            old[i] = slot
        while status[at] != FREE:
            at = at + 1 if at + 1 < status.size else 0
        status[at] = FRESH
        slots[i] = at
        words[place] = _word(rows[i], at, shift)
    return at


@kernel
def insert_rows(rows, slots, words, shift):
    """Enter rows with their slots; returns the first row that was in the map already, as its place
    in `rows`, or -1.

    Shapes: rows, slots i64[n]; words u64[2^k] with room for them.
    """
    mask = np.uint64(words.size - 1)
    for i in range(rows.size):
        prefetch(words, np.int64(splitmix64(np.uint64(rows[min(i + AHEAD, rows.size - 1)])) & mask))
        place = _place(rows[i], words, shift)
        if words[place] != 0:
            return i
        words[place] = _word(rows[i], slots[i], shift)
    return -1


@kernel
def rehash(words, shift, larger):
    """Enter every word of one map into another, empty one. Shapes: words u64[2^k]; larger u64[2^m],
    with room.
    """
    for word in words:
        if word != 0:
            larger[_place(word >> np.uint64(shift), larger, shift)] = word


@kernel
def count_ranges(words, shift, wide, counts):
    """How many rows are in each range of 2^wide row numbers. Shapes: words u64[2^k]; counts
    i64[ranges], added to.
    """
    for word in words:
        if word != 0:
            counts[np.int64(word >> np.uint64(shift)) >> wide] += 1


@kernel
def rows_between(words, shift, low, high, out):
    """Rows in [low, high) of the map, in no order, into `out`; returns how many. Shapes: words
    u64[2^k]; out i64[enough].
    """
    n = 0
    for word in words:
        row = np.int64(word >> np.uint64(shift))
        if word != 0 and low <= row < high:
            out[n] = row
            n += 1
    return n
