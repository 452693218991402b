"""How do strided blocks move between flat arrays? The plain twin of
`kernels/exchange/blocks.py`.
"""

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray


def _view(flat: NDArray, start: int, stride: int, rows: int, width: int) -> NDArray:
    """A block of a flat array as a matrix [rows, width]."""
    if rows == 0 or width == 0:
        return flat[:0].reshape(0, 0)
    assert start >= 0 and start + (rows - 1) * stride + width <= flat.size
    return as_strided(flat[start:], (rows, width), (stride * flat.itemsize, flat.itemsize))


def copy_blocks(source: NDArray, target: NDArray, jobs: NDArray[np.int64]) -> None:
    """Copy blocks from one flat array to another; shapes as in the kernel."""
    for start, stride, target_start, target_stride, rows, width in jobs.tolist():
        block = _view(source, start, stride, rows, width)
        _view(target, target_start, target_stride, rows, width)[...] = block


def add_blocks(
    source: NDArray[np.float64], target: NDArray[np.float64], jobs: NDArray[np.int64]
) -> bool:
    """Add blocks and keep the rounding errors of the sums; shapes as in the kernel."""
    any_error = False
    for start, stride, target_start, target_stride, rows, width in jobs.tolist():
        x = _view(source, start, stride, rows, width)
        y = _view(target, target_start, target_stride, rows, width)
        with np.errstate(invalid="ignore", over="ignore"):
            total = x + y
            large = np.where(abs(x) > abs(y), x, y)
            small = np.where(abs(x) > abs(y), y, x)
            # Dekker's Fast2Sum, exact where |large| >= |small|
            error = np.where(np.isfinite(total), small - (total - large), 0.0)
        y[...] = total
        x[...] = error
        any_error |= bool((error != 0).any())
    return any_error
