"""How are records copied between a mapped file and memory, and how is a damaged one detected?

Records of `stride` bytes fill extents of `per` slots each; slot s begins at byte
origin[s // per] + (s % per) * stride. Every record has a tag of 16 bytes:

    bytes 0-7    i64, its row
    bytes 8-11   u32, low half of XXH64(record, seed = row)
    bytes 12-15  u32, low half of XXH64(bytes 0-11, seed = slot + table * 2^48)

The last hash verifies the tag and its slot, the other one that the record is that of the row.
Source of the hash: the xxHash specification (Collet), 64 bits. A change of any single word of the
input always changes the full hash; only its truncation to 32 bits can hide the change.
"""

import numpy as np
from numba import prange
from numba.extending import register_jitable

from neocpu.kernels.compile.jit import kernel, parallel_kernel
from neocpu.kernels.simd import prefetch
from neocpu.kernels.simd.memory import copy_bytes, load_u32, load_u64, store_u32, store_u64

# records between a prefetch and the copy
AHEAD = 6
# bytes of a tag
TAG = 16

# The five primes of the specification.
_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)


@register_jitable
def _rotated(x, bits):
    """x (u64) rotated left."""
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@register_jitable
def _round(state, word):
    """The specification's round: one lane takes in one word."""
    return _rotated(state + word * _P2, 31) * _P1


@register_jitable
def _merged(h, state):
    """The specification's mergeAccumulator."""
    return (h ^ _round(np.uint64(0), state)) * _P1 + _P4


@register_jitable
def _xxh64(x, position, count, seed):
    """XXH64 of x[position : position + count] (u8): uint64."""
    end = position + count
    if count >= 32:
        a = seed + _P1 + _P2
        b = seed + _P2
        c = seed
        d = seed - _P1
        # four lanes, as the specification has them: their multiplications overlap
        while position + 32 <= end:
            a = _round(a, load_u64(x, position))
            b = _round(b, load_u64(x, position + 8))
            c = _round(c, load_u64(x, position + 16))
            d = _round(d, load_u64(x, position + 24))
            position += 32
        h = _rotated(a, 1) + _rotated(b, 7) + _rotated(c, 12) + _rotated(d, 18)
        h = _merged(_merged(_merged(_merged(h, a), b), c), d)
    else:
        h = seed + _P5
    h += np.uint64(count)
    while position + 8 <= end:
        h = _rotated(h ^ _round(np.uint64(0), load_u64(x, position)), 27) * _P1 + _P4
        position += 8
    if position + 4 <= end:
        h = _rotated(h ^ (np.uint64(load_u32(x, position)) * _P1), 23) * _P2 + _P3
        position += 4
    while position < end:
        h = _rotated(h ^ (np.uint64(x[position]) * _P5), 11) * _P1
        position += 1
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


@register_jitable
def tag_hash(tags, at, slot, table):
    """Expected value of the last four bytes of the tag at byte `at`: uint32."""
    return np.uint32(_xxh64(tags, at, 12, np.uint64(slot) + (np.uint64(table) << np.uint64(48))))


@parallel_kernel
def gather_records(file, slots, origin, per, stride, size, out):
    """Copy the first `size` bytes of the record in each slot to consecutive places of `out`.

    Shapes: file u8[:], the mapped file; slots i64[n], -1 leaves that part of `out` as it is;
    origin i64[extents]; out u8[n*size].
    """
    for i in prange(slots.size):
        next_slot = slots[min(i + AHEAD, slots.size - 1)]
        if next_slot >= 0:
            begin = origin[next_slot // per] + next_slot % per * stride
            # records are anywhere in the file: one further on is asked for while this one is copied
            for line in range(0, size, 64):
                prefetch(file, begin + line)
        slot = slots[i]
        if slot >= 0:
            copy_bytes(file, origin[slot // per] + slot % per * stride, out, i * size, size)


@parallel_kernel
def scatter_records(records, slots, origin, per, stride, size, file):
    """Copy consecutive records of `size` bytes to their slots.

    Shapes: records u8[n*size]; slots i64[n], distinct, -1 skips the record; origin i64[extents];
    file u8[:], the mapped file.
    """
    for i in prange(slots.size):
        slot = slots[i]
        if slot >= 0:
            copy_bytes(records, i * size, file, origin[slot // per] + slot % per * stride, size)


@parallel_kernel
def make_tags(records, size, rows, slots, table, tags):
    """Compute the tags of records.

    Shapes: records u8[n*size]; rows, slots i64[n]; table i64, its number in the file;
    tags u8[n*16].
    """
    for i in prange(rows.size):
        store_u64(tags, i * TAG, np.uint64(rows[i]))
        store_u32(tags, i * TAG + 8, np.uint32(_xxh64(records, i * size, size, np.uint64(rows[i]))))
        # over the tag with its slot: a record that a disk wrote to another place is found out
        store_u32(tags, i * TAG + 12, tag_hash(tags, i * TAG, slots[i], table))


@kernel
def rows_of_tags(tags, slots, table, rows):
    """Read the rows from tags; returns the number of the first damaged tag, or -1.

    Shapes: tags u8[n*16]; slots i64[n]; table i64, its number in the file; rows i64[n].
    """
    for i in range(slots.size):
        if load_u32(tags, i * TAG + 12) != tag_hash(tags, i * TAG, slots[i], table):
            return i
        rows[i] = np.int64(load_u64(tags, i * TAG))
    return -1
