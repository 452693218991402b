"""The sum of vectors: v = s_0 + s_1 + ..., added in this order."""

from collections.abc import Sequence

import numpy as np

from neocpu.core.types import Floats, FloatsByName
from neocpu.train.model.arrays import NodeGradient
from neocpu.train.model.composition_layout import KeyVectors


class Add:
    """Sum of vectors of one width."""

    def __init__(self, vectors: KeyVectors, parameters: FloatsByName) -> None:
        pass

    def forward(self, sources: Sequence[Floats], out: Floats) -> None:
        """out f32[b, dim] of sources f32[b, dim] each."""
        out[:] = sources[0]
        for source in sources[1:]:
            np.add(out, source, out=out)

    def backward(self, gradient: Floats, sources: Sequence[Floats]) -> None:
        """Every source has the gradient of the sum."""
        for source in sources:
            source[:] = gradient

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """It has no parameters."""
