"""How are squares of many fp32 numbers added, to the same bits everywhere? Exactly squared, in a
binary tree over fp64 (`docs/arithmetic.md` §5).
"""

import numpy as np
from numpy.typing import NDArray

PIECE = 1 << 15  # elements, a power of two: subtrees of so many stay in the cache


def square_sum(x: NDArray[np.float32]) -> float:
    """Sum of squares of x f32[n] in fp64.

    Order: a binary tree over the elements, adjacent pairs first; absent ones up to a power of two
    are +0.
    """
    whole = x.size // PIECE * PIECE
    sums = [_squares(piece) for piece in x[:whole].reshape(-1, PIECE)]
    if whole < x.size:
        sums.append(_squares(x[whole:]))
    return pair_sum(np.array(sums, np.float64))


def _squares(x: NDArray[np.float32]) -> float:
    """Sum of squares of up to PIECE elements."""
    wide = x.astype(np.float64)
    # the product of two fp32 numbers is exact in fp64
    wide *= wide
    return pair_sum(wide)


def pair_sum(numbers: NDArray[np.float64]) -> float:
    """Sum of numbers f64[n] over the tree of `square_sum`; +0 for none."""
    while numbers.size > 1:
        pairs = numbers[:-1:2] + numbers[1::2]
        # x + 0 is x, so an odd number goes up as it is
        numbers = pairs if numbers.size % 2 == 0 else np.append(pairs, numbers[-1])
    return float(numbers[0]) if numbers.size else 0.0
