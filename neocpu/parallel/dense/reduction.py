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
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from neocpu.core.trees import Node, aligned_nodes, climb, rank_leaves
from neocpu.core.types import Elements, Floats, Ints
from neocpu.parallel.exchange.block_jobs import BlockJob, job_array, reversed_jobs
from neocpu.parallel.exchange.wires import Wire
from neocpu.parallel.transport.buffers import Buffers
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.started import Request, Started

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

    @abstractmethod
    def _sum(self, nodes: Mapping[Node, Floats]) -> Generator[Request, None, Floats]: ...


class DenseReduction(LeafReduction):
    """Sum over the batch of P dense gradients, the same bits on every rank and for every number of
    ranks.

    Parameters
    ----------
    comm : the ranks that share the batch.
    parameters : P, any number from 0 up.
    leaves : leaves of the batch tree, a power of two; ranks beyond it own no leaves and only add.
    wire : of nodes and of finished slices, without blocks; None: fp32.
    nodes : of each rank, all together the whole tree (None: as the leaves are spread over the
        ranks).
    """

    def __init__(
        self,
        comm: Comm,
        parameters: int,
        leaves: int,
        wire: Wire | None = None,
        nodes: list[list[Node]] | None = None,
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
        dtype = np.uint8 if wire else np.float32
        # a rank that holds the root of a wire's tree, or any nodes in fp32, needs no messages
        self._alone = ranks == 1 and (wire is None or len(self.nodes[0]) == 1)
        # made once, as all steps have the same messages
        if not self._alone:
            self._send = np.empty(int(self._send_counts.sum()), dtype)
            self._recv = np.empty(int(self._recv_counts.sum()), dtype)
        if not self._alone or wire:
            self._total = np.empty(parameters, np.float32)

    def _sum(self, nodes: Mapping[Node, Floats]) -> Generator[Request, None, Floats]:
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


def _climb_codes(
    wire: Wire, pieces: Mapping[Node, NDArray[np.uint8]], leaves: int
) -> NDArray[np.uint8]:
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
