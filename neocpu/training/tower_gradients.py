"""How do the parameters of towers learn where only one node works with them?

With `parallel.towers` node h runs the modules of its towers for all samples, its rank at place l
for those of its peers. So the gradients of their parameters are summed inside the node: over the
same leaves in the same tree as everywhere (`docs/arithmetic.md` §2), hence to the same bits. Other
nodes' copies of these parameters are stale until `gather` brings them up to date, which the state
of a run (digest, checkpoint) calls for.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding.optimizers import DenseOptimizer
from neocpu.model.dlrm import Dlrm
from neocpu.model.towers import Towers
from neocpu.parallel.dense_reduction import DenseReduction
from neocpu.parallel.peers import Peers
from neocpu.trees import Node, leaf_cuts, rank_samples

F32 = NDArray[np.float32]


class TowerGradients:
    """Gradients of this node's towers, and copies of all nodes' parameters.

    model : whose towers run apart. towers : modules of this node. node_of : each tower's node.
    """

    def __init__(self, model: Dlrm, towers: Towers, node_of: Sequence[int], peers: Peers) -> None:
        self._model = model
        self._towers = towers
        self._peers = peers
        slices = model.layout.tower_slices
        self._slices = [
            [part for part, place in zip(slices, node_of) if place == node]
            for node in range(peers.nodes)
        ]
        self._mine = self._slices[peers.node]
        tree_nodes = [
            [node for rank in peers.ranks(place) for node in peers.tree_nodes(rank)]
            for place in range(peers.per_node)
        ]
        parameters = sum(part.stop - part.start for part in self._mine)
        self._reduction = DenseReduction(
            peers.inside.queue("dense"), parameters, peers.leaves, nodes=tree_nodes
        )
        self._sum = np.zeros(model.flat.size, np.float32)
        self._gradient = np.zeros(model.flat.size, np.float32)

    def join(self, shared: F32, batch: int) -> F32:
        """Gradient f32[P] of all parameters, 0 for other nodes' towers.

        shared : of the parameters before the towers. batch : samples of the last backward pass.
        Valid until the next call. Collective.
        """
        total = self._reduction.reduce(self._tree_nodes(batch))
        self._gradient[: shared.size] = shared
        first = 0
        for part in self._mine:
            end = first + part.stop - part.start
            self._gradient[part] = total[first:end]
            first = end
        return self._gradient

    def _tree_nodes(self, batch: int) -> dict[Node, F32]:
        """This node's gradients for each aligned node of the leaves of this rank's peers."""
        peers = self._peers
        cuts = leaf_cuts(batch, peers.leaves)
        into = self._model.layout.views(self._sum)
        sums = {}
        start = 0
        for rank, size in zip(peers.ranks(peers.place), peers.sizes(batch).tolist()):
            first, _ = rank_samples(rank, peers.comm.size, batch, peers.leaves)
            for lo, leaves in peers.tree_nodes(rank):
                node_cuts = np.array(cuts[lo : lo + leaves + 1], np.int64) - first + start
                self._towers.weight_gradients(node_cuts, into)
                sums[lo, leaves] = np.concatenate([self._sum[part] for part in self._mine])
            start += size
        return sums

    def gather(self, dense: DenseOptimizer) -> None:
        """Bring parameters and states of all towers to all nodes. Collective."""
        sizes = [sum(part.stop - part.start for part in parts) for parts in self._slices]
        for array in (dense.parameters, *dense.state.values()):
            arrived = np.empty(sum(sizes), np.float32)
            mine = np.concatenate([array[part] for part in self._mine])
            self._peers.across.allgatherv(mine, arrived, sizes, what="tower parameters")
            first = 0
            for part in (part for parts in self._slices for part in parts):
                end = first + part.stop - part.start
                array[part] = arrived[first:end]
                first = end
