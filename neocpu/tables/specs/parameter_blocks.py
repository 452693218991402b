"""Which blocks of dense parameters are updated as matrices, by which rank, and at what cost?

    a parameter's shape  (merge_dims)►  rows x columns  (max_preconditioner_dim)►  blocks
    blocks of a rank     the longest first, each to the rank that has least so far

After facebookresearch/optimizers (Shi et al., arXiv 2309.06497).
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

ALIGNED = 64  # bytes: a block's share of a message is counted in so many
Span = tuple[int, int]


class ParameterBlock(NamedTuple):
    """A block of a parameter.

    name : of parameter and block. first : of the parameter in the flat array. shape : of the matrix
    that the parameter is. rows, columns : of the block in it. left, right : has it roots for its
    rows, for its columns?
    """

    name: str
    first: int
    shape: tuple[int, int]
    rows: Span
    columns: Span
    left: bool
    right: bool

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the block."""
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    @property
    def root(self) -> int:
        """r of the inverse roots: 2 for each side."""
        return 2 * (self.left + self.right)

    def sides(self) -> dict[str, int]:
        """name -> size of its factors."""
        rows, columns = self.size
        left = {f"{self.name}.left": rows} if self.left else {}
        right = {f"{self.name}.right": columns} if self.right else {}
        return left | right


def merged(shape: Sequence[int], merge_dims: int) -> tuple[int, int]:
    """(rows, columns) of a parameter; a vector, or what merges to one, is a single column."""
    dims: list[int] = []
    for dim in shape:
        if dims and (dims[-1] == 1 or dim == 1 or dims[-1] * dim <= merge_dims):
            dims[-1] *= dim
        else:
            dims.append(dim)
    return (dims[0], math.prod(dims[1:])) if dims else (1, 1)


def cuts(size: int, most: int) -> list[Span]:
    """Runs of at most so many of `size` rows, or columns."""
    return [(lo, min(lo + most, size)) for lo in range(0, size, most)]


def owners(blocks: Sequence[ParameterBlock], ranks: int) -> list[int]:
    """The rank of each block: longest processing time first, by bytes of the block."""
    heap = [(0, rank) for rank in range(ranks)]
    owner = [0] * len(blocks)
    sizes = [-(-4 * math.prod(block.size) // ALIGNED) for block in blocks]
    for number in sorted(range(len(blocks)), key=lambda number: -sizes[number]):
        load, rank = heapq.heappop(heap)
        owner[number] = rank
        heapq.heappush(heap, (load + sizes[number], rank))
    return owner


class Product(NamedTuple):
    """A product of f32[m, k] and f32[k, n], `share` of which is computed in a step."""

    share: float
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class DirectionWork:
    """What blocks of dense parameters cost whose steps have directions of their own.

    blocks : all of them. products : of each, in a step. ranks_per_group : ranks that share the
    blocks (0: all).
    """

    blocks: tuple[ParameterBlock, ...]
    products: tuple[tuple[Product, ...], ...]
    ranks_per_group: int = 0

    def group(self, ranks: int) -> int:
        """The ranks of a group."""
        return min(self.ranks_per_group or ranks, ranks)

    def of_ranks(self, ranks: int) -> list[list[Product]]:
        """The products of each rank of a group."""
        group = self.group(ranks)
        of_rank: list[list[Product]] = [[] for _ in range(group)]
        for owner, products in zip(owners(self.blocks, group), self.products):
            of_rank[owner] += products
        return of_rank

    @property
    def gathered_bytes(self) -> int:
        """Bytes of the directions of all blocks."""
        return 4 * sum(math.prod(block.size) for block in self.blocks)
