"""Which row of a physical table stands for a row of a logical one? The plain twin of
`kernels/rows/row_maps.py`.
"""

import numpy as np

from neocpu.kernels.twins.numbers.philox import splitmix64

MASK = 2**64 - 1


def map_rows(rows, rule, divisor, modulus, first, key, out):
    """Rows of a physical table; see `kernels.rows.row_maps.map_rows`."""
    if rule == 0:
        mapped = first + rows // divisor % modulus
    elif rule == 1:
        words = [splitmix64(int(key) ^ (row & MASK)) for row in rows.tolist()]
        mapped = np.array([first + word % int(modulus) for word in words], np.int64)
    elif rule == 2:
        inside = (rows >= first) & (rows < first + modulus)
        mapped = np.where(inside, rows - first, -1)
    else:
        mapped = rows
    out[:] = np.where(rows < 0, rows, mapped)


def sign_weights(rows, key, weights):
    """Multiply the weights of lookups by the signs of their rows; see `kernels.rows.row_maps`."""
    inverse = ~int(key) & MASK
    odd = [splitmix64(inverse ^ (row & MASK)) & 1 for row in rows.tolist()]
    weights[np.array(odd, bool)] *= -1
