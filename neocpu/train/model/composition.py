"""How does the model's E come of the vectors of physical tables? Key by key, each by its
operation.

A module of the dense part, at the home of the samples, like the towers (`towers.py`):

    E physical [b, ...]  --operations-->  E [b, columns]         forward
    dE physical          <--adjoints---   dE                      backward

Keys whose tables do not pool come lookup by lookup instead of in E physical (`row_parts.py`); they
are made after the others, since an attention reads the vector of another key.

Operations are in `train/model/operations/`; `composition_layout.py` says which part takes what.
Plain ones are done for all parts at once (`elementwise.py`), and not at all where E is E physical.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Floats, FloatsByName, Ints
from neocpu.tables.embedding.lookups import KeyLookups, RowTerms
from neocpu.train.model.arrays import Buffer, NodeGradient
from neocpu.train.model.composition_layout import CompositionLayout, KeyVectors
from neocpu.train.model.elementwise import PLAIN, Plain
from neocpu.train.model.operations import make_operation
from neocpu.train.model.row_parts import RowPart


class Call(NamedTuple):
    """What a feature has for a layer: outer and inputs as of `NodeGradient.write`, and the first
    line of each leaf in them, i64[L+1].
    """

    outer: Floats
    inputs: Floats
    cuts: Ints


@dataclass(frozen=True)
class JoinedGradient(NodeGradient):
    """A node whose layers are not written yet: features that share one are summed together.

    calls : of each layer.
    """

    calls: dict[str, list[Call]] = field(default_factory=dict)

    def write(self, layer: str, outer: Floats, inputs: Floats, rows: int = 1) -> None:
        """Keep what a feature has for a layer, until `write_to`."""
        # a history has `rows` lines for each sample
        self.calls.setdefault(layer, []).append(Call(outer, inputs, self.cuts * rows))

    def write_to(self, node: NodeGradient) -> None:
        """Write all layers where the node does."""
        for layer, calls in self.calls.items():
            outer, inputs, cuts = calls[0] if len(calls) == 1 else _joined(calls)
            replace(node, cuts=cuts).write(layer, outer, inputs)


def _joined(calls: Sequence[Call]) -> Call:
    """Calls of several features as one: leaf by leaf, the features' lines behind one another."""
    leaves = range(calls[0].cuts.size - 1)
    parts = [
        # leaf by leaf: the chain over samples within a leaf defines the bits (docs/arithmetic.md)
        (call, slice(call.cuts[leaf], call.cuts[leaf + 1]))
        for leaf in leaves
        for call in calls
    ]
    cuts = sum(call.cuts - call.cuts[0] for call in calls)
    return Call(
        np.concatenate([call.outer[lines] for call, lines in parts]),
        np.concatenate([call.inputs[lines] for call, lines in parts]),
        np.asarray(cuts),
    )


