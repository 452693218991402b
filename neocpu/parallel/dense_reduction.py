"""How do ranks agree on the gradient of the dense parameters? Each climbs the same tree over its
slice of them.

    rank r holds a partial sum f32[P] of each maximal aligned node of its leaves
    (trees.aligned_nodes)
    alltoallv: slice d of every node, [P*d//W, P*(d+1)//W), goes to rank d
    rank d adds the nodes of all ranks, pair by pair, up to the root              (trees.climb)
    allgatherv: the finished slices, f32[P] on every rank

The paper's AllReduce (Neo) in the two halves it is made of, ReduceScatter and AllGather; the
collectives move bytes and we add, because MPI's own reductions promise no order
(`docs/arithmetic.md` §2).
"""

from collections.abc import Generator, Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from neocpu.parallel.comm import Comm
from neocpu.parallel.started import Request, Started
from neocpu.trees import Node, aligned_nodes, climb, rank_leaves


class DenseReduction:
    """Sum over the batch of P dense gradients, the same bits on every rank and for every number of
    ranks.

    Parameters
    ----------
    comm : the ranks that share the batch.
    parameters : P, any number from 0 up.
    leaves : leaves of the batch tree, a power of two; ranks beyond it own no leaves and only add.
    """

    def __init__(self, comm: Comm, parameters: int, leaves: int) -> None:
        ranks = comm.size
        self.comm = comm
        self.parameters = parameters
        self.leaves = leaves
        self.nodes: list[list[Node]] = [
            list(aligned_nodes(*rank_leaves(rank, ranks, leaves))) for rank in range(ranks)
        ]
        self._cuts = [parameters * rank // ranks for rank in range(ranks + 1)]
        widths = np.diff(self._cuts)
        slice_width = int(widths[comm.rank])
        self._send_counts = widths * len(self.nodes[comm.rank])
        self._recv_counts = np.array([slice_width * len(nodes) for nodes in self.nodes], np.int64)
        self._widths = widths.astype(np.int64)
        if ranks > 1:
            self._send = np.empty(int(self._send_counts.sum()), np.float32)
            self._recv = np.empty(int(self._recv_counts.sum()), np.float32)
            self._total = np.empty(parameters, np.float32)

    def start(self, nodes: Mapping[Node, NDArray[np.float32]]) -> Started[NDArray[np.float32]]:
        """Send this rank's nodes, {(lo, size): f32[P]} for exactly `self.nodes[rank]`, on their
        way.

        `wait` gives the root sum f32[P]: a buffer that the next reduction overwrites; do not modify
        it.
        """
        expected = self.nodes[self.comm.rank]
        if sorted(nodes) != sorted(expected):
            raise ValueError(
                f"rank {self.comm.rank} owns the nodes {expected}, but got {sorted(nodes)}"
            )
        return Started(self._sum(nodes), self.comm.stream)

    def reduce(self, nodes: Mapping[Node, NDArray[np.float32]]) -> NDArray[np.float32]:
        """`start` and `wait` in one: the root sum f32[P]."""
        return self.start(nodes).wait()

    def _sum(
        self, nodes: Mapping[Node, NDArray[np.float32]]
    ) -> Generator[Request, None, NDArray[np.float32]]:
        if self.comm.size == 1:
            return climb(nodes, 0, self.leaves)
        at = 0
        for lo, hi in pairwise(self._cuts):
            for node in self.nodes[self.comm.rank]:
                self._send[at : at + hi - lo] = nodes[node][lo:hi]
                at += hi - lo
        yield self.comm.start_alltoallv(
            self._send, self._send_counts, self._recv, self._recv_counts, what="dense slices"
        )
        pieces: dict[Node, NDArray[np.float32]] = {}
        width = int(self._widths[self.comm.rank])
        at = 0
        for rank_nodes in self.nodes:
            for node in rank_nodes:
                pieces[node] = self._recv[at : at + width]
                at += width
        with np.errstate(over="ignore", invalid="ignore"):  # a diverging run is told so by its loss
            slice_sum = np.ascontiguousarray(climb(pieces, 0, self.leaves))
        yield self.comm.start_allgatherv(slice_sum, self._total, self._widths, what="dense gather")
        return self._total
