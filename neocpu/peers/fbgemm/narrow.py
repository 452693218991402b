"""How are rows that are not fp32 updated? Decoded, updated as fp32, encoded again.

Only the rows of one batch are decoded, into temporary tables with their optimizer states; the
arithmetic is that of fp32 rows. They are written back to nearest even, or stochastically where the
module rounds so.
"""

import numpy as np

from neocpu.embedding.optimizers import SparseOptimizer
from neocpu.peers.fbgemm import codes
from neocpu.peers.fbgemm.engine import NONE, ExternalTables, TableBatch
from neocpu.peers.fbgemm.storage import Storage


class NarrowRows:
    """The rows of one batch as fp32: `tables` and `batch` stand for the module's own."""

    def __init__(self, module: Storage, batch: TableBatch, optimizer: SparseOptimizer) -> None:
        self._module = module
        table = batch.table
        self._rows = []
        renumbered = batch.lookups.rows.copy()
        decoded = [NONE]
        for t, weights in enumerate(module.split_embedding_weights()):
            lookups = np.flatnonzero((table == t) & (batch.lookups.rows >= 0))
            unique, renumbered[lookups] = np.unique(
                batch.lookups.rows[lookups], return_inverse=True
            )
            self._rows.append(unique)
            row_codes = module.words(weights)[unique]
            decoded.append(codes.decode(row_codes, module.form, module.dims[t]).reshape(-1))
        self.batch = batch.with_rows(renumbered)
        heights = np.array([rows.size for rows in self._rows])
        self.tables = ExternalTables(module.names, heights, np.array(module.dims), optimizer)
        self._element_states, row_states = module.states()
        self._row_states = row_states.reshape(sum(module.rows), -1)
        self._locate_states()
        self._element_copies = [state[self._element_places] for state in self._element_states]
        self._row_copies = self._row_states[self._row_places]
        self.tables.bind(np.concatenate(decoded), self._element_copies, self._row_copies)

    def _locate_states(self) -> None:
        """Where the module keeps the states of the decoded rows: by element, and by row."""
        heights = np.array(self._module.rows, np.int64)
        dims = np.array(self._module.dims, np.int64)
        element_base = np.cumsum(heights * dims) - heights * dims
        row_base = np.cumsum(heights) - heights
        elements = [
            (element_base[t] + rows[:, None] * dims[t] + np.arange(dims[t])).reshape(-1)
            for t, rows in enumerate(self._rows)
        ]
        self._element_places = np.concatenate(elements)
        self._row_places = np.concatenate([row_base[t] + rows for t, rows in enumerate(self._rows)])

    def write_back(self, step: int, stochastic: bool) -> None:
        """Write rows and states back to the module; `step` is the update's number."""
        module = self._module
        for t, weights in enumerate(module.split_embedding_weights()):
            rows = self._rows[t]
            values = self.tables.state(t)["weight"]
            if stochastic:
                words = codes.encode_randomly(values, module.form, module.names[t], rows, step)
            else:
                words = codes.encode(values, module.form)
            module.words(weights)[rows] = words
        for state, copy in zip(self._element_states, self._element_copies):
            state[self._element_places] = copy
        self._row_states[self._row_places] = self._row_copies
