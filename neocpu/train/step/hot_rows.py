"""Which ids of a table of kind "cafe" have rows of their own? Its sketch decides between segments.

A new hot row is a copy of the shared row that its id had, optimizer state included. An id that is
hot no more goes back to its shared row; what its own row had learnt is dropped, as in the published
code, and the row waits for another id.
"""

from collections.abc import Sequence

import numpy as np

from neocpu.core.types import Ints
from neocpu.kernels.rows.sketch import Observations
from neocpu.tables.embedding.hot_sketch import HotSketch, SketchSizes
from neocpu.tables.specs.compositions import DynamicMap
from neocpu.train.state.blocks import F32
from neocpu.train.step.table_rows import TableRows

PIECE = 1 << 16  # rows that are copied at a time


class HotRows:
    """The sketch of one logical table, and its two physical tables.

    tables : numbers of the table of hot rows, and of shared ones.
    """

    def __init__(self, dynamic: DynamicMap, tables: Sequence[int]) -> None:
        self.sketch = HotSketch(SketchSizes(rows=dynamic.rows, **dict(dynamic.options)))
        self._hot, self._shared = tables

    def map(self, rows: Ints, outs: Sequence[Ints]) -> None:
        """Rows of the hot table and of the shared one, -1 in one of them."""
        self.sketch.map(rows, outs[0], outs[1])

    def observe(self, seen: Observations) -> None:
        """Take in the lookups of all ranks."""
        self.sketch.observe(seen)

    def decide(self, rows: TableRows) -> None:
        """Give rows to ids that have become hot. Collective."""
        promoted = self.sketch.decide()
        # whole rows travel to all ranks: in pieces, for the sake of memory
        for first in range(0, promoted.logical_rows.size, PIECE):
            piece = slice(first, first + PIECE)
            # ids may share a row
            sources, positions = np.unique(promoted.shared_rows[piece], return_inverse=True)
            values = rows.read(self._shared, sources)
            copies = {field: value[positions] for field, value in values.items()}
            rows.write(self._hot, promoted.hot_rows[piece], copies)

    def numbers(self) -> F32:
        """The state of the sketch."""
        return self.sketch.numbers()

    def load(self, numbers: F32) -> None:
        """Take up a state that `numbers` gave."""
        self.sketch.load(numbers)
