"""How are records copied from and to a mapped file? The plain twin of
`kernels/tiers/row_records.py`.
"""

import numpy as np

# the five primes of the xxHash specification, under its numbers 1 to 5
_P = [
    np.uint64(p)
    for p in (
        0,
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
]


def _rotated(x, bits):
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


def _round(state, word):
    return _rotated(state + word * _P[2], 31) * _P[1]


def xxh64(records, seeds):
    """XXH64, u64[n], of every row of records u8[n, size] with seeds u64[n].

    All records are hashed together, word by word.
    """
    n, size = records.shape
    whole = size // 32 * 32
    seeds = np.asarray(seeds, np.uint64)
    if whole:
        lanes = [seeds + _P[1] + _P[2], seeds + _P[2], seeds, seeds - _P[1]]
        words = np.ascontiguousarray(records[:, :whole]).view("<u8").reshape(n, -1, 4)
        for step in range(words.shape[1]):
            lanes = [_round(state, words[:, step, i]) for i, state in enumerate(lanes)]
        h = sum(
            (_rotated(state, bits) for state, bits in zip(lanes, (1, 7, 12, 18))),
            np.zeros(n, np.uint64),
        )
        for state in lanes:
            h = (h ^ _round(np.zeros_like(state), state)) * _P[1] + _P[4]
    else:
        h = seeds + _P[5]
    h = h + np.uint64(size)
    position = whole
    for width, code in ((8, "<u8"), (4, "<u4"), (1, "u1")):
        while position + width <= size:
            column = np.ascontiguousarray(records[:, position : position + width])
            word = column.view(code)[:, 0].astype(np.uint64)
            if width == 8:
                h = _rotated(h ^ _round(np.zeros_like(word), word), 27) * _P[1] + _P[4]
            elif width == 4:
                h = _rotated(h ^ (word * _P[1]), 23) * _P[2] + _P[3]
            else:
                h = _rotated(h ^ (word * _P[5]), 11) * _P[1]
            position += width
    for shift, factor in ((33, _P[2]), (29, _P[3]), (32, np.uint64(1))):
        h = (h ^ (h >> np.uint64(shift))) * factor
    return h


def _byte_positions(slots, origin, per, stride, size):
    return (origin[slots // per] + slots % per * stride)[:, None] + np.arange(size)


def gather_records(file, slots, origin, per, stride, size, out):
    """Copy the records of slots; see `kernels.tiers.row_records.gather_records`."""
    copied = slots >= 0
    positions = _byte_positions(slots[copied], origin, per, stride, size)
    out.reshape(slots.size, size)[copied] = file[positions]


def scatter_records(records, slots, origin, per, stride, size, file):
    """Copy records to their slots; see `kernels.tiers.row_records.scatter_records`."""
    copied = slots >= 0
    positions = _byte_positions(slots[copied], origin, per, stride, size)
    file[positions] = records.reshape(slots.size, size)[copied]


def make_tags(records, size, rows, slots, table, tags):
    """Compute the tags of records; see `kernels.tiers.row_records.make_tags`."""
    out = tags.reshape(rows.size, 16)
    out[:, :8] = rows.astype("<i8").view(np.uint8).reshape(-1, 8)
    out[:, 8:12] = _low(xxh64(records.reshape(rows.size, size), rows.astype(np.uint64)))
    out[:, 12:] = _low(xxh64(out[:, :12], slots.astype(np.uint64) + np.uint64(table << 48)))


def _low(hashes):
    """Low halves of hashes u64[n] as bytes u8[n, 4]."""
    return hashes.astype("<u4").view(np.uint8).reshape(-1, 4)


def rows_of_tags(tags, slots, table, rows):
    """Read the rows from tags, up to a damaged one.

    See `kernels.tiers.row_records.rows_of_tags`.
    """
    lines = tags.reshape(slots.size, 16)
    hashes = _low(xxh64(lines[:, :12], slots.astype(np.uint64) + np.uint64(table << 48)))
    damaged = (lines[:, 12:] != hashes).any(axis=1)
    first_damaged = int(np.flatnonzero(damaged)[0]) if damaged.any() else -1
    intact = slots.size if first_damaged < 0 else first_damaged
    rows[:intact] = np.ascontiguousarray(lines[:intact, :8]).view("<i8")[:, 0]
    return first_damaged
