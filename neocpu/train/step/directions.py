"""How do blocks of dense parameters take steps in directions of their own? Each rank finds those of
its blocks, and all gather them.

    gradient of all ranks ──► directions of its blocks, each rank ──► all ranks ──► update

A block is one rank's from its gradient to its direction, so the number of ranks changes no bit.
`shampoo.py` and `muon.py` say what a direction is.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Floats
from neocpu.kernels.compile.threads import one_thread
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.started import Started, Steps
from neocpu.tables.embedding.dense_optimizer import DenseRule, UnitSteps
from neocpu.tables.specs.directions import ParameterBlock, owners

SMALL = 128  # rows and columns of blocks whose products one thread makes


@dataclass(frozen=True)
class SharedBlocks:
    """Blocks of parameters that are updated together, those of rank 0 first.

    owner : the rank of each.
    """

    blocks: tuple[ParameterBlock, ...]
    owner: tuple[int, ...]

    @classmethod
    def of(cls, blocks: Sequence[ParameterBlock], ranks: int) -> "SharedBlocks":
        """Blocks shared out over ranks."""
        pairs = sorted(zip(owners(blocks, ranks), range(len(blocks))))
        return cls(tuple(blocks[number] for _, number in pairs), tuple(rank for rank, _ in pairs))

    def of_rank(self, rank: int) -> tuple[ParameterBlock, ...]:
        """The blocks of a rank."""
        return tuple(block for block, owner in zip(self.blocks, self.owner) if owner == rank)


class Directions(UnitSteps):
    """A dense optimizer whose ranks share the work on blocks of parameters.

    comm : of all ranks. ranks_per_group : those that share the blocks among them (0: all ranks).
    blocks : of parameters.

    A step of a span of whole parameters is begun, sent and finished; `step` is all of it.
    Collective.
    """

    def __init__(
        self, comm: Comm, ranks_per_group: int, blocks: Sequence[ParameterBlock], rule: DenseRule
    ) -> None:
        super().__init__(rule)
        self._comm = _group(comm, ranks_per_group)
        self._blocks = tuple(blocks)
        self._shared: dict[tuple[int, int], SharedBlocks] = {}

    def _shared_blocks(self, first: int, end: int) -> SharedBlocks:
        """The blocks of parameters [first, end)."""
        if (first, end) not in self._shared:
            inside = [block for block in self._blocks if first <= block.first < end]
            self._shared[first, end] = SharedBlocks.of(inside, self._comm.size)
        return self._shared[first, end]

    def step(self, gradient: Floats, step: int, span: slice = slice(None)) -> None:
        """As of `DenseOptimizer`."""
        self.begin(gradient, step, span)
        if (sent := self.send(step, span)) is not None:
            sent.wait()
        self.finish(step, span)

    @abstractmethod
    def begin(self, gradient: Floats, step: int, span: slice) -> None:
        """Find the directions of this rank's blocks; arguments as of `step`."""

    def send(self, step: int, span: slice) -> Started[None] | None:
        """Start to gather the directions of all ranks; None where there is nothing to gather."""
        shared = self._in(span)
        if self._comm.size == 1 or not self._directed(step):
            return None
        arrays = [
            [view_of(self._step, block), *self._beside(block, step)] for block in shared.blocks
        ]
        return self._start(shared, arrays, "directions")

    @abstractmethod
    def finish(self, step: int, span: slice) -> None:
        """Take the steps of a span, whose directions have arrived."""

    def _plain_step(self, gradient: Floats, step: int, span: slice) -> None:
        """The step of the rule itself."""
        super().step(gradient, step, span)

    def _directed(self, step: int) -> bool:
        """Whether blocks have directions of their own in a step."""
        return True

    def _beside(self, block: ParameterBlock, step: int) -> Sequence[Floats]:
        """What travels with the direction of a block."""
        return ()

    def _in(self, span: slice) -> SharedBlocks:
        """The blocks of a span."""
        first, end, _ = span.indices(self.parameters.size)
        return self._shared_blocks(first, end)

    def _start(
        self, shared: SharedBlocks, arrays: Sequence[Sequence[Floats]], what: str
    ) -> Started[None]:
        """Begin to write the owners' arrays of each block into those of all ranks."""
        return Started(self._exchange(shared, arrays, what), self._comm.stream)

    def _exchange(
        self, shared: SharedBlocks, arrays: Sequence[Sequence[Floats]], what: str
    ) -> Steps[None]:
        sizes = [sum(array.size for array in of_block) for of_block in arrays]
        counts = np.zeros(self._comm.size, np.int64)
        np.add.at(counts, list(shared.owner), sizes)
        own = [
            array.reshape(-1)
            for owner, of_block in zip(shared.owner, arrays)
            for array in of_block
            if owner == self._comm.rank
        ]
        arrived = np.empty(int(counts.sum()), np.float32)
        sent = np.concatenate(own) if own else np.empty(0, np.float32)
        yield self._comm.start_allgatherv(sent, arrived, counts, what=what)
        at = 0
        for array in (array for of_block in arrays for array in of_block):
            array[...] = arrived[at : at + array.size].reshape(array.shape)
            at += array.size


def _group(comm: Comm, ranks_per_group: int) -> Comm:
    """The ranks that share blocks with this one."""
    size = ranks_per_group or comm.size
    if size < comm.size:
        name = f"groups of {size}"
        group = comm.kept(name, lambda: comm.split(comm.rank // size, comm.rank))
        comm.poll_with(group)
        comm = group
    # beside the exchanges of batches that are under way
    return comm.queue("directions") if comm.size > 1 else comm


def threaded(blocks: Sequence[ParameterBlock]) -> Iterator[ParameterBlock]:
    """The blocks, small ones first; meanwhile kernels use as many threads as suit each."""
    for small in (True, False):
        # once for all: for each block it would take a tenth of the time of its products
        with one_thread(small):
            yield from (block for block in blocks if (max(block.size) <= SMALL) == small)


def view_of(flat: Floats, block: ParameterBlock) -> Floats:
    """A block's numbers among those of all parameters."""
    rows, columns = block.shape
    matrix = flat[block.first : block.first + rows * columns].reshape(block.shape)
    return matrix[slice(*block.rows), slice(*block.columns)]


def part_of(flat: Floats, block: ParameterBlock) -> Floats:
    """A block's numbers side by side; a copy where they are not."""
    return np.ascontiguousarray(view_of(flat, block))
