"""What would the rows of a logical table be, were they all kept? Composed one by one of those of
its physical tables, for whoever looks at a trained model.

A row here is the vector of a bag of one lookup of weight 1. Of longer bags, vectors are pooled
before they are composed (docs/arithmetic.md §14); where pooling and composing commute, a table of
these rows, kept in full, is the same model.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding.row_lookups import KeyLookups
from neocpu.embedding.specs import BatchKey, TableSpec, bags
from neocpu.kernels.row_maps import map_rows, sign_weights
from neocpu.model.composition_layout import CompositionLayout, KeyVectors
from neocpu.model.mlp import F32
from neocpu.model.operations import make_operation, make_row_operation

Ints = NDArray[np.int64]


class LogicalRows:
    """Rows of the tables that a model sees.

    tables : the physical ones. layout : how vectors are composed (`ModelLayout.composition`).
    parameters : of the model, by name. read(table, rows) : weights f32[n, width] of rows i64[n] of
    a physical table, by its number.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        layout: CompositionLayout,
        parameters: Mapping[str, F32],
        read: Callable[[int, Ints], F32],
    ) -> None:
        self.parts = layout.parts
        self._keys = bags(tables)
        self._parameters = parameters
        self._read = read

    def rows(self, part: KeyVectors, rows: Ints) -> F32:
        """Rows i64[n] of the table of a key of the model, f32[n, dim]."""
        out = np.empty((rows.size, part.dim), np.float32)
        sources = [self._source(self._keys[source.key], rows) for source in part.sources]
        by_lookup = make_row_operation(part, self._parameters)
        if by_lookup is not None:
            by_lookup.forward([_bags_of_one(*source) for source in sources], out)
        else:
            values = [values for _, values in sources]
            make_operation(part, self._parameters).forward(values, out)
        return out

    def _source(self, key: BatchKey, rows: Ints) -> tuple[Ints, F32]:
        """The row of a physical table for each row, -1 where it has nothing for it, and what it
        gives: 0 there.
        """
        if key.row_map is None:
            return rows, self._read(key.table, rows)
        row_map = key.row_map
        mapped = np.empty_like(rows)
        number = np.uint64(row_map.key)
        map_rows(
            rows, row_map.number, row_map.divisor, row_map.modulus, row_map.first, number, mapped
        )
        scale = (mapped >= 0).astype(np.float32)
        if row_map.signed:
            sign_weights(rows, number, scale)
        return mapped, self._read(key.table, np.maximum(mapped, 0)) * scale[:, None]


def _bags_of_one(rows: Ints, values: F32) -> KeyLookups:
    """Each row as the lookup of a sample of its own."""
    return KeyLookups(
        offsets=np.arange(rows.size + 1),
        rows=rows,
        values=values,
        lines=None,
        weights=None,
        leaves=np.array([0, rows.size], np.int64),
    )
