"""How does a column shard learn a number of its whole row, such as the mean square? From shards of
the other columns.

Row scalars are sums over a binary tree of columns (`docs/arithmetic.md` §4). Each column shard of a
row computes the maximal aligned nodes of its columns; the shards that hold the same rows exchange
them and each climbs to the root. They merged the same lookups, so among the rows that two shards
share both have the same ones, in the same order: nobody has to say which rows a message speaks of,
nor how many. (Bands of rows may differ from one band of columns to the next: grid_shard with a
smaller last node.)
"""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.trees import Node, aligned_nodes, climb
from neocpu.core.types import Floats
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.sharding.schemes import Shard
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.started import Steps

Terms = Mapping[Node, Floats]
Rows = NDArray[np.int64]


class ScalarMessage(NamedTuple):
    """Shard `source` of rank `sender` informs shard `target` of rank `receiver` (positions in
    `plan.local`).

    nodes : of columns, that travel. rows : of the table, [lo, hi), that both shards hold.
    """

    sender: int
    source: int
    receiver: int
    target: int
    nodes: tuple[Node, ...]
    rows: tuple[int, int]


class NodeTerms(NamedTuple):
    """Sums f32[n, scalars] of a column node, of a run of a shard's merged rows."""

    node: Node
    span: slice
    terms: Floats


class ScalarPeers:
    """Exchange of column subtrees between shards of one table that share rows but no columns."""

    def __init__(self, plan: Plan, comm: Comm, positions: Collection[int]) -> None:
        """`positions` in `plan.local` of my shards whose rule waits for peers."""
        self.comm = comm
        self._dims = [table.dim for table in plan.tables]
        local = [plan.local(rank) for rank in range(comm.size)]
        self._local = local[comm.rank]
        waiting = set(positions)
        both_ways = list(self._messages_of(local))
        self._out = [m for m in both_ways if m.sender == comm.rank and m.source in waiting]
        self._in = [m for m in both_ways if m.receiver == comm.rank and m.target in waiting]

    def _messages_of(self, local: Sequence[Sequence[Shard]]) -> Iterator[ScalarMessage]:
        """Messages from or to this rank, in the order that both ends agree on."""
        for sender, sources in enumerate(local):
            for receiver, targets in enumerate(local):
                if self.comm.rank not in (sender, receiver):
                    continue
                for i, source in enumerate(sources):
                    nodes = tuple(self._nodes(source))
                    for j, target in enumerate(targets):
                        rows = (
                            max(source.rows[0], target.rows[0]),
                            min(source.rows[1], target.rows[1]),
                        )
                        same_table = source.table == target.table
                        if same_table and source.cols != target.cols and rows[0] < rows[1]:
                            yield ScalarMessage(sender, i, receiver, j, nodes, rows)

    def _root(self, shard: Shard) -> int:
        return 1 << (self._dims[shard.table] - 1).bit_length()

    def _nodes(self, shard: Shard) -> Iterator[Node]:
        lo, hi = shard.cols
        # columns up to the next power of two are zeros of the tree: the last shard owns them
        return aligned_nodes(lo, self._root(shard) if hi == self._dims[shard.table] else hi)

    def _span(self, position: int, rows: Rows, table_rows: tuple[int, int]) -> slice:
        """Where the table rows [lo, hi) stand among a shard's merged rows (local, ascending)."""
        first_row, end = self._local[position].rows
        if table_rows[0] <= first_row and end <= table_rows[1]:
            return slice(0, rows.size)  # nearly always: other columns of the same rows
        lo, hi = np.searchsorted(rows, np.array(table_rows) - first_row).tolist()
        return slice(lo, hi)

    def exchange(
        self, rows: Mapping[int, Rows], terms: Mapping[int, Terms], scalars: int
    ) -> Steps[dict[int, Floats]]:
        """Row scalars f32[U, scalars] of each waiting shard.

        rows : its merged rows i64[U], local, ascending. terms : nodes {(lo, size): f32[U, scalars]}
        of its columns.
        """
        sends = np.zeros(self.comm.size, np.int64)
        recvs = np.zeros(self.comm.size, np.int64)
        blocks: list[Floats] = [np.empty(0, np.float32)]
        for message in self._out:
            span = self._span(message.source, rows[message.source], message.rows)
            for node in message.nodes:
                blocks.append(terms[message.source][node][span].reshape(-1))
                sends[message.receiver] += blocks[-1].size
        spans = [self._span(m.target, rows[m.target], m.rows) for m in self._in]
        for message, span in zip(self._in, spans):
            recvs[message.sender] += len(message.nodes) * (span.stop - span.start) * scalars
        arrived = np.empty(int(recvs.sum()), np.float32)
        yield self.comm.start_alltoallv(
            np.concatenate(blocks), sends, arrived, recvs, what="row scalars"
        )
        pieces = {
            i: [NodeTerms(node, slice(0, rows[i].size), term) for node, term in nodes.items()]
            for i, nodes in terms.items()
        }
        at = 0
        for message, span in zip(self._in, spans):
            for node in message.nodes:
                size = (span.stop - span.start) * scalars
                term = arrived[at : at + size].reshape(-1, scalars)
                pieces[message.target].append(NodeTerms(node, span, term))
                at += size
        return {i: self._climb(i, rows[i].size, scalars, nodes) for i, nodes in pieces.items()}

    def _climb(self, position: int, size: int, scalars: int, pieces: Sequence[NodeTerms]) -> Floats:
        """Root of every row; rows whose columns are cut alike climb together."""
        root = self._root(self._local[position])
        edges = {edge for _, span, _ in pieces for edge in (span.start, span.stop)}
        cuts = sorted({0, size} | edges)
        out = np.empty((size, scalars), np.float32)
        for lo, hi in itertools.pairwise(cuts):
            covering = {
                node: terms[lo - span.start : hi - span.start]
                for node, span, terms in pieces
                if span.start <= lo and hi <= span.stop
            }
            # a diverging run is told so by its loss
            with np.errstate(over="ignore", invalid="ignore"):
                out[lo:hi] = climb(covering, 0, root)
        return out
