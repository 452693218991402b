"""How are some whole rows of a table read and written between two steps? On any plan, by all ranks
together.

Who holds a rectangle with some of the rows sends that to everybody, who puts whole rows together
and keeps what is in its own rectangles. Rows have all their fields, as in a checkpoint: weights as
the numbers that the table's format has, optimizer states, scales of formats that have some. So a
row that is read and written into another table of the same format is a copy, bit for bit.
"""

import numpy as np

from neocpu.core.types import Elements, Floats, FloatsByName, Ints
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.train.state.blocks import among
from neocpu.train.state.exchange import Piece, joined
from neocpu.train.state.initial import fields_of, initial_rows

HEAD = 3  # numbers of a piece before its rows: how many rows, first and last column


class TableRows:
    """The rows of all tables; methods are collective, and no batch may be under way.

    plan, tbe : who holds what, and what this rank holds. optimizer, seed : as of the tables.
    """

    def __init__(
        self,
        comm: Comm,
        plan: Plan,
        tbe: TableBatchedEmbedding,
        optimizer: SparseOptimizer,
        seed: int,
    ) -> None:
        self._comm = comm
        self._plan = plan
        self._tbe = tbe
        self._optimizer = optimizer
        self._seed = seed

    def begin(self) -> None:
        """Bring all rows to where they are read. Call it before the first `read` of a pause."""
        self._tbe.flush()

    def read(self, table: int, rows: Ints) -> dict[str, Floats]:
        """The fields of rows i64[n], ascending and distinct, f32[n, ...] each, on every rank.

        Rows that were never looked up have their initial values.
        """
        initial = initial_rows(self._plan.tables[table], self._optimizer, self._seed, rows)
        # replicas are equal: one of them is enough
        shards = self._shards(table, once=True)
        local_pieces = [piece for i in shards for piece in self._pieces(i, rows)]
        pieces = self._gather(table, local_pieces)
        return {name: joined(name, before, rows, pieces) for name, before in initial.items()}

    def write(self, table: int, rows: Ints, values: FloatsByName) -> None:
        """Set all fields of rows i64[n], ascending and distinct; the same call on every rank."""
        for i in self._shards(table):
            shard = self._tbe.shards[i]
            inside = slice(*np.searchsorted(rows, shard.rows))
            local_rows = rows[inside] - shard.rows[0]
            if not local_rows.size:
                continue
            cols = slice(*shard.cols)
            parts = {
                name: np.ascontiguousarray(
                    value[inside, cols] if value.ndim == 2 else value[inside]
                )
                for name, value in values.items()
            }
            self._tbe.load_rows(i, local_rows, parts)
            # else a checkpoint of changes would leave them out
            self._tbe.changes.note_rows(i, local_rows)

    def _shards(self, table: int, once: bool = False) -> list[int]:
        """This rank's shards of a table; once : of copies, only those that the first rank uses."""
        if once and not self._plan.serves(table, self._comm.rank, 0):
            return []
        return [i for i, shard in enumerate(self._tbe.shards) if shard.table == table]

    def _pieces(self, i: int, rows: Ints) -> list[Piece]:
        """What shard i has of some rows: a piece, or none."""
        shard = self._tbe.shards[i]
        first, end = shard.rows
        local_rows = rows[slice(*np.searchsorted(rows, (first, end)))] - first
        # rows that nobody looked up are not made for this: they have their initial values
        local_rows = local_rows[among(local_rows, self._tbe.existing(i, 0, end - first))]
        if not local_rows.size:
            return []
        unchanged = np.zeros(local_rows.size, np.bool_)
        values = self._tbe.values(i, local_rows)
        return [Piece(local_rows + first, shard.cols, values, unchanged)]

    def _gather(self, table: int, pieces: list[Piece]) -> list[Piece]:
        """The pieces of all ranks."""
        ints = [np.empty(0, np.int64)]
        floats = [np.empty(0, np.float32)]
        for piece in pieces:
            ints += [np.array([piece.rows.size, *piece.cols], np.int64), piece.rows]
            names = self._fields(table, piece.cols[0])
            floats += [np.asarray(piece.values[name], np.float32).reshape(-1) for name in names]
        all_ints = self._gathered(np.concatenate(ints))
        all_floats = self._gathered(np.concatenate(floats))
        gathered = []
        position = 0
        float_position = 0
        while position < all_ints.size:
            count, left, right = all_ints[position : position + HEAD].tolist()
            rows = all_ints[position + HEAD : position + HEAD + count]
            position += HEAD + count
            values = {}
            for name, columns in self._fields(table, left).items():
                width = right - left if columns else 1
                numbers = all_floats[float_position : float_position + count * width]
                values[name] = numbers.reshape(count, width) if columns else numbers
                float_position += count * width
            gathered.append(Piece(rows, (left, right), values, np.zeros(count, np.bool_)))
        return gathered

    def _fields(self, table: int, left: int) -> dict[str, bool]:
        """Fields of a piece whose columns begin at `left`: do they have columns?

        Those with one number per row come with the first columns.
        """
        fields = [("weight", (0,)), *fields_of(self._plan.tables[table], self._optimizer)]
        return {name: bool(shape) for name, shape in fields if shape or left == 0}

    def _gathered(self, array: Elements) -> Elements:
        """Every rank's array, one after the other."""
        ones = np.ones(self._comm.size, np.int64)
        sizes = np.empty(self._comm.size, np.int64)
        self._comm.allgatherv(np.array([array.size], np.int64), sizes, ones)
        out = np.empty(int(sizes.sum()), array.dtype)
        self._comm.allgatherv(array, out, sizes)
        return out
