"""What are the loss and the gradient of a sample, to the bit? The twin of
`kernels/dense/loss.py`.
"""

import numpy as np

from neocpu.kernels.twins.numbers.elementary import exp, log1p


def bce(logit, label, batch, prediction, gradient, loss):
    """Binary cross-entropy with logits, f32[b] arrays; see `kernels.dense.loss.bce`."""
    z = logit.astype(np.float64)
    y = label.astype(np.float64)
    e = exp(-np.abs(z))
    with np.errstate(all="ignore"):
        prediction[:] = (np.where(z >= 0, 1.0, e) / (1.0 + e)).astype(np.float32)
        loss[:] = ((np.where(z <= 0, 0.0, z) - z * y) + log1p(e)).astype(np.float32)
        gradient[:] = (prediction - label) / np.float32(batch)


def mse(logit, label, batch, prediction, gradient, loss):
    """Squared error, f32[b] arrays; see `kernels.dense.loss.mse`."""
    with np.errstate(all="ignore"):
        t = logit - label
        prediction[:] = logit
        loss[:] = t * t
        gradient[:] = np.float32(2) * t / np.float32(batch)
