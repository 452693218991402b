"""How are rows and states that are not fp32 updated? Decoded, updated as fp32, encoded again.

Only the rows of one batch are decoded, into temporary tables with their optimizer states; the
arithmetic is that of fp32 rows. Rows are written back to nearest even, or stochastically where the
module rounds so, states always to nearest even.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from neocpu.core.types import Floats, Ints
from neocpu.peers.fbgemm.modules.engine import NONE, ExternalTables, TableBatch
from neocpu.peers.fbgemm.modules.storage import Storage
from neocpu.peers.fbgemm.operators import codes
from neocpu.tables.specs.optimizers import SparseOptimizer


class TouchedRows(NamedTuple):
    """The rows that some lookups read, as fp32.

    rows : unique row numbers of each table. values : f32[U, D] of each table. renumbered i64[n] :
    the lookups' rows, counted among the unique ones of their table; -1 stays.
    """

    rows: list[Ints]
    values: list[Floats]
    renumbered: Ints

    @property
    def flat(self) -> Floats:
        """All values, one table after the other."""
        return np.concatenate([NONE, *(values.reshape(-1) for values in self.values)])

    @property
    def heights(self) -> Ints:
        """Unique rows of each table: i64[T]."""
        return np.array([rows.size for rows in self.rows], np.int64)


def touched_rows(module: Storage, table: Ints, lookup_rows: Ints) -> TouchedRows:
    """The rows of lookups; table, lookup_rows : i64[n], where each lookup reads, -1 nothing."""
    touched = TouchedRows([], [], lookup_rows.copy())
    for t, weights in enumerate(module.split_embedding_weights()):
        # Pruned lookups (-1) touch no row.
        lookups = np.flatnonzero((table == t) & (lookup_rows >= 0))
        # Each row is decoded once, however often it is looked up.
        unique, touched.renumbered[lookups] = np.unique(lookup_rows[lookups], return_inverse=True)
        row_codes = module.words(weights)[unique]
        touched.rows.append(unique)
        touched.values.append(codes.decode(row_codes, module.form, module.dims[t]))
    return touched


class NarrowRows:
    """The rows of one batch as fp32: `tables` and `batch` stand for the module's own.

    touched : the rows, if they are not as the module has them (decayed, say).
    """

    def __init__(
        self,
        module: Storage,
        batch: TableBatch,
        optimizer: SparseOptimizer,
        touched: TouchedRows | None = None,
    ) -> None:
        self._module = module
        touched = touched or touched_rows(module, batch.table, batch.lookups.rows)
        self._rows = touched.rows
        self.batch = batch.with_rows(touched.renumbered)
        dims = np.array(module.dims, np.int64)
        self.tables = ExternalTables(module.names, touched.heights, dims, optimizer)
        self._locate_states()
        self._element_copies = [
            state[self._element_places].float().numpy()
            for state in module.rule_states(rowwise=False)
        ]
        row_columns = [
            state[self._row_places].float().numpy() for state in module.rule_states(rowwise=True)
        ]
        # The engine wants all numbers of a row side by side.
        self._row_copies = np.stack(row_columns, axis=1) if row_columns else NONE
        self.tables.bind(touched.flat, self._element_copies, self._row_copies)

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
        rows = [row_base[t] + rows for t, rows in enumerate(self._rows)]
        self._element_places = torch.from_numpy(np.concatenate(elements))
        self._row_places = torch.from_numpy(np.concatenate(rows))

    def write_back(self, step: int, stochastic: bool) -> None:
        """Write rows and states back to the module; `step` is the update's number."""
        module = self._module
        for t, weights in enumerate(module.split_embedding_weights()):
            rows = self._rows[t]
            values = self.tables.state(t)["weight"]
            # fp32 rows are stored as they are: there is nothing to round.
            if stochastic and module.form != "fp32":
                # By the table's name: its rows round alike wherever they stand in the module.
                words = codes.encode_randomly(values, module.form, module.names[t], rows, step)
            else:
                words = codes.encode(values, module.form)
            module.words(weights)[rows] = words
        for state, copy in zip(module.rule_states(rowwise=False), self._element_copies):
            _store(state, self._element_places, copy)
        for k, state in enumerate(module.rule_states(rowwise=True)):
            _store(state, self._row_places, self._row_copies[:, k])


def _store(state: Tensor, places: Tensor, values: Floats) -> None:
    """Write fp32 numbers to places of a state, rounded to its dtype."""
    # To nearest even, whatever the rows do: FBGEMM rounds states so, too.
    state[places] = torch.from_numpy(np.ascontiguousarray(values)).to(state.dtype)
