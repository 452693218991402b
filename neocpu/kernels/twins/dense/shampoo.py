"""In which direction does a block of a dense parameter go under Shampoo? The plain twin of
`kernels/dense/shampoo.py`.
"""

import numpy as np

from neocpu.kernels.twins.dense.gemm import input_gradient, symmetric
from neocpu.kernels.twins.numbers.squares import square_sum


def _times(*matrices: np.ndarray) -> np.ndarray:
    """The product of matrices, from the left, each as `gemm` multiplies; those of no size are
    left out.
    """
    product, *others = [matrix for matrix in matrices if matrix.size]
    for matrix in others:
        out = np.empty((product.shape[0], matrix.shape[1]), np.float32)
        input_gradient(product, matrix, np.empty((0, 0), np.float32), out)
        product = out
    return product


def _half(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The lower half of a product of symmetric matrices, mirrored."""
    out = np.empty_like(a)
    symmetric(a, b, False, out)
    return out


def accumulate(g, beta2, left, right):
    """Add g gᵀ to left, gᵀ g to right; see the function of this name in `kernels.dense.shampoo`."""
    for factor, product in ((left, (g, g.T)), (right, (g.T, g))):
        if factor.size:
            addend = _times(*product)
            with np.errstate(all="ignore"):
                if beta2 == 1:
                    factor[:] = factor + addend
                else:
                    factor[:] = np.float32(beta2) * factor + np.float32(1 - beta2) * addend


def inverse_root(factor, correction, epsilon, root, out):
    """out = (correction factor + ρ I)^(-1/root), and whether it is; see the function of this name
    in `kernels.dense.shampoo`.
    """
    norm = correction * np.sqrt(square_sum(factor.ravel()))
    if not np.isfinite(norm):
        return False
    unit = np.eye(len(factor), dtype=np.float32)
    for least in (2.0**-20, 2.0**-16, 2.0**-12, 2.0**-8):
        ridge = max(epsilon, norm * least)
        z = (root + 1) / (2 * (norm + ridge * np.sqrt(len(factor))))
        M = np.float32((correction * factor.astype(float) + ridge * unit.astype(float)) * z)
        X = unit
        for _ in range(40):
            error = np.abs(M - unit).max(initial=0)
            if error <= 2.0**-16:
                out[:] = np.sqrt(z) * X if root == 2 else np.sqrt(np.sqrt(z)) * X
                return True
            if not error <= 4:
                break
            with np.errstate(all="ignore"):
                T = np.float32(1 + 1 / root) * unit - M / np.float32(root)
            X = _half(X, T)
            T = _times(T, T) if root == 2 else _times(_times(T, T), _times(T, T))
            M = _half(T, M)
    return False


def direction(f, left_root, right_root, grafted, out):
    """out = left_root f right_root, as long as grafted; see the function of this name in
    `kernels.dense.shampoo`.
    """
    product = f if not left_root.size else _times(left_root, f)
    product = product if not right_root.size else _times(product, right_root)
    length = np.sqrt(square_sum(product.ravel()))
    with np.errstate(all="ignore"):
        factor = np.sqrt(square_sum(grafted.ravel())) / np.float64(length)
    usable = 0 < length < np.inf and factor < 2.0**127
    out[:] = np.float32(factor) * product if usable else grafted
