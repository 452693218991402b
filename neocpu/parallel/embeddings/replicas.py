"""How do replicas of a table stay equal, each having seen other samples? Every row's gradient is
summed once, exactly.

    each rank   merges the lookups of its own samples into rows and exact fp64 words, nearly always
                one word a row
    alltoallv   row i of H goes to rank i*W//H, which sums the words of all ranks, rounded once
                (docs/arithmetic.md §3)
    allgatherv  touched rows and their gradients, ascending; every replica applies the same step to
                the same rows

The paper's data parallelism (Neo), sparse: bytes grow with the rows touched, not with the table.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Doubles, Floats, Ints
from neocpu.kernels.numbers.rounding import sum_words
from neocpu.parallel.sharding.schemes import owner_cuts
from neocpu.parallel.transport.buffers import Scalar
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.started import Steps


class RowWords(NamedTuple):
    """Exact merged gradients of one table: word m, f64[D], belongs to row `rows[m]` (ascending, may
    repeat).
    """

    rows: Ints
    words: Doubles


class RowGradients(NamedTuple):
    """Merged and rounded gradients f32[U, D] of rows i64[U], ascending."""

    rows: Ints
    gradient: Floats


class Replicas:
    """Gradient exchange of the replicated tables. heights, widths : their rows and columns."""

    def __init__(self, comm: Comm, heights: Sequence[int], widths: Sequence[int]) -> None:
        self.comm = comm
        self.widths = np.array(widths, np.int64)
        self._cuts = [owner_cuts(rows, comm.size) for rows in heights]

    def reduce(self, merged: Sequence[tuple[Ints, Doubles]]) -> Steps[list[RowGradients]]:
        """Merged gradients of every touched row of each table, the same on every rank.

        merged : `RowWords` of this rank, or their fields.
        """
        owned = yield from self._to_owners([RowWords(*table) for table in merged])
        return (yield from self._to_all([self._sum(rows, words) for rows, words in owned]))

    def _to_owners(self, tables: Sequence[RowWords]) -> Steps[list[RowWords]]:
        ranks = self.comm.size
        # [T, W+1]
        bounds = np.stack([np.searchsorted(t.rows, cuts) for t, cuts in zip(tables, self._cuts)])
        cuts = [b.tolist() for b in bounds]
        counts = np.ascontiguousarray(np.diff(bounds, axis=1).T)  # [W, T] words for each rank
        received = yield from self._counts(counts, "replica counts")
        pieces = [
            (t, cuts[i][d], cuts[i][d + 1]) for d in range(ranks) for i, t in enumerate(tables)
        ]
        rows = np.concatenate([t.rows[lo:hi] for t, lo, hi in pieces])
        words = np.concatenate([t.words[lo:hi].reshape(-1) for t, lo, hi in pieces])
        rows_in = np.empty(int(received.sum()), np.int64)
        words_in = np.empty(int((received * self.widths).sum()))
        # rows and words are both under way before either is waited for
        rows_request = self.comm.start_alltoallv(
            rows, counts.sum(axis=1), rows_in, received.sum(axis=1), what="replica rows"
        )
        yield self.comm.start_alltoallv(
            words,
            (counts * self.widths).sum(axis=1),
            words_in,
            (received * self.widths).sum(axis=1),
            what="replica words",
        )
        yield rows_request
        return [RowWords(*pair) for pair in self._regroup(received, rows_in, words_in)]

    def _sum(self, rows: Ints, words: Doubles) -> RowGradients:
        """Sum the words of each row exactly, rounded once."""
        # any order of a row's words would do, as they are summed exactly
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        gradient = np.empty((starts.size, words.shape[1]), np.float32)
        sum_words(words, order, np.append(starts, rows.size), gradient)
        return RowGradients(ordered[starts], gradient)

    def _to_all(self, owned: Sequence[RowGradients]) -> Steps[list[RowGradients]]:
        ranks = self.comm.size
        my_rows = np.array([g.rows.size for g in owned], np.int64)
        received = yield from self._counts(np.tile(my_rows, (ranks, 1)), "gathered counts")
        rows = np.concatenate([g.rows for g in owned])
        flat = np.concatenate([g.gradient.reshape(-1) for g in owned])
        rows_in = np.empty(int(received.sum()), np.int64)
        flat_in = np.empty(int((received * self.widths).sum()), np.float32)
        # as above: nothing of the second depends on the first
        rows_request = self.comm.start_allgatherv(
            rows, rows_in, received.sum(axis=1), what="gathered rows"
        )
        yield self.comm.start_allgatherv(
            flat, flat_in, (received * self.widths).sum(axis=1), what="gathered gradients"
        )
        yield rows_request
        return [RowGradients(*pair) for pair in self._regroup(received, rows_in, flat_in)]

    def _counts(self, counts: Ints, what: str) -> Steps[Ints]:
        """counts[d] goes to rank d: i64[W, T] -> i64[W, T]."""
        received = np.empty_like(counts)
        sizes = np.full(self.comm.size, counts.shape[1], np.int64)
        yield self.comm.start_alltoallv(
            np.ascontiguousarray(counts).reshape(-1),
            sizes,
            received.reshape(-1),
            sizes,
            what=what,
            table=np.broadcast_to(sizes, (self.comm.size, self.comm.size)),
        )
        return received

    def _regroup(
        self, counts: Ints, rows: Ints, flat: NDArray[Scalar]
    ) -> list[tuple[Ints, NDArray[Scalar]]]:
        """[rank, table] runs of rows and of row vectors -> per table its rows and vectors [n, D],
        rank after rank.
        """
        sizes = counts * self.widths
        row_ends = np.cumsum(counts).reshape(counts.shape)
        flat_ends = np.cumsum(sizes).reshape(counts.shape)
        tables = []
        for i, width in enumerate(self.widths.tolist()):
            spans = list(
                zip(
                    row_ends[:, i].tolist(),
                    counts[:, i].tolist(),
                    flat_ends[:, i].tolist(),
                    sizes[:, i].tolist(),
                )
            )
            ids = np.concatenate([rows[end - n : end] for end, n, _, _ in spans])
            vectors = np.concatenate([flat[end - n : end] for _, _, end, n in spans])
            tables.append((ids, vectors.reshape(-1, width)))
        return tables
