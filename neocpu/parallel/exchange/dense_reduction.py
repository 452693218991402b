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

On a wire of fewer bits every node of the tree, from leaf to root, is rounded once: where it travels
it is encoded, where it does not it is rounded in place (`sum_leaves`). So its codes say all of it,
and the tree is the same for every number of ranks.

Where exchanges go in two levels, each node of ranks climbs the tree inside first:

    inside    rank of place l gets share l of the parameters from its node's ranks, and adds them
              up to the maximal aligned nodes of the node's leaves
    between   slice h of this share goes to the rank of place l in node h, which climbs to the root
    back      finished slices between ranks of equal place, finished shares inside the node

The additions are the same, in the same tree, so the bits are too: ranks of a node own leaves in a
row, so much of the tree above them lies inside the node. With L ranks on each node, about 1/L of
the direct reduction's bytes travel between nodes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from neocpu.core.trees import Node, aligned_nodes, climb, rank_leaves
from neocpu.core.types import Bytes, Elements, Floats, Ints
from neocpu.parallel.exchange.wires import BlockJob, Wire, job_array, reversed_jobs
from neocpu.parallel.transport.buffers import Buffers
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.started import Started, Steps

if TYPE_CHECKING:
    from neocpu.parallel.exchange.two_level import TwoLevelComm


LINE = 4096  # numbers of a row of a job: threads share rows


class LeafReduction(ABC):
    """Sum over the batch of P dense gradients, the same bits on every rank and for every number of
    ranks. Subclasses bring `_sum`, the way that the gradients take.

    comm : the ranks that share the batch. parameters : P. leaves : of the batch tree.
    nodes : of each rank, all together the whole tree (None: as the leaves are spread over the
        ranks).
    """

    def __init__(
        self, comm: Comm, parameters: int, leaves: int, nodes: list[list[Node]] | None = None
    ) -> None:
        self.comm = comm
        self.parameters = parameters
        self.leaves = leaves
        self.nodes = nodes or [
            list(aligned_nodes(*rank_leaves(rank, comm.size, leaves))) for rank in range(comm.size)
        ]

    def start(self, nodes: Mapping[Node, Elements]) -> Started[Elements]:
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

    def reduce(self, nodes: Mapping[Node, Elements]) -> Elements:
        """`start` and `wait` in one: the root sum f32[P]."""
        return self.start(nodes).wait()

    @abstractmethod
    def _sum(self, nodes: Mapping[Node, Elements]) -> Steps[Elements]: ...


