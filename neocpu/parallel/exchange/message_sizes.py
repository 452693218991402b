"""How long is a message of rows in which equal rows travel once?

A segment is what one rank asks of one shard: n lookups with U unique rows.

    off    8 bytes for each lookup
    on     8 bytes for each unique row; n positions among them, 64 // bits to a word of 8 bytes,
           where bits is the least number that holds U - 1, at least one
    auto   as on where that is shorter, otherwise as off; the sender decides batch by batch
"""

import numpy as np

from neocpu.core.types import Elements, Ints

UNIQUE_ROWS = ("off", "on", "auto")


def positions_per_word(distinct: Elements) -> Ints:
    """How many positions among so many unique rows a word of 8 bytes holds."""
    # planners ask with expected numbers, which are no whole ones
    highest = np.ceil(np.maximum(distinct - 1, 0)).astype(np.float64)
    # frexp's exponent is the bit length of a whole number, without a rounded logarithm
    bits = np.maximum(np.frexp(highest)[1], 1)
    return 64 // bits.astype(np.int64)


def message_words(lookups: Ints, distinct: Ints) -> Ints:
    """Words of 8 bytes of segments of so many lookups, with so many unique rows (-1: they travel
    as they are).
    """
    packed = distinct + -(-lookups // positions_per_word(distinct))
    return np.where(distinct < 0, lookups, packed)


def segment_words(lookups: Elements, distinct: Elements, unique_rows: str) -> Elements:
    """Words of segments, i64 where lookups and unique rows were counted, f64 where expected;
    unique_rows : one of UNIQUE_ROWS.
    """
    if unique_rows == "off":
        return lookups
    packed: Elements = (
        message_words(lookups, distinct)
        if lookups.dtype == np.int64
        else distinct + lookups / positions_per_word(distinct)
    )
    return np.minimum(packed, lookups) if unique_rows == "auto" else packed
