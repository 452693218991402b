"""Vectors side by side: v = [s_0 | s_1 | ...]."""

from collections.abc import Sequence

from neocpu.core.types import Floats, FloatsByName
from neocpu.train.model.arrays import NodeGradient
from neocpu.train.model.composition_layout import KeyVectors


class Copy:
    """Concatenation of vectors, or the one vector of a full table."""

    def __init__(self, vectors: KeyVectors, parameters: FloatsByName) -> None:
        pass

    def forward(self, sources: Sequence[Floats], out: Floats) -> None:
        """out f32[b, sum of widths] of sources f32[b, width] each."""
        column = 0
        for source in sources:
            out[:, column : column + source.shape[1]] = source
            column += source.shape[1]

    def backward(self, gradient: Floats, sources: Sequence[Floats]) -> None:
        """Each source has the gradient of its columns."""
        at = 0
        for source in sources:
            source[:] = gradient[:, at : at + source.shape[1]]
            at += source.shape[1]

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """It has no parameters."""
