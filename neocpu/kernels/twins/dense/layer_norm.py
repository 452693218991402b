"""What does layer normalisation compute, to the bit? The plain twin of
`kernels/dense/layer_norm.py`.

All rows at once, one column after the other.
"""

import numpy as np


def _mean(x):
    """Mean over the last axis, f64, its sum ascending."""
    total = np.zeros(len(x))
    for d in range(x.shape[1]):
        total = total + x[:, d]
    return (total / x.shape[1])[:, None]


def norm_forward(x, eps, y, inverse):
    """y f32[n, dim] and inverse f64[n] of x f32[n, dim]; see
    `kernels.dense.layer_norm.norm_forward`.
    """
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        distance = wide - _mean(wide)
        inverse[:] = 1.0 / np.sqrt(_mean(distance * distance)[:, 0] + eps)
        y[:] = distance * inverse[:, None]


def norm_backward(y, inverse, g, dx):
    """dx f32[n, dim] from g f32[n, dim]; see `kernels.dense.layer_norm.norm_backward`."""
    with np.errstate(all="ignore"):
        outer = g.astype(np.float64)
        along = _mean(outer * y.astype(np.float64))
        dx[:] = ((outer - _mean(outer)) - y.astype(np.float64) * along) * inverse[:, None]
