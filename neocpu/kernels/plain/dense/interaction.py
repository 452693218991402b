"""How does a textbook take the dot products of all pairs? Pair by pair, as it is written.

Every dot product, and every element of the gradient, is a chain of fused multiply-adds from +0
(docs/arithmetic.md §6).
"""

import numpy as np
from numba import prange

from neocpu.kernels.compile.jit import parallel_kernel
from neocpu.kernels.simd import fma


@parallel_kernel
def dot_forward(e, dim, diagonal, out):
    """Dot interaction of every sample: E's row 0, then the lower triangle of E Eᵀ.

    Shapes: e f32[b, count*dim]; dim int; diagonal bool; out f32[b, dim + pairs].
    """
    count = e.shape[1] // dim
    for b in prange(e.shape[0]):
        rows = e[b].reshape(count, dim)
        out[b, :dim] = rows[0]
        pair = dim
        for i in range(count):
            for j in range(i + 1 if diagonal else i):
                total = np.float32(0.0)
                for d in range(dim):
                    total = fma(rows[i, d], rows[j, d], total)
                out[b, pair] = total
                pair += 1


@parallel_kernel
def dot_backward(e, g, dim, diagonal, out):
    """Gradient of `dot_forward` by E: row i collects a multiple of every row that it met.

    Shapes: e f32[b, count*dim]; g f32[b, dim + pairs]; out f32[b, count*dim].
    """
    count = e.shape[1] // dim
    for b in prange(e.shape[0]):
        rows = e[b].reshape(count, dim)
        result = out[b].reshape(count, dim)
        result[:] = np.float32(0.0)
        for i in range(count):
            for j in range(count):
                if i == j and not diagonal:
                    continue
                high = max(i, j)
                low = min(i, j)
                before = high * (high + 1) // 2 if diagonal else high * (high - 1) // 2
                coefficient = g[b, dim + before + low]
                if i == j:
                    # E[i]·E[i] has E[i] twice
                    coefficient = coefficient + coefficient
                for d in range(dim):
                    result[i, d] = fma(coefficient, rows[j, d], result[i, d])
        for d in range(dim):
            result[0, d] = result[0, d] + g[b, d]
