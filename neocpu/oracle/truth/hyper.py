"""How does a kernel hold hyper-parameters? Rounded to fp32."""

from dataclasses import dataclass, field

import numpy as np

from neocpu.oracle.operator import Options
from neocpu.oracle.truth.numbers import SLACK, ULP, Bounded, U, powers
from neocpu.oracle.truth.states import GLOBAL

ONE = Bounded.exactly(1.0)


@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters as a kernel holds them: rounded to fp32."""

    options: Options
    bends: frozenset[str] = field(default_factory=frozenset)

    def __getitem__(self, name: str) -> Bounded:
        adagrad = "adagrad" in str(self.options["optimizer"])
        if name == "eps" and adagrad and "adagrad_eps_1e10" in self.bends:
            return Bounded.constant(1e-10)
        if name in ("beta1", "beta2") and "betas_swapped" in self.bends:
            name = "beta2" if name == "beta1" else "beta1"
        number = Bounded.constant(self.number(name))
        return number * number if name == "learning_rate" and self._twice else number

    @property
    def _twice(self) -> bool:
        return "rate_twice" in self.bends

    def number(self, name: str) -> float:
        """A hyper-parameter as a kernel reads it."""
        number = float(self.options[name])
        if name == "learning_rate" and "rate_missing" in self.bends:
            return 1.0
        if name == "weight_decay" and "decay_sign_flipped" in self.bends:
            number = -number
        return float(np.float16(number)) if "hyper_in_fp16" in self.bends else number

    @property
    def mode(self) -> str:
        """Weight decay: none, l2, decoupled, decoupled_global (adagradw: with counters)."""
        mode = str(self.options["weight_decay_mode"])
        if "weight_decay_ignored" in self.bends or not self.options["weight_decay"]:
            return "none"
        if "weight_decay_swapped" in self.bends:
            return {"l2": "decoupled", "decoupled": "l2"}.get(mode, mode)
        return mode

    @property
    def step(self) -> int:
        """The number of the step, from 1."""
        step = int(self.options["step"])
        if step > 1 and "step_always_1" in self.bends:
            return 1
        step -= "step_counted_late" in self.bends
        step += "step_counted_early" in self.bends
        return step

    def keep(self) -> Bounded:
        """1 - lr*wd of decoupled weight decay, else exactly 1."""
        if self.mode not in ("decoupled", GLOBAL):
            return ONE
        share = self.number("weight_decay")
        if "decay_without_rate" not in self.bends:
            share *= self.number("learning_rate")
        # From fp32 numbers or from exact ones, and fused or not: an ulp of 1 and of lr*wd.
        return Bounded(np.asarray(1 - share), np.asarray(ULP * (1 + abs(share))))

    def complement(self, name: str) -> Bounded:
        """1 - beta, by kernels that know beta in fp32."""
        if name == "beta1" and "moment_not_weighted" in self.bends:
            return ONE
        beta = self[name]
        value = np.asarray(1 - beta.value)
        # Kernels store 1 - beta as fp32.
        rounding = np.abs(value.astype(np.float32) - value)
        return Bounded(value, beta.error + rounding * SLACK)

    def correction(self, name: str) -> Bounded:
        """1 - beta^t, by kernels that take the power in fp32."""
        moment = "first" if name == "beta1" else "second"
        if "bias_correction_missing" in self.bends or f"{moment}_correction_missing" in self.bends:
            return ONE
        beta = self[name]
        t = self.step
        value = float(beta.value)
        raised = powers(value, t)
        # The derivative of the power, and two ulps for a library's pow.
        one_less = powers(value, max(t - 1, 0))
        error = t * beta.error * one_less + (2 * ULP * raised if t else 0.0)
        return Bounded(1 - raised, np.asarray(error + U * abs(1 - raised)))
