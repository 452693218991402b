"""How does a row move? The optimizers of docs/arithmetic.md §5, in fp32."""

from typing import Any

import numpy as np

from benchmarks.oracle_mutants.counters import Counters
from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.terms import Update

STATES: dict[str, tuple[str, ...]] = {
    "exact_sgd": (),
    "momentum_sgd": ("momentum_buffer",),
    "lars_sgd": ("momentum_buffer",),
    "exact_adagrad": ("sum",),
    "exact_rowwise_adagrad": ("sum",),
    "exact_rowwise_adagrad_with_cowclip": ("sum", "prev_iter", "row_counter"),
    "exact_rowwise_adagrad_with_counter": ("sum", "prev_iter", "row_counter"),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adam_with_cowclip": ("exp_avg", "exp_avg_sq"),
    "partial_rowwise_adam": ("exp_avg", "exp_avg_sq"),
    "lamb": ("exp_avg", "exp_avg_sq"),
    "partial_rowwise_lamb": ("exp_avg", "exp_avg_sq"),
    "rowwise_rmsprop": ("square_avg", "prev_iter"),
    "ftrl": ("accumulator", "linear"),
}


class Rules(Counters):
    """One method for each rule."""

    def step(self, u: Update) -> None:
        """Update rows and states by the rule of the options."""
        u.t = self.step_number(u.t)
        u.lr = self.rate(u)
        name = u.options["optimizer"]
        if u.mode == "l2" and name != "lars_sgd":
            u.g = self.with_l2(u)
        getattr(self, f"rule_{name.removeprefix('exact_')}")(u)
        if u.options.get("max_norm", 0.0) > 0:
            u.w = self.normalized(u, float(u.options["max_norm"]))

    def rule_sgd(self, u: Update) -> None:
        """w - lr * g."""
        self.subtract(u, u.lr, u.g)

    def rule_momentum_sgd(self, u: Update) -> None:
        """w - lr * m."""
        m = self.momentum(u, u.states["momentum_buffer"], u.g)
        u.states["momentum_buffer"] = m
        self.subtract(u, *self.momentum_step(u, m))

    def momentum_step(self, u: Update, m: Array) -> tuple[Any, Array]:
        """Factor and direction of the step."""
        return u.lr, m

    def rule_lars_sgd(self, u: Update) -> None:
        """Momentum with a rate for each row."""
        ratio = self.lars_ratio(u, self.norm(u.g), self.norm(u.w))
        alpha = (u.lr * ratio).astype(F32)
        if u.mode == "l2":
            u.g = self.with_l2(u)
        m = self.momentum(u, u.states["momentum_buffer"], (alpha[:, None] * u.g).astype(F32))
        u.states["momentum_buffer"] = m
        u.w = (self.decayed(u) - m).astype(F32)

    def lars_ratio(self, u: Update, gradient: Array, weight: Array) -> Array:
        """eta * |w| / (|g| + wd * |w|), 1 where a norm is 0."""
        decay = F32(u.decay if u.mode == "l2" else 0.0)
        below = self.madd(decay, weight, gradient)
        ratio = self.over(F32(u.options["eta"]) * weight, np.where(below == 0, F32(1), below))
        return np.where(self.has_norms(gradient, weight), ratio, F32(1))

    def has_norms(self, first: Array, second: Array) -> Array:
        """Is neither norm 0?"""
        return (first != 0) & (second != 0)

    def rule_adagrad(self, u: Update) -> None:
        """w - lr * g / (sqrt(s) + eps)."""
        old = u.states["sum"]
        new = self.adagrad_state(u, old, self.square_of(u, u.g))
        u.states["sum"] = new
        step = self.over(self.rated(u), self.root_for_step(u, old, new))
        u.w = (self.decayed(u) - step).astype(F32)

    def rated(self, u: Update) -> Array:
        """lr * g."""
        return (u.lr * u.g).astype(F32)

    def moments(self, u: Update, square: Array) -> tuple[Array, Array]:
        """Both moments, stored."""
        m = self.moment(u, "beta1", u.states["exp_avg"], u.g)
        v = self.moment(u, "beta2", u.states["exp_avg_sq"], square)
        u.states["exp_avg"] = self.kept_first(u, m)
        u.states["exp_avg_sq"] = self.kept_second(u, v)
        return m, v

    def kept_first(self, u: Update, m: Array) -> Array:
        """The first moment as it is stored."""
        return m

    def kept_second(self, u: Update, v: Array) -> Array:
        """The second moment as it is stored."""
        return v

    def direction(self, u: Update, square: Array) -> Array:
        """m' / (sqrt(v') + eps) of Adam."""
        m, v = self.moments(u, square)
        c1, c2 = self.corrections(u)
        below = self.adam_root(u, v, c2)
        below = below[:, None] if below.ndim == 1 else below
        return self.over((m * c1).astype(F32), below)

    def adam_root(self, u: Update, v: Array, c2: np.float32) -> Array:
        """sqrt(v') + eps."""
        return self.root(u, (v * c2).astype(F32))

    def rule_adam(self, u: Update) -> None:
        """Adam."""
        self.subtract(u, u.lr, self.direction(u, self.square_of(u, u.g)))

    def rule_adam_with_cowclip(self, u: Update) -> None:
        """Adam of gradients clipped by the row's norm and its lookups."""
        clip = self.cowclip(u, u.lookups, self.norm(u.w), self.norm(u.g))
        u.g = (clip[:, None] * u.g).astype(F32)
        self.rule_adam(u)

    def rule_partial_rowwise_adam(self, u: Update) -> None:
        """Adam with one second moment for each row."""
        self.subtract(u, u.lr, self.direction(u, self.mean_square(u, u.g)))

    def rule_lamb(self, u: Update) -> None:
        """Adam's direction, as long as the row."""
        self.lamb_step(u, self.direction(u, self.square_of(u, u.g)))

    def rule_partial_rowwise_lamb(self, u: Update) -> None:
        """LAMB with one second moment for each row."""
        self.lamb_step(u, self.direction(u, self.mean_square(u, u.g)))

    def lamb_step(self, u: Update, direction: Array) -> None:
        """The step of a direction, scaled by the ratio of norms."""
        direction = self.lamb_decay(u, direction)
        ratio = self.lamb_ratio(u, self.norm(u.w), self.norm(direction))
        u.w = self.madd(-(u.lr * ratio).astype(F32)[:, None], direction, u.w)

    def lamb_decay(self, u: Update, direction: Array) -> Array:
        """The direction with decoupled decay."""
        if u.mode != "decoupled":
            return direction
        return self.madd(F32(u.decay), u.w, direction)

    def lamb_ratio(self, u: Update, weight: Array, direction: Array) -> Array:
        """|w| / |u|, 1 where a norm is 0."""
        safe = np.where(direction == 0, F32(1), direction)
        return np.where(self.has_norms(weight, direction), self.over(weight, safe), F32(1))

    def rule_ftrl(self, u: Update) -> None:
        """FTRL-proximal."""
        w = self.decayed(u)
        n = u.states["accumulator"]
        new = self.adagrad_state(u, n, self.square_of(u, u.g))
        root = self.sqrt(new)
        sigma = self.over(root - self.sqrt(n), u.lr)
        z = self.ftrl_linear(u, u.states["linear"], sigma, w)
        u.states["accumulator"] = new
        u.states["linear"] = z
        u.w = self.ftrl_weight(u, z, root)

    def ftrl_linear(self, u: Update, z: Array, sigma: Array, w: Array) -> Array:
        """z + g - sigma * w."""
        return ((z + u.g).astype(F32) - (sigma * w).astype(F32)).astype(F32)

    def ftrl_weight(self, u: Update, z: Array, root: Array) -> Array:
        """(sign(z) * lambda1 - z) / ((beta + root) / lr + lambda2), 0 within lambda1."""
        least = F32(u.options["lambda1"])
        slope = self.over(F32(u.options["beta"]) + root, u.lr) + F32(u.options["lambda2"])
        w = self.over(np.copysign(least, z) - z, slope)
        return np.where(np.abs(z) <= least, F32(0), w)
