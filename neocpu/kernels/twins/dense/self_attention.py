"""What does self-attention compute, to the bit? The plain twin of
`kernels/dense/self_attention.py`.

Whole arrays; a chain of fused multiply-adds advances for all samples and pairs at once.
"""

import numpy as np

from neocpu.kernels.twins.numbers.elementary import exp
from neocpu.kernels.twins.numbers.fma import fma


def _vectors(x, count):
    """x f32[b, count*dim] as f32[b, count, dim]."""
    return x.reshape(x.shape[0], count, x.shape[1] // count)


def _products(left, right):
    """Chains over the last axis: f32[b, i, j] of f32[b, i, d] and f32[b, j, d]."""
    sums = np.zeros((left.shape[0], left.shape[1], right.shape[1]), np.float32)
    for d in range(left.shape[2]):
        sums = fma(left[:, :, None, d], right[:, None, :, d], sums)
    return sums


def _mixed(factors, rows):
    """Chains over j: f32[b, i, d] of factors f32[b, i, j] and rows f32[b, j, d]."""
    sums = np.zeros((factors.shape[0], factors.shape[1], rows.shape[2]), np.float32)
    for j in range(factors.shape[2]):
        sums = fma(factors[:, :, j, None], rows[:, None, j], sums)
    return sums


def _sum(terms):
    """Sum over the last axis, f64, ascending."""
    total = np.zeros(terms.shape[:-1])
    for j in range(terms.shape[-1]):
        total = total + terms[..., j]
    return total


def attention_forward(vectors, count, scale, weights, out):
    """weights f32[b, count*count] and out f32[b, count*dim] of q, k, v f32[b, count*dim]; see
    `kernels.dense.self_attention.attention_forward`.
    """
    q, k, v = vectors
    with np.errstate(all="ignore"):
        scores = _products(_vectors(q, count), _vectors(k, count)) * scale
        tops = scores.max(axis=2, keepdims=True, initial=-np.inf).astype(np.float64)
        terms = exp(scores.astype(np.float64) - tops)
        softmax = (terms / _sum(terms)[:, :, None]).astype(np.float32)
        weights[:] = softmax.reshape(weights.shape)
        out[:] = _mixed(softmax, _vectors(v, count)).reshape(out.shape)


def attention_backward(vectors, weights, g, count, scale, gradients):
    """dq, dk, dv f32[b, count*dim] from g f32[b, count*dim]; see
    `kernels.dense.self_attention.attention_backward`.
    """
    q, k, v = vectors
    dq, dk, dv = gradients
    softmax = weights.reshape(len(q), count, count)
    outer = _vectors(g, count)
    with np.errstate(all="ignore"):
        slopes = _products(outer, _vectors(v, count)).astype(np.float64)
        wide = softmax.astype(np.float64)
        centred = wide * (slopes - _sum(wide * slopes)[:, :, None])
        scores = centred.astype(np.float32) * scale
        turned = scores.transpose(0, 2, 1)
        dq[:] = _mixed(scores, _vectors(k, count)).reshape(dq.shape)
        dk[:] = _mixed(turned, _vectors(q, count)).reshape(dk.shape)
        dv[:] = _mixed(softmax.transpose(0, 2, 1), outer).reshape(dv.shape)
