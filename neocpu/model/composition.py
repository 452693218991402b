"""How does the model's E come of the vectors of physical tables? Key by key, each by its
operation.

A module of the dense part, at the home of the samples, like the towers (`towers.py`):

    E physical [b, ...]  --operations-->  E [b, columns]         forward
    dE physical          <--adjoints---   dE                      backward

Operations are in `model/operations/`; `composition_layout.py` says which part takes what.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from neocpu.model.composition_layout import CompositionLayout, KeyVectors
from neocpu.model.mlp import F32, Buffer, NodeGradient
from neocpu.model.operations import make_operation


class JoinedGradient(NodeGradient):
    """Layers of one node that are not written yet: those of several features stand together."""

    @cached_property
    def _calls(self) -> dict[str, list[tuple[F32, F32, int]]]:
        return {}

    def write(self, layer: str, outer: F32, inputs: F32, rows: int = 1) -> None:
        """Keep what a feature has for a layer, until `write_to`."""
        self._calls.setdefault(layer, []).append((outer, inputs, rows))

    def write_to(self, node: NodeGradient) -> None:
        """Write all layers."""
        for layer, calls in self._calls.items():
            outers, inputs, rows = zip(*calls)
            node.write(layer, _join(outers, rows), _join(inputs, rows), sum(rows))


def _join(matrices: Sequence[F32], rows: Sequence[int]) -> F32:
    """Matrices f32[b * rows, n] of features as one f32[b * sum of rows, n], sample by sample."""
    if len(matrices) == 1:
        return matrices[0]
    width = matrices[0].shape[1]
    by_sample = [m.reshape(-1, count * width) for m, count in zip(matrices, rows)]
    return np.concatenate(by_sample, axis=1).reshape(-1, width)


class Compositions:
    """All parts of a model.

    first_column : columns of the bottom MLP's output, the first of both matrices. layout : of the
    parts. parameters : holds theirs by name.

    Attribute: columns, of E physical.
    """

    def __init__(
        self, first_column: int, layout: CompositionLayout, parameters: Mapping[str, F32]
    ) -> None:
        self.first_column = first_column
        self.layout = layout
        self.columns = first_column + layout.physical_columns
        self._operations = [make_operation(part, parameters) for part in layout.parts]
        self._E = Buffer(first_column + layout.columns)
        self._dE = Buffer(self.columns)

    def forward(self, physical: F32) -> F32:
        """E f32[b, columns] of E physical f32[b, ...]; valid until the next call."""
        E = self._E.matrix(len(physical))
        E[:, : self.first_column] = physical[:, : self.first_column]
        for part, operation in zip(self.layout.parts, self._operations):
            operation.forward(self._views(physical, part), self._columns(E, part))
        return E

    def backward(self, gradient: F32) -> F32:
        """Gradient of E physical from that of E; valid until the next call."""
        dE = self._dE.matrix(len(gradient))
        dE[:, : self.first_column] = gradient[:, : self.first_column]
        for part, operation in zip(self.layout.parts, self._operations):
            operation.backward(self._columns(gradient, part), self._views(dE, part))
        return dE

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Write the gradients of all parameters, summed over each of the nodes.

        Features of one table share its parameters: a layer's gradient is summed once, over a
        matrix with a row for each (sample, feature).
        """
        joined = [JoinedGradient(node.cuts, node.into) for node in nodes]
        for operation in self._operations:
            operation.weight_gradients(joined)
        for node, layers in zip(nodes, joined):
            layers.write_to(node)

    def _columns(self, E: F32, part: KeyVectors) -> F32:
        first = self.first_column + part.column
        return E[:, first : first + part.dim]

    def _views(self, physical: F32, part: KeyVectors) -> list[F32]:
        starts = [self.first_column + source.column for source in part.sources]
        return [
            physical[:, first : first + source.width] for first, source in zip(starts, part.sources)
        ]
