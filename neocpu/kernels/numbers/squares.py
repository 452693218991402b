"""How are squares of many fp32 numbers added, to the same bits everywhere? Exactly squared, in a
binary tree over fp64 (`docs/arithmetic.md` §5).
"""

import numpy as np
from numpy.typing import NDArray

from neocpu.kernels.compile.jit import kernel

PIECE = 1 << 15  # elements, a power of two: subtrees of so many stay in the cache


def square_sum(x: NDArray[np.float32]) -> float:
    """Sum of squares of x f32[n] in fp64.

    Order: a binary tree over the elements, adjacent pairs first; absent ones up to a power of two
    are +0.
    """
    sums = np.empty(-(-x.size // PIECE), np.float64)
    _piece_sums(x, sums)
    return pair_sum(sums)


@kernel
def _piece_sums(x, sums):
    """sums f64[p]: the sum of squares of each piece of x f32[n]."""
    level = np.empty(PIECE // 2, np.float64)
    above = np.empty(PIECE // 4, np.float64)
    for p in range(sums.size):
        piece = x[p * PIECE : (p + 1) * PIECE]
        size = piece.size
        for i in range(size // 2):
            a = np.float64(piece[2 * i])
            b = np.float64(piece[2 * i + 1])
            # the product of two fp32 numbers is exact in fp64
            level[i] = a * a + b * b
        if size % 2:
            level[size // 2] = np.float64(piece[size - 1]) * np.float64(piece[size - 1])
        size = (size + 1) // 2
        while size > 1:
            for i in range(size // 2):
                above[i] = level[2 * i] + level[2 * i + 1]
            # x + 0 is x, so an odd number goes up as it is
            if size % 2:
                above[size // 2] = level[size - 1]
            level, above = above, level
            size = (size + 1) // 2
        sums[p] = level[0]


def pair_sum(numbers: NDArray[np.float64]) -> float:
    """Sum of numbers f64[n] over the tree of `square_sum`; +0 for none."""
    while numbers.size > 1:
        pairs = numbers[:-1:2] + numbers[1::2]
        # x + 0 is x, so an odd number goes up as it is
        numbers = pairs if numbers.size % 2 == 0 else np.append(pairs, numbers[-1])
    return float(numbers[0]) if numbers.size else 0.0
