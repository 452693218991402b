"""What does Shampoo precondition, and how? Its keys, and the blocks that follow from them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

from neocpu.core.records import Limits
from neocpu.tables.specs.parameter_blocks import (
    DirectionWork,
    ParameterBlock,
    Product,
    cuts,
    merged,
)

ROUNDS = 20  # of Newton's iteration for a root, about
NEWTON = "newton"
EIGH = "eigh"


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
            for key, value in self._given().items():
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
        return {key: value for key, value in self._given().items() if key != "ranks_per_group"}

    def _given(self) -> dict[str, object]:
        defaults = asdict(ShampooKeys())
        return {key: value for key, value in asdict(self).items() if value != defaults[key]}

    def work(self, shapes: Mapping[str, Sequence[int]]) -> DirectionWork:
        """What it costs, by shapes as of `blocks_of`."""
        blocks = blocks_of(shapes, self)
        products = tuple(_products(block, self.every) for block in blocks)
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


def _products(block: ParameterBlock, every: int) -> tuple[Product, ...]:
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
