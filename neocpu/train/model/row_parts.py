"""How does a key's vector come of rows that no table has pooled? Lookup by lookup, then by bags.

    rows of each source [n, width]  --operation-->  rows of the key [n, dim]       combine
                                    --bag sums, or attention-->  vectors [b, dim]  then bag

An operation sees lookups where it sees samples in keys whose tables pool (`composition.py`); all
sources of a key have the same bags.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from neocpu.core.types import Floats, FloatsByName
from neocpu.tables.embedding.lookups import KeyLookups, RowTerms
from neocpu.train.model.arrays import Buffer, NodeGradient
from neocpu.train.model.composition_layout import KeyVectors
from neocpu.train.model.operations import (
    Operation,
    RowOperation,
    make_operation,
    make_row_operation,
)
from neocpu.train.model.operations.attention import Attention
from neocpu.train.model.operations.rows import BagSums


class RowPart:
    """One key of the model. vectors : its layout. parameters : of the model, by name."""

    def __init__(self, vectors: KeyVectors, parameters: FloatsByName) -> None:
        self.vectors = vectors
        self._row_operation: RowOperation | None = make_row_operation(vectors, parameters)
        self._operation: Operation | None = None
        if self._row_operation is None and not vectors.plain:
            self._operation = make_operation(vectors, parameters)
        self._attention: Attention | None = None
        if vectors.attention is not None:
            self._attention = Attention(vectors.attention, parameters)
        pooling = "mean" if vectors.pooling == "mean" else "sum"
        self._sums = BagSums(pooling, vectors.dim)
        self._rows = Buffer(vectors.dim)
        self._gradients = [Buffer(source.width) for source in vectors.sources]
        self._offsets = np.zeros(1, np.int64)

    def forward(self, sources: Sequence[KeyLookups], target: Floats, out: Floats) -> None:
        """Write the key's vectors into out f32[b, dim].

        sources : lookups of each source. target : f32[b, dim], the candidates of an attention.
        """
        offsets = self._offsets = sources[0].offsets
        rows = self._rows_of(sources)
        if self._attention is not None:
            self._attention.forward(rows, offsets, target, out)
        else:
            self._sums.forward(rows, offsets, out)

    def _rows_of(self, sources: Sequence[KeyLookups]) -> Floats:
        """The key's row of each lookup: f32[n, dim]."""
        if self._row_operation is None and self._operation is None:
            # a plain key: its rows are those of its table
            return sources[0].values
        rows = self._rows.matrix(sources[0].rows.size)
        if self._row_operation is not None:
            self._row_operation.forward(sources, rows)
        elif self._operation is not None:
            self._operation.forward([source.values for source in sources], rows)
        return rows

    def backward(self, gradient: Floats, target: Floats) -> list[RowTerms]:
        """Gradients of the rows of each source, from that of the key's vectors f32[b, dim].

        target : f32[b, dim], to which an attention adds the gradient of its candidates.
        """
        if self._attention is not None:
            by_row = self._attention.backward(gradient, target)
        else:
            by_row = self._sums.backward(gradient)
        if self._row_operation is not None:
            return list(self._row_operation.backward(by_row))
        if self._operation is None:
            return [RowTerms(by_row)]
        gradients = [buffer.matrix(len(by_row)) for buffer in self._gradients]
        self._operation.backward(by_row, gradients)
        return [RowTerms(source) for source in gradients]

    def weight_gradients(self, nodes: Sequence[NodeGradient]) -> None:
        """Write the gradients of all parameters, summed over each of the nodes."""
        if self._attention is not None:
            self._attention.weight_gradients(nodes)
        operation = self._row_operation or self._operation
        if operation is not None:
            # its lines are lookups, which are as contiguous in a leaf as samples are
            operation.weight_gradients(
                [replace(node, cuts=self._offsets[node.cuts]) for node in nodes]
            )
