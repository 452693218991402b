"""How does the model's E come of the vectors of physical tables? Key by key, each by its
operation.

A module of the dense part, at the home of the samples, like the towers (`towers.py`):

    E physical [b, ...]  --operations-->  E [b, columns]         forward
    dE physical          <--adjoints---   dE                      backward

Operations are in `model/operations/`; `composition_layout.py` says which part takes what.
"""

from collections.abc import Mapping, Sequence

from neocpu.model.arrays import F32, Buffer, NodeGradient
from neocpu.model.composition_layout import CompositionLayout, KeyVectors
from neocpu.model.operations import make_operation


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
        """Write the gradients of all parameters, summed over each of the nodes."""
        for operation in self._operations:
            operation.weight_gradients(nodes)

    def _columns(self, E: F32, part: KeyVectors) -> F32:
        first = self.first_column + part.column
        return E[:, first : first + part.dim]

    def _views(self, physical: F32, part: KeyVectors) -> list[F32]:
        starts = [self.first_column + source.column for source in part.sources]
        return [
            physical[:, first : first + source.width] for first, source in zip(starts, part.sources)
        ]
