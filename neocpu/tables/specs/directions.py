"""Which blocks of dense parameters are updated as matrices, by Shampoo or Muon, by which rank, and
at what cost?

    a parameter's shape  (merge_dims)►  rows x columns  (max_preconditioner_dim)►  blocks
    blocks of a rank     the longest first, each to the rank that has least so far

After facebookresearch/optimizers (Shi et al., arXiv 2309.06497).
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from neocpu.core.records import Limits, changed

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


SHAPE = "shape"
RMS = "rms"
ROUNDS = 20  # of Newton's iteration for a root, about
NEWTON = "newton"
EIGH = "eigh"


class DirectionKeys:
    """Keys of steps that have directions of their own."""

    def header(self) -> dict[str, object]:
        """What decides the bits: keys that are not at their defaults."""
        return {key: value for key, value in changed(self).items() if key != "ranks_per_group"}


@dataclass(frozen=True)
class ShampooKeys(DirectionKeys):
    """Steps of optimizer.dense in a preconditioned direction (docs/optimizers.md).

    every : steps from one computation of the inverse roots to the next (0: Shampoo is off).
    start : the first step that takes such a direction (0: step `every`).
    spread : steps over which the computation of roots is spread; they are then of the factors of so
        many steps before (0: of the same step, and computed in it).
    max_preconditioner_dim : rows, and columns, of a block, at most.
    merge_dims : neighbouring dimensions of a parameter become one where their product is at most
        this (0: only those of size 1).
    sides : 2: roots for rows and for columns; 1: for the shorter side of a parameter.
    beta2 : decay of the means of squares that roots are taken of (1: sums).
    epsilon : added to their diagonals, at least.
    roots : how they are found: "newton", by canonical products; "eigh", by LAPACK's eigenvectors,
        whose bits are those of a machine and its libraries.
    ranks_per_group : ranks that share the blocks among them; each group works on all (0: all ranks
        are one). It changes no bit.
    momentum : of the steps themselves, beside that of optimizer.dense. nesterov : whether it looks
        a step ahead.
    """

    every: int = 0
    start: int = 0
    spread: int = 0
    max_preconditioner_dim: Annotated[int, Limits(least=1, most=1 << 15)] = 128
    merge_dims: int = 0
    sides: Annotated[int, Limits(least=1, most=2)] = 2
    beta2: float = 1.0
    epsilon: float = 1e-12
    roots: Annotated[str, Limits((NEWTON, EIGH))] = NEWTON
    ranks_per_group: int = 0
    momentum: float = 0.0
    nesterov: bool = False

    @property
    def first(self) -> int:
        """The first step that takes a preconditioned direction."""
        return self.start or self.every

    def faults(self, towers: bool) -> Iterator[tuple[str, str]]:
        """(key, what is wrong with it); towers : do they run on their nodes?"""
        if not self.every:
            for key, value in changed(self).items():
                yield key, f"{value} has no effect while optimizer.shampoo.every is 0; set that too"
            return
        if self.spread >= min(self.every, self.first):
            yield "spread", f"{self.spread} must be below optimizer.shampoo.every, and below start"
        if towers:
            yield "every", "with parallel.towers not every rank trains all parameters; leave it out"
        if not 0 < self.beta2 <= 1:
            yield "beta2", f"{self.beta2} must be above 0, and 1 at most"
        if not self.epsilon:
            yield "epsilon", "it must be above 0: a factor may be all zeros"
        if self.momentum >= 1:
            yield "momentum", f"{self.momentum} must be below 1"
        if self.nesterov and not self.momentum:
            yield "nesterov", "it has no effect without optimizer.shampoo.momentum; set that too"

    def work(self, shapes: Mapping[str, Sequence[int]]) -> DirectionWork:
        """What it costs, by shapes as of `blocks_of`."""
        blocks = blocks_of(shapes, self)
        products = tuple(_shampoo_products(block, self.every) for block in blocks)
        return DirectionWork(tuple(blocks), products, self.ranks_per_group)


def blocks_of(shapes: Mapping[str, Sequence[int]], keys: ShampooKeys) -> list[ParameterBlock]:
    """The blocks of parameters, by shapes in the order of the flat array."""
    blocks = []
    first = 0
    for name, shape in shapes.items():
        matrix = rows, columns = merged(shape, keys.merge_dims)
        for i, row_span in enumerate(cuts(rows, keys.max_preconditioner_dim)):
            for j, column_span in enumerate(cuts(columns, keys.max_preconditioner_dim)):
                left = columns == 1 or keys.sides == 2 or rows <= columns
                right = columns > 1 and (keys.sides == 2 or not left)
                block = f"{name}.{i}.{j}"
                blocks.append(
                    ParameterBlock(block, first, matrix, row_span, column_span, left, right)
                )
        first += rows * columns
    return blocks


def _shampoo_products(block: ParameterBlock, every: int) -> tuple[Product, ...]:
    """What a step computes of a block, its share of the roots included."""
    rows, columns = block.size
    products = []
    for there, size, other in ((block.left, rows, columns), (block.right, columns, rows)):
        if there:
            # half of the factor's addend; a direction; X T, powers of T, and T M, half of each
            rounds = ROUNDS * (2 + block.root // 2)
            products += [
                Product(0.5, size, size, other),
                Product(1.0, rows, columns, size),
                Product(0.5 * rounds / every, size, size, size),
            ]
    return tuple(products)


def factor_bytes(shapes: Mapping[str, Sequence[int]], keys: ShampooKeys) -> int:
    """Bytes of all factors and roots, which every rank has room for."""
    if not keys.every:
        return 0
    sizes = [size for block in blocks_of(shapes, keys) for size in block.sides().values()]
    return sum((3 if keys.spread else 2) * 4 * size * size for size in sizes)


@dataclass(frozen=True)
class MuonKeys(DirectionKeys):
    """Steps of matrices along their momentum, all of whose singular values are made about equal
    (docs/optimizers.md). Vectors and matrices of one row or column keep optimizer.dense.

    steps : of Newton-Schulz's iteration for it (0: Muon is off).
    momentum : beta of the mean of gradients. nesterov : whether it looks a step ahead.
    rate : of matrices, times that of optimizer.dense.
    scale : of the step of a matrix of m outputs and n inputs. "shape": sqrt(max(1, m / n)); "rms":
        0.2 sqrt(max(m, n)), which makes its numbers about as large as those of Adam's steps.
    ranks_per_group : ranks that share the matrices among them; each group works on all (0: all
        ranks are one). It changes no bit.
    """

    steps: Annotated[int, Limits(most=20)] = 0
    momentum: float = 0.95
    nesterov: bool = True
    rate: float = 1.0
    scale: Annotated[str, Limits((SHAPE, RMS))] = SHAPE
    ranks_per_group: int = 0

    def faults(self, towers: bool, shampoo: bool) -> Iterator[tuple[str, str]]:
        """(key, what is wrong with it); towers : do they run on their nodes? shampoo : is it on?"""
        if not self.steps:
            for key, value in changed(self).items():
                yield key, f"{value} has no effect while optimizer.muon.steps is 0; set that too"
            return
        if towers:
            yield "steps", "with parallel.towers not every rank trains all parameters; leave it out"
        if shampoo:
            yield "steps", "optimizer.shampoo gives steps directions too; leave one of them out"
        if self.momentum >= 1:
            yield "momentum", f"{self.momentum} must be below 1"

    def work(self, shapes: Mapping[str, Sequence[int]]) -> DirectionWork:
        """What it costs, by shapes as of `matrices_of`."""
        blocks = matrices_of(shapes)
        products = tuple(_muon_products(block, self.steps) for block in blocks)
        return DirectionWork(tuple(blocks), products, self.ranks_per_group)


def matrices_of(shapes: Mapping[str, Sequence[int]]) -> list[ParameterBlock]:
    """The parameters that are matrices, by shapes in the order of the flat array."""
    blocks = []
    first = 0
    for name, shape in shapes.items():
        matrix = rows, columns = merged(shape, 0)
        if rows > 1 and columns > 1:
            spans = (0, rows), (0, columns)
            blocks.append(ParameterBlock(name, first, matrix, *spans, left=False, right=False))
        first += rows * columns
    return blocks


def _muon_products(block: ParameterBlock, steps: int) -> tuple[Product, ...]:
    short, long = sorted(block.size)
    # X Xᵀ and its square, half of each, and their sum times X
    return (
        Product(0.5 * steps, short, short, long),
        Product(0.5 * steps, short, short, short),
        Product(1.0 * steps, short, long, short),
    )
