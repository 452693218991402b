"""How are small networks trained without a framework? Linear layers with ReLU, backward, and Adam.

Everything is a matrix product and an element-wise maximum, so a few lines are enough:

    y = x W + b, ReLU between layers        dW = x' dy, db = sum of dy, dx = dy W'
"""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[np.floating]
Tape = list[Array]


class Layers:
    """Linear layers with ReLU between them.

    widths : inputs, hidden widths, outputs. final_relu : whether the outputs pass a ReLU too.
    rng : draws the weights, uniform in +-1/sqrt(inputs) as PyTorch does, biases included.
    """

    def __init__(self, widths: Sequence[int], rng: Generator, final_relu: bool = False) -> None:
        self.widths = tuple(widths)
        self.final_relu = final_relu
        self.parameters: list[Array] = []
        for inputs, outputs in zip(self.widths, self.widths[1:]):
            limit = 1.0 / np.sqrt(inputs)
            self.parameters.append(rng.uniform(-limit, limit, (inputs, outputs)))
            self.parameters.append(rng.uniform(-limit, limit, outputs))

    @property
    def depth(self) -> int:
        """Linear layers."""
        return len(self.widths) - 1

    def cast(self, dtype: type[np.floating]) -> None:
        """Hold the parameters in another precision."""
        self.parameters = [parameter.astype(dtype) for parameter in self.parameters]

    def __call__(self, x: Array) -> Array:
        """Outputs [..., widths[-1]] of inputs [..., widths[0]]."""
        return self.run(x)[-1]

    def run(self, x: Array) -> Tape:
        """The inputs and the outputs of every layer; the last are those of the net."""
        tape = [x]
        for i in range(self.depth):
            weight, bias = self.parameters[2 * i : 2 * i + 2]
            x = x @ weight + bias
            if i < self.depth - 1 or self.final_relu:
                x = np.maximum(x, 0)
            tape.append(x)
        return tape

    def gradients(self, tape: Tape, dy: Array) -> tuple[list[Array], Array]:
        """(gradients of the parameters, gradient of the inputs) from that of the outputs.

        tape : of `run`, with inputs [n, widths[0]].
        """
        slopes: list[Array] = []
        for i in reversed(range(self.depth)):
            if i < self.depth - 1 or self.final_relu:
                # the output of a ReLU is above 0 just where its input is
                dy = dy * (tape[i + 1] > 0)
            # from the last parameter to the first; turned round at the end
            slopes += [dy.sum(axis=0), tape[i].T @ dy]
            dy = dy @ self.parameters[2 * i].T
        return slopes[::-1], dy


class Adam:
    """Adam (Kingma and Ba, 2015) over a list of arrays, which it changes in place."""

    def __init__(self, parameters: Sequence[Array], rate: float = 1e-3) -> None:
        self.parameters = list(parameters)
        self.rate = rate
        self._steps = 0
        self._mean = [np.zeros_like(parameter) for parameter in self.parameters]
        self._square = [np.zeros_like(parameter) for parameter in self.parameters]

    def step(self, gradients: Sequence[Array], rate: float | None = None) -> None:
        """One update; `rate` replaces the learning rate for this step."""
        self._steps += 1
        rate = self.rate if rate is None else rate
        # both corrections of the moments' start at 0 in the rate
        rate *= float(np.sqrt(1 - 0.999**self._steps) / (1 - 0.9**self._steps))
        for parameter, gradient, mean, square in zip(
            self.parameters, gradients, self._mean, self._square
        ):
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient * gradient - square)
            parameter -= (rate * mean / (np.sqrt(square) + 1e-8)).astype(parameter.dtype)


def clipped(gradients: Sequence[Array], norm: float) -> list[Array]:
    """The gradients, scaled down together where they are longer than `norm`."""
    length = float(np.sqrt(sum(float((gradient * gradient).sum()) for gradient in gradients)))
    scale = min(1.0, norm / max(length, 1e-30))
    return [gradient * scale for gradient in gradients]
