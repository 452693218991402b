"""How long is the step of a layer? As long as the layer's parameters, times the rate: LAMB, if the
rule is Adam, and like LARS, if it is momentum_sgd (You et al. 2017, 2020).

Every rank has whole parameters and takes the same step; nothing travels.
"""

import math
from collections.abc import Mapping

import numpy as np

from neocpu.core.types import Floats
from neocpu.kernels.numbers.squares import square_sum
from neocpu.tables.embedding.dense_optimizer import DenseRule, UnitSteps


class TrustRatio(UnitSteps):
    """Steps of a rule, each parameter's scaled to the parameter's norm.

    sizes : numbers of each parameter (a matrix, or a vector), in the order of the flat array.
    """

    def __init__(self, sizes: Mapping[str, int], rule: DenseRule) -> None:
        super().__init__(rule)
        ends = np.cumsum([*sizes.values()]).tolist()
        self._cuts = [slice(end - size, end) for end, size in zip(ends, sizes.values())]

    def step(self, gradient: Floats, step: int, span: slice = slice(None)) -> None:
        """As of `DenseOptimizer`; whole parameters."""
        first, end, _ = span.indices(self.parameters.size)
        self._gradient[first:end] = gradient
        with np.errstate(over="ignore", invalid="ignore"):  # a diverging run is told so by its loss
            self._decay_gradient(step, first, end)
            self._unit_step(step, first, end)
            for cut in self._cuts:
                if first <= cut.start < end:
                    self._take(cut, step)
        self.settle(first, end, step)
        self._follow(slice(first, end))

    def _take(self, cut: slice, step: int) -> None:
        """The step of a parameter."""
        parameter = self.parameters[cut]
        direction = self._step[cut]
        # one optimizer has the whole of a parameter
        (run,) = self._runs_in(cut.start, cut.stop)
        hyper = run.optimizer.hyper(step)
        if hyper.decay:
            direction += hyper.decay * parameter
        norm, length = (math.sqrt(square_sum(numbers)) for numbers in (parameter, direction))
        ratio = norm / length if norm and length else 1.0
        parameter -= np.float32(float(hyper.lr) * ratio) * direction
