"""What are the prediction, the loss and the gradient of every sample?

The mean is over the *global* batch: the gradient is divided here, once, by its number of samples;
nothing else on the training path divides by a batch or world size (`docs/arithmetic.md` §7).
"""

import numpy as np

from neocpu.kernels.compile.jit import kernel
from neocpu.kernels.numbers.elementary import exp, log1p


@kernel
def bce(logit, label, batch, prediction, gradient, loss):
    """Binary cross-entropy with logits.

    Shapes: logit, label f32[b]; batch i64, samples of the global batch; prediction, gradient,
    loss f32[b].
    Source: docs/arithmetic.md §7.
    Order: z in fp64, e = exp(-|z|); prediction = (1 if z >= 0 else e) / (1 + e), rounded once;
    loss = (max(z, 0) - z*y) + log1p(e), rounded once;
    gradient = fl(fl(prediction - label) / float32(batch)).
    """
    samples = np.float32(batch)
    for i in range(logit.size):
        z = np.float64(logit[i])
        y = np.float64(label[i])
        # of -|z|: it never overflows, for either sign of the logit
        e = exp(-abs(z))
        p = np.float32((1.0 if z >= 0.0 else e) / (1.0 + e))
        prediction[i] = p
        loss[i] = np.float32(((0.0 if z <= 0.0 else z) - z * y) + log1p(e))
        gradient[i] = np.float32(p - label[i]) / samples


@kernel
def mse(logit, label, batch, prediction, gradient, loss):
    """Squared error; the prediction is the logit itself.

    Shapes: logit, label f32[b]; batch i64, samples of the global batch; prediction, gradient,
    loss f32[b].
    Source: docs/arithmetic.md §7.
    Order: t = fl(z - y); loss = fl(t*t); gradient = fl(fl(2*t) / float32(batch)).
    """
    samples = np.float32(batch)
    two = np.float32(2)
    for i in range(logit.size):
        t = np.float32(logit[i] - label[i])
        prediction[i] = logit[i]
        loss[i] = t * t
        gradient[i] = np.float32(two * t) / samples
