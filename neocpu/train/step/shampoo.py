"""How do dense parameters learn in preconditioned directions? Each rank finds those of its blocks,
and all gather them.

    gradient of all ranks ──► D, the step of optimizer.dense          every rank, number by number
                          └─► factors, roots, directions              each rank, of its blocks
    directions as long as D ──► all ranks ──► weight decay, momentum, update

A block is one rank's from its gradient to its direction, so the number of ranks changes no bit.
Factors and roots are the owner's alone until the state of the run is asked for (`gather`).
Formulas: docs/arithmetic.md §5; after Shi et al., arXiv 2309.06497.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core.errors import TrainingError
from neocpu.core.types import Floats
from neocpu.kernels.compile.threads import one_thread
from neocpu.kernels.dense import shampoo
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
from neocpu.tables.specs.optimizer_groups import ParameterRun
from neocpu.tables.specs.optimizers import SparseOptimizer, power
from neocpu.tables.specs.shampoo import ParameterBlock, ShampooKeys, blocks_of, owners
from neocpu.train.state.blocks import FACTORS

MOMENTUM = "shampoo_momentum"  # among the states
# what a rule knows of the gradients before, which then take the place of the gradient
MEANS = {"momentum_sgd": "momentum_buffer", "adam": "exp_avg"}
FIELDS = ("value", "root")  # of a factor
SMALL = 128  # rows and columns of blocks whose products one thread makes
NONE = np.empty((0, 0), np.float32)


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


class Shampoo(DenseOptimizer):
    """Steps of a dense rule in directions that Shampoo finds.

    comm : the ranks that share the work. shapes : of the parameters, by name in the order of the
    flat array. keys : of optimizer.shampoo. The others are those of `DenseOptimizer`.

    `step` is collective, and gets whole parameters.
    """

    def __init__(
        self,
        comm: Comm,
        shapes: Mapping[str, Sequence[int]],
        keys: ShampooKeys,
        optimizer: SparseOptimizer,
        parameters: Floats,
        runs: Sequence[ParameterRun] = (),
        ema: float = 0.0,
    ) -> None:
        super().__init__(optimizer, parameters, runs, ema)
        # beside the exchanges of batches that are under way
        self._comm = comm.queue("directions") if comm.size > 1 else comm
        self._keys = keys
        self._blocks = blocks_of(shapes, keys)
        self._shared: dict[tuple[int, int], SharedBlocks] = {}
        for block in self._blocks:
            for name, size in block.sides().items():
                # zeros take no memory before they are written, and only an owner writes them
                fields = {key: np.zeros((size, size), np.float32) for key in FIELDS}
                self.factors[FACTORS + name] = fields
        if keys.momentum:
            self.state[MOMENTUM] = np.zeros(parameters.size, np.float32)
        self._gradient = np.empty(parameters.size, np.float32)
        self._step = np.empty(parameters.size, np.float32)

    def step(self, gradient: Floats, step: int, span: slice = slice(None)) -> None:
        """As of `DenseOptimizer`. Raises TrainingError where a factor is no longer finite."""
        first, end, _ = span.indices(self.parameters.size)
        shared = self._shared_blocks(first, end)
        self._gradient[first:end] = gradient
        with np.errstate(over="ignore", invalid="ignore"):  # a diverging run is told so by its loss
            self._decay_gradient(step, first, end)
            for block in shared.of_rank(self._comm.rank):
                g = _part(self._gradient, block)
                with one_thread(max(block.size) <= SMALL):
                    shampoo.accumulate(g, self._keys.beta2, *self._factors(block, "value"))
            if step < self._keys.first and not self._keys.momentum:
                # the rule itself, to the bit
                super().step(gradient, step, span)
                return
            self._rule_step(step, first, end)
            if step >= self._keys.first:
                self._precondition(shared, step)
            self._apply(step, first, end)
            self._follow(span)

    def gather(self) -> None:
        """Bring factors and roots of all ranks to all ranks. Collective."""
        if self._comm.size == 1:
            return
        for shared in self._shared.values():
            arrays = [self._matrices(block) for block in shared.blocks]
            self._exchange(shared, arrays, "factors")

    # ---- the rule ----

    def _decay_gradient(self, step: int, first: int, end: int) -> None:
        """Add weight decay of mode l2 to the gradient."""
        for run in self._runs_in(first, end):
            if l2 := run.optimizer.hyper(step).l2:
                span = slice(run.first, run.end)
                self._gradient[span] += l2 * self.parameters[span]

    def _rule_step(self, step: int, first: int, end: int) -> None:
        """What the rule would take off the parameters at a rate of 1; its states go on."""
        from neocpu.kernels.rows.update import elementwise

        rule = self.optimizer.rule
        for run in self._runs_in(first, end):
            span = slice(run.first, run.end)
            out = self._step[span]
            out[...] = 0
            scratch = self._scratch[span]
            scratch[...] = self._gradient[span]
            states = rule.element_record(*(self.state[name][span] for name in rule.element_state))
            plain = run.optimizer.hyper(step)._replace(lr=np.float32(1), l2=np.float32(0))
            elementwise(rule)(out, states, scratch, plain)
            np.negative(out, out=out)

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

    # ---- blocks ----

    def _shared_blocks(self, first: int, end: int) -> SharedBlocks:
        """The blocks of parameters [first, end)."""
        if (first, end) not in self._shared:
            inside = [block for block in self._blocks if first <= block.first < end]
            self._shared[first, end] = SharedBlocks.of(inside, self._comm.size)
        return self._shared[first, end]

    def _factors(self, block: ParameterBlock, field: str) -> tuple[Floats, Floats]:
        """A field of a block's two factors; of no size where it has one only."""
        names = (f"{FACTORS}{block.name}.{side}" for side in ("left", "right"))
        left, right = (
            self.factors[name][field] if name in self.factors else NONE for name in names
        )
        return left, right

    def _matrices(self, block: ParameterBlock) -> list[Floats]:
        """Factors and roots of a block."""
        return [self.factors[FACTORS + name][field] for name in block.sides() for field in FIELDS]

    def _exchange(
        self, shared: SharedBlocks, arrays: Sequence[Sequence[Floats]], what: str
    ) -> None:
        """Write the owners' arrays of each block into those of all ranks."""
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
        self._comm.allgatherv(sent, arrived, counts, what=what)
        at = 0
        for array in (array for of_block in arrays for array in of_block):
            array[...] = arrived[at : at + array.size].reshape(array.shape)
            at += array.size

    def _take_roots(self, block: ParameterBlock, step: int) -> None:
        """New inverse roots of a block; a root that is not found stays as it was."""
        keys = self._keys
        correction = 1.0 if keys.beta2 == 1 else 1.0 / (1.0 - power(keys.beta2, step))
        for factor, root in zip(self._factors(block, "value"), self._factors(block, "root")):
            if not np.isfinite(factor).all():
                raise TrainingError(
                    f"step {step}: a sum of squares of optimizer.shampoo, of block {block.name}, "
                    "is not finite; lower optimizer.dense.learning_rate, or set "
                    "optimizer.shampoo.beta2 below 1"
                )
            if factor.size:
                shampoo.inverse_root(factor, correction, keys.epsilon, block.root, root)

    def _precondition(self, shared: SharedBlocks, step: int) -> None:
        """Turn the rule's step into the directions of all ranks' blocks."""
        new_roots = (step - self._keys.first) % self._keys.every == 0
        name = MEANS.get(self.optimizer.rule.name)
        means = self.state[name] if name else self._gradient
        for block in shared.of_rank(self._comm.rank):
            out = np.empty(block.size, np.float32)
            f = _part(means, block)
            with one_thread(max(block.size) <= SMALL):
                if new_roots:
                    self._take_roots(block, step)
                roots = self._factors(block, "root")
                shampoo.direction(f, *roots, _part(self._step, block), out)
            _view(self._step, block)[...] = out
        if self._comm.size > 1:
            steps = [[_view(self._step, block)] for block in shared.blocks]
            self._exchange(shared, steps, "directions")


def _view(flat: Floats, block: ParameterBlock) -> Floats:
    """A block's numbers among those of all parameters."""
    rows, columns = block.shape
    matrix = flat[block.first : block.first + rows * columns].reshape(block.shape)
    return matrix[slice(*block.rows), slice(*block.columns)]


def _part(flat: Floats, block: ParameterBlock) -> Floats:
    """A block's numbers side by side; a copy where they are not."""
    return np.ascontiguousarray(_view(flat, block))
