"""Which update does a parameter get, and with which numbers at step t?

The records here are what the config file says; `hyper(step)` turns them into the fp32 numbers that
a rule reads, computed in fp64 and rounded once per step (`docs/arithmetic.md` §5). The rules
themselves are in `neocpu/kernels/rows/rules.py`.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, NamedTuple, Self

import numpy as np

from neocpu.core.records import Limits
from neocpu.core.rules import HYPER, RULES, HyperParameters, Rule

WEIGHT_DECAY_MODES = ("none", "l2", "decoupled", "adagradw")
# FBGEMM's numbers of them
RATE_MODES = {"equal": -1, "tail_id_lr_increase": 0, "tail_id_lr_decrease": 1, "counter_sgd": 2}
GENERAL = ("max_norm", "max_gradient")  # keys of every rule of tables
EVERYWHERE = ("steps_before",)  # keys of every rule
TABLE_RULES = tuple(name for name, rule in RULES.items() if rule.updates)
DENSE_NAMES = {
    "sgd": "exact_sgd",
    "adagrad": "exact_adagrad",
    "adam": "adam",
    "momentum_sgd": "momentum_sgd",
}
COUNTER = "exact_rowwise_adagrad_with_counter"
COWCLIP = "exact_rowwise_adagrad_with_cowclip"
ADAM_COWCLIP = "adam_with_cowclip"
COWCLIPS = (COWCLIP, ADAM_COWCLIP)


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
    """Learning rate over steps: constant, after an optional linear warm-up, with an optional
    polynomial decay.

    warmup_steps : in which the rate grows from 0 (0: none).
    decay_start : step after which it falls.
    decay_steps : in which it falls to the last rate (0: it never falls).
    decay_power : power of the share of them that is left.
    end_learning_rate : the last rate.
    """

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


class Round(NamedTuple):
    """A phase of a rule where rows are cut by columns.

    phase : its name in `kernels/rows/rules.py`.
    of : whose sums of squares it reads: "g", "w".
    counts : it then reads the lookups of the row in the batch, which every shard of the row knows.
    """

    phase: str
    of: tuple[str, ...]
    counts: bool = False


@dataclass(frozen=True)
class SparseOptimizer:
    """A rule of `neocpu.kernels.twins.rows.rules` with its hyper-parameters (formulas:
    `docs/arithmetic.md` §5).

    Names from momentum to lower_bound are FBGEMM's; a key that the rule does not read must keep its
    default.

    name : the update rule.
    learning_rate : the schedule's highest.
    eps : added to the root that divides.
    beta1, beta2 : decay of the means of gradients and of their squares, in rules that keep them;
        `beta2` is FBGEMM's ema_beta in rowwise_rmsprop.
    weight_decay : strength of the decay.
    weight_decay_mode : whether it is added to the gradient (l2) or taken off the weight
        (decoupled).
    initial_accumulator_value : where sums of squares begin.
    momentum, eta : numbers of momentum_sgd and lars_sgd.
    max_norm : the norm of a row after its update, at most (0: any).
    max_gradient : the gradient of a pooled row is moved into [-max_gradient, max_gradient], number
        by number, before anything is merged (0: not).
    ar_alpha, min_shrinkage : of rowwise_rmsprop: weight decay by the steps since a row was last
        updated, and the least factor of that.
    counter_halflife : steps after which an update counts half (negative: never; 0: only the current
        one counts).
    adjustment_iter : counters have an effect after this step.
    adjustment_ub : exponent, or bound, of their effect.
    learning_rate_mode : of rows counted more than `tail_id_threshold` times.
    max_counter : the greatest count that is reckoned with.
    tail_id_threshold : the count above which the mode has an effect.
    tail_id_threshold_is_ratio : whether that is a fraction of `max_counter`.
    weight_norm_coefficient, lower_bound : of CowClip: a row's merged gradient is scaled down to the
        norm n*max(weight_norm_coefficient*||w||, lower_bound) where it is longer; n is the row's
        counter, in adam_with_cowclip the lookups of the row in the batch.
    beta, lambda1, lambda2 : of ftrl, by McMahan et al. 2013: what is added to the root that divides
        (ftrl does not read `eps`); below which |z| a weight is 0; how strongly weights are drawn to
        0.
    steps_before : updates that the states have seen before the first step; counters and bias
        corrections go on from there, schedules do not. A run that takes states over notes it.
    """

    name: str = "exact_rowwise_adagrad"
    learning_rate: float = 0.01
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    weight_decay_mode: Annotated[str, Limits(WEIGHT_DECAY_MODES)] = "none"
    initial_accumulator_value: float = 0.0
    schedule: Schedule = field(default_factory=Schedule)
    momentum: float = 0.9
    eta: float = 0.001
    max_norm: float = 0.0
    max_gradient: float = 0.0
    ar_alpha: float = 0.0
    min_shrinkage: float = 0.1
    counter_halflife: int = -1
    adjustment_iter: int = -1
    adjustment_ub: float = 1.0
    learning_rate_mode: str = "equal"
    max_counter: float = 1.0
    tail_id_threshold: float = 0.0
    tail_id_threshold_is_ratio: bool = False
    weight_norm_coefficient: float = 0.0
    lower_bound: float = 0.0
    beta: float = 1.0
    lambda1: float = 0.0
    lambda2: float = 0.0
    steps_before: int = 0

    @property
    def rule(self) -> Rule:
        """The registry entry of the rule: state tensors and phases."""
        return RULES[DENSE_NAMES.get(self.name, self.name)]

    @property
    def state_floats(self) -> tuple[int, int]:
        """Floats of optimizer state: (per element, per row)."""
        return len(self.rule.element_state), len(self.rule.row_state)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The rule's phases after the merge, one by one."""
        rule = self.rule
        rounds = []
        if rule.direct:
            rounds.append(Round(f"{rule.name}_direct", ("g",)))
        rounds.append(Round(rule.name, ("g", "w")[: rule.row_scalars], rule.counts))
        if self.max_norm:
            rounds.append(Round("limit_norm", ("w",)))
        return tuple(rounds)

    def header(self) -> dict[str, object]:
        """What decides the bits, for digests: keys that were added later are left out at their
        defaults, so that digests of older configs stay.
        """
        later = self._later()
        return {
            key: value
            for key, value in asdict(self).items()
            if key not in later or value != _DEFAULTS[key]
        }

    def faults(self, general: bool = True, trains: bool = True) -> Iterator[tuple[str, str]]:
        """(key, what is wrong with it) of values that do not go together.

        general : the rule is one of tables.
        trains : it is to be trained with, so values with which nothing is learnt are wrong too.
        """
        for beta in ("beta1", "beta2"):
            if getattr(self, beta) >= 1:
                yield beta, f"{getattr(self, beta)} must be below 1"
        if self.weight_decay_mode == "adagradw" and self.name != COUNTER:
            yield "weight_decay_mode", f'"adagradw" is of {COUNTER} only; choose l2 or decoupled'
        yield from self.void(general)
        clips_all = not (self.weight_norm_coefficient or self.lower_bound)
        if trains and self.name in COWCLIPS and clips_all:
            why = (
                "with lower_bound 0 too, every gradient is clipped to 0 and no table learns; Zheng "
                "et al. 2022 take weight_norm_coefficient = 1.0 and lower_bound = 1e-5"
            )
            yield "weight_norm_coefficient", why
        # sqrt(n) is 0 where the square of a first gradient underflows
        if (
            trains
            and self.name == "ftrl"
            and not (self.beta or self.lambda2 or self.initial_accumulator_value)
        ):
            why = (
                "with lambda2 and initial_accumulator_value 0 too, a tiny first gradient is "
                "divided by 0; set one of them above 0"
            )
            yield "beta", why
        for key in ("max_counter", "adjustment_ub"):
            if not getattr(self, key):
                yield key, "it must be above 0"
        if (
            self.name == COUNTER
            and self.weight_decay
            and self.counter_halflife == 0
            and self.weight_decay_mode != "adagradw"
        ):
            yield (
                "counter_halflife",
                "0 makes weight_decay void; choose another half-life, or adagradw",
            )

    def void(self, general: bool = True) -> Iterator[tuple[str, str]]:
        """(key, why) of values other than the default that the rule does not read.

        Not of `eps`, `beta1` and `beta2`, which FBGEMM hands to every rule. general : the rule is
        one of tables.
        """
        if self.weight_decay and self.weight_decay_mode == "none":
            yield "weight_decay_mode", '"none" makes weight_decay void; choose l2 or decoupled'
        read = (*self.rule.options, *EVERYWHERE, *(GENERAL if general else ()))
        for key in self._later():
            if key not in read and getattr(self, key) != _DEFAULTS[key]:
                owners = ", ".join(name for name, rule in RULES.items() if key in rule.options)
                yield (
                    key,
                    f"it has no effect on {self.name}" + (f"; it is of {owners}" if owners else ""),
                )

    def _later(self) -> list[str]:
        names = [spec.name for spec in fields(self)]
        return names[names.index("momentum") :]

    def scaled(self, factor: float) -> Self:
        """The same with another learning rate."""
        return replace(self, learning_rate=self.learning_rate * factor)

    def hyper(self, step: int) -> HyperParameters:
        """What the rule reads at `step` (from 1), in fp32."""
        # computed in fp64, and rounded once, here
        numbers = self.numbers(step)
        return HyperParameters._make(np.array([numbers[name] for name in HYPER], np.float32))

    def numbers(self, step: int) -> dict[str, float]:
        """The numbers of `hyper` in fp64, by name."""
        rate = self.schedule.value(self.learning_rate, step)
        # after the schedule, which starts anew where states were taken over
        step += self.steps_before
        wd = self.weight_decay
        mode = self.weight_decay_mode
        return {
            "lr": rate,
            "eps": self.eps,
            "beta1": self.beta1,
            "one_minus_beta1": 1.0 - self.beta1,
            "beta2": self.beta2,
            "one_minus_beta2": 1.0 - self.beta2,
            "correction1": 1.0 / (1.0 - power(self.beta1, step)),
            "correction2": 1.0 / (1.0 - power(self.beta2, step)),
            "l2": wd if mode == "l2" else 0.0,
            "keep": 1.0 - rate * wd if mode in ("decoupled", "adagradw") else 1.0,
            "decay": wd if mode == "decoupled" else 0.0,
            "momentum": self.momentum,
            "eta": self.eta,
            "max_norm": self.max_norm,
            "step": step,
            "shrinkage": rate * self.ar_alpha,
            "min_shrinkage": self.min_shrinkage,
            **self._counting(step),
            "weight_norm_coefficient": self.weight_norm_coefficient,
            "lower_bound": self.lower_bound,
            "beta": self.beta,
            "lambda1": self.lambda1,
            "lambda2": self.lambda2,
        }

    def _counting(self, step: int) -> dict[str, float]:
        """The numbers that the rules with counters read."""
        tail = self.tail_id_threshold
        return {
            "counter_halflife": self.counter_halflife,
            # FBGEMM keeps the sign: rows with a negative half-life grow
            "counter_frequency": abs(self.counter_halflife),
            "adjusting": self.adjustment_iter <= 0 or step > self.adjustment_iter,
            "adjusted_steps": step - self.adjustment_iter,
            "learning_rate_mode": RATE_MODES[self.learning_rate_mode],
            "adagradw": self.weight_decay_mode == "adagradw",
            "max_counter": self.max_counter,
            "tail_id_threshold": math.floor(tail * self.max_counter)
            if self.tail_id_threshold_is_ratio
            else tail,
            "adjustment_ub": self.adjustment_ub,
        }


_DEFAULTS = asdict(SparseOptimizer())
