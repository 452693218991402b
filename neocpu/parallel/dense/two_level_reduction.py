"""How do nodes agree on the gradient of the dense parameters? Each climbs the tree inside, first.

    inside    rank of place l gets share l of the parameters from its node's ranks, and adds them
              up to the maximal aligned nodes of the node's leaves
    between   slice h of this share goes to the rank of place l in node h, which climbs to the root
    back      finished slices between ranks of equal place, finished shares inside the node

The additions are those of `reduction.py`, in the same tree, so the bits are too: ranks of a
node own leaves in a row, so much of the tree above them lies inside the node. With L ranks on each
node, about 1/L of the direct reduction's bytes travel between nodes.
"""

from collections.abc import Generator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neocpu.core.trees import Node, aligned_nodes, climb, rank_leaves
from neocpu.core.types import Floats
from neocpu.parallel.dense.reduction import DenseReduction, LeafReduction
from neocpu.parallel.exchange.wires import Wire
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.started import Request

if TYPE_CHECKING:
    from neocpu.parallel.exchange.two_level import TwoLevelComm


def dense_reduction(
    comm: Comm, parameters: int, leaves: int, wire: Wire | None = None
) -> LeafReduction:
    """The reduction for a comm: in two levels where its exchanges are, and its nodes are equally
    long runs of ranks.
    """
    if wire is None and comm.size > 1:
        from neocpu.parallel.exchange.two_level import TwoLevelComm

        if isinstance(comm, TwoLevelComm) and comm.places.runs and comm.places.even:
            return TwoLevelReduction(comm, parameters, leaves)
    return DenseReduction(comm, parameters, leaves, wire)


class TwoLevelReduction(LeafReduction):
    """Sum over the batch of P dense gradients: `DenseReduction` with fewer bytes between nodes.

    comm, parameters, leaves : as there; the nodes of `comm` are equally long runs of ranks.
    """

    comm: "TwoLevelComm"

    def __init__(self, comm: "TwoLevelComm", parameters: int, leaves: int) -> None:
        super().__init__(comm, parameters, leaves)
        spans = [rank_leaves(rank, comm.size, leaves) for rank in range(comm.size)]
        self._host_nodes = [
            list(aligned_nodes(spans[ranks[0]][0], spans[ranks[-1]][1]))
            for ranks in comm.places.members
        ]
        per_node = comm.places.peers.size
        hosts = len(self._host_nodes)
        self._shares = list(pairwise(parameters * i // per_node for i in range(per_node + 1)))
        first, last = self._shares[comm.places.place]
        self._width = last - first
        self._slices = list(pairwise(self._width * h // hosts for h in range(hosts + 1)))
        self._across = comm.places.servers[:, comm.rank]  # ranks of my place, one of each node
        self._gathers = comm.inside.queue("finished shares")
        self._total = np.empty(parameters, np.float32)

    def _sum(self, nodes: Mapping[Node, Floats]) -> Generator[Request, None, Floats]:
        comm = self.comm
        expected = self.nodes[comm.rank]
        leaves_of = [self.nodes[peer] for peer in comm.places.peers]
        pieces = [[nodes[node][lo:hi] for node in expected] for lo, hi in self._shares]
        sends = [(hi - lo) * len(expected) for lo, hi in self._shares]
        recvs = [self._width * len(tree) for tree in leaves_of]
        arrived = np.empty(sum(recvs), np.float32)
        yield comm.inside.start_alltoallv(
            _joined(pieces), sends, arrived, recvs, what="dense slices"
        )
        share = self._climb(leaves_of, arrived, self._host_nodes[comm.places.host])
        root = yield from self._sum_between(share)
        finished = np.empty(self._width, np.float32)
        widths = np.array([hi - lo for lo, hi in self._slices], np.int64)
        # a gather among the ranks of one place, who have no comm of their own
        copies = np.tile(root, len(self._slices))
        yield comm.between.start_alltoallv(
            copies,
            self._to_across(np.full(widths.size, root.size)),
            finished,
            self._to_across(widths),
            what="dense gather",
        )
        shares = [hi - lo for lo, hi in self._shares]
        yield self._gathers.start_allgatherv(finished, self._total, shares, what="dense gather")
        return self._total

    def _sum_between(self, share: Sequence[Floats]) -> Generator[Request, None, Floats]:
        """The root of my slice, from the nodes' sums of my share."""
        lo, hi = self._slices[self.comm.places.host]
        pieces = [[numbers[lo:hi] for numbers in share] for lo, hi in self._slices]
        sends = np.array([(hi - lo) * len(share) for lo, hi in self._slices], np.int64)
        recvs = np.array([(hi - lo) * len(tree) for tree in self._host_nodes], np.int64)
        arrived = np.empty(int(recvs.sum()), np.float32)
        yield self.comm.between.start_alltoallv(
            _joined(pieces),
            self._to_across(sends),
            arrived,
            self._to_across(recvs),
            what="dense slices",
        )
        return self._climb(self._host_nodes, arrived, [(0, self.leaves)])[0]

    def _climb(
        self, senders: Sequence[Sequence[Node]], arrived: Floats, targets: Sequence[Node]
    ) -> list[Floats]:
        """The sums of `targets`, from arrived parts of the nodes of each sender."""
        nodes = [node for tree in senders for node in tree]
        # ranks beyond the leaves send none
        sums = arrived.reshape(len(nodes), arrived.size // max(len(nodes), 1))
        with np.errstate(over="ignore", invalid="ignore"):  # a diverging run is told so by its loss
            return [climb(dict(zip(nodes, sums)), *target) for target in targets]

    def _to_across(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Counts for each rank from those for the ranks of my place."""
        counts = np.zeros(self.comm.size, np.int64)
        counts[self._across] = sizes
        return counts


def _joined(pieces: Sequence[Sequence[Floats]]) -> Floats:
    slices = [numbers for peer in pieces for numbers in peer]
    # ranks beyond the leaves own no nodes
    return np.concatenate(slices) if slices else np.empty(0, np.float32)
