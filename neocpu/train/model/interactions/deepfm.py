"""How does a factorisation machine share its vectors with an MLP? They add their logits (DeepFM,
arXiv 1703.04247, equations 1 to 4).

    logit = first order + fm(x) + top MLP(x_0, x_1, ... side by side)

`fm.py` has the term, `first_order.py` the first order: a weight for each dense feature and, from
tables of dim 1 (`model.wide`), one for each category. The bottom MLP's output is a vector as the
others.
"""

from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Floats, FloatsByName
from neocpu.train.model.arrays import Buffer, Shapes
from neocpu.train.model.interactions.base import Interaction, Widths, one_width
from neocpu.train.model.interactions.fm import PairSum
from neocpu.train.model.precision.operands import EXACT, Precision


@dataclass(frozen=True)
class DeepFmLayout:
    """y = x, and fm(x) for the logit.

    widths : of the vectors, those that come and go.
    """

    widths: Widths

    def __post_init__(self) -> None:
        one_width("deepfm", self.widths)

    def tensors(self) -> Shapes:
        """No parameters."""
        return ()

    def build(self, parameters: FloatsByName, precision: Precision = EXACT) -> Interaction:
        """The interaction at work."""
        return DeepFm(self)


class DeepFm(Interaction):
    """Vectors side by side for the top MLP, their pairs for the logit."""

    def __init__(self, layout: DeepFmLayout) -> None:
        self._term = PairSum(layout.widths)
        self._dx = Buffer(sum(layout.widths))

    def forward(self, x: Floats) -> Floats:
        """x itself."""
        self.logit = self._term.forward(x)
        return x

    def backward(self, dy: Floats, dlogit: Floats) -> Floats:
        """The term's gradient, then dy is added."""
        dx = self._dx.matrix(len(dy))
        # the term adds to the logit itself, so the logit's gradient is its own
        self._term.backward(dlogit, dx)
        np.add(dx, dy, out=dx)
        return dx