class DenseReduction(LeafReduction):
    """Sum over the batch of P dense gradients, the same bits on every rank and for every number of
    ranks.

    comm : the ranks that share the batch.
    parameters : P, any number from 0 up.
    leaves : leaves of the batch tree, a power of two; ranks beyond it own no leaves and only add.
    wire : of nodes and of finished slices, without blocks; None: fp32.
    nodes : of each rank, all together the whole tree (None: as the leaves are spread over the
        ranks).
    dtype : of the gradients; another one than fp32 has no wire.
    """

    def __init__(
        self,
        comm: Comm,
        parameters: int,
        leaves: int,
        wire: Wire | None = None,
        nodes: list[list[Node]] | None = None,
        dtype: type[np.floating] = np.float32,
    ) -> None:
        super().__init__(comm, parameters, leaves, nodes)
        ranks = comm.size
        self.wire = wire
        # slices of any length will do: the tree is climbed element by element
        self._cuts = [parameters * rank // ranks for rank in range(ranks + 1)]
        widths = np.diff(self._cuts)
        slice_width = int(widths[comm.rank])
        unit = wire.bytes(1) if wire else 1  # elements of a message for a number
        self._send_counts = widths * len(self.nodes[comm.rank]) * unit
        nodes_of_ranks = np.array([len(nodes) for nodes in self.nodes], np.int64)
        self._recv_counts = slice_width * nodes_of_ranks * unit
        self._widths = widths.astype(np.int64) * unit
        element = np.uint8 if wire else dtype
        # a rank that holds the root of a wire's tree, or any nodes in fp32, needs no messages
        self._alone = ranks == 1 and (wire is None or len(self.nodes[0]) == 1)
        # made once, as all steps have the same messages
        if not self._alone:
            self._send = np.empty(int(self._send_counts.sum()), element)
            self._recv = np.empty(int(self._recv_counts.sum()), element)
        if not self._alone or wire:
            self._total = np.empty(parameters, dtype)

    def _sum(self, nodes: Mapping[Node, Elements]) -> Steps[Elements]:
        wire = self.wire
        root = (0, self.leaves)
        if self._alone:
            if wire is None:
                return climb(nodes, *root)
            # one rank rounds the root as if it had travelled
            wire.round(nodes[root], self._total, _line_jobs(self.parameters))
            return self._total
        at = 0
        # slice by slice, so that each rank's message has its slice of every node
        for lo, hi in pairwise(self._cuts):
            for node in self.nodes[self.comm.rank]:
                at += _pack(wire, nodes[node][lo:hi], self._send[at:])
        yield self.comm.start_alltoallv(
            self._send, self._send_counts, self._recv, self._recv_counts, what="dense slices"
        )
        pieces: dict[Node, Elements] = {}
        width = int(self._widths[self.comm.rank])
        at = 0
        for rank_nodes in self.nodes:
            for node in rank_nodes:
                pieces[node] = self._recv[at : at + width]
                at += width
        with np.errstate(over="ignore", invalid="ignore"):  # a diverging run is told so by its loss
            if wire is None:
                finished = np.ascontiguousarray(climb(pieces, *root))
            else:
                finished = _climb_codes(wire, pieces, self.leaves)
        arrived: Elements = self._total
        if wire is not None:
            arrived = np.empty(int(self._widths.sum()), np.uint8)
        yield self.comm.start_allgatherv(finished, arrived, self._widths, what="dense gather")
        if wire is not None:
            wire.decode(arrived, self._total, reversed_jobs(_line_jobs(self.parameters, wire)))
        return self._total


def sum_leaves(
    leaf: Callable[[int, Floats], object],
    leaves: int,
    wire: Wire,
    out: Floats,
    buffers: Buffers,
    first_leaf: int = 0,
) -> None:
    """A node of the tree on a wire: all nodes below it rounded, itself not.

    leaf(l, out) : writes the sum f32[P] of leaf l of the node. leaves : of the node, a power of
    two, counted from `first_leaf`. out : f32[P].
    """
    if leaves == 1:
        leaf(first_leaf, out)
        return
    half = leaves // 2
    right = buffers.take(f"node of {half}", out.size, np.float32)
    jobs = _line_jobs(out.size)
    sum_leaves(leaf, half, wire, out, buffers, first_leaf)
    # children are rounded before they are added, the node itself by whoever takes it further
    wire.round(out, out, jobs)
    sum_leaves(leaf, half, wire, right, buffers, first_leaf + half)
    wire.round(right, right, jobs)
    with np.errstate(over="ignore", invalid="ignore"):
        out += right


def _pack(wire: Wire | None, numbers: Floats, message: Elements) -> int:
    """Write numbers at the beginning of a message; how many elements of it they take."""
    if wire is None:
        message[: numbers.size] = numbers
        return numbers.size
    wire.encode(numbers, message, _line_jobs(numbers.size, wire))
    return wire.bytes(numbers.size)


def _climb_codes(wire: Wire, pieces: Mapping[Node, Bytes], leaves: int) -> Bytes:
    """Codes of the root from those of the nodes below, each node rounded once."""
    if (0, leaves) in pieces:
        return pieces[0, leaves]

    def value(lo: int, size: int, rounded: bool = True) -> Floats:
        if (lo, size) in pieces:
            codes = pieces[lo, size]
            numbers = np.empty(codes.size // wire.bytes(1), np.float32)
            wire.decode(codes, numbers, reversed_jobs(_line_jobs(numbers.size, wire)))
            return numbers
        total = value(lo, size // 2) + value(lo + size // 2, size // 2)
        if rounded:
            wire.round(total, total, _line_jobs(total.size))
        return total

    root = value(0, leaves, rounded=False)
    codes = np.empty(wire.bytes(root.size), np.uint8)
    wire.encode(root, codes, _line_jobs(root.size, wire))
    return codes


def _line_jobs(size: int, wire: Wire | None = None) -> Ints:
    """Jobs from so many numbers into as many, or into their codes."""
    rows = size // LINE
    unit = wire.bytes(1) if wire else 1
    at = rows * LINE
    lines = BlockJob(0, LINE, 0, LINE * unit, rows, LINE)
    rest = BlockJob(at, 0, at * unit, 0, 1, size - at)
    return job_array(job for job in (lines, rest) if job.rows and job.width)


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

    def _sum(self, nodes: Mapping[Node, Elements]) -> Steps[Elements]:
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

    def _sum_between(self, share: Sequence[Floats]) -> Steps[Floats]:
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

    def _to_across(self, sizes: Ints) -> Ints:
        """Counts for each rank from those for the ranks of my place."""
        counts = np.zeros(self.comm.size, np.int64)
        counts[self._across] = sizes
        return counts


def _joined(pieces: Sequence[Sequence[Floats]]) -> Floats:
    slices = [numbers for peer in pieces for numbers in peer]
    # ranks beyond the leaves own no nodes
    return np.concatenate(slices) if slices else np.empty(0, np.float32)


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
