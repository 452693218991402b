"""How do the dense parameters learn? By one elementwise rule over one flat array.

Runs of parameters may have rates of their own (`optimizer_groups.py`), and beside the states of the
rule a moving average of the parameters may be kept, which is what is then evaluated.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Floats, FloatsByName, Tell
from neocpu.tables.specs.optimizer_groups import ParameterRun
from neocpu.tables.specs.optimizers import SparseOptimizer

AVERAGE = "ema"  # among the states, and so in checkpoints


Settle = Callable[[int, int, int], None]


def _as_they_are(first: int, end: int, step: int) -> None:
    """Parameters stay what the rule made of them."""


@dataclass(frozen=True)
class DenseRule:
    """A rule of numbers and what it trains: the arguments of `DenseOptimizer`."""

    optimizer: SparseOptimizer
    parameters: Floats
    runs: Sequence[ParameterRun] = ()
    ema: float = 0.0


class DenseOptimizer:
    """Updates the dense parameters, one flat f32[P] array, in place; elementwise rules only.

    optimizer : the rule and its numbers.
    runs : of parameters with other numbers of that rule; they cover all of them ((): there are
        none).
    ema : beta of the average of the parameters (0: there is none), which starts at what they are
        now.
    state : attribute, name as torch has it -> f32[P]; the average among them.
    factors : attribute, what else is part of the state: name -> fields of a tensor, "value" first.
    news : attribute, lines for the user that were not shown yet.
    settle : attribute, called with the parameters from one number to another that were updated, and
        the step, before their average follows them.
    """

    def __init__(
        self,
        optimizer: SparseOptimizer,
        parameters: Floats,
        runs: Sequence[ParameterRun] = (),
        ema: float = 0.0,
    ) -> None:
        self.optimizer = optimizer
        self.parameters = parameters
        self._runs = tuple(runs) or (ParameterRun(0, parameters.size, optimizer),)
        rule = optimizer.rule
        self.state = {
            name: np.full(
                parameters.size,
                optimizer.initial_accumulator_value if name == rule.accumulator else 0.0,
                np.float32,
            )
            for name in rule.element_state
        }
        self.factors: dict[str, FloatsByName] = {}
        self.news: list[str] = []
        self.settle: Settle = _as_they_are
        self._ema = np.float32(ema)
        # of the fp64 difference: 1 - fl(ema) would be another number
        self._rest = np.float32(1.0 - ema)
        if ema:
            self.state[AVERAGE] = parameters.copy()
        self._scratch = np.empty(parameters.size, np.float32)

    def scale_rates(self, factor: float) -> None:
        """Multiply the learning rates of all parameters."""
        self._runs = tuple(
            run._replace(optimizer=run.optimizer.scaled(factor)) for run in self._runs
        )

    def step(self, gradient: Floats, step: int, span: slice = slice(None)) -> None:
        """One update of a part of the parameters from its gradient (not modified); `step` counts
        from 1.
        """
        first, end, _ = span.indices(self.parameters.size)
        for run in self._runs_in(first, end):
            own = slice(run.first, run.end)
            self._update(gradient[run.first - first : run.end - first], run.optimizer, step, own)
            self.settle(run.first, run.end, step)
            self._follow(own)

    def _runs_in(self, first: int, end: int) -> Iterator[ParameterRun]:
        """The runs, as far as they are of parameters [first, end)."""
        for run in self._runs:
            lo = max(first, run.first)
            hi = min(end, run.end)
            if lo < hi:
                yield run._replace(first=lo, end=hi)

    def tell(self, show: Tell) -> None:
        """Show what the user should know of the last step, a line each."""
        for line in self.news:
            show(f"warning: {line}")
        self.news.clear()

    def counts(self) -> dict[str, object]:
        """What lines of metrics say of it."""
        return {}

    def gather(self) -> None:
        """Bring `factors` up to date on all ranks. Collective, where ranks share their work."""

    def _update(self, gradient: Floats, optimizer: SparseOptimizer, step: int, span: slice) -> None:
        """One update of parameters that have one optimizer."""
        # compiled code is only needed once training starts
        from neocpu.kernels.rows.update import elementwise

        scratch = self._scratch[span]
        parameters = self.parameters[span]
        # rules write into the gradient, which is the caller's
        np.copyto(scratch, gradient)
        rule = self.optimizer.rule
        states = rule.element_record(*(self.state[name][span] for name in rule.element_state))
        elementwise(rule)(parameters, states, scratch, optimizer.hyper(step))

    def _follow(self, span: slice) -> None:
        """Let the average follow parameters that were updated."""
        if self._ema:
            scratch = self._scratch[span]
            average = self.state[AVERAGE][span]
            # three rounded operations in this order (docs/arithmetic.md §5): a fused one has other
            # bits
            np.multiply(self.parameters[span], self._rest, out=scratch)
            average *= self._ema
            average += scratch

    def restart_average(self) -> None:
        """The parameters are those of another model: their average starts from them."""
        if self._ema:
            self.state[AVERAGE][...] = self.parameters

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The parameters are their average within the block, bit by bit as before after it."""
        if not self._ema:
            yield
            return
        trained = self.parameters.copy()
        self.parameters[...] = self.state[AVERAGE]
        try:
            yield
        finally:
            self.parameters[...] = trained


class UnitSteps(DenseOptimizer):
    """A dense optimizer that looks at the step of a rule before it takes one."""

    def __init__(self, rule: DenseRule) -> None:
        super().__init__(rule.optimizer, rule.parameters, rule.runs, rule.ema)
        self._gradient = np.empty(self.parameters.size, np.float32)
        self._step = np.empty(self.parameters.size, np.float32)

    def _decay_gradient(self, step: int, first: int, end: int) -> None:
        """Add weight decay of mode l2 to the gradient."""
        for run in self._runs_in(first, end):
            if l2 := run.optimizer.hyper(step).l2:
                span = slice(run.first, run.end)
                self._gradient[span] += l2 * self.parameters[span]

    def _unit_step(self, step: int, first: int, end: int) -> None:
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
