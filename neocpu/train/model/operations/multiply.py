"""The product of vectors, number by number: v = s_0 * s_1 * ..., multiplied in this order.

Gradient of s_k: that of v, times each of the other vectors in their order.
"""

from collections.abc import Sequence

import numpy as np

from neocpu.core.types import Floats, FloatsByName
from neocpu.train.model.arrays import NodeGradient
from neocpu.train.model.composition_layout import KeyVectors


class Multiply:
    """Product of vectors of one width, number by number."""

    def __init__(self, vectors: KeyVectors, parameters: FloatsByName) -> None:
        self._factors: Sequence[Floats] = ()

    def forward(self, sources: Sequence[Floats], out: Floats) -> None:
        """out f32[b, dim] of sources f32[b, dim] each, which `backward` reads again."""
        self._factors = sources
        out[:] = sources[0]
        for source in sources[1:]:
            np.multiply(out, source, out=out)

    def backward(self, gradient: Floats, sources: Sequence[Floats]) -> None:
        """The product rule."""
        for number, source in enumerate(sources):
            # not v / s_k, which fails at 0 and rounds otherwise
            source[:] = gradient
            for other, factor in enumerate(self._factors):
                if other != number:
                    np.multiply(source, factor, out=source)

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """It has no parameters."""
