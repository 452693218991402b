"""How do rows travel between slots of memory, and between slots and records? The plain twin of
`kernels/slots.py`.
"""


def copy_slots(field, size, source, target):
    """From slots source[i] to slots target[i]."""
    field.reshape(-1, size)[target] = field.reshape(-1, size)[source]


def pack_slots(field, size, slots, records, record, at):
    """From slots to bytes [at, at + size) of records."""
    records.reshape(-1, record)[:, at : at + size] = field.reshape(-1, size)[slots]


def unpack_slots(records, record, at, size, slots, field):
    """From bytes [at, at + size) of records to slots."""
    field.reshape(-1, size)[slots] = records.reshape(-1, record)[:, at : at + size]
