"""Which row does a category code get? The plain twin of `kernels/logs/hashing.py`."""

import numpy as np

from neocpu.kernels.twins.numbers.philox import splitmix64


def hash_rows(codes, key, rows, out):
    """Row of every code in a table; see `kernels.logs.hashing.hash_rows`."""
    out[:] = [splitmix64(int(key) ^ code) % int(rows) for code in codes.tolist()]


def _slot(code, keys, values):
    """Slot of `code`, or the free slot where it would be entered."""
    slots = (np.arange(keys.size) + splitmix64(code) % keys.size) % keys.size
    return slots[(values[slots] == 0) | (keys[slots] == code)][0]


def count_codes(codes, keys, counts, first):
    """Count codes[first:] in a hash map until it is half full; see `kernels.logs.hashing`."""
    for i in range(first, codes.size):
        if 2 * counts[-1] >= keys.size:
            return i
        code = int(codes[i])
        slot = _slot(code, keys, counts[:-1])
        counts[-1] += counts[slot] == 0
        keys[slot] = code
        counts[slot] += 1
    return codes.size


def fill_map(codes, values, keys, slots):
    """Enter distinct codes with their values into a hash map.

    See `kernels.logs.hashing.fill_map`.
    """
    for code, value in zip(codes.tolist(), values.tolist()):
        slot = _slot(code, keys, slots)
        keys[slot] = code
        slots[slot] = value


def add_counts(codes, counts, keys, slots, out):
    """Add to the counts of codes in a hash map; see `kernels.logs.hashing.add_counts`."""
    before = np.count_nonzero(slots)
    look_up(codes, keys, slots, out)
    out += counts
    fill_map(codes, out, keys, slots)
    return np.count_nonzero(slots) - before


def look_up(codes, keys, slots, out):
    """Value of every code, 0 where there is none; see `kernels.logs.hashing.look_up`."""
    value_of_code = dict(zip(keys[slots != 0].tolist(), slots[slots != 0].tolist()))
    out[:] = [value_of_code.get(code, 0) for code in codes.tolist()]
