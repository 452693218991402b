"""Which row does a category code get?

Either a hash of the code modulo the number of rows, or its position in a vocabulary. The hash:

    row = splitmix64(splitmix64(seed ^ FNV1a64(feature)) ^ code) mod rows  (docs/arithmetic.md §10)

Vocabularies and distinct counts use an open-addressing hash map of 2^k slots with linear probing,
which starts at slot splitmix64(code) mod 2^k; a slot is free while its value is 0.
"""

import numpy as np
from numba.extending import register_jitable

from neocpu.kernels.compile.jit import kernel
from neocpu.kernels.numbers.philox import splitmix64


@register_jitable
def _slot(code, keys, values):
    """Slot of `code`, or the free slot where it would be entered."""
    mask = np.uint64(keys.size - 1)
    slot = splitmix64(code) & mask
    while values[slot] != 0 and keys[slot] != code:
        # linear probing: the next slot is mostly in the same cache line
        slot = (slot + np.uint64(1)) & mask
    return slot


@kernel
def hash_rows(codes, key, rows, out):
    """Row of every code in a table of `rows` rows.

    Shapes: codes u32[n] or u64[n]; key u64 = splitmix64(seed ^ FNV1a64(feature)); rows i64 > 0; out
    i64[n].
    """
    modulus = np.uint64(rows)
    for i in range(codes.size):
        out[i] = np.int64(splitmix64(np.uint64(key) ^ np.uint64(codes[i])) % modulus)


@kernel
def count_codes(codes, keys, counts, first):
    """Count codes[first:] in a hash map until it is half full; returns the first code not counted.

    Shapes: codes u32[n] or u64[n]; keys u64[2^k]; counts i64[2^k + 1], the last entry is the
    number of used slots; first i64.
    """
    slots = counts[: keys.size]
    used = counts[keys.size]
    i = np.int64(first)
    # half full at most, so that probes stay short; the caller doubles the map and goes on
    while i < codes.size and 2 * used < keys.size:
        code = np.uint64(codes[i])
        slot = _slot(code, keys, slots)
        if slots[slot] == 0:
            keys[slot] = code
            used += 1
        slots[slot] += 1
        i += 1
    counts[keys.size] = used
    return i


@kernel
def fill_map(codes, values, keys, slots):
    """Enter codes with their values into a hash map, or replace the values they have there.

    Shapes: codes u64[n], distinct; values i64[n], not 0; keys u64[2^k]; slots i64[2^k], the values
    of the map, with room for the codes.
    """
    for i in range(codes.size):
        slot = _slot(codes[i], keys, slots)
        keys[slot] = codes[i]
        slots[slot] = values[i]


@kernel
def add_counts(codes, counts, keys, slots, out):
    """Add to the counts of codes in a hash map; returns how many codes are new.

    Shapes: codes u64[n], distinct; counts i64[n] > 0; keys u64[2^k]; slots i64[2^k], the counts of
    the map, with room for the codes; out i64[n], the new counts of the codes.
    """
    new_codes = 0
    for i in range(codes.size):
        slot = _slot(codes[i], keys, slots)
        if slots[slot] == 0:
            keys[slot] = codes[i]
            new_codes += 1
        slots[slot] += counts[i]
        out[i] = slots[slot]
    return new_codes


@kernel
def look_up(codes, keys, slots, out):
    """Value of every code in a hash map, 0 if it has none (the row of unknown codes).

    Shapes: codes u32[n] or u64[n]; keys u64[2^k]; slots i64[2^k] (`fill_map`); out i64[n].
    """
    for i in range(codes.size):
        out[i] = slots[_slot(np.uint64(codes[i]), keys, slots)]
