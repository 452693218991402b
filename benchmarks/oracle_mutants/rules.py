"""How does a row move? The optimizers of docs/arithmetic.md §5, in fp32."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.oracle_mutants.formats import F32, fused
from benchmarks.oracle_mutants.questions import Array

STATES: dict[str, tuple[str, ...]] = {
    "exact_sgd": (),
    "momentum_sgd": ("momentum_buffer",),
    "lars_sgd": ("momentum_buffer",),
    "exact_adagrad": ("sum",),
    "exact_rowwise_adagrad": ("sum",),
    "exact_rowwise_adagrad_with_cowclip": ("sum", "prev_iter", "row_counter"),
    "exact_rowwise_adagrad_with_counter": ("sum", "prev_iter", "row_counter"),
    "adam": ("exp_avg", "exp_avg_sq"),
    "partial_rowwise_adam": ("exp_avg", "exp_avg_sq"),
    "lamb": ("exp_avg", "exp_avg_sq"),
    "partial_rowwise_lamb": ("exp_avg", "exp_avg_sq"),
    "rowwise_rmsprop": ("square_avg", "prev_iter"),
}
OWN_DECAY = ("lamb", "partial_rowwise_lamb", "exact_rowwise_adagrad_with_counter")


@dataclass
class Update:
    """The rows of one step: weights, gradients, states, and the constants of the rule."""

    w: Array  # fp32[U, D]
    g: Array
    states: dict[str, Array]
    options: dict[str, Any]
    squares: Array  # sums of the squares of single gradients
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
    ) -> "Update":
        """An update from a case's options."""
        mode = options["weight_decay_mode"]
        return cls(
            w=w,
            g=g,
            states=states,
            options=options,
            squares=squares,
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


class Rules(Arithmetic):
    """One method for each rule, small ones for its terms."""

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
        if u.mode != "decoupled" or not u.decay:
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

    # The rules.

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

    def rule_rowwise_adagrad(self, u: Update) -> None:
        """AdaGrad with one sum for each row."""
        self.subtract(u, self.row_rate(u)[:, None], u.g)

    def row_rate(self, u: Update) -> Array:
        """lr / (sqrt(s) + eps) of each row, after s took the gradient in."""
        old = u.states["sum"]
        new = self.adagrad_state(u, old, self.mean_square(u, u.g))
        u.states["sum"] = new
        return self.over(u.lr, self.root_for_step(u, old, new))

    def rule_rowwise_adagrad_with_cowclip(self, u: Update) -> None:
        """Row-wise AdaGrad, gradients clipped by the row's norm and its count."""
        count = self.count(u)
        rate = self.row_rate(u)
        factor = (self.cowclip(u, count, self.norm(u.w), self.norm(u.g)) * rate).astype(F32)
        self.subtract(u, factor[:, None], u.g)

    def cowclip(self, u: Update, count: Array, weight: Array, gradient: Array) -> Array:
        """min(n * max(kappa * |w|, lambda) / |g|, 1)."""
        kappa = F32(u.options["weight_norm_coefficient"])
        least = F32(u.options["lower_bound"])
        limit = (count * np.maximum(kappa * weight, least)).astype(F32)
        safe = np.where(gradient == 0, F32(1), gradient)
        return np.where(gradient == 0, F32(1), np.minimum(self.over(limit, safe), F32(1)))

    def age(self, u: Update) -> Array:
        """Steps since a row's last update, 1 for its first."""
        before = u.states["prev_iter"]
        return np.where(before == 0, F32(1), F32(u.t) - before).astype(F32)

    def count(self, u: Update) -> Array:
        """Row counters after this update; the step of the update is kept too."""
        half = float(u.options["counter_halflife"])
        n = u.states["row_counter"]
        if half > 0:
            fade = np.exp(-(self.age(u).astype(np.float64) * math.log(2.0)) / half).astype(F32)
            n = self.madd(fade, n, F32(1))
        else:
            n = np.ones_like(n) if half == 0 else (n + F32(1)).astype(F32)
        u.states["row_counter"] = self.counted(u, n)
        u.states["prev_iter"] = self.dated(u)
        return n

    def counted(self, u: Update, n: Array) -> Array:
        """Row counters as they are stored."""
        return n

    def dated(self, u: Update) -> Array:
        """The step of the last update, as it is stored."""
        return np.full_like(u.states["prev_iter"], F32(u.t))

    def rule_rowwise_adagrad_with_counter(self, u: Update) -> None:
        """Row-wise AdaGrad whose rate and decay follow row counters."""
        age = self.age(u)
        n = self.count(u)
        new = self.adagrad_state(u, u.states["sum"], self.mean_square(u, u.g))
        root = self.root_for_step(u, u.states["sum"], new)
        u.states["sum"] = new
        m = self.over(u.lr, root)
        a = m
        k = np.ones_like(m)
        f = np.zeros_like(m)
        if u.options["adjustment_iter"] <= 0 or u.t > u.options["adjustment_iter"]:
            f = self.decay_share(u, n)
            a, k = self.adjusted(u, m, n, root, age)
        k = self.counter_decay(u, a, k, m, f)
        u.w = self.madd(-a[:, None], u.g, (k[:, None] * u.w).astype(F32))

    def decay_share(self, u: Update, n: Array) -> Array:
        """|half-life| / n."""
        return self.over(F32(abs(float(u.options["counter_halflife"]))), n)

    def tail(self, u: Update) -> float:
        """The count from which on a row is no tail."""
        threshold = float(u.options["tail_id_threshold"])
        if u.options["tail_id_threshold_is_ratio"]:
            return math.floor(threshold * float(u.options["max_counter"]))
        return threshold

    def is_frequent(self, u: Update, n: Array) -> Array:
        """Is the row beyond the threshold?"""
        return n > F32(self.tail(u))

    def adjusted(
        self, u: Update, m: Array, n: Array, root: Array, age: Array
    ) -> tuple[Array, Array]:
        """Rate and decay factor by learning_rate_mode."""
        ub = float(u.options["adjustment_ub"])
        most = float(u.options["max_counter"])
        half = float(u.options["counter_halflife"])
        mode = u.options["learning_rate_mode"]
        frequent = self.is_frequent(u, n)
        one = np.ones_like(m)
        wide = n.astype(np.float64)
        if mode == "tail_id_lr_increase":
            power = ((most / (wide + 1)) ** ub).astype(F32)
            rate = m * np.maximum(np.minimum(power, F32(10)), F32(1))
        elif mode == "tail_id_lr_decrease":
            power = (((wide + 1) / most) ** ub).astype(F32)
            rate = m * np.minimum(np.maximum(power, F32(0.1)), F32(1))
        elif mode == "counter_sgd":
            rate = self.over(u.lr, self.sqrt((F32(ub) * n).astype(F32)) + u.eps)
        elif mode == "adagradw":
            rate = m
            if half == -1:
                rate = m * self.sqrt(n)
            elif half == -2:
                rate = self.over(np.minimum(u.lr * n, F32(ub)), root)
            factor = F32(1.0 - float(u.options["learning_rate"]) * u.decay)
            idle = np.minimum(age, F32(u.t) - F32(u.options["adjustment_iter"])) - 1
            z = (np.float64(factor) ** idle.astype(np.float64)).astype(F32)
            return np.where(frequent, rate * z, m).astype(F32), np.where(
                frequent, factor * z, one
            ).astype(F32)
        else:
            return m, one
        return np.where(frequent, rate, m).astype(F32), one

    def counter_decay(self, u: Update, a: Array, k: Array, m: Array, f: Array) -> Array:
        """What the row is multiplied by."""
        if u.mode == "decoupled" and u.decay:
            return (F32(1) - f * F32(u.decay) * u.lr).astype(F32)
        if u.mode == "l2" and u.decay:
            return (F32(1) - F32(u.decay) * (f * m - a)).astype(F32)
        return k

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

    def rule_rowwise_rmsprop(self, u: Update) -> None:
        """Row-wise RMSProp that shrinks rows by their age."""
        v = self.moment(u, "beta2", u.states["square_avg"], self.mean_square(u, u.g))
        keep = self.shrinkage(u, self.age(u))
        u.states["square_avg"] = v
        u.states["prev_iter"] = self.dated(u)
        rate = self.over(u.lr, self.root(u, v))
        w = (keep[:, None] * self.decayed(u)).astype(F32)
        u.w = self.madd(-rate[:, None], u.g, w)

    def shrinkage(self, u: Update, age: Array) -> Array:
        """What rows of that age are multiplied by."""
        h = F32(float(u.options["learning_rate"]) * float(u.options["ar_alpha"]))
        keep = (F32(1) - np.minimum(h * age, F32(1))).astype(F32)
        return np.maximum(keep, F32(u.options["min_shrinkage"]))

    def normalized(self, u: Update, limit: float) -> Array:
        """Rows longer than max_norm, scaled down to it."""
        norm = self.norm(u.w)
        longer = self.is_longer(norm, F32(limit))
        factor = self.over(F32(limit), np.where(longer, norm, F32(1)))
        return np.where(longer[:, None], factor[:, None] * u.w, u.w).astype(F32)

    def is_longer(self, norm: Array, limit: np.float32) -> Array:
        """Is the row longer than max_norm?"""
        return norm > limit


__all__ = ["STATES", "Arithmetic", "Rules", "Update", "fused"]
