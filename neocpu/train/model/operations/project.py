"""Vectors of fewer columns, each through its own matrix: v = P_0 s_0 + P_1 s_1 + ...

    s_k [b, d_k]  --P_k [dim, d_k]-->  [b, dim]      added in the order of the sources

A source of all columns is added as it is. The products are those of the MLPs' layers, without
bias: the same kernels, with the same order of additions (`docs/arithmetic.md` §6).
"""

from collections.abc import Sequence

import numpy as np

from neocpu.core.types import Floats, FloatsByName
from neocpu.train.model.arrays import Buffer, NodeGradient
from neocpu.train.model.composition_layout import KeyVectors
from neocpu.train.model.linear import Linear


class Project:
    """Sum of projected vectors; the tensors of the part are the matrices, in the order of those
    sources that have fewer columns than it.
    """

    def __init__(self, vectors: KeyVectors, parameters: FloatsByName) -> None:
        names = iter(
            vectors.parameter(tensor).removesuffix(".weight") for tensor, _ in vectors.tensors
        )
        self._projections = [
            Linear(next(names), parameters) if source.width < vectors.dim else None
            for source in vectors.sources
        ]
        self._inputs = [Buffer(source.width) for source in vectors.sources]
        self._outer = Buffer(vectors.dim)

    def forward(self, sources: Sequence[Floats], out: Floats) -> None:
        """out f32[b, dim] of sources f32[b, d_k] each."""
        for number, (projection, source) in enumerate(zip(self._projections, sources)):
            term = source
            if projection is not None:
                inputs = self._inputs[number].matrix(len(source))
                inputs[:] = source  # contiguous, and kept for the gradients
                term = projection.forward(inputs)
            if number:
                np.add(out, term, out=out)
            else:
                out[:] = term

    def backward(self, gradient: Floats, sources: Sequence[Floats]) -> None:
        """Source k has the gradient of the sum times P_k."""
        outer = self._outer.matrix(len(gradient))
        # columns of dE; products want rows without gaps, and weight gradients read it again
        outer[:] = gradient
        for projection, source in zip(self._projections, sources):
            source[:] = gradient if projection is None else projection.backward(outer)

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Write the gradients of all matrices, summed over each of the nodes."""
        for projection in self._projections:
            if projection is not None:
                projection.weight_gradients(nodes)
