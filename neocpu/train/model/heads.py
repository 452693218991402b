"""How does one model learn several labels? By a top MLP for each, over one interaction.

    z -> top MLP                 the first label, `data.label`
    z -> heads.NAME              a further one, with an MLP, a loss and a weight of its own

The gradient of a head is that of its weighted loss; that of z adds those of the top MLP and of the
heads in the order of the config (`docs/arithmetic.md` §7).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from neocpu.core.types import Floats, FloatsByName
from neocpu.kernels.dense import loss as losses
from neocpu.train.model.arrays import Buffer, NodeGradient
from neocpu.train.model.mlp import BetweenLayers, Mlp
from neocpu.train.model.precision.operands import EXACT, Precision

if TYPE_CHECKING:
    from neocpu.train.model.head_layout import HeadLayout


class Objective:
    """Predictions, losses and the gradient of logits.

    loss : "bce" or "mse". weight : of this loss among several. precision : has the scale of the
    loss.

    Attributes: logit_gradient f32[b, 1], of the last `gradient`.
    """

    def __init__(self, loss: str, weight: float = 1.0, precision: Precision = EXACT) -> None:
        self._loss = {"bce": losses.bce, "mse": losses.mse}[loss]
        self._weight = np.float32(weight)
        self._precision = precision
        self._prediction = Buffer(1)
        self._gradient = Buffer(1)
        self._losses = Buffer(1)
        self._labels = Buffer(1)  # of `predict`, which has none
        self.logit_gradient = self._gradient.matrix(0)

    def gradient(
        self, logits: Floats, labels: Floats, global_batch: int, weights: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """Predictions f32[b] and losses f32[b], which no weight has touched, of logits f32[b].

        The gradient is that of the mean over `global_batch` samples of weight times loss. weights :
        of the samples, f32[b]; None: all 1. Valid until the next call.
        """
        samples = labels.size
        prediction = self._prediction.matrix(samples).reshape(-1)
        self.logit_gradient = self._gradient.matrix(samples)
        gradient = self.logit_gradient.reshape(-1)
        loss = self._losses.matrix(samples).reshape(-1)
        self._loss(logits, labels, global_batch, prediction, gradient, loss)
        if weights is not None:
            np.multiply(gradient, weights, out=gradient)
        # times 1 is no change of bits, but a pass over the batch
        for factor in (self._weight, self._precision.loss_scale):
            if factor != 1:
                np.multiply(gradient, factor, out=gradient)
        return prediction, loss

    def predict(self, logits: Floats) -> Floats:
        """Predictions f32[b] of logits f32[b] (bce: probabilities, mse: logits).

        Valid until the next call.
        """
        labels = self._labels.matrix(logits.size).reshape(-1)
        # a prediction is that of the loss's kernel, which wants labels
        labels[:] = 0
        return self.gradient(logits, labels, max(logits.size, 1))[0]


class Head:
    """The MLP and the loss of one further label.

    inputs : numbers of z. parameters : by name. between : called after each layer's work.
    precision : of the operands of products.
    """

    def __init__(
        self,
        layout: "HeadLayout",
        inputs: int,
        parameters: FloatsByName,
        between: BetweenLayers,
        precision: Precision = EXACT,
    ) -> None:
        self.layout = layout
        sizes = (inputs, *layout.top)
        self._mlp = Mlp(layout.prefix, sizes, parameters, False, between, precision)
        self._objective = Objective(layout.loss, layout.weight, precision)
        self._logits = np.empty((0, 1), np.float32)

    def forward(self, z: Floats) -> None:
        """Logits of z f32[b, inputs], which gradients read again."""
        self._logits = self._mlp.forward(z)

    def loss_gradient(
        self, labels: Floats, global_batch: int, weights: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """As `Objective.gradient`, of the last `forward`."""
        return self._objective.gradient(self._logits.reshape(-1), labels, global_batch, weights)

    def predict(self) -> Floats:
        """Predictions f32[b] of the last `forward`."""
        return self._objective.predict(self._logits.reshape(-1))

    def backward(self) -> Floats:
        """Gradient of z f32[b, inputs]; valid until the next call."""
        gradient = self._mlp.backward(self._objective.logit_gradient, need_input=True)
        assert gradient is not None
        return gradient

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Of the MLP, summed over each of the nodes."""
        for layer in range(self._mlp.layers):
            self._mlp.weight_gradient(layer, nodes)
