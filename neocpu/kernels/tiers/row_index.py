"""In which slot of the file is a row?

An open-addressing hash map with linear probing, one word for each stored row, answers it: few of
the rows that a table may have are stored. A word is row * 2^shift + slot + 1, or 0 if it is empty;
the probe for row r starts at splitmix64(r) mod 2^k.

The status of a slot is one byte:

    FREE      no record
    LIVE      a record of the last commit
    FRESH     written since the last commit
    REPLACED  a record of the last commit whose row has been written elsewhere since
    HELD      replaced before the last commit

A row is overwritten in place only if its slot is fresh; otherwise it moves to a free slot, so that
a commit stays intact until the next one. Free slots are taken in ascending order and cyclically, so
that new records are contiguous.
"""

import numpy as np
from numba.extending import register_jitable

from neocpu.kernels.compile.jit import kernel
from neocpu.kernels.numbers.philox import splitmix64
from neocpu.kernels.simd import prefetch

# rows between a prefetch of the map and the use of it
AHEAD = 12
FREE = 0
LIVE = 1
FRESH = 2
REPLACED = 3
HELD = 4
# `place_rows` gives these in place of the slot that a row left
NEW = -1
STAYED = -2


@register_jitable
def _position(row, words, shift):
    """Position of the word of `row`, or of the empty word where it would be entered."""
    mask = np.uint64(words.size - 1)
    bits = np.uint64(shift)
    position = splitmix64(np.uint64(row)) & mask
    # linear probing: the next word is mostly in the same cache line
    while words[position] != 0 and words[position] >> bits != np.uint64(row):
        position = (position + np.uint64(1)) & mask
    return position


@register_jitable
def _slot(word, shift):
    """Slot of a word, -1 if the word is empty."""
    return np.int64(word & ((np.uint64(1) << np.uint64(shift)) - np.uint64(1))) - 1


@register_jitable
def _word(row, slot, shift):
    """Word of the map for a row and its slot."""
    # + 1: row 0 in slot 0 is not the empty word
    return (np.uint64(row) << np.uint64(shift)) | np.uint64(slot + 1)


@kernel
def find_slots(rows, words, shift, slots):
    """Slot of every row, -1 for a row that has none.

    Shapes: rows i64[n], >= 0; words u64[2^k], not full; slots i64[n].
    """
    mask = np.uint64(words.size - 1)
    for i in range(rows.size):
        # a probe is mostly not in the cache: rows further on are asked for, the last one again at
        # the end
        prefetch(words, np.int64(splitmix64(np.uint64(rows[min(i + AHEAD, rows.size - 1)])) & mask))
        slots[i] = _slot(words[_position(rows[i], words, shift)], shift)


@kernel
def place_rows(rows, words, shift, status, first, slots, old):
    """Choose the slot in which each row is written: its own if that is fresh, else a free one.

    Returns where the search for free slots stopped.
    Shapes: rows i64[n], distinct; words u64[2^k] with room for them; status u8[slots] with a free
    slot for each; first i64, where the search begins; slots i64[n]; old i64[n], the slot that a row
    left, NEW if it had none, STAYED if it stays.
    Order: rows ascending in i.
    """
    free = np.int64(first)
    mask = np.uint64(words.size - 1)
    for i in range(rows.size):
        prefetch(words, np.int64(splitmix64(np.uint64(rows[min(i + AHEAD, rows.size - 1)])) & mask))
        position = _position(rows[i], words, shift)
        slot = _slot(words[position], shift)
        if slot >= 0 and status[slot] == FRESH:
            slots[i] = slot
            old[i] = STAYED
            continue
        old[i] = NEW
        if slot >= 0:
            # not free: until the next commit, the file that a crash leaves refers to this record
            status[slot] = REPLACED
            old[i] = slot
        while status[free] != FREE:
            # cyclic, from where the last batch stopped: records of a batch are contiguous on the
            # disk
            free = free + 1 if free + 1 < status.size else 0
        status[free] = FRESH
        slots[i] = free
        # `position` is still right: nothing was entered since it was found
        words[position] = _word(rows[i], free, shift)
    return free


@kernel
def insert_rows(rows, slots, words, shift):
    """Enter rows with their slots; returns the first i whose row is in the map already, or -1.

    Shapes: rows, slots i64[n]; words u64[2^k] with room for them.
    """
    mask = np.uint64(words.size - 1)
    for i in range(rows.size):
        prefetch(words, np.int64(splitmix64(np.uint64(rows[min(i + AHEAD, rows.size - 1)])) & mask))
        position = _position(rows[i], words, shift)
        if words[position] != 0:
            return i
        words[position] = _word(rows[i], slots[i], shift)
    return -1


@kernel
def rehash(words, shift, larger):
    """Enter every word of a map into an empty one.

    Shapes: words u64[2^k]; larger u64[2^m], with room for them.
    """
    for word in words:
        if word != 0:
            larger[_position(word >> np.uint64(shift), larger, shift)] = word


@kernel
def count_ranges(words, shift, wide, counts):
    """Add to counts how many rows are in each range of 2^wide row numbers.

    Shapes: words u64[2^k]; wide i64; counts i64[ranges].
    """
    for word in words:
        if word != 0:
            counts[np.int64(word >> np.uint64(shift)) >> wide] += 1


@kernel
def rows_between(words, shift, low, high, out):
    """Copy the rows of the map in [low, high) to `out`, in no order; returns how many.

    Shapes: words u64[2^k]; low, high i64; out i64, with room for them.
    """
    count = 0
    for word in words:
        row = np.int64(word >> np.uint64(shift))
        if word != 0 and low <= row < high:
            out[count] = row
            count += 1
    return count
