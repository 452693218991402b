"""Which update does a parameter get, and with which numbers at step t?

The records here are what the config file says; `hyper(step)` turns them into the fp32 numbers that a rule reads, computed
in fp64 and rounded once per step (`docs/arithmetic.md` §5). The rules themselves are in `neocpu/kernels/rules.py`.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from neocpu.reference.rules import HYPER, RULES, Rule

WEIGHT_DECAY_MODES = ("none", "l2", "decoupled")
DENSE_NAMES = {"sgd": "exact_sgd", "adagrad": "exact_adagrad", "adam": "adam"}


def power(base: float, exponent: int) -> float:
    """base^exponent by binary powering in fp64, lowest bit first: the same on every machine."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


@dataclass(frozen=True)
class Schedule:
    """Learning rate over steps: constant, after an optional linear warm-up, with an optional polynomial decay."""

    warmup_steps: int = 0
    decay_start: int = 0
    decay_steps: int = 0
    decay_power: int = 2
    end_learning_rate: float = 0.0

    def value(self, learning_rate: float, step: int) -> float:
        """fp64 learning rate at `step`, counted from 1."""
        if step < self.warmup_steps:
            return learning_rate * (step / self.warmup_steps)
        if self.decay_steps and step > self.decay_start:
            done = min(step - self.decay_start, self.decay_steps) / self.decay_steps
            return self.end_learning_rate + (learning_rate - self.end_learning_rate) * power(
                1.0 - done, self.decay_power
            )
        return learning_rate


@dataclass(frozen=True)
class SparseOptimizer:
    """A rule of `neocpu.reference.rules` with its hyper-parameters."""

    name: str = "exact_rowwise_adagrad"
    learning_rate: float = 0.01
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    weight_decay_mode: str = "none"
    initial_accumulator_value: float = 0.0
    schedule: Schedule = field(default_factory=Schedule)

    @property
    def rule(self) -> Rule:
        """The registry entry of the rule: state tensors and phases."""
        return RULES[DENSE_NAMES.get(self.name, self.name)]

    @property
    def state_floats(self) -> tuple[int, int]:
        """Floats of optimizer state: (per element, per row)."""
        return len(self.rule.element_state), len(self.rule.row_state)

    def hyper(self, step: int) -> NDArray[np.float32]:
        """Numbers that the rule reads at `step` (from 1), named by `reference.rules.HYPER`: f32[10]."""
        rate = self.schedule.value(self.learning_rate, step)
        wd, mode = self.weight_decay, self.weight_decay_mode
        numbers = {
            "lr": rate,
            "eps": self.eps,
            "beta1": self.beta1,
            "one_minus_beta1": 1.0 - self.beta1,
            "beta2": self.beta2,
            "one_minus_beta2": 1.0 - self.beta2,
            "correction1": 1.0 / (1.0 - power(self.beta1, step)),
            "correction2": 1.0 / (1.0 - power(self.beta2, step)),
            "l2": wd if mode == "l2" else 0.0,
            "keep": 1.0 - rate * wd if mode == "decoupled" else 1.0,
        }
        return np.array([numbers[name] for name in HYPER], np.float32)


class DenseOptimizer:
    """Updates the dense parameters, one flat f32[P] array, in place; elementwise rules only.

    `state`: name as torch has it -> f32[P].
    """

    def __init__(self, optimizer: "SparseOptimizer", parameters: NDArray[np.float32]) -> None:
        self.optimizer, self.parameters = optimizer, parameters
        rule = optimizer.rule
        self.state = {
            name: np.full(
                parameters.size, optimizer.initial_accumulator_value if name == rule.accumulator else 0.0, np.float32
            )
            for name in rule.element_state
        }
        self._scratch = np.empty(parameters.size, np.float32)

    def step(self, gradient: NDArray[np.float32], step: int) -> None:
        """One update from the gradient f32[P] (not modified); `step` counts from 1."""
        from neocpu.kernels.update import elementwise  # compiled code is only needed once training starts

        np.copyto(self._scratch, gradient)
        states = [*self.state.values(), np.empty(0, np.float32), np.empty(0, np.float32)]
        update = elementwise(self.optimizer.rule.name)
        update(self.parameters, states[0], states[1], self._scratch, self.optimizer.hyper(step))
