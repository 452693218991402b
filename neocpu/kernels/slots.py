"""How do rows travel between slots of memory, and between slots and records? As bytes, many at a
time.

A field is what all slots keep of one kind, a weight or a state, side by side: u8[slots * size]. A
record is a row's fields, one after the other: u8[record].
"""

from numba import prange

from neocpu.kernels._jit import parallel_kernel
from neocpu.kernels.simd.memory import copy_bytes


@parallel_kernel
def copy_slots(field, size, source, target):
    """From slots source[i] to slots target[i], i64[n]; targets are distinct, none is a source."""
    for i in prange(source.size):
        copy_bytes(field, source[i] * size, field, target[i] * size, size)


@parallel_kernel
def pack_slots(field, size, slots, records, record, at):
    """From slots i64[n] to bytes [at, at + size) of records u8[n * record]."""
    for i in prange(slots.size):
        copy_bytes(field, slots[i] * size, records, i * record + at, size)


@parallel_kernel
def unpack_slots(records, record, at, size, slots, field):
    """From bytes [at, at + size) of records u8[n * record] to slots i64[n], distinct."""
    for i in prange(slots.size):
        copy_bytes(records, i * record + at, field, slots[i] * size, size)
