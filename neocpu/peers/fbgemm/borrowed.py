"""How are rows that are not fp32 updated? Borrowed: decoded, used as fp32, encoded, put back.

Only the rows of one call are decoded, into tables that hold nothing else, with their states; the
arithmetic is that of fp32 rows. They are put back to nearest even, or stochastically where the
module rounds so.
"""

import numpy as np

from neocpu.embedding.optimizers import SparseOptimizer
from neocpu.peers.fbgemm import codes
from neocpu.peers.fbgemm.engine import NONE, Call, CallerTables
from neocpu.peers.fbgemm.storage import Storage


class Borrowed:
    """The rows of one call: `tables` and `call` stand for the module's own."""

    def __init__(self, owner: Storage, call: Call, optimizer: SparseOptimizer) -> None:
        self._owner = owner
        table = call.table
        self._rows = []
        renumbered = call.lookups.rows.copy()
        found = [NONE]
        for t, emb in enumerate(owner.split_embedding_weights()):
            mine = np.flatnonzero((table == t) & (call.lookups.rows >= 0))
            unique, renumbered[mine] = np.unique(call.lookups.rows[mine], return_inverse=True)
            self._rows.append(unique)
            found.append(
                codes.decode(owner.words(emb)[unique], owner.form, owner.dims[t]).reshape(-1)
            )
        self.call = call.with_rows(renumbered)
        self.tables = CallerTables(
            owner.names, np.array([r.size for r in self._rows]), np.array(owner.dims), optimizer
        )
        self._elements, rows = owner.states()
        self._row_states = rows.reshape(sum(owner.rows), -1)
        self._homes()
        self._lent = [state[self._element] for state in self._elements]
        self._lent_rows = self._row_states[self._row]
        self.tables.bind(np.concatenate(found), self._lent, self._lent_rows)

    def _homes(self) -> None:
        """Where the states of the borrowed rows live: by element, and by row."""
        heights = np.array(self._owner.rows, np.int64)
        dims = np.array(self._owner.dims, np.int64)
        base = np.cumsum(heights * dims) - heights * dims
        row_base = np.cumsum(heights) - heights
        places = [
            (base[t] + rows[:, None] * dims[t] + np.arange(dims[t])).reshape(-1)
            for t, rows in enumerate(self._rows)
        ]
        self._element = np.concatenate(places)
        self._row = np.concatenate([row_base[t] + rows for t, rows in enumerate(self._rows)])

    def give_back(self, step: int, stochastic: bool) -> None:
        """Write rows and states where they came from; `step` is the update's number."""
        owner = self._owner
        for t, emb in enumerate(owner.split_embedding_weights()):
            rows = self._rows[t]
            new = self.tables.state(t)["weight"]
            if stochastic:
                words = codes.encode_randomly(new, owner.form, owner.names[t], rows, step)
            else:
                words = codes.encode(new, owner.form)
            owner.words(emb)[rows] = words
        for state, lent in zip(self._elements, self._lent):
            state[self._element] = lent
        self._row_states[self._row] = self._lent_rows
