"""Which matrices does Shampoo precondition, and which rank works on which? Blocks of parameters.

    a parameter's shape  (merge_dims)►  rows x columns  (max_preconditioner_dim)►  blocks
    blocks of a rank     the longest first, each to the rank that has least so far

After facebookresearch/optimizers (Shi et al., arXiv 2309.06497).
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, NamedTuple

from neocpu.core.records import Limits

ALIGNED = 64  # bytes: a block's share of a message is counted in so many
Span = tuple[int, int]


@dataclass(frozen=True)
class ShampooKeys:
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
    momentum: float = 0.0
    nesterov: bool = False

    @property
    def first(self) -> int:
        """The first step that takes a preconditioned direction."""
        return self.start or self.every

    def faults(self, towers: bool) -> Iterator[tuple[str, str]]:
        """(key, what is wrong with it); towers : do they run on their nodes?"""
        if not self.every:
            for key, value in self.header().items():
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

    def header(self) -> dict[str, object]:
        """What decides the bits: keys that are not at their defaults."""
        defaults = asdict(ShampooKeys())
        return {key: value for key, value in asdict(self).items() if value != defaults[key]}


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


def blocks_of(shapes: Mapping[str, Sequence[int]], keys: ShampooKeys) -> list[ParameterBlock]:
    """The blocks of parameters, by shapes in the order of the flat array."""
    blocks = []
    first = 0
    for name, shape in shapes.items():
        matrix = rows, columns = merged(shape, keys.merge_dims)
        for i, row_span in enumerate(_cuts(rows, keys.max_preconditioner_dim)):
            for j, column_span in enumerate(_cuts(columns, keys.max_preconditioner_dim)):
                left = columns == 1 or keys.sides == 2 or rows <= columns
                right = columns > 1 and (keys.sides == 2 or not left)
                block = f"{name}.{i}.{j}"
                blocks.append(
                    ParameterBlock(block, first, matrix, row_span, column_span, left, right)
                )
        first += rows * columns
    return blocks


def _cuts(size: int, most: int) -> list[Span]:
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


def factor_bytes(shapes: Mapping[str, Sequence[int]], keys: ShampooKeys) -> int:
    """Bytes of all factors and roots, which every rank has room for."""
    if not keys.every:
        return 0
    sizes = [size for block in blocks_of(shapes, keys) for size in block.sides().values()]
    return sum((3 if keys.spread else 2) * 4 * size * size for size in sizes)
