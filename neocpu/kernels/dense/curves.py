"""What are the loss, its slope and its curvature in the score of every sample? What are those of a
hidden unit's activation?

Losses and activations of fitted models, in fp64 (`docs/arithmetic.md` §16): what a second-order
solver takes of a sample beside its row.
"""

from numba import prange

from neocpu.kernels.compile.jit import kernel, parallel_kernel
from neocpu.kernels.numbers.elementary import exp, log, log1p, tanh


@kernel
def logistic(score, label, loss, slope, curvature):
    """log(1 + e^z) - y z, for labels y in [0, 1].

    Shapes: score, slope, curvature f64[n, 1]; label, loss f64[n].
    Order: e = exp(-|z|), q = 1 + e; loss = (max(z, 0) - z*y) + log1p(e);
    slope = (1 if z >= 0 else e) / q - y; curvature = e / (q*q).
    """
    for i in range(label.size):
        z = score[i, 0]
        e = exp(-abs(z))
        q = 1.0 + e
        loss[i] = ((z if z > 0.0 else 0.0) - z * label[i]) + log1p(e)
        slope[i, 0] = (1.0 if z >= 0.0 else e) / q - label[i]
        curvature[i, 0] = e / (q * q)


@kernel
def squares(score, label, loss, slope, curvature):
    """(z - y)^2 / 2.

    Shapes: score, slope, curvature f64[n, 1]; label, loss f64[n].
    Order: t = z - y; loss = 0.5 * (t*t); slope = t; curvature = 1.
    """
    for i in range(label.size):
        t = score[i, 0] - label[i]
        loss[i] = 0.5 * (t * t)
        slope[i, 0] = t
        curvature[i, 0] = 1.0


@kernel
def squared_hinge(score, label, loss, slope, curvature):
    """max(0, 1 - s z)^2 with s = 2 y - 1, for labels y of 0 and 1; LIBLINEAR's L2-loss SVM.

    Shapes: score, slope, curvature f64[n, 1]; label, loss f64[n].
    Order: t = 1 - s*z; where t > 0 loss = t*t, slope = -2 * (s*t), curvature = 2; else all 0.
    """
    for i in range(label.size):
        s = 2.0 * label[i] - 1.0
        t = 1.0 - s * score[i, 0]
        inside = t > 0.0
        loss[i] = t * t if inside else 0.0
        slope[i, 0] = -2.0 * (s * t) if inside else 0.0
        curvature[i, 0] = 2.0 if inside else 0.0


@kernel
def softmax(score, label, loss, slope, curvature):
    """log(sum_k e^z_k) - z_y, for labels y of 0, ..., K - 1.

    Shapes: score, slope, curvature f64[n, K]; label, loss f64[n].
    Order: m the largest score; q = the chain of exp(z_k - m), k ascending, from +0;
    loss = log(q) - (z_y - m); curvature[k] = p_k = exp(z_k - m) / q; slope = p, minus 1 at y.
    """
    width = score.shape[1]
    for i in range(label.size):
        most = score[i, 0]
        for k in range(1, width):
            most = max(most, score[i, k])
        q = 0.0
        for k in range(width):
            curvature[i, k] = exp(score[i, k] - most)
            q += curvature[i, k]
        for k in range(width):
            curvature[i, k] /= q
            slope[i, k] = curvature[i, k]
        y = int(label[i])
        loss[i] = log(q) - (score[i, y] - most)
        slope[i, y] -= 1.0


@kernel
def softmax_curved(curvature, moved, out):
    """The change of softmax's slope where scores move: p (u - sum_k p_k u_k).

    Shapes: curvature f64[n, K], the probabilities p; moved f64[n, K], u; out f64[n, K].
    Order: the mean is the chain of p_k*u_k, k ascending, from +0; out = p * (u - mean).
    """
    samples, width = moved.shape
    for i in range(samples):
        mean = 0.0
        for k in range(width):
            mean += curvature[i, k] * moved[i, k]
        for k in range(width):
            out[i, k] = curvature[i, k] * (moved[i, k] - mean)


@parallel_kernel
def tanh_units(z, value, slope, curvature):
    """Values of hidden units tanh(z), and their first and second derivatives.

    Shapes: all f64[n, h].
    Order: a = tanh(z); value = a; slope = 1 - a*a; curvature = (-2 * a) * slope.
    """
    samples, width = z.shape
    for i in prange(samples):
        for k in range(width):
            a = tanh(z[i, k])
            value[i, k] = a
            slope[i, k] = 1.0 - a * a
            curvature[i, k] = (-2.0 * a) * slope[i, k]


@parallel_kernel
def relu_units(z, value, slope, curvature):
    """Values of hidden units max(z, 0), and their first and second derivatives.

    Shapes: all f64[n, h].
    Order: where z <= 0 value = slope = +0, else value = z (a NaN stays), slope = 1; curvature = +0.
    """
    samples, width = z.shape
    for i in prange(samples):
        for k in range(width):
            closed = z[i, k] <= 0.0
            value[i, k] = 0.0 if closed else z[i, k]
            slope[i, k] = 0.0 if closed else 1.0
            curvature[i, k] = 0.0
