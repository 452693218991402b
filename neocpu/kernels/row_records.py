"""How do records travel between a mapped file and memory, and how is one told from a damaged one?

Records of `stride` bytes fill extents of `per` slots each; slot s lies at byte origin[s // per] +
(s % per) * stride. Beside each record lies its tag of 16 bytes: row i64, low half of XXH64(record,
seed row) u32, low half of XXH64(these 12 bytes, seed slot + table * 2^48) u32. So a tag proves
itself and its place, and a record that it is the one of its row. Source of the hash: the xxHash
specification (Collet), 64 bits; every single word of the input changes it with certainty before it
is cut.
"""

import numpy as np
from numba import prange
from numba.extending import register_jitable

from neocpu.kernels._jit import kernel, parallel_kernel
from neocpu.kernels.simd import prefetch
from neocpu.kernels.simd.memory import copy_bytes, load_u32, load_u64, store_u32, store_u64

AHEAD = 6  # records
TAG = 16  # bytes
_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)


@register_jitable
def _turn(x, bits):
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@register_jitable
def _round(state, word):
    return _turn(state + word * _P2, 31) * _P1


@register_jitable
def _joined(h, state):
    return (h ^ _round(np.uint64(0), state)) * _P1 + _P4


@register_jitable
def _xxh64(x, at, count, seed):
    """XXH64 of x[at : at + count] (u8): uint64."""
    end = at + count
    if count >= 32:
        a = seed + _P1 + _P2
        b = seed + _P2
        c = seed
        d = seed - _P1
        while at + 32 <= end:
            a = _round(a, load_u64(x, at))
            b = _round(b, load_u64(x, at + 8))
            c = _round(c, load_u64(x, at + 16))
            d = _round(d, load_u64(x, at + 24))
            at += 32
        h = _turn(a, 1) + _turn(b, 7) + _turn(c, 12) + _turn(d, 18)
        h = _joined(_joined(_joined(_joined(h, a), b), c), d)
    else:
        h = seed + _P5
    h += np.uint64(count)
    while at + 8 <= end:
        h = _turn(h ^ _round(np.uint64(0), load_u64(x, at)), 27) * _P1 + _P4
        at += 8
    if at + 4 <= end:
        h = _turn(h ^ (np.uint64(load_u32(x, at)) * _P1), 23) * _P2 + _P3
        at += 4
    while at < end:
        h = _turn(h ^ (np.uint64(x[at]) * _P5), 11) * _P1
        at += 1
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


@register_jitable
def tag_hash(tags, at, slot, table):
    """What the last four bytes of the tag at byte `at` must be: uint32."""
    return np.uint32(_xxh64(tags, at, 12, np.uint64(slot) + (np.uint64(table) << np.uint64(48))))


@parallel_kernel
def gather_records(file, slots, origin, per, stride, size, out):
    """Records of slots, one after the other: the first `size` bytes of each.

    Shapes: file u8[:], the mapped file; slots i64[n], -1: that part of `out` stays as it is; origin
    i64[extents]; out u8[n*size].
    """
    for i in prange(slots.size):
        next_slot = slots[min(i + AHEAD, slots.size - 1)]
        if next_slot >= 0:
            begin = origin[next_slot // per] + next_slot % per * stride
            for line in range(0, size, 64):
                prefetch(file, begin + line)
        slot = slots[i]
        if slot >= 0:
            copy_bytes(file, origin[slot // per] + slot % per * stride, out, i * size, size)


@parallel_kernel
def scatter_records(records, slots, origin, per, stride, size, file):
    """Put records of `size` bytes, one after the other, into their slots.

    Shapes: records u8[n*size]; slots i64[n], distinct, -1: not to be put; origin i64[extents]; file
    u8[:], the mapped file.
    """
    for i in prange(slots.size):
        slot = slots[i]
        if slot >= 0:
            copy_bytes(records, i * size, file, origin[slot // per] + slot % per * stride, size)


@parallel_kernel
def make_tags(records, size, rows, slots, table, tags):
    """The tags of records.

    Shapes: records u8[n*size]; rows, slots i64[n]; table: its number in the file; tags u8[n*16].
    """
    for i in prange(rows.size):
        store_u64(tags, i * TAG, np.uint64(rows[i]))
        store_u32(tags, i * TAG + 8, np.uint32(_xxh64(records, i * size, size, np.uint64(rows[i]))))
        store_u32(tags, i * TAG + 12, tag_hash(tags, i * TAG, slots[i], table))


@kernel
def rows_of_tags(tags, slots, table, rows):
    """Row numbers that tags hold; returns the first tag that is damaged, or -1.

    Shapes: tags u8[n*16]; slots i64[n]; table: its number in the file; rows i64[n].
    """
    for i in range(slots.size):
        if load_u32(tags, i * TAG + 12) != tag_hash(tags, i * TAG, slots[i], table):
            return i
        rows[i] = np.int64(load_u64(tags, i * TAG))
    return -1
