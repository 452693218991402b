"""How are rows copied between slots of memory, and between slots and records?

As bytes, many rows in one call. A field holds one kind of data, weights or optimizer state, of all
slots: u8[slots * size]. A record holds all fields of one row: u8[record].
"""

from numba import prange

from neocpu.kernels.compile.jit import parallel_kernel
from neocpu.kernels.simd.memory import copy_bytes


@parallel_kernel
def copy_slots(field, size, source, target):
    """Copy slots source[i] to slots target[i].

    Shapes: field u8[slots * size]; source, target i64[n].
    The targets are distinct and no target is a source.
    """
    # no target is a source or a target twice, so threads copy in any order
    for i in prange(source.size):
        copy_bytes(field, source[i] * size, field, target[i] * size, size)


@parallel_kernel
def pack_slots(field, size, slots, records, record, at):
    """Copy slots to bytes [at, at + size) of records.

    Shapes: field u8[slots * size]; slots i64[n]; records u8[n * record].
    """
    for i in prange(slots.size):
        copy_bytes(field, slots[i] * size, records, i * record + at, size)


@parallel_kernel
def unpack_slots(records, record, at, size, slots, field):
    """Copy bytes [at, at + size) of records to slots.

    Shapes: records u8[n * record]; slots i64[n], distinct; field u8[slots * size].
    """
    for i in prange(slots.size):
        copy_bytes(records, i * record + at, field, slots[i] * size, size)
