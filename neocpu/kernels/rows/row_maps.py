"""Which row of a physical table stands for a row of a logical one? See
`tables/specs/specs.py`.
"""

import numpy as np

from neocpu.kernels.compile.jit import inlined, kernel
from neocpu.kernels.numbers.philox import splitmix64

# In the order of `RULES` (`tables/specs/specs.py`); its last, "row", leaves rows as they are.
DIGIT, SALTED, RANGE = range(3)
EXACT = 2**52  # rows up to here have quotients in fp64 that are off by one at most


@inlined
def quotient(row, divisor, inverse):
    """row // divisor for 0 <= row < EXACT; inverse : fl(1 / divisor). Vectors have no division."""
    whole = np.int64(np.float64(row) * inverse)
    rest = row - whole * divisor
    # fl(row * fl(1 / divisor)) is off by one at most below 2^52
    if rest < 0:
        whole -= 1
    if rest >= divisor:
        whole += 1
    return whole


@kernel
def _digits(rows, divisor, modulus, first, out):
    """The rule "digit" for rows below EXACT."""
    by_divisor = 1.0 / divisor
    by_modulus = 1.0 / modulus
    for i in range(rows.size):
        row = max(rows[i], np.int64(0))
        digit = quotient(row, divisor, by_divisor)
        digit -= quotient(digit, modulus, by_modulus) * modulus
        out[i] = first + digit if rows[i] >= 0 else rows[i]


@kernel
def map_rows(rows, rule, divisor, modulus, first, key, out):
    """Rows of a physical table; a row -1 (none) stays -1.

    Shapes: rows i64[n]; rule, divisor, modulus, first i64; key u64; out i64[n], may be rows.
    """
    # one pass tells whether the loop may be the one without divisions, which LLVM makes vectors of
    greatest = np.int64(0)
    for i in range(rows.size):
        greatest = max(greatest, rows[i])
    if rule == DIGIT and max(greatest, divisor, modulus) < EXACT:
        _digits(rows, divisor, modulus, first, out)
        return
    for i in range(rows.size):
        row = rows[i]
        mapped = row
        if row >= 0:
            if rule == DIGIT:
                mapped = first + (row // divisor) % modulus
            elif rule == SALTED:
                # a salted hash: tables of the same size send the same row to different places
                word = splitmix64(np.uint64(key) ^ np.uint64(row))
                mapped = first + np.int64(word % np.uint64(modulus))
            elif rule == RANGE:
                mapped = row - first
                if mapped < 0 or mapped >= modulus:
                    mapped = np.int64(-1)
        out[i] = mapped


@kernel
def sign_weights(rows, key, weights):
    """Multiply the weights of lookups by the signs of their rows.

    Shapes: rows i64[n], of the logical table; key u64; weights f32[n], changed.
    """
    for i in range(rows.size):
        # the complemented key: a sign that has nothing to do with the place
        if splitmix64(~np.uint64(key) ^ np.uint64(rows[i])) & np.uint64(1):
            weights[i] = -weights[i]
