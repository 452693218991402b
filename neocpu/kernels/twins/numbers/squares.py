"""How are squares of many fp32 numbers added? The plain twin of `kernels/numbers/squares.py`."""

import numpy as np


def square_sum(x):
    """Sum of squares of x f32[n] in fp64 over a binary tree; see the function of this name in
    `kernels.numbers.squares`.
    """
    return pair_sum(np.square(x.astype(np.float64)))


def pair_sum(numbers):
    """Sum of numbers f64[n]: those of the left half of a power of two, and of the right one."""
    if len(numbers) < 2:
        return float(numbers[0]) if len(numbers) else 0.0
    half = 1 << (len(numbers) - 1).bit_length() - 1
    return pair_sum(numbers[:half]) + pair_sum(numbers[half:])
