"""How do records travel between a mapped file and memory? The plain twin of
`kernels/row_records.py`.
"""

import numpy as np

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


def _turn(x, bits):
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


def _round(state, word):
    return _turn(state + word * _P[2], 31) * _P[1]


def xxh64(records, seeds):
    """XXH64 of every row of records u8[n, size], with seeds u64[n]: u64[n]; all records at once,
    word by word.
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
            (_turn(state, bits) for state, bits in zip(lanes, (1, 7, 12, 18))),
            np.zeros(n, np.uint64),
        )
        for state in lanes:
            h = (h ^ _round(np.zeros_like(state), state)) * _P[1] + _P[4]
    else:
        h = seeds + _P[5]
    h = h + np.uint64(size)
    at = whole
    for width, code in ((8, "<u8"), (4, "<u4"), (1, "u1")):
        while at + width <= size:
            word = (
                np.ascontiguousarray(records[:, at : at + width]).view(code)[:, 0].astype(np.uint64)
            )
            if width == 8:
                h = _turn(h ^ _round(np.zeros_like(word), word), 27) * _P[1] + _P[4]
            elif width == 4:
                h = _turn(h ^ (word * _P[1]), 23) * _P[2] + _P[3]
            else:
                h = _turn(h ^ (word * _P[5]), 11) * _P[1]
            at += width
    for shift, factor in ((33, _P[2]), (29, _P[3]), (32, np.uint64(1))):
        h = (h ^ (h >> np.uint64(shift))) * factor
    return h


def _places(slots, origin, per, stride, size):
    return (origin[slots // per] + slots % per * stride)[:, None] + np.arange(size)


def gather_records(file, slots, origin, per, stride, size, out):
    """Records of slots, one after the other; see `kernels.row_records.gather_records`."""
    found = slots >= 0
    out.reshape(slots.size, size)[found] = file[_places(slots[found], origin, per, stride, size)]


def scatter_records(records, slots, origin, per, stride, size, file):
    """Put records into their slots; see `kernels.row_records.scatter_records`."""
    put = slots >= 0
    file[_places(slots[put], origin, per, stride, size)] = records.reshape(slots.size, size)[put]


def make_tags(records, size, rows, slots, table, tags):
    """The tags of records; see `kernels.row_records.make_tags`."""
    out = tags.reshape(rows.size, 16)
    out[:, :8] = rows.astype("<i8").view(np.uint8).reshape(-1, 8)
    out[:, 8:12] = _low(xxh64(records.reshape(rows.size, size), rows.astype(np.uint64)))
    out[:, 12:] = _low(xxh64(out[:, :12], slots.astype(np.uint64) + np.uint64(table << 48)))


def _low(hashes):
    return hashes.astype("<u4").view(np.uint8).reshape(-1, 4)


def rows_of_tags(tags, slots, table, rows):
    """Row numbers that tags hold; the first damaged tag or -1; see
    `kernels.row_records.rows_of_tags`.
    """
    given = tags.reshape(slots.size, 16)
    wrong = (
        given[:, 12:]
        != _low(xxh64(given[:, :12], slots.astype(np.uint64) + np.uint64(table << 48)))
    ).any(axis=1)
    bad = int(np.flatnonzero(wrong)[0]) if wrong.any() else -1
    good = slots.size if bad < 0 else bad
    rows[:good] = np.ascontiguousarray(given[:good, :8]).view("<i8")[:, 0]
    return bad
