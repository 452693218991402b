"""A sum that has no order: whole numbers, rounded once."""

import math

import numpy as np


def exact_sum(terms: np.ndarray) -> np.float32:
    """Add up fp32 numbers exactly, and round once to fp32, ties to even.

    terms : f32[n], finite; 0 is the sum of none.
    Returns the float32 that is nearest to the exact sum.
    """
    total = 0  # in units of 2^-149, of which every fp32 number is a multiple
    for term in terms.tolist():
        top, below = term.as_integer_ratio()
        total += (top << 149) // below
    size = abs(total)
    shift = max(0, size.bit_length() - 24)
    kept = size >> shift
    rest = size - (kept << shift)
    half = (1 << shift) // 2
    if rest > half or (shift and rest == half and kept % 2):
        kept += 1
    return np.float32(math.copysign(math.ldexp(kept, shift - 149), total))
