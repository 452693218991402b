"""Which ranks of other nodes work for the same samples, and what do they send each other?

Rank (h, l) is at place l of node h; its peers are the ranks (0, l), (1, l), ... of all H nodes, and
node h looks up and compresses its own features for the samples of its peers:

    lookups    peer (h', l)  --bags of node h's keys of its samples-->     (h, l)
    vectors    (h, l)        --what node h made of these samples-->        (h', l)
    gradients  the way back

So each rank sends to H - 1 ranks of other nodes, where a flat exchange sends to (H - 1) L
(DMT, arXiv 2403.00877, as remembered; that lookups travel to the peer first and to the shard inside
the node then, is how TorchRec's embedding towers do it).
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import PlanError
from neocpu.core.jagged import KJT
from neocpu.core.trees import Node, aligned_nodes, rank_leaves, rank_samples
from neocpu.core.types import Floats, Ints
from neocpu.parallel.transport.buffers import Scalar
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.started import Steps


class Peers:
    """The ranks of a node and the peers of a place.

    comm : all ranks. per_node : ranks of each node, a divisor of their number. leaves : of the
    batch tree.

    Attributes: nodes H; node h and place l of this rank; inside, the ranks of its node; across, its
    peers.

    Raises PlanError where nodes have different numbers of ranks.
    """

    def __init__(self, comm: Comm, per_node: int, leaves: int) -> None:
        if comm.size % per_node:
            raise PlanError(
                f"parallel.towers: {comm.size} ranks are no whole nodes of {per_node} ranks; use a "
                "multiple, or set parallel.ranks_per_node"
            )
        self.comm = comm
        self.leaves = leaves
        self.nodes = comm.size // per_node
        self.per_node = per_node
        self.node, self.place = divmod(comm.rank, per_node)
        # kept: a process that trains many times would run out of MPI's communicators
        self.inside = comm.kept(f"nodes of {per_node}", lambda: comm.split(self.node, comm.rank))
        self.across = comm.kept(
            f"places in nodes of {per_node}", lambda: comm.split(self.place, comm.rank)
        )

    def ranks(self, place: int) -> list[int]:
        """Ranks at a place, by node."""
        return [node * self.per_node + place for node in range(self.nodes)]

    def sizes(self, batch: int, place: int | None = None) -> Ints:
        """Samples of each peer, i64[H]; place : of others than this rank's."""
        ranks = self.ranks(self.place if place is None else place)
        bounds = [rank_samples(rank, self.comm.size, batch, self.leaves) for rank in ranks]
        return np.array([hi - lo for lo, hi in bounds], np.int64)

    def cuts(self, batch: int) -> Ints:
        """Samples of a batch by place: first of each place and the end, i64[L+1]."""
        sizes = [int(self.sizes(batch, place).sum()) for place in range(self.per_node)]
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])

    def tree_nodes(self, rank: int) -> list[Node]:
        """Aligned nodes of the leaves of a rank."""
        return list(aligned_nodes(*rank_leaves(rank, self.comm.size, self.leaves)))