class Compositions:
    """All parts of a model.

    first_column : columns of the bottom MLP's output, the first of both matrices. layout : of the
    parts. parameters : holds theirs by name.

    Attributes: columns, of E physical; row_terms, gradients of the keys without pooling of the last
    `backward`, in the order of `layout.unpooled`.
    """

    def __init__(
        self, first_column: int, layout: CompositionLayout, parameters: FloatsByName
    ) -> None:
        self.first_column = first_column
        self.layout = layout
        self.columns = first_column + layout.physical_columns
        self._plain = Plain(first_column, layout)
        self._others = [
            (vectors, make_operation(vectors, parameters))
            for vectors in layout.parts
            if vectors.pooled and vectors.operation not in PLAIN
        ]
        self._rows = [
            RowPart(vectors, parameters) for vectors in layout.parts if not vectors.pooled
        ]
        self._position = {key: position for position, key in enumerate(layout.unpooled)}
        self.row_terms: list[RowTerms] = []
        self._physical = np.empty((0, 0), np.float32)  # of the batch
        self._gradient = Buffer(first_column + layout.columns)
        self._E = Buffer(first_column + layout.columns)
        self._dE = Buffer(self.columns)

    def forward(self, physical: Floats, lookups: Sequence[KeyLookups] = ()) -> Floats:
        """E f32[b, columns] of E physical f32[b, ...], which `backward` reads again.

        Valid until the next call.

        lookups : of the keys without pooling, in the order of `layout.unpooled`.
        """
        # kept for products, whose adjoint reads the other factor
        self._physical = physical
        if self._plain.nothing:
            return physical
        E = self._E.matrix(len(physical))
        self._plain.forward(physical, E)
        for vectors, operation in self._others:
            operation.forward(self._views(physical, vectors), self._columns(E, vectors))
        for rows in self._after_candidates():
            sources = [lookups[self._position[source.key]] for source in rows.vectors.sources]
            rows.forward(sources, self._target(E, rows.vectors), self._columns(E, rows.vectors))
        return E

    def backward(self, gradient: Floats) -> Floats:
        """Gradient of E physical from that of E; valid until the next call."""
        if self._plain.nothing:
            return gradient
        dE = self._dE.matrix(len(gradient))
        if self._rows:
            total = self._gradient.matrix(len(gradient))
            total[:] = gradient  # candidates have gradients of attentions, too
            gradient = total
            terms: dict[int, RowTerms] = {}
            for rows in reversed(self._after_candidates()):
                vectors = rows.vectors
                by_source = rows.backward(
                    self._columns(gradient, vectors), self._target(gradient, vectors)
                )
                terms |= zip([source.key for source in vectors.sources], by_source)
            self.row_terms = [terms[key] for key in self.layout.unpooled]
        self._plain.backward(gradient, self._physical, dE)
        for vectors, operation in self._others:
            operation.backward(self._columns(gradient, vectors), self._views(dE, vectors))
        return dE

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Write the gradients of all parameters, summed over each of the nodes.

        Features of one table share its parameters, whose gradients are one sum.
        """
        joined = [JoinedGradient(node.cuts, node.into) for node in nodes]
        for _, operation in self._others:
            operation.weight_gradients(joined)
        for rows in self._rows:
            rows.weight_gradients(joined)
        for node, layers in zip(nodes, joined):
            layers.write_to(node)

    def _after_candidates(self) -> list[RowPart]:
        """Keys without pooling: those that are pooled here before histories, which read them."""
        return sorted(self._rows, key=lambda rows: rows.vectors.attention is not None)

    def _target(self, E: Floats, vectors: KeyVectors) -> Floats:
        """The columns of the candidate of a history; of other keys none."""
        if vectors.attention is None:
            return E[:, :0]
        first = self.first_column + vectors.attention.column
        return E[:, first : first + vectors.attention.dim]

    def _columns(self, E: Floats, vectors: KeyVectors) -> Floats:
        first = self.first_column + vectors.column
        return E[:, first : first + vectors.dim]

    def _views(self, physical: Floats, vectors: KeyVectors) -> list[Floats]:
        starts = [self.first_column + source.column for source in vectors.sources]
        return [
            physical[:, first : first + source.width]
            for first, source in zip(starts, vectors.sources)
        ]


def warm_up(layout: CompositionLayout) -> None:
    """Compile (or load) what the operations of a model need: forward and backward of two samples,
    with parameters of 0.
    """
    tensors = layout.tensors()
    compositions = Compositions(1, layout, {name: np.zeros(s, np.float32) for name, s in tensors})
    lookups = [_two_lookups(layout, key) for key in layout.unpooled]
    E = compositions.forward(np.zeros((2, compositions.columns), np.float32), lookups)
    compositions.backward(np.zeros_like(E))
    gradient = {name: np.empty(shape, np.float32) for name, shape in tensors}
    compositions.weight_gradients([NodeGradient(np.arange(3, dtype=np.int64), gradient)])


def _two_lookups(layout: CompositionLayout, key: int) -> KeyLookups:
    """A lookup for each of two samples in a physical table that does not pool."""
    sources = [
        source for vectors in layout.parts for source in vectors.sources if source.key == key
    ]
    places = np.arange(2, dtype=np.int64)
    return KeyLookups(
        offsets=np.arange(3, dtype=np.int64),
        rows=np.zeros(2, np.int64),
        values=np.zeros((2, sources[0].width), np.float32),
        lines=places if key in layout.once else None,
        weights=None,
        leaves=2 * places,
    )
