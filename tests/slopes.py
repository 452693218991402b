"""What is the gradient of a loss by differences? For comparison with backward passes, in fp64."""

from collections.abc import Callable

import numpy as np


def slopes(loss: Callable[[], float], array: np.ndarray, h: float = 1e-6) -> np.ndarray:
    """Central differences of a loss with respect to each number of an array that it reads.

    array : f64, changed for each call of `loss` and left as it was. h : what numbers are moved by.
    """
    slope = np.empty_like(array)
    for index in np.ndindex(array.shape):
        number = array[index]
        losses = []
        for shift in (h, -h):
            array[index] = number + shift
            losses.append(loss())
        array[index] = number
        slope[index] = (losses[0] - losses[1]) / (2 * h)
    return slope
