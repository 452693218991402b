"""How do dense parameters learn in the directions of Shampoo? As long as the step of another rule.

    gradient of all ranks ──► D, the step of optimizer.dense          every rank, number by number
                          └─► factors, roots, directions              each rank, of its blocks
    directions as long as D ──► all ranks ──► weight decay, momentum, update

Factors and roots are the owner's alone until the state of the run is asked for (`gather`).
Formulas: docs/arithmetic.md §5; after Shi et al., arXiv 2309.06497.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from neocpu.core.errors import TrainingError, listed
from neocpu.core.types import Floats
from neocpu.kernels.dense import shampoo
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.embedding.dense_optimizer import DenseRule
from neocpu.tables.specs.directions import ParameterBlock, ShampooKeys, blocks_of
from neocpu.train.step.directions import (
    Directions,
    SharedBlocks,
    part_of,
    threaded,
    view_of,
)
from neocpu.train.step.shampoo_roots import NOT_FINITE, ROOT, SIDES, TAKEN, BlockRoots

NAMED = 5  # factors in one line
MOMENTUM = "shampoo_momentum"  # among the states
# what a rule knows of the gradients before, which then take the place of the gradient
MEANS = {"momentum_sgd": "momentum_buffer", "adam": "exp_avg"}


class Shampoo(Directions):
    """Steps of a dense rule in directions that Shampoo finds.

    shapes : of the parameters, by name in the order of the flat array. keys : of
    optimizer.shampoo. The others are those of `Directions`.

    Attribute: roots_kept, computations of roots of all ranks that found none.
    """

    def __init__(
        self, comm: Comm, shapes: Mapping[str, Sequence[int]], keys: ShampooKeys, rule: DenseRule
    ) -> None:
        super().__init__(comm, keys.ranks_per_group, blocks_of(shapes, keys), rule)
        self._keys = keys
        self.roots_kept = 0
        self._roots = BlockRoots(self._blocks, keys)
        self.factors = self._roots.factors
        if keys.momentum:
            self.state[MOMENTUM] = np.zeros(self.parameters.size, np.float32)

    def begin(self, gradient: Floats, step: int, span: slice) -> None:
        """As of `Directions`."""
        first, end, _ = span.indices(self.parameters.size)
        own = self._in(span).of_rank(self._comm.rank)
        self._gradient[first:end] = gradient
        with np.errstate(over="ignore", invalid="ignore"):  # a diverging run is told so by its loss
            self._decay_gradient(step, first, end)
            self._roots.accumulate(own, self._gradient)
            self._roots.renew(own, step)
            if self._plain(step):
                # the rule itself, to the bit
                self._plain_step(gradient, step, span)
                return
            self._unit_step(step, first, end)
            if self._directed(step):
                self._precondition(own)

    def finish(self, step: int, span: slice) -> None:
        """As of `Directions`. Raises TrainingError where a factor is no longer finite."""
        if self._plain(step):
            return
        if self._directed(step) and self._roots.due(step):
            self._judge(self._in(span), step)
        first, end, _ = span.indices(self.parameters.size)
        with np.errstate(over="ignore", invalid="ignore"):
            self._apply(step, first, end)
            self.settle(first, end, step)
            self._follow(span)

    def _plain(self, step: int) -> bool:
        """Whether a step is that of the rule."""
        return step < self._keys.first and not self._keys.momentum

    def _directed(self, step: int) -> bool:
        return step >= self._keys.first

    def _beside(self, block: ParameterBlock, step: int) -> Sequence[Floats]:
        """How the computation of new roots ended."""
        return [self._roots.statuses[block.name]] if self._roots.due(step) else []

    def gather(self) -> None:
        """Bring factors and roots of all ranks to all ranks. Collective."""
        self._roots.finish()
        if self._comm.size == 1:
            return
        for shared in self._shared.values():
            arrays = [self._roots.matrices(block) for block in shared.blocks]
            self._start(shared, arrays, "factors").wait()

    def counts(self) -> dict[str, object]:
        """Roots that were not found since the run began, or was resumed."""
        return {"roots_kept": self.roots_kept}

    def _precondition(self, blocks: Sequence[ParameterBlock]) -> None:
        """Turn the rule's step into the directions of blocks."""
        name = MEANS.get(self.optimizer.rule.name)
        means = self.state[name] if name else self._gradient
        for block in threaded(blocks):
            out = np.empty(block.size, np.float32)
            grafted = part_of(self._step, block)
            shampoo.direction(part_of(means, block), *self._roots.of(block, ROOT), grafted, out)
            view_of(self._step, block)[...] = out

    def _judge(self, shared: SharedBlocks, step: int) -> None:
        """Look at how the new roots of all ranks ended."""
        left_alone = []
        for block in shared.blocks:
            for side, status in zip(SIDES, self._roots.statuses[block.name]):
                if status == NOT_FINITE:
                    raise TrainingError(
                        f"step {step}: a sum of squares of optimizer.shampoo, of block "
                        f"{block.name}, is not finite; lower optimizer.dense.learning_rate, or set "
                        "optimizer.shampoo.beta2 below 1"
                    )
                if status != TAKEN:
                    left_alone.append(f"{block.name}.{side}")
        if left_alone:
            self.roots_kept += len(left_alone)
            self.news.append(
                f"step {step}: no inverse root was found for {listed(left_alone, NAMED)} of "
                "optimizer.shampoo, whose former roots stay; a larger optimizer.shampoo.epsilon "
                "makes them easier to find"
            )

    def _apply(self, step: int, first: int, end: int) -> None:
        """Take the step off the parameters, after momentum and weight decay."""
        momentum = np.float32(self._keys.momentum)
        for run in self._runs_in(first, end):
            span = slice(run.first, run.end)
            direction = self._step[span]
            hyper = run.optimizer.hyper(step)
            if momentum:
                buffer = self.state[MOMENTUM][span]
                buffer *= momentum
                buffer += direction
                if self._keys.nesterov:
                    direction += momentum * buffer
                else:
                    direction = buffer
            parameters = self.parameters[span]
            parameters *= hyper.keep
            parameters -= hyper.lr * direction