class PeerLookups:
    """Brings the lookups of a node's keys to it.

    keys : of each node, positions among the batch's keys, ascending. names : of this node's keys,
    as its tables call them. weighted : do lookups have weights?
    """

    def __init__(
        self, peers: Peers, keys: Sequence[Sequence[int]], names: tuple[str, ...], weighted: bool
    ) -> None:
        self._peers = peers
        self._comm = peers.across.queue("input")
        self._keys = keys
        self._names = names
        self._weighted = weighted
        self._counts = np.array([len(positions) for positions in keys], np.int64)

    def gather(self, kjt: KJT | None, batch: int) -> Steps[KJT | None]:
        """This node's bags of the samples of all peers; None if one of them refuses the batch.

        kjt : this rank's samples, all keys; None refuses the batch.
        """
        sizes = self._peers.sizes(batch)
        samples = int(sizes[self._peers.node])
        keys_here = len(self._names)
        sends = 1 + self._counts * samples
        recvs = 1 + keys_here * sizes
        # each message of lengths begins with 1 where the sender refuses the batch
        out = np.ones(int(sends.sum()), np.int32)
        if kjt is not None:
            bags = [kjt.lengths[list(positions)].reshape(-1) for positions in self._keys]
            out = np.concatenate([np.append(np.int32(0), lengths) for lengths in bags])
        lengths = np.empty(int(recvs.sum()), np.int32)
        yield self._comm.start_alltoallv(out, sends, lengths, recvs, what="peer lengths")
        heads = np.cumsum(recvs) - recvs
        # its node's ranks hear of it in their exchange of lengths (`InputDist.steps`)
        if lengths[heads].any():
            return None
        assert kjt is not None
        blocks = [
            lengths[head + 1 : head + count].reshape(keys_here, size)
            for head, count, size in zip(heads, recvs, sizes)
        ]
        counts_in = np.array([block.sum(dtype=np.int64) for block in blocks], np.int64)
        counts_out, runs = self._runs(kjt)
        rows = yield from self._travel(kjt.values, runs, counts_out, blocks, counts_in, "peer rows")
        weights = None
        # a question of the tables, which all ranks answer alike: the exchange needs all of them
        if self._weighted and kjt.weights is not None:
            weights = yield from self._travel(
                kjt.weights, runs, counts_out, blocks, counts_in, "peer weights"
            )
        return KJT(self._names, np.concatenate(blocks, axis=1), rows, weights)

    def _runs(self, kjt: KJT) -> tuple[Ints, list[slice]]:
        """Lookups for each node, i64[H], and where they stand in a batch: a run for each key."""
        ends = kjt.offsets[:: kjt.samples] if kjt.samples else np.zeros(len(kjt.keys) + 1, np.int64)
        counts = []
        runs = []
        for positions in self._keys:
            runs += [slice(int(ends[key]), int(ends[key + 1])) for key in positions]
            counts.append(sum(int(ends[key + 1] - ends[key]) for key in positions))
        return np.array(counts, np.int64), runs

    def _travel(
        self,
        values: NDArray[Scalar],
        runs: Sequence[slice],
        counts_out: Ints,
        blocks: Sequence[NDArray[np.int32]],
        counts_in: Ints,
        what: str,
    ) -> Steps[NDArray[Scalar]]:
        """Send each node its runs; what peers sent, key by key and for each key peer by peer."""
        # a node of tables without keys has nothing to join, but a dtype
        empty = values[:0]
        out = np.concatenate([empty, *(values[run] for run in runs)])
        arrived = np.empty(int(counts_in.sum()), values.dtype)
        yield self._comm.start_alltoallv(out, counts_out, arrived, counts_in, what=what)
        by_peer = []
        start = 0
        for block in blocks:
            ends = start + np.cumsum(block.sum(axis=1, dtype=np.int64))
            by_peer.append([arrived[lo:hi] for lo, hi in pairwise([start, *ends.tolist()])])
            start = int(ends[-1])
        return np.concatenate(
            [empty, *(runs[key] for key in range(len(self._names)) for runs in by_peer)]
        )


class PeerVectors:
    """Brings a node's vectors home, and their gradients back.

    columns : of each node's vectors in the matrix at home, i64 each.
    """

    def __init__(self, peers: Peers, columns: Sequence[Ints]) -> None:
        self._peers = peers
        self._columns = columns
        self._widths = np.array([vectors.size for vectors in columns], np.int64)

    def home(self, vectors: Floats, batch: int, out: Floats) -> None:
        """Send what this node made of its peers' samples, f32[P, C]; all nodes' vectors of this
        rank's samples go into their columns of `out` f32[b, columns].
        """
        sizes = self._peers.sizes(batch)
        samples = len(out)
        width = int(self._widths[self._peers.node])
        # in fp32: wires round the pooled vectors only (docs/arithmetic.md §13)
        arrived = np.empty(int(samples * self._widths.sum()), np.float32)
        self._peers.across.alltoallv(
            np.ascontiguousarray(vectors).reshape(-1),
            sizes * width,
            arrived,
            samples * self._widths,
            what="tower vectors",
        )
        start = 0
        for columns in self._columns:
            end = start + samples * columns.size
            out[:, columns] = arrived[start:end].reshape(samples, columns.size)
            start = end

    def back(self, gradient: Floats, batch: int) -> Floats:
        """Gradients f32[P, C] of this node's vectors of its peers' samples, from those at home
        f32[b, columns].
        """
        sizes = self._peers.sizes(batch)
        width = int(self._widths[self._peers.node])
        out = np.concatenate([gradient[:, columns].reshape(-1) for columns in self._columns])
        arrived = np.empty(int(sizes.sum()) * width, np.float32)
        self._peers.across.alltoallv(
            out, len(gradient) * self._widths, arrived, sizes * width, what="tower gradients"
        )
        return arrived.reshape(int(sizes.sum()), width)
