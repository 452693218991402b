"""The plain twin of `neocpu.kernels.blocks`: strided blocks as NumPy views."""

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray


def _view(flat: NDArray, start: int, stride: int, rows: int, width: int) -> NDArray:
    if rows == 0 or width == 0:
        return flat[:0].reshape(0, 0)
    assert start >= 0 and start + (rows - 1) * stride + width <= flat.size
    return as_strided(flat[start:], (rows, width), (stride * flat.itemsize, flat.itemsize))


def copy_blocks(source: NDArray, target: NDArray, jobs: NDArray[np.int64]) -> None:
    """Copy blocks from one flat array to another; shapes as in the kernel."""
    for start, stride, to, to_stride, rows, width in jobs.tolist():
        _view(target, to, to_stride, rows, width)[...] = _view(source, start, stride, rows, width)


def add_blocks(
    source: NDArray[np.float64], target: NDArray[np.float64], jobs: NDArray[np.int64]
) -> bool:
    """target += source in fp64, source = the exact error of that sum (0 where it is not finite);
    any error not zero?
    """
    lost = False
    for start, stride, to, to_stride, rows, width in jobs.tolist():
        x = _view(source, start, stride, rows, width)
        y = _view(target, to, to_stride, rows, width)
        with np.errstate(invalid="ignore", over="ignore"):
            total = x + y
            large = np.where(abs(x) > abs(y), x, y)
            small = np.where(abs(x) > abs(y), y, x)
            # Dekker: exact when |large| >= |small|
            error = np.where(np.isfinite(total), small - (total - large), 0.0)
        y[...] = total
        x[...] = error
        lost |= bool((error != 0).any())
    return lost
