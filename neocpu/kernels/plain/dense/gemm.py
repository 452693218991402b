"""How does a textbook multiply matrices? Row by row: each step of the contracted index adds one
multiple of a row, so the inner loop runs over neighbours and LLVM makes vectors of it.

Every output element is a chain of fused multiply-adds over the contracted index, ascending, from +0
(docs/arithmetic.md §1, §2).
"""

import numpy as np
from numba import prange

from neocpu.kernels.compile.jit import inlined, parallel_kernel
from neocpu.kernels.simd import fma


@inlined
def add_multiple(factor, row, out):
    """out = fma(factor, row, out), element by element."""
    for j in range(out.size):
        out[j] = fma(factor, row[j], out[j])


@parallel_kernel
def layer(x, w, bias, relu, out):
    """out = relu(x wᵀ + bias).

    Shapes: x f32[b, k]; w f32[n, k]; bias f32[n]; relu bool; out f32[b, n].
    """
    columns = np.ascontiguousarray(w.T)  # f32[k, n]: what one step of k adds lies side by side
    for b in prange(x.shape[0]):
        line = out[b]
        line[:] = np.float32(0.0)
        for k in range(x.shape[1]):
            add_multiple(x[b, k], columns[k], line)
        for n in range(line.size):
            value = line[n] + bias[n]
            line[n] = np.float32(0.0) if relu and value <= np.float32(0.0) else value


@parallel_kernel
def input_gradient(g, w, gate, out):
    """out = g w, and +0 where the layer's input `gate` is <= 0.

    Shapes: g f32[b, n]; w f32[n, k]; gate f32[b, k] or f32[0, 0] for none; out f32[b, k].
    """
    for b in prange(g.shape[0]):
        line = out[b]
        line[:] = np.float32(0.0)
        for n in range(g.shape[1]):
            add_multiple(g[b, n], w[n], line)
        if gate.size:
            for k in range(line.size):
                if gate[b, k] <= np.float32(0.0):
                    line[k] = np.float32(0.0)


@parallel_kernel
def weight_gradient(g, x, cuts, out, out_bias):
    """out = gᵀ x and out_bias = column sums of g: a chain over the samples of each leaf, the leaves
    added in a binary tree.

    Shapes: g f32[b, n]; x f32[b, k]; cuts i64[L+1], L a power of two; out f32[n, k]; out_bias
    f32[n], or f32[0] where it is not wanted.
    """
    leaves = cuts.size - 1
    for n in prange(out.shape[0]):
        sums = np.zeros((leaves, out.shape[1]), np.float32)
        biases = np.zeros(leaves, np.float32)
        for leaf in range(leaves):
            for b in range(cuts[leaf], cuts[leaf + 1]):
                add_multiple(g[b, n], x[b], sums[leaf])
                biases[leaf] = biases[leaf] + g[b, n]
        nodes = leaves
        while nodes > 1:
            nodes = nodes // 2
            for leaf in range(nodes):
                biases[leaf] = biases[2 * leaf] + biases[2 * leaf + 1]
                for k in range(out.shape[1]):
                    sums[leaf, k] = sums[2 * leaf, k] + sums[2 * leaf + 1, k]
        if out_bias.size:
            out_bias[n] = biases[0]
        out[n] = sums[0]
