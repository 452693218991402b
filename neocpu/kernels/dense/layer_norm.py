"""How is every vector brought to mean 0 and variance 1? In fp64, one vector at a time.

    y = (x - mean(x)) / sqrt(variance(x) + eps)

Layer normalisation (Ba et al. 2016) without gain and bias: a matrix follows it anyway.
"""

import numpy as np
from numba import prange

from neocpu.kernels.compile.jit import parallel_kernel


@parallel_kernel
def norm_forward(x, eps, y, inverse):
    """Normalise every row.

    Shapes: x, y f32[n, dim]; eps f64; inverse f64[n], 1 / sqrt(variance + eps) for the way back.
    Source: Ba et al. 2016; docs/arithmetic.md §6.
    Order: fp64, sums over ascending columns from +0: mean = sum / dim; variance = sum of (x -
    mean)^2 / dim; inverse = 1 / sqrt(variance + eps); y = fl((x - mean) inverse).
    """
    dim = x.shape[1]
    for row in prange(x.shape[0]):
        mean = 0.0
        for d in range(dim):
            mean += np.float64(x[row, d])
        mean = mean / dim
        # Two passes: the difference of the sums of squares would cancel where the mean is large.
        variance = 0.0
        for d in range(dim):
            distance = np.float64(x[row, d]) - mean
            variance += distance * distance
        # kept for the way back, which needs no mean and no variance then
        inverse[row] = 1.0 / np.sqrt(variance / dim + eps)
        for d in range(dim):
            y[row, d] = np.float32((np.float64(x[row, d]) - mean) * inverse[row])


@parallel_kernel
def norm_backward(y, inverse, g, dx):
    """Gradient of `norm_forward` with respect to x.

    Shapes: y, g, dx f32[n, dim], y of `norm_forward`; inverse f64[n].
    Source: Ba et al. 2016; docs/arithmetic.md §6.
    Order: fp64, sums over ascending columns from +0: m = sum of g / dim; c = sum of g y / dim; dx =
    fl(((g - m) - y c) inverse).
    """
    dim = y.shape[1]
    for row in prange(y.shape[0]):
        mean = 0.0
        along = 0.0
        for d in range(dim):
            mean += np.float64(g[row, d])
            along += np.float64(g[row, d]) * np.float64(y[row, d])
        mean = mean / dim
        along = along / dim
        for d in range(dim):
            centred = (np.float64(g[row, d]) - mean) - np.float64(y[row, d]) * along
            dx[row, d] = np.float32(centred * inverse[row])
