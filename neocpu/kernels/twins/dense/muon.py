"""How are the singular values of a matrix made about equal? The plain twin of
`kernels/dense/muon.py`.
"""

import numpy as np

from neocpu.kernels.twins.dense.gemm import input_gradient
from neocpu.kernels.twins.numbers.squares import square_sum


def _times(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    out = np.empty((len(left), right.shape[1]), np.float32)
    input_gradient(left, right, np.empty((0, 0), np.float32), out)
    return out


def orthogonalize(g, steps, out):
    """out = about U Vᵀ of g = U S Vᵀ; see the function of this name in `kernels.dense.muon`."""
    if g.shape[0] > g.shape[1]:
        orthogonalize(g.T, steps, out.T)
        return
    # of the row-major matrix that the caller has, whatever side is worked on
    norm = np.sqrt(square_sum((g if g.flags.c_contiguous else g.T).ravel()))
    X = g * np.float32(1 / max(norm, 1e-7))
    for _ in range(steps):
        A = _times(X, X.T)
        with np.errstate(all="ignore"):
            B = np.float32(2.0315) * _times(A, A) + np.float32(-4.775) * A
            X = np.float32(3.4445) * X + _times(B, X)
    out[:] = X
