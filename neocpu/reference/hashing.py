"""Which row does a category code get? The plain twin of `kernels/hashing.py`, and the key of a
feature.
"""

import numpy as np

from neocpu.reference.philox import fnv1a64, splitmix64


def feature_key(seed: int, feature: str) -> np.uint64:
    """The part of the row hash that does not depend on the code: splitmix64(seed ^
    FNV1a64(feature)).
    """
    return np.uint64(splitmix64(seed % 2**64 ^ fnv1a64(feature)))


def hash_rows(codes, key, rows, out):
    """Row of every code in a table; see `kernels.hashing.hash_rows`."""
    out[:] = [splitmix64(int(key) ^ code) % int(rows) for code in codes.tolist()]


def _place(code, keys, values):
    slots = (np.arange(keys.size) + splitmix64(code) % keys.size) % keys.size
    return slots[(values[slots] == 0) | (keys[slots] == code)][0]


def count_codes(codes, keys, counts, first):
    """Count codes[first:] in a hash map until it is half full; see `kernels.hashing`."""
    for i in range(first, codes.size):
        if 2 * counts[-1] >= keys.size:
            return i
        code = int(codes[i])
        at = _place(code, keys, counts[:-1])
        counts[-1] += counts[at] == 0
        keys[at] = code
        counts[at] += 1
    return codes.size


def fill_map(codes, values, keys, slots):
    """Put distinct codes with their values into a hash map; see `kernels.hashing.fill_map`."""
    for code, value in zip(codes.tolist(), values.tolist()):
        at = _place(code, keys, slots)
        keys[at] = code
        slots[at] = value


def add_counts(codes, counts, keys, slots, out):
    """Add to the counts of codes in a hash map; returns how many are new; see
    `kernels.hashing.add_counts`.
    """
    before = np.count_nonzero(slots)
    look_up(codes, keys, slots, out)
    out += counts
    fill_map(codes, out, keys, slots)
    return np.count_nonzero(slots) - before


def look_up(codes, keys, slots, out):
    """Value of every code, 0 where there is none; see `kernels.hashing.look_up`."""
    known = dict(zip(keys[slots != 0].tolist(), slots[slots != 0].tolist()))
    out[:] = [known.get(code, 0) for code in codes.tolist()]
