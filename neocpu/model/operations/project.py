"""Vectors of fewer columns, each through its own matrix: v = P_0 s_0 + P_1 s_1 + ...

    s_k [b, d_k]  --P_k [dim, d_k]-->  [b, dim]      added in the order of the sources

A source of all columns is added as it is. The products are those of the MLPs' layers, without
bias: the same kernels, with the same order of additions (`docs/arithmetic.md` §6).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from neocpu.kernels.choice import chosen
from neocpu.model.arrays import F32, NO_GATE, Buffer, NodeGradient
from neocpu.model.composition_layout import KeyVectors


class Project:
    """Sum of projected vectors; the tensors of the part are the matrices, in the order of those
    sources that have fewer columns than it.
    """

    def __init__(self, part: KeyVectors, parameters: Mapping[str, F32]) -> None:
        names = iter(part.parameter(tensor) for tensor, _ in part.tensors)
        self._sources = [
            _Projection(next(names), parameters, source.width) if source.width < part.dim else None
            for source in part.sources
        ]
        self._product = Buffer(part.dim)
        self._outer = Buffer(part.dim)
        self._samples = 0

    def forward(self, sources: Sequence[F32], out: F32) -> None:
        """out f32[b, dim] of sources f32[b, d_k] each."""
        self._samples = len(out)
        product = self._product.matrix(len(out))
        for number, (projection, source) in enumerate(zip(self._sources, sources)):
            term = source
            if projection is not None:
                projection.forward(source, product)
                term = product
            if number:
                np.add(out, term, out=out)
            else:
                out[:] = term

    def backward(self, gradient: F32, sources: Sequence[F32]) -> None:
        """Source k has the gradient of the sum times P_k."""
        outer = self._outer.matrix(self._samples)
        outer[:] = gradient
        for projection, source in zip(self._sources, sources):
            if projection is None:
                source[:] = gradient
            else:
                projection.backward(outer, source)

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Write the gradients of all matrices."""
        outer = self._outer.matrix(self._samples)
        for projection in self._sources:
            if projection is not None:
                for node in nodes:
                    node.write(projection.name, outer, projection.inputs(self._samples))


class _Projection:
    """One matrix f32[dim, d]; name : of its layer, which NodeGradient knows it by."""

    def __init__(self, tensor: str, parameters: Mapping[str, F32], columns: int) -> None:
        self.name = tensor.removesuffix(".weight")
        self._weight = parameters[tensor]
        self._no_bias = np.zeros(len(self._weight), np.float32)
        self._inputs = Buffer(columns)
        self._gradient = Buffer(columns)

    def inputs(self, samples: int) -> F32:
        """What it projected last, f32[samples, d]."""
        return self._inputs.matrix(samples)

    def forward(self, source: F32, out: F32) -> None:
        """out f32[b, dim], contiguous, of source f32[b, d]."""
        inputs = self.inputs(len(source))
        inputs[:] = source
        chosen("gemm", "layer")(inputs, self._weight, self._no_bias, False, out)

    def backward(self, outer: F32, source: F32) -> None:
        """Write the gradient of its source f32[b, d], from that of its product f32[b, dim]."""
        inner = self._gradient.matrix(len(outer))
        chosen("gemm", "input_gradient")(outer, self._weight, NO_GATE, inner)
        source[:] = inner
