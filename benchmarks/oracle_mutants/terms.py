"""What are optimizers made of? The rows of a step, and the terms that rules share."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.questions import Array


@dataclass
class Update:
    """The rows of one step: weights, gradients, states, and the constants of the rule."""

    w: Array  # fp32[U, D]
    g: Array
    states: dict[str, Array]
    options: dict[str, Any]
    squares: Array  # sums of the squares of single gradients
    lookups: Array  # fp32[U]: of each row in the batch
    lr: np.float32
    eps: np.float32
    decay: float
    mode: str
    t: int
    old: Array  # the rows before the step
    raw: Array  # the merged gradient before decay joins it

    @classmethod
    def of(
        cls,
        w: Array,
        g: Array,
        states: dict[str, Array],
        options: dict[str, Any],
        squares: Array,
        lookups: Array,
    ) -> "Update":
        """An update from a case's options."""
        mode = options["weight_decay_mode"]
        return cls(
            w=w,
            g=g,
            states=states,
            options=options,
            squares=squares,
            lookups=lookups,
            lr=F32(options["learning_rate"]),
            eps=F32(options["eps"]),
            decay=float(options["weight_decay"]) if mode != "none" else 0.0,
            mode=mode,
            t=int(options["step"]),
            old=w.copy(),
            raw=g.copy(),
        )

    @property
    def columns(self) -> int:
        """D."""
        return self.w.shape[1]


class Arithmetic:
    """The operations that kernels may order and round in their own ways."""

    def madd(self, a: Any, b: Any, c: Any) -> Array:
        """a * b + c in fp32."""
        return np.asarray(np.asarray(a, F32) * np.asarray(b, F32) + np.asarray(c, F32), F32)

    def over(self, a: Any, b: Any) -> Array:
        """a / b in fp32."""
        return np.asarray(np.asarray(a, F32) / np.asarray(b, F32), F32)

    def sqrt(self, x: Array) -> Array:
        """Square roots in fp32."""
        return np.sqrt(x.astype(F32))

    def column_sum(self, x: Array) -> Array:
        """Sums over columns: fp32[n, D] -> fp32[n]."""
        total = np.zeros(len(x), F32)
        for column in range(x.shape[1]):
            total = total + x[:, column]
        return total


class Terms(Arithmetic):
    """Terms of several rules, a method each."""

    def step_number(self, t: int) -> int:
        """The number of the step, as the rule takes it."""
        return t

    def rate(self, u: Update) -> np.float32:
        """The learning rate."""
        return u.lr

    def with_l2(self, u: Update) -> Array:
        """Gradients with L2 decay."""
        return self.madd(F32(u.decay), u.w, u.g)

    def decayed(self, u: Update) -> Array:
        """Rows with decoupled decay."""
        if u.mode not in ("decoupled", "decoupled_global") or not u.decay:
            return u.w
        return (u.w * self.decay_factor(u)).astype(F32)

    def decay_factor(self, u: Update) -> np.float32:
        """What decoupled decay multiplies rows by."""
        return F32(1.0 - float(u.options["learning_rate"]) * u.decay)

    def subtract(self, u: Update, factor: Any, direction: Array) -> None:
        """w = w - factor * direction, decayed first."""
        u.w = self.madd(-np.asarray(factor, F32), direction, self.decayed(u))

    def square_of(self, u: Update, g: Array) -> Array:
        """Squares of the gradient's elements."""
        return (g * g).astype(F32)

    def mean_square(self, u: Update, g: Array) -> Array:
        """Mean of squares over columns: fp32[U]."""
        return self.over(self.column_sum(self.square_of(u, g)), self.mean_columns(u))

    def mean_columns(self, u: Update) -> Any:
        """What the mean over columns divides by."""
        return F32(u.columns)

    def norm(self, x: Array) -> Array:
        """Euclidean length of rows: fp32[U]."""
        return self.sqrt(self.column_sum((x * x).astype(F32)))

    def root(self, u: Update, x: Array) -> Array:
        """sqrt(x) + eps."""
        return (self.sqrt(x) + u.eps).astype(F32)

    def adagrad_state(self, u: Update, s: Array, square: Array) -> Array:
        """AdaGrad's new sum."""
        return (s + square).astype(F32)

    def root_for_step(self, u: Update, old: Array, new: Array) -> Array:
        """The root that AdaGrad's step is divided by."""
        return self.root(u, new)

    def moment(self, u: Update, beta: str, old: Array, new: Array) -> Array:
        """beta * old + (1 - beta) * new."""
        b = float(u.options[beta])
        return self.madd(F32(b), old, (F32(1.0 - b) * new).astype(F32))

    def corrections(self, u: Update) -> tuple[np.float32, np.float32]:
        """Factors that correct both moments for their start at 0."""
        first = 1.0 - np.float64(u.options["beta1"]) ** u.t
        second = 1.0 - np.float64(u.options["beta2"]) ** u.t
        return F32(1.0 / first), F32(1.0 / second)

    def momentum(self, u: Update, m: Array, g: Array) -> Array:
        """The new momentum."""
        return self.madd(F32(u.options["momentum"]), m, g)

    def normalized(self, u: Update, limit: float) -> Array:
        """Rows longer than max_norm, scaled down to it."""
        norm = self.norm(u.w)
        longer = self.is_longer(norm, F32(limit))
        factor = self.over(F32(limit), np.where(longer, norm, F32(1)))
        return np.where(longer[:, None], factor[:, None] * u.w, u.w).astype(F32)

    def is_longer(self, norm: Array, limit: np.float32) -> Array:
        """Is the row longer than max_norm?"""
        return norm > limit
