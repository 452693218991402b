"""How do the parameters of towers learn where only one node works with them?

With `parallel.towers` node h runs the modules of its towers for all samples, its rank at place l
for those of its peers. So the gradients of their parameters are summed inside the node: over the
same leaves in the same tree as everywhere (`docs/arithmetic.md` §2), hence to the same bits. Other
nodes' copies of these parameters are stale until `gather` brings them up to date, which the state
of a run (digest, checkpoint) calls for.
"""

from collections.abc import Sequence

import numpy as np

from neocpu.core.trees import Node, leaf_cuts, rank_samples
from neocpu.core.types import Doubles, Floats
from neocpu.parallel.exchange.dense_reduction import DenseReduction
from neocpu.parallel.exchange.peers import Peers
from neocpu.parallel.exchange.wires import Wire
from neocpu.parallel.transport.buffers import Buffers
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.model.towers import Towers
from neocpu.train.step.node_gradients import node_gradient
from neocpu.train.step.turn import DenseGradient


class TowerGradients:
    """Gradients of this node's towers, and copies of all nodes' parameters.

    model : whose towers run apart. towers : modules of this node. node_of : each tower's node.
    wire : of dense gradients (None: fp32).
    """

    def __init__(
        self,
        model: Dlrm,
        towers: Towers,
        node_of: Sequence[int],
        peers: Peers,
        wire: Wire | None = None,
    ) -> None:
        self._model = model
        self._towers = towers
        self._peers = peers
        slices = model.layout.tower_slices
        self._slices = [
            [span for span, place in zip(slices, node_of) if place == node]
            for node in range(peers.nodes)
        ]
        self._node_slices = self._slices[peers.node]
        # a rank works for those of its place on all nodes, so its leaves are not neighbours
        tree_nodes = [
            [node for rank in peers.ranks(place) for node in peers.tree_nodes(rank)]
            for place in range(peers.per_node)
        ]
        parameters = sum(span.stop - span.start for span in self._node_slices)
        self._reduction = DenseReduction(
            peers.inside.queue("dense"), parameters, peers.leaves, wire, tree_nodes
        )
        self._sum = np.zeros(model.flat.size, np.float32)
        self._wire = wire
        self._buffers = Buffers()

    def reduce(self, batch: int) -> list[DenseGradient]:
        """Gradients of this node's towers; batch : samples of the last backward pass. Collective.

        They are valid until the next call.
        """
        total = self._reduction.reduce(self._tree_nodes(batch))
        gradients = []
        first = 0
        for span in self._node_slices:
            end = first + span.stop - span.start
            gradients.append(DenseGradient(span.start, total[first:end]))
            first = end
        return gradients

    def share(self, squares: Doubles) -> Doubles:
        """Sums f64[K] of parameters, each from a node that knows it, where NaN says that this one
        does not. Collective.
        """
        nodes = self._peers.nodes
        arrived = np.empty(nodes * squares.size)
        sizes = np.full(nodes, squares.size, np.int64)
        self._peers.across.allgatherv(squares, arrived, sizes, what="squares of tower gradients")
        by_node = arrived.reshape(nodes, -1)
        # the first node that knows: all that do have the same bits
        known = np.argmin(np.isnan(by_node), axis=0)
        return by_node[known, np.arange(squares.size)]

    def _tree_nodes(self, batch: int) -> dict[Node, Floats]:
        """This node's gradients for each aligned node of the leaves of this rank's peers."""
        peers = self._peers
        cuts = leaf_cuts(batch, peers.leaves)
        # of all parameters: modules know theirs by name; others are never written
        into = self._model.layout.views(self._sum)
        sums = {}
        start = 0
        for rank, size in zip(peers.ranks(peers.place), peers.sizes(batch).tolist()):
            first, _ = rank_samples(rank, peers.comm.size, batch, peers.leaves)
            for lo, leaves in peers.tree_nodes(rank):
                # samples of the peers stand behind one another here
                node_cuts = np.array(cuts[lo : lo + leaves + 1], np.int64) - first + start
                node = node_gradient(node_cuts, into, np.float32(1), self._wire, self._buffers)
                self._towers.weight_gradients([node])
                sums[lo, leaves] = np.concatenate([self._sum[span] for span in self._node_slices])
            start += size
        return sums

    def gather(self, dense: DenseOptimizer) -> None:
        """Bring parameters and states of all towers to all nodes. Collective."""
        sizes = [sum(span.stop - span.start for span in spans) for spans in self._slices]
        # states as well: digest and checkpoint hold them, and any rank may write these
        for array in (dense.parameters, *dense.state.values()):
            arrived = np.empty(sum(sizes), np.float32)
            sent = np.concatenate([array[span] for span in self._node_slices])
            self._peers.across.allgatherv(sent, arrived, sizes, what="tower parameters")
            first = 0
            for span in (span for spans in self._slices for span in spans):
                end = first + span.stop - span.start
                array[span] = arrived[first:end]
                first = end
