"""How do the vectors of a sample attend to one another? By a softmax over their products.

    weights = softmax over j of scale * q_i·k_j        out_i = sum over j of weights_ij v_j

One head (Vaswani et al. 2017, equation 1). A sample has a few dozen short vectors: the loops below
are short, samples are spread over threads, and every element is one chain.
"""

import numpy as np
from numba import prange

from neocpu.kernels.compile.jit import inlined, parallel_kernel
from neocpu.kernels.numbers.elementary import exp
from neocpu.kernels.simd import fma


@inlined
def _products(left, right, out):
    """out[j] = chain over d of left[d] right[j, d]."""
    for j in range(out.size):
        total = np.float32(0.0)
        for d in range(left.size):
            total = fma(left[d], right[j, d], total)
        out[j] = total


@inlined
def _add_multiple(factor, row, out):
    """out = fma(factor, row, out), element by element."""
    for d in range(out.size):
        out[d] = fma(factor, row[d], out[d])


@parallel_kernel
def attention_forward(vectors, count, scale, weights, out):
    """Self-attention of the vectors of every sample.

    Shapes: vectors (q, k, v), f32[b, count*dim] each; count int; scale f32; weights f32[b,
    count*count]; out f32[b, count*dim].
    Source: Vaswani et al. 2017; docs/arithmetic.md §6.
    Order: s_ij = fl(chain over ascending d of fma(q_id, k_jd, ·) from +0, times scale); e_ij =
    exp(s_ij - max over j of s_ij) in fp64, their sum over ascending j in fp64, weights_ij =
    fl(e_ij / sum); out_id is a chain over ascending j of fma(weights_ij, v_jd, ·) from +0.
    """
    q, k, v = vectors
    dim = q.shape[1] // max(count, 1)
    for b in prange(q.shape[0]):
        keys = k[b].reshape(count, dim)
        values = v[b].reshape(count, dim)
        for i in range(count):
            line = weights[b, i * count : (i + 1) * count]
            _products(q[b, i * dim : (i + 1) * dim], keys, line)
            # the greatest score is taken off, so that no exponential overflows
            top = np.float32(-np.inf)
            for j in range(count):
                line[j] = line[j] * scale
                top = max(top, line[j])
            total = 0.0
            terms = np.empty(count, np.float64)
            for j in range(count):
                terms[j] = exp(np.float64(line[j]) - np.float64(top))
                total += terms[j]
            result = out[b, i * dim : (i + 1) * dim]
            result[:] = np.float32(0.0)
            for j in range(count):
                line[j] = np.float32(terms[j] / total)
                _add_multiple(line[j], values[j], result)


@parallel_kernel
def attention_backward(vectors, weights, g, count, scale, gradients):
    """Gradients of `attention_forward` with respect to q, k and v.

    Shapes: vectors (q, k, v), f32[b, count*dim] each; weights f32[b, count*count]; g f32[b,
    count*dim]; count int; scale f32; gradients (dq, dk, dv), f32[b, count*dim] each.
    Source: the softmax's derivative; docs/arithmetic.md §6.
    Order: a_ij = chain over ascending d of fma(g_id, v_jd, ·) from +0; r_i = sum over ascending j
    of weights_ij a_ij in fp64; s_ij = fl(fl(weights_ij (a_ij - r_i)) scale), the first in fp64;
    then chains of fma from +0: dq_id over j of s_ij k_jd, dk_jd over i of s_ij q_id, dv_jd over i
    of weights_ij g_id.
    """
    q, k, v = vectors
    dq, dk, dv = gradients
    dim = q.shape[1] // max(count, 1)
    for b in prange(q.shape[0]):
        queries = q[b].reshape(count, dim)
        keys = k[b].reshape(count, dim)
        values = v[b].reshape(count, dim)
        outer = g[b].reshape(count, dim)
        query_gradient = dq[b].reshape(count, dim)
        key_gradient = dk[b].reshape(count, dim)
        value_gradient = dv[b].reshape(count, dim)
        # chains begin at +0, and the output may hold anything
        query_gradient[:] = np.float32(0.0)
        key_gradient[:] = np.float32(0.0)
        value_gradient[:] = np.float32(0.0)
        slopes = np.empty(count, np.float32)
        for i in range(count):
            line = weights[b, i * count : (i + 1) * count]
            _products(outer[i], values, slopes)
            mean = 0.0
            for j in range(count):
                mean += np.float64(line[j]) * np.float64(slopes[j])
            for j in range(count):
                slope = np.float32(np.float64(line[j]) * (np.float64(slopes[j]) - mean))
                slope = slope * scale
                _add_multiple(slope, keys[j], query_gradient[i])
                _add_multiple(slope, queries[i], key_gradient[j])
                _add_multiple(line[j], outer[i], value_gradient[j])
