"""What are loss, slope and curvature of a sample, and of a hidden unit? The twin of
`kernels/dense/curves.py`.
"""

import numpy as np

from neocpu.kernels.twins.numbers.elementary import exp, log, log1p, tanh


def logistic(score, label, loss, slope, curvature):
    """log(1 + e^z) - y z; see `kernels.dense.curves.logistic`."""
    z = score[:, 0]
    e = exp(-np.abs(z))
    loss[:] = (np.where(z > 0.0, z, 0.0) - z * label) + log1p(e)
    slope[:, 0] = np.where(z >= 0.0, 1.0, e) / (1.0 + e) - label
    curvature[:, 0] = e / ((1.0 + e) * (1.0 + e))


def squares(score, label, loss, slope, curvature):
    """(z - y)^2 / 2; see `kernels.dense.curves.squares`."""
    slope[:, 0] = score[:, 0] - label
    loss[:] = 0.5 * (slope[:, 0] * slope[:, 0])
    curvature[:] = 1.0


def squared_hinge(score, label, loss, slope, curvature):
    """max(0, 1 - s z)^2; see `kernels.dense.curves.squared_hinge`."""
    s = 2.0 * label - 1.0
    t = 1.0 - s * score[:, 0]
    inside = t > 0.0
    loss[:] = np.where(inside, t * t, 0.0)
    slope[:, 0] = np.where(inside, -2.0 * (s * t), 0.0)
    curvature[:, 0] = np.where(inside, 2.0, 0.0)


def softmax(score, label, loss, slope, curvature):
    """log(sum e^z) - z_y; see `kernels.dense.curves.softmax`."""
    lowered = score - score.max(axis=1, keepdims=True)
    powers = exp(lowered)
    q = np.zeros(len(score))
    for column in powers.T:
        q += column
    samples = np.arange(label.size)
    labels = label.astype(np.int64)
    loss[:] = log(q) - lowered[samples, labels]
    curvature[:] = powers / q[:, None]
    slope[:] = curvature
    slope[samples, labels] -= 1.0


def softmax_curved(curvature, moved, out):
    """p (u - sum p u); see `kernels.dense.curves.softmax_curved`."""
    mean = np.zeros(len(moved))
    for product in (curvature * moved).T:
        mean += product
    out[:] = curvature * (moved - mean[:, None])


def tanh_units(z, value, slope, curvature):
    """tanh(z) and its derivatives; see `kernels.dense.curves.tanh_units`."""
    value[:] = tanh(z)
    slope[:] = 1.0 - value * value
    curvature[:] = (-2.0 * value) * slope


def relu_units(z, value, slope, curvature):
    """max(z, 0) and its derivatives; see `kernels.dense.curves.relu_units`."""
    value[:] = np.where(z <= 0.0, 0.0, z)
    slope[:] = np.where(z <= 0.0, 0.0, 1.0)
    curvature[:] = 0.0
