"""How are rows copied between slots and records? The plain twin of `kernels/tiers/slots.py`."""


def copy_slots(field, size, source, target):
    """Copy slots source[i] to slots target[i]; shapes as in the kernel."""
    field.reshape(-1, size)[target] = field.reshape(-1, size)[source]


def pack_slots(field, size, slots, records, record, at):
    """Copy slots to bytes [at, at + size) of records; shapes as in the kernel."""
    records.reshape(-1, record)[:, at : at + size] = field.reshape(-1, size)[slots]


def unpack_slots(records, record, at, size, slots, field):
    """Copy bytes [at, at + size) of records to slots; shapes as in the kernel."""
    field.reshape(-1, size)[slots] = records.reshape(-1, record)[:, at : at + size]
