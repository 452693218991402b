"""Which row does a category code get? A mixed hash modulo the table's rows, or its place in a
vocabulary.

    row = splitmix64(splitmix64(seed ^ FNV1a64(feature)) ^ code) mod rows  (docs/arithmetic.md §10)

Vocabularies and distinct counts use one open-addressing hash map: slot = mix(code) and on to the
next free one; 2^k slots, a slot is free while its value is 0.
"""

import numpy as np
from numba.extending import register_jitable

from neocpu.kernels._jit import kernel
from neocpu.kernels.philox import splitmix64


@register_jitable
def _slot(code, keys, values):
    """Slot of `code`: where it is, or the free one where it belongs."""
    mask = np.uint64(keys.size - 1)
    at = splitmix64(code) & mask
    while values[at] != 0 and keys[at] != code:
        at = (at + np.uint64(1)) & mask
    return at


@kernel
def hash_rows(codes, key, rows, out):
    """Row of every code in a table of `rows` rows.

    Shapes: codes u32[n] or u64[n]; key u64 = splitmix64(seed ^ FNV1a64(feature)); rows i64 > 0; out
    i64[n].
    """
    table = np.uint64(rows)
    for i in range(codes.size):
        out[i] = np.int64(splitmix64(np.uint64(key) ^ np.uint64(codes[i])) % table)


@kernel
def count_codes(codes, keys, counts, first):
    """Count codes[first:] into a hash map and return where it stopped: the end, or early once the
    map is half full.

    Shapes: codes u32[n] or u64[n]; keys u64[2^k]; counts i64[2^k + 1], last entry: number of used
    slots; first i64.
    """
    slots = counts[: keys.size]
    used = counts[keys.size]
    i = np.int64(first)
    while i < codes.size and 2 * used < keys.size:
        code = np.uint64(codes[i])
        at = _slot(code, keys, slots)
        if slots[at] == 0:
            keys[at] = code
            used += 1
        slots[at] += 1
        i += 1
    counts[keys.size] = used
    return i


@kernel
def fill_map(codes, values, keys, slots):
    """Put codes (distinct) with their values (not 0) into a hash map that has room, in place of the
    values they had.

    Shapes: codes u64[n]; values i64[n]; keys u64[2^k]; slots i64[2^k], 0 where free.
    """
    for i in range(codes.size):
        at = _slot(codes[i], keys, slots)
        keys[at] = codes[i]
        slots[at] = values[i]


@kernel
def add_counts(codes, counts, keys, slots, out):
    """Add to the counts of codes (distinct) in a hash map that has room; out: the counts now.
    Returns how many are new.

    Shapes: codes u64[n]; counts i64[n] > 0; keys u64[2^k]; slots i64[2^k]; out i64[n].
    """
    new = 0
    for i in range(codes.size):
        at = _slot(codes[i], keys, slots)
        if slots[at] == 0:
            keys[at] = codes[i]
            new += 1
        slots[at] += counts[i]
        out[i] = slots[at]
    return new


@kernel
def look_up(codes, keys, slots, out):
    """Value of every code in a hash map, 0 for one that is not in it (a vocabulary's row of the
    unknown).

    Shapes: codes u32[n] or u64[n]; keys u64[2^k]; slots i64[2^k] (`fill_map`); out i64[n].
    """
    for i in range(codes.size):
        out[i] = slots[_slot(np.uint64(codes[i]), keys, slots)]
