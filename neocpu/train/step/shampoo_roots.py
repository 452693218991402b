"""When are the inverse roots of Shampoo's blocks computed, and by which rank's time? From the
factors of one step, in that step or spread over the steps that follow.

    spread = 0    step t: factors, their roots, directions along these
    spread = 3    step t - 3: factors are copied   t - 2, t - 1, t: roots of the copies, a third of
                  them each   t: directions along these

A root is made of the factors of a step that the keys name, so when it is computed changes no bit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from neocpu.core.types import Floats, FloatsByName
from neocpu.kernels.compile.threads import one_thread
from neocpu.kernels.dense import shampoo
from neocpu.tables.specs.directions import EIGH, ParameterBlock, ShampooKeys
from neocpu.tables.specs.optimizers import power
from neocpu.train.state.blocks import FACTORS
from neocpu.train.step.directions import SMALL, part_of, threaded

VALUE = "value"  # fields of a factor
ROOT = "root"
NEXT = "next"  # of spread roots: a copy of the factor, then the root that will be used
# how the computation of a root ended
TAKEN = 0
KEPT = 1
NOT_FINITE = 2
SIDES = ("left", "right")
NONE = np.empty((0, 0), np.float32)


@dataclass
class _Spread:
    """Roots of some blocks under way: factors whose root is still to come, and the work of all."""

    step: int
    waiting: list[tuple[ParameterBlock, str]] = field(default_factory=list)
    work: int = 0
    done: int = 0


class BlockRoots:
    """Factors and inverse roots of blocks.

    Attributes: factors, name of the tensor -> its fields; statuses, name of a block -> f32[2], how
    the newest roots of its sides ended.
    """

    def __init__(self, blocks: Sequence[ParameterBlock], keys: ShampooKeys) -> None:
        self._keys = keys
        fields = (VALUE, ROOT, NEXT) if keys.spread else (VALUE, ROOT)
        # zeros take no memory before they are written, and only an owner writes them
        self.factors: dict[str, FloatsByName] = {
            FACTORS + name: {key: np.zeros((size, size), np.float32) for key in fields}
            for block in blocks
            for name, size in block.sides().items()
        }
        self.statuses = {block.name: np.zeros(2, np.float32) for block in blocks}
        self._spreads: dict[str, _Spread] = {}

    def of(self, block: ParameterBlock, name: str) -> tuple[Floats, Floats]:
        """A field of a block's two factors; of no size where it has one only."""
        left, right = (self._field(block, side, name) for side in SIDES)
        return left, right

    def matrices(self, block: ParameterBlock) -> list[Floats]:
        """All fields of the factors of a block."""
        return [array for name in block.sides() for array in self.factors[FACTORS + name].values()]

    def due(self, step: int) -> bool:
        """Whether directions of a step are the first along new roots."""
        return step >= self._keys.first and (step - self._keys.first) % self._keys.every == 0

    def accumulate(self, blocks: Sequence[ParameterBlock], gradient: Floats) -> None:
        """Let the factors of blocks take in the gradient of all parameters."""
        for block in threaded(blocks):
            factors = self.of(block, VALUE)
            shampoo.accumulate(part_of(gradient, block), self._keys.beta2, *factors)

    def renew(self, blocks: Sequence[ParameterBlock], step: int) -> None:
        """What is to be done for the roots of some blocks in a step whose gradients they have."""
        if not blocks:
            return
        keys = self._keys
        if not keys.spread:
            if self.due(step):
                for block, side in _sides(blocks):
                    self._take(block, side, (VALUE, ROOT), step)
            return
        name = blocks[0].name
        if name in self._spreads:
            spread = self._spreads[name]
            # steps that a run leaves out are not seen here, so it may be late
            steps = min(step - spread.step, keys.spread)
            self._go_on(spread, spread.work * steps // keys.spread)
        if self.due(step):
            self._spreads.pop(name, None)
            for block, side in _sides(blocks):
                self._field(block, side, ROOT)[...] = self._field(block, side, NEXT)
        if self.due(step + keys.spread):
            self._spreads[name] = self._begin(blocks, step)

    def finish(self) -> None:
        """Compute all roots that are under way."""
        for spread in self._spreads.values():
            self._go_on(spread, spread.work)

    def _field(self, block: ParameterBlock, side: str, name: str) -> Floats:
        factor = self.factors.get(f"{FACTORS}{block.name}.{side}")
        return NONE if factor is None else factor[name]

    def _begin(self, blocks: Sequence[ParameterBlock], step: int) -> _Spread:
        """Copy the factors of blocks."""
        waiting = list(_sides(blocks))
        for block, side in waiting:
            self._field(block, side, NEXT)[...] = self._field(block, side, VALUE)
        return _Spread(step, waiting, sum(self._work(*factor) for factor in waiting))

    def _work(self, block: ParameterBlock, side: str) -> int:
        return len(self._field(block, side, VALUE)) ** 3

    def _go_on(self, spread: _Spread, until: int) -> None:
        """Compute roots until so much of the work is done."""
        while spread.done < until:
            block, side = spread.waiting.pop()
            spread.done += self._work(block, side)
            self._take(block, side, (NEXT, NEXT), spread.step)

    def _take(self, block: ParameterBlock, side: str, names: tuple[str, str], step: int) -> None:
        """Write a root into a field of its factor; one that is not found stays as it was."""
        keys = self._keys
        correction = 1.0 if keys.beta2 == 1 else 1.0 / (1.0 - power(keys.beta2, step))
        factor, out = (self._field(block, side, name) for name in names)
        status = TAKEN if np.isfinite(factor).all() else NOT_FINITE
        if status == TAKEN:
            arguments = (factor, correction, keys.epsilon, block.root, out)
            with one_thread(len(factor) <= SMALL):
                if keys.roots == EIGH:
                    taken = eigen_root(*arguments)
                else:
                    taken = shampoo.inverse_root(*arguments)
            status = TAKEN if taken else KEPT
        if status != TAKEN and out is factor:
            out[...] = self._field(block, side, ROOT)
        self.statuses[block.name][SIDES.index(side)] = status


def eigen_root(factor: Floats, correction: float, epsilon: float, root: int, out: Floats) -> bool:
    """`kernels.dense.shampoo.inverse_root` by LAPACK, whose bits are those of a machine and its
    libraries, so that no kernel can have them.

    Eigenvalues are raised by minus the smallest, where that is negative, and by epsilon, as Shi et
    al. do.
    """
    try:
        values, vectors = np.linalg.eigh(correction * factor.astype(np.float64))
    except np.linalg.LinAlgError:
        return False
    values += epsilon - min(float(values[0]), 0.0)
    out[...] = (vectors * values ** (-1.0 / root)) @ vectors.T
    return True


def _sides(blocks: Sequence[ParameterBlock]) -> Iterator[tuple[ParameterBlock, str]]:
    """The factors of blocks."""
    for block in blocks:
        for side, there in zip(SIDES, (block.left, block.right)):
            if there:
                yield block, side
