"""What would the rows of a logical table be, were they all kept? Composed one by one of those of
its physical tables, for whoever looks at a trained model.

A row here is the vector of a bag of one lookup of weight 1. Of longer bags, vectors are pooled
before they are composed (docs/arithmetic.md §14); where pooling and composing commute, a table of
these rows, kept in full, is the same model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from neocpu.core.types import Floats, FloatsByName, Ints
from neocpu.tables.embedding.lookups import KeyLookups
from neocpu.tables.embedding.mapped_rows import physical_rows, sign
from neocpu.tables.specs.specs import BatchKey, TableSpecs, bags
from neocpu.train.model.composition_layout import CompositionLayout, KeyVectors
from neocpu.train.model.operations import make_operation, make_row_operation

# rows i64[n] of a logical table -> its rows in each physical one, -1 where that has none
MovedRows = Callable[[Ints], Sequence[Ints]]
NONE_MOVED: Mapping[str, MovedRows] = {}


class LogicalRows:
    """Rows of the tables that a model sees.

    tables : the physical ones. layout : how vectors are composed (`ModelLayout.composition`).
    parameters : of the model, by name. read(table, rows) : weights f32[n, width] of rows i64[n] of
    a physical table, by its number. moved : of logical tables whose rows move in training, where
    they are.
    """

    def __init__(
        self,
        tables: TableSpecs,
        layout: CompositionLayout,
        parameters: FloatsByName,
        read: Callable[[int, Ints], Floats],
        moved: Mapping[str, MovedRows] = NONE_MOVED,
    ) -> None:
        self.parts = layout.parts
        self._keys = bags(tables)
        self._parameters = parameters
        self._read = read
        self._moved = moved

    def rows(self, vectors: KeyVectors, rows: Ints) -> Floats:
        """Rows i64[n] of the table of a key of the model, f32[n, dim]."""
        out = np.empty((rows.size, vectors.dim), np.float32)
        sources = [self._source(rows, *place) for place in self._mapped_keys(vectors, rows)]
        # a bag of one lookup of weight 1 gives the row itself
        by_lookup = make_row_operation(vectors, self._parameters)
        if by_lookup is not None:
            by_lookup.forward([_bags_of_one(*source) for source in sources], out)
        else:
            values = [values for _, values in sources]
            make_operation(vectors, self._parameters).forward(values, out)
        return out

    def places(self, vectors: KeyVectors, rows: Ints) -> Iterator[tuple[int, Ints]]:
        """(physical table, its rows i64[n] or -1) of each source, for rows of the logical table."""
        for key, mapped in self._mapped_keys(vectors, rows):
            yield key.table, mapped

    def _mapped_keys(self, vectors: KeyVectors, rows: Ints) -> Iterator[tuple[BatchKey, Ints]]:
        """The key of each source, and the row of its table for each row, -1 where it has none."""
        moved = self._moved[vectors.table](rows) if vectors.table in self._moved else None
        for number, source in enumerate(vectors.sources):
            key = self._keys[source.key]
            mapped = rows
            if moved is not None:
                mapped = moved[number]
            elif key.row_map is not None:
                mapped = np.empty_like(rows)
                physical_rows(key.row_map, rows, mapped)
            yield key, mapped

    def _source(self, rows: Ints, key: BatchKey, mapped: Ints) -> tuple[Ints, Floats]:
        """The rows of a physical table, and what they give: 0 where it has none."""
        if key.row_map is None:
            return rows, self._read(key.table, rows)
        scale = (mapped >= 0).astype(np.float32)
        sign(key.row_map, rows, scale)
        return mapped, self._read(key.table, np.maximum(mapped, 0)) * scale[:, None]


def _bags_of_one(rows: Ints, values: Floats) -> KeyLookups:
    """Each row as the lookup of a sample of its own."""
    return KeyLookups(
        offsets=np.arange(rows.size + 1),
        rows=rows,
        values=values,
        lines=None,
        weights=None,
        leaves=np.array([0, rows.size], np.int64),
    )
