"""Which matrices does Muon orthogonalise the steps of, and how? Its keys."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

from neocpu.core.records import Limits
from neocpu.tables.specs.parameter_blocks import DirectionWork, ParameterBlock, Product, merged

SHAPE = "shape"
RMS = "rms"


@dataclass(frozen=True)
class MuonKeys:
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
            for key, value in self._given().items():
                yield key, f"{value} has no effect while optimizer.muon.steps is 0; set that too"
            return
        if towers:
            yield "steps", "with parallel.towers not every rank trains all parameters; leave it out"
        if shampoo:
            yield "steps", "optimizer.shampoo gives steps directions too; leave one of them out"
        if self.momentum >= 1:
            yield "momentum", f"{self.momentum} must be below 1"

    def header(self) -> dict[str, object]:
        """What decides the bits: keys that are not at their defaults."""
        return {key: value for key, value in self._given().items() if key != "ranks_per_group"}

    def _given(self) -> dict[str, object]:
        defaults = asdict(MuonKeys())
        return {key: value for key, value in asdict(self).items() if value != defaults[key]}

    def work(self, shapes: Mapping[str, Sequence[int]]) -> DirectionWork:
        """What it costs, by shapes as of `matrices_of`."""
        blocks = matrices_of(shapes)
        products = tuple(_products(block, self.steps) for block in blocks)
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


def _products(block: ParameterBlock, steps: int) -> tuple[Product, ...]:
    short, long = sorted(block.size)
    # X Xᵀ and its square, half of each, and their sum times X
    return (
        Product(0.5 * steps, short, short, long),
        Product(0.5 * steps, short, short, short),
        Product(1.0 * steps, short, long, short),
    )
