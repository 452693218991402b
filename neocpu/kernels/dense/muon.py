"""How are the singular values of a matrix made about equal? By Newton-Schulz's iteration.

    X = G / ‖G‖, then, some times,  A = X Xᵀ,  X = a X + (b A + c A A) X

A polynomial of each singular value, with coefficients that bring those between some 0.001 and 1
into 0.7 ... 1.2 within five steps; they need not converge to 1 for what they are used for, the
directions of Muon. Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/.
"""

import math

import numpy as np
from numpy.typing import NDArray

from neocpu.kernels.compile.choice import chosen
from neocpu.kernels.dense.gemm import symmetric
from neocpu.kernels.numbers.squares import square_sum

COEFFICIENTS = (np.float32(3.4445), np.float32(-4.7750), np.float32(2.0315))
LEAST = 1e-7  # norm that a matrix is divided by
_NO_GATE = np.empty((0, 0), np.float32)


def orthogonalize(g: NDArray[np.float32], steps: int, out: NDArray[np.float32]) -> None:
    """out = about U Vᵀ of g = U S Vᵀ.

    Shapes: g, out f32[m, n], C-contiguous, m and n from 1.
    Source: docs/arithmetic.md §5, Muon. Order: ‖g‖ by `square_sum`; of more rows than columns the
    transpose is worked on; products as in `gemm`, symmetric ones half; then number by number.
    """
    a, b, c = COEFFICIENTS
    norm = math.sqrt(square_sum(g.reshape(-1)))
    tall = len(g) > g.shape[1]
    X = np.ascontiguousarray(g.T if tall else g) * np.float32(1.0 / max(norm, LEAST))
    with np.errstate(over="ignore", invalid="ignore"):  # of a run whose numbers are not finite
        for _ in range(steps):
            A = _symmetric(X, X)
            B = c * _symmetric(A, A)
            B += b * A
            product = np.empty_like(X)
            chosen("dense.gemm", "input_gradient")(B, X, _NO_GATE, product)
            X *= a
            X += product
    out[...] = X.T if tall else X


def _symmetric(x: NDArray[np.float32], w: NDArray[np.float32]) -> NDArray[np.float32]:
    out = np.empty((len(x), len(x)), np.float32)
    symmetric(x, w, False, out)
    return out
