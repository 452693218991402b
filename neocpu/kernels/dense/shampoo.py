"""In which direction does a block of a dense parameter go under Shampoo? Along its gradient, with
rows and columns scaled by inverse roots of what their gradients had in common so far.

    factors    L += G Gᵀ, R += Gᵀ G                     every step              `accumulate`
    roots      L^(-1/r), R^(-1/r); r = 4, or 2 alone    from time to time       `inverse_root`
    direction  L^(-1/r) F R^(-1/r), as long as D        every step              `direction`

F is the gradient or its mean, D the step of an elementwise rule, whose length is kept (grafting).
Gupta et al. 2018; Anil et al. 2020 (grafting); Shi et al., arXiv 2309.06497.

Roots are made of matrix products alone, by Newton's iteration for X = A^(-1/r) and M = X^r A
together (Iannazzo 2006), as those of `gemm.py` have the same bits everywhere, and eigenvectors of a
LAPACK have not. A block without one of its factors has f32[0, 0] in its place.
"""

import math

import numpy as np
from numpy.typing import NDArray

from neocpu.kernels.compile.choice import chosen
from neocpu.kernels.dense.gemm import symmetric
from neocpu.kernels.numbers.squares import square_sum

Matrix = NDArray[np.float32]
# of the norm, added to the diagonal at least
RIDGES = (2.0**-20, 2.0**-16, 2.0**-12, 2.0**-8)
TOLERANCE = np.float32(2.0**-16)
DIVERGED = np.float32(4.0)  # all of |M - I| is smaller where the iteration converges
MOST_STEPS = 40
_NO_GATE = np.empty((0, 0), np.float32)


def accumulate(g, beta2, left, right):
    """Add what the rows, and the columns, of a gradient have in common to a block's factors.

    Shapes: g f32[m, n]; left f32[m, m] or f32[0, 0]; right f32[n, n] or f32[0, 0]; C-contiguous.
    beta2 : fp64, of a mean; 1: a sum.
    Order: products as `gemm.symmetric`; then S = S + P, or S = fl(fl(β2·S) + fl(β2'·P)),
    β2' = fl(1 - β2).
    """
    for factor, columns in ((left, False), (right, True)):
        if factor.size:
            product = np.empty_like(factor)
            symmetric(g, g, columns, product)
            _add(product, beta2, factor)


def _add(product: Matrix, beta2: float, factor: Matrix) -> None:
    with np.errstate(over="ignore", invalid="ignore"):  # `inverse_root` refuses what comes of it
        if beta2 < 1.0:
            factor *= np.float32(beta2)
            product *= np.float32(1.0 - beta2)
        factor += product


def inverse_root(factor, correction, epsilon, root, out):
    """out = (correction · factor + ρ I)^(-1/root); whether it was found. out is left alone if not.

    Shapes: factor, out f32[n, n], factor symmetric. correction, epsilon : fp64. root : 2 or 4.
    Source: docs/arithmetic.md §5, Shampoo. ρ is epsilon, or 2^-20 of the factor's norm where that
    is more, which fp32 needs; where the iteration fails, 2^-16, 2^-12, and 2^-8 of it.
    """
    norm = correction * math.sqrt(square_sum(factor.reshape(-1)))
    if not math.isfinite(norm):
        return False
    return any(
        _newton(factor, correction, max(epsilon, norm * least), norm, root, out) for least in RIDGES
    )


def _newton(
    factor: Matrix, correction: float, ridge: float, norm: float, root: int, out: Matrix
) -> bool:
    """The iteration with one ridge; whether it converged."""
    size = len(factor)
    # no eigenvalue of M is then above (root + 1) / 2, and all go to 1
    scale = (root + 1) / (2.0 * (norm + ridge * math.sqrt(size)))
    wide = correction * factor.astype(np.float64)
    wide.reshape(-1)[:: size + 1] += ridge
    wide *= scale
    M = wide.astype(np.float32)
    X = np.eye(size, dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(MOST_STEPS):
            away = M.copy()
            away.reshape(-1)[:: size + 1] -= np.float32(1)
            error = np.abs(away, out=away).max(initial=np.float32(0))
            if error <= TOLERANCE:
                power = math.sqrt(scale) if root == 2 else math.sqrt(math.sqrt(scale))
                out[...] = power * X.astype(np.float64)
                return True
            if not error <= DIVERGED:
                return False
            X, M = _advance(X, M, root)
    return False


def _advance(X: Matrix, M: Matrix, root: int) -> tuple[Matrix, Matrix]:
    """One step: T = ((root + 1) I - M) / root; X T, and T^root M. All are polynomials of one
    symmetric matrix, so their products are symmetric.
    """
    T = M * np.float32(-1.0 / root)
    T.reshape(-1)[:: len(T) + 1] += np.float32((root + 1) / root)
    X = _symmetric(X, T)
    for _ in range(root // 2):
        T = _symmetric(T, T)
    return X, _symmetric(T, M)


def _symmetric(a: Matrix, b: Matrix) -> Matrix:
    out = np.empty_like(a)
    symmetric(a, b, False, out)
    return out


def direction(f, left_root, right_root, grafted, out):
    """out = left_root f right_root, as long as `grafted`; that where the product has no length.

    Shapes: f, grafted, out f32[m, n]; left_root f32[m, m] or f32[0, 0]; right_root f32[n, n] or
    f32[0, 0]; C-contiguous.
    Order: products as in `gemm`, the left one before; s = fl(‖grafted‖ / ‖product‖) in fp64, norms
    of `square_sum`; then s times each number.
    """
    product = _product(left_root, f) if left_root.size else f
    if right_root.size:
        product = _product(product, right_root)
    length = math.sqrt(square_sum(product.reshape(-1)))
    wanted = math.sqrt(square_sum(grafted.reshape(-1)))
    factor = wanted / length if 0.0 < length < math.inf else math.inf
    if factor < 2.0**127:  # and not NaN
        np.multiply(product, np.float32(factor), out=out)
    else:
        out[...] = grafted


def _product(a: Matrix, b: Matrix) -> Matrix:
    out = np.empty((a.shape[0], b.shape[1]), np.float32)
    chosen("dense.gemm", "input_gradient")(a, b, _NO_GATE, out)
    return out
