"""How do the parts of a row come together?

The ranks that hold them send them to the rank that owns the row's block.

A rank holds rectangles of tables: some rows, and some of their columns. Per rectangle, two streams
travel: int64 (tensor, number of rows, first and last column, the row numbers) and float32 (the
fields of the rows, one field after the other).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from neocpu.core.types import Bools, Elements, Floats, Ints
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import Comm
from neocpu.train.state.blocks import BLOCK, Tensor, Values, among, by_tensor

if TYPE_CHECKING:
    from neocpu.tables.embedding.changes import Changes

HEAD = 4  # integers of a rectangle before its row numbers


class Embeddings(Protocol):
    """What the state needs of the tables of one rank (`embedding.tbe`).

    Shard i is `plan.local(rank)[i]`; rows are counted from its first one.
    """

    def flush(self) -> None: ...

    def existing(self, shard: int, lo: int, hi: int) -> Ints: ...

    def values(self, shard: int, rows: Ints) -> Values: ...

    @property
    def changes(self) -> "Changes": ...


@dataclass(frozen=True)
class Piece:
    """Rows i64[n] of a table, ascending, and columns [left, right) of fields that have columns.

    Other fields come with the piece whose left is 0. changed : bool[n], since the last checkpoint.
    """

    rows: Ints
    cols: tuple[int, int]
    values: Values
    changed: Bools


class _Stream:
    """What one rank sends another in a round."""

    def __init__(self) -> None:
        self.ints: list[Ints] = []
        self.floats: list[Floats] = []

    def counts(self) -> tuple[int, int]:
        """Integers and floats in it."""
        return sum(array.size for array in self.ints), sum(array.size for array in self.floats)


class PieceExchange:
    """Brings the parts of table rows to the ranks that own their blocks; methods are collective.

    tensors : of the state, those of the plan's tables last. starts : first block of each tensor,
        counted over all tensors.
    """

    def __init__(
        self,
        comm: Comm,
        plan: Plan,
        embeddings: Embeddings,
        tensors: Sequence[Tensor],
        starts: Ints,
    ) -> None:
        self._comm = comm
        self._plan = plan
        self._embeddings = embeddings
        self._tensors = tensors
        self._starts = starts
        self._dense = len(tensors) - len(plan.tables)  # dense tensors come first
        self._shards: dict[int, list[int]] = {}  # table -> this rank's shards of it
        for i, shard in enumerate(plan.local(comm.rank)):
            self._shards.setdefault(shard.table, []).append(i)

    def exchange(
        self, owned: Sequence[Ints], changed: Sequence[Ints] | None
    ) -> dict[int, list[Piece]]:
        """The pieces of the blocks that this rank owns, by tensor.

        owned : blocks of each rank, i64[n] ascending, counted over all tensors.
        changed : rows of each shard of this rank that changed; None: pieces do not tell.
        """
        outgoing = [_Stream() for _ in owned]
        for rank, (stream, blocks) in enumerate(zip(outgoing, owned)):
            self._pack(stream, blocks, rank, changed)
        sends = np.array([stream.counts() for stream in outgoing], np.int64)
        recvs = self._comm.alltoall(sends)
        ints = self._swap([s.ints for s in outgoing], sends[:, 0], recvs[:, 0], "i8")
        floats = self._swap([s.floats for s in outgoing], sends[:, 1], recvs[:, 1], "f4")
        return self._unpack(ints, floats)

    def _swap(
        self, parts: Sequence[Sequence[Elements]], sends: Ints, recvs: Ints, dtype: str
    ) -> Elements:
        """Send each rank its parts; what all ranks sent this one, in order of ranks."""
        flat = [array for parts_of_rank in parts for array in parts_of_rank]
        if self._comm.size == 1 and len(flat) == 1:
            return flat[0]  # what this rank sends to itself is not copied
        outgoing = np.concatenate([np.empty(0, dtype), *flat])
        if self._comm.size == 1:
            return outgoing
        received = np.empty(int(recvs.sum()), dtype)
        self._comm.alltoallv(outgoing, sends, received, recvs)
        return received

    def _pack(
        self, stream: _Stream, blocks: Ints, owner: int, changed: Sequence[Ints] | None
    ) -> None:
        """Append what this rank's rectangles hold of some blocks."""
        for tensor, numbers in by_tensor(self._starts, blocks):
            table = tensor - self._dense
            # dense parameters are on the owner already, and of copies the owner's are enough
            if table < 0 or not self._plan.serves(table, self._comm.rank, owner):
                continue
            for i in self._shards.get(table, ()):
                self._pack_shard(
                    stream, tensor, numbers, i, None if changed is None else changed[i]
                )

    def _pack_shard(
        self, stream: _Stream, tensor: int, numbers: Ints, i: int, changed: Ints | None
    ) -> None:
        """Append the rows that shard i holds of blocks `numbers` of its table."""
        shard = self._plan.local(self._comm.rank)[i]
        top = shard.rows[0]
        lo = max(int(numbers[0]) * BLOCK, top)
        hi = min((int(numbers[-1]) + 1) * BLOCK, shard.rows[1])
        if lo >= hi:
            return
        rows = self._embeddings.existing(i, lo - top, hi - top)
        # a full pass asks for all blocks with rows in [lo, hi), so only a pass over changes filters
        if changed is not None:
            rows = rows[among((rows + top) // BLOCK, numbers)]
        if not rows.size:
            return
        values = self._embeddings.values(i, rows)
        row_numbers = rows + top
        if changed is not None:
            # the sign carries the mark: a changed row travels as ~row
            row_numbers ^= -among(rows, changed).astype(np.int64)
        left, right = shard.cols
        stream.ints += [np.array([tensor, rows.size, left, right], np.int64), row_numbers]
        stream.floats += [values[name].reshape(-1) for name, _ in self._fields(tensor, left)]

    def _fields(self, tensor: int, left: int) -> list[tuple[str, tuple[int, ...]]]:
        """Fields of a piece whose columns begin at `left`.

        Fields with one number per row travel with the first columns.
        """
        return [(name, shape) for name, shape in self._tensors[tensor].fields if shape or left == 0]

    def _unpack(self, ints: Ints, floats: Floats) -> dict[int, list[Piece]]:
        """Cut the two streams into pieces again."""
        pieces: dict[int, list[Piece]] = {}
        next_int = 0
        next_float = 0
        while next_int < ints.size:
            tensor, count, left, right = ints[next_int : next_int + HEAD].tolist()
            next_int += HEAD
            rows = ints[next_int : next_int + count]
            next_int += count
            values = {}
            for name, shape in self._fields(tensor, left):
                entry = (right - left,) if shape else ()
                size = count * (right - left if shape else 1)
                values[name] = floats[next_float : next_float + size].reshape(count, *entry)
                next_float += size
            changed = rows < 0
            piece = Piece(np.where(changed, ~rows, rows), (left, right), values, changed)
            pieces.setdefault(tensor, []).append(piece)
        return pieces


def rows_of(pieces: Sequence[Piece]) -> Ints:
    """Rows of which there is a piece, ascending."""
    if len(pieces) == 1:
        # in one piece they ascend already
        return pieces[0].rows
    return np.unique(np.concatenate([np.empty(0, np.int64), *(piece.rows for piece in pieces)]))


def joined(name: str, initial: Floats, rows: Ints, pieces: Sequence[Piece]) -> Floats:
    """A field of `rows`, put together from their pieces; `initial` where there is none."""
    if len(pieces) == 1:
        only = pieces[0].values.get(name)
        if only is not None and only.shape == initial.shape:
            # one rectangle has them all: nothing is copied
            return only
    values = initial.copy()
    for piece in pieces:
        numbers = piece.values.get(name)
        if numbers is None:
            continue
        positions = np.searchsorted(rows, piece.rows)
        if numbers.ndim == 2:
            values[positions, piece.cols[0] : piece.cols[1]] = numbers
        else:
            values[positions] = numbers
    return values
