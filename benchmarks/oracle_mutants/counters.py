"""Which rules count? Those that know how often and how long ago a row was updated."""

import math

import numpy as np

from benchmarks.oracle_mutants.formats import F32
from benchmarks.oracle_mutants.questions import Array
from benchmarks.oracle_mutants.terms import Terms, Update


class Counters(Terms):
    """CowClip, row-wise AdaGrad with counters, row-wise RMSProp."""

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
            a = self.adjusted(u, m, n)
            if u.options["weight_decay_mode"] == "adagradw":
                a, k = self.adagradw(u, a, m, n, root, age)
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

    def adjusted(self, u: Update, m: Array, n: Array) -> Array:
        """Rate by learning_rate_mode."""
        ub = float(u.options["adjustment_ub"])
        most = float(u.options["max_counter"])
        mode = u.options["learning_rate_mode"]
        frequent = self.is_frequent(u, n)
        wide = n.astype(np.float64)
        if mode == "tail_id_lr_increase":
            power = ((most / (wide + 1)) ** ub).astype(F32)
            rate = m * np.maximum(np.minimum(power, F32(10)), F32(1))
        elif mode == "tail_id_lr_decrease":
            power = (((wide + 1) / most) ** ub).astype(F32)
            rate = m * np.minimum(np.maximum(power, F32(0.1)), F32(1))
        elif mode == "counter_sgd":
            rate = self.over(u.lr, self.sqrt((F32(ub) * n).astype(F32)) + u.eps)
        else:
            return m
        return np.where(frequent, rate, m).astype(F32)

    def adagradw(
        self, u: Update, rate: Array, m: Array, n: Array, root: Array, age: Array
    ) -> tuple[Array, Array]:
        """Rate by the count, and decay for the steps that a row missed.

        rate : by learning_rate_mode, for other half-lives than -1 and -2.
        """
        half = float(u.options["counter_halflife"])
        if half == -1:
            rate = m * self.sqrt(n)
        elif half == -2:
            most = F32(float(u.options["adjustment_ub"]))
            rate = self.over(np.minimum(u.lr * n, most), root)
        factor = F32(1.0 - float(u.options["learning_rate"]) * u.decay)
        idle = np.minimum(age, F32(u.t) - F32(u.options["adjustment_iter"])) - 1
        z = (np.float64(factor) ** idle.astype(np.float64)).astype(F32)
        return (rate * z).astype(F32), (factor * z).astype(F32)

    def counter_decay(self, u: Update, a: Array, k: Array, m: Array, f: Array) -> Array:
        """What the row is multiplied by."""
        if u.mode == "decoupled" and u.decay:
            return (F32(1) - f * F32(u.decay) * u.lr).astype(F32)
        if u.mode == "l2" and u.decay:
            return (F32(1) - F32(u.decay) * (f * m - a)).astype(F32)
        return k

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
