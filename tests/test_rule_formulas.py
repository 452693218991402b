"""Are the update rules what papers, FBGEMM and torch say they are? Formulas in fp64, written from
those, over several steps.

Bits are the business of `test_rules.py`. Here every rule follows rows that some steps skip, with
weight decay of each kind, and may differ from the formula by some roundings only.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from test_rules import COUNTER, COWCLIP

from neocpu.core.rules import RULES
from neocpu.kernels.rows import rules
from neocpu.kernels.twins.rows.update import square_tree
from neocpu.tables.specs.optimizers import SparseOptimizer

# a row that is looked up at these steps only
D = 6
STEPS = (1, 2, 5, 6, 11)
LOOKUPS = 3  # of the row, at each of these steps
BASE = SparseOptimizer(
    learning_rate=0.1, weight_decay=0.3, momentum=0.8, eta=0.05, beta1=0.7, beta2=0.9
)


@dataclass
class Formula:
    """A row in fp64, updated as FBGEMM's `optimizers.py` or the paper has it; states by name."""

    o: SparseOptimizer
    w: np.ndarray
    s: dict = field(default_factory=dict)

    def get(self, name, like=0.0):
        return self.s.get(name, like)

    @property
    def wd(self):
        return self.o.weight_decay if self.o.weight_decay_mode != "none" else 0.0

    def step(self, g, t):
        o, mode = self.o, self.o.weight_decay_mode
        raw = g
        g = g + self.wd * self.w if mode == "l2" else g
        getattr(self, o.name)(raw if o.name in ("lars_sgd", COUNTER) else g, t)
        if o.max_norm and (norm := np.linalg.norm(self.w)) > o.max_norm:
            self.w = self.w * o.max_norm / norm

    def shrink(self):
        return (
            1 - self.o.learning_rate * self.wd if self.o.weight_decay_mode == "decoupled" else 1.0
        )

    def exact_sgd(self, g, t):
        self.w = self.shrink() * self.w - self.o.learning_rate * g

    def momentum_sgd(self, g, t):
        m = self.s["m"] = self.o.momentum * self.get("m") + g
        self.w = self.shrink() * self.w - self.o.learning_rate * m

    def lars_sgd(self, g, t):
        o, wd = self.o, self.wd if self.o.weight_decay_mode == "l2" else 0.0
        norm = np.linalg.norm(self.w)
        trust = o.eta * norm / (np.linalg.norm(g) + wd * norm)
        m = self.s["m"] = o.momentum * self.get("m") + o.learning_rate * trust * (g + wd * self.w)
        self.w = self.shrink() * self.w - m

    def exact_adagrad(self, g, t):
        s = self.s["s"] = self.get("s") + g * g
        self.w = self.shrink() * self.w - self.o.learning_rate * g / (np.sqrt(s) + self.o.eps)

    def ftrl(self, g, t):
        o = self.o
        old = self.get("n")
        n = self.s["n"] = old + g * g
        sigma = (np.sqrt(n) - np.sqrt(old)) / o.learning_rate
        z = self.s["z"] = self.get("z") + g - sigma * self.shrink() * self.w
        outside = np.sign(z) * o.lambda1 - z
        slope = (o.beta + np.sqrt(n)) / o.learning_rate + o.lambda2
        self.w = np.where(np.abs(z) <= o.lambda1, 0, outside / slope)

    def exact_rowwise_adagrad(self, g, t):
        s = self.s["s"] = self.get("s") + np.mean(g * g)
        self.w = self.shrink() * self.w - self.o.learning_rate * g / (math.sqrt(s) + self.o.eps)

    def gap(self, t):
        before = self.get("t")
        self.s["t"] = t
        return t - before if before else 1

    def count(self, gap):
        h = self.o.counter_halflife
        n = self.get("n")
        self.s["n"] = 1 + 0.5 ** (gap / h) * n if h > 0 else n + 1 if h < 0 else 1.0
        return self.s["n"]

    def exact_rowwise_adagrad_with_counter(self, g, t):
        o, lr, wd, gap = self.o, self.o.learning_rate, self.wd, self.gap(t)
        n = self.count(gap)
        regular = g + wd * self.w if o.weight_decay_mode == "l2" else g
        s = self.s["s"] = self.get("s") + np.mean(regular**2)
        root = math.sqrt(s) + o.eps
        rate = adjusted = lr / root
        enabled = o.adjustment_iter <= 0 or t > o.adjustment_iter
        keep = 1.0
        tail = (
            math.floor(o.tail_id_threshold * o.max_counter)
            if o.tail_id_threshold_is_ratio
            else o.tail_id_threshold
        )
        if enabled and n > tail and o.learning_rate_mode != "equal":
            adjusted = {
                "tail_id_lr_increase": rate
                * max(min((o.max_counter / (n + 1)) ** o.adjustment_ub, 10), 1),
                "tail_id_lr_decrease": rate
                * min(max(((n + 1) / o.max_counter) ** o.adjustment_ub, 0.1), 1),
                "counter_sgd": lr / (math.sqrt(o.adjustment_ub * n) + o.eps),
            }[o.learning_rate_mode]
        if enabled and o.weight_decay_mode == "adagradw":
            adjusted = rate * math.sqrt(n) if o.counter_halflife == -1 else adjusted
            adjusted = min(lr * n, o.adjustment_ub) / root if o.counter_halflife == -2 else adjusted
            lazy = (1 - wd * lr) ** (min(gap, t - o.adjustment_iter) - 1)
            adjusted = adjusted * lazy
            keep = (1 - wd * lr) * lazy
        elif enabled and wd:
            share = abs(o.counter_halflife) / n
            keep = 1 - share * wd * (lr if o.weight_decay_mode == "decoupled" else rate)
        self.w = keep * self.w - adjusted * g

    def exact_rowwise_adagrad_with_cowclip(self, g, t):
        o = self.o
        n = self.count(self.gap(t))
        s = self.s["s"] = self.get("s") + np.mean(g * g)
        limit = n * max(o.weight_norm_coefficient * np.linalg.norm(self.w), o.lower_bound)
        rate = min(1.0, limit / np.linalg.norm(g)) * o.learning_rate / (math.sqrt(s) + o.eps)
        self.w = self.shrink() * self.w - rate * g

    def rowwise_rmsprop(self, g, t):
        o = self.o
        gap = self.gap(t)
        v = self.s["v"] = o.beta2 * self.get("v") + (1 - o.beta2) * np.mean(g * g)
        keep = max(o.min_shrinkage, 1 - min(1, o.learning_rate * o.ar_alpha * gap))
        self.w = keep * self.shrink() * self.w - o.learning_rate * g / (math.sqrt(v) + o.eps)

    def direction(self, g, t, square):
        o = self.o
        m = self.s["m"] = o.beta1 * self.get("m") + (1 - o.beta1) * g
        v = self.s["v"] = o.beta2 * self.get("v") + (1 - o.beta2) * square
        return m / (1 - o.beta1**t) / (np.sqrt(v / (1 - o.beta2**t)) + o.eps)

    def adam(self, g, t):
        self.w = self.shrink() * self.w - self.o.learning_rate * self.direction(g, t, g * g)

    def adam_with_cowclip(self, g, t):
        o = self.o
        limit = LOOKUPS * max(o.weight_norm_coefficient * np.linalg.norm(self.w), o.lower_bound)
        self.adam(g * min(1.0, limit / np.linalg.norm(g)), t)

    def partial_rowwise_adam(self, g, t):
        self.w = self.shrink() * self.w - self.o.learning_rate * self.direction(
            g, t, np.mean(g * g)
        )

    def lamb(self, g, t, square=None):
        r = self.direction(g, t, g * g if square is None else square)
        r = r + self.wd * self.w if self.o.weight_decay_mode == "decoupled" else r
        self.w = self.w - self.o.learning_rate * np.linalg.norm(self.w) / np.linalg.norm(r) * r

    def partial_rowwise_lamb(self, g, t):
        self.lamb(g, t, np.mean(g * g))


def ours(optimizer, w, gradients):
    """A row of at most 8 numbers after its updates at the steps of `gradients`."""
    name = optimizer.rule.name
    rule = optimizer.rule
    w = w.copy()
    states = rule.element_record(*(np.zeros(w.size, np.float32) for _ in rule.element_state))
    row = rule.row_record(*(np.zeros(1, np.float32) for _ in rule.row_state))
    for t, g in gradients.items():
        g = g.copy()
        hyper = optimizer.hyper(t)
        getattr(rules, f"{name}_prepare", rules.regularise)(w, g, states, hyper)
        for phase, of, counts in optimizer.rounds:
            squares = [square_tree({"g": g, "w": w}[x], 8) for x in of]
            squares = np.array(squares + [np.float32(LOOKUPS)] * counts)
            getattr(rules, phase)(w, g, states, row, squares, np.float32(w.size), hyper)
    return w


def settings():
    """Every rule with every kind of weight decay, and every branch of the counters."""
    for name, rule in RULES.items():
        for mode in ("none", "l2", "decoupled") if rule.updates else ():
            one = replace(
                BASE, name=name, weight_decay_mode=mode, ar_alpha=2.0, max_norm=1.5 * (mode == "l2")
            )
            one = replace(one, counter_halflife=3, weight_norm_coefficient=0.2, lower_bound=0.05)
            one = replace(one, beta=0.5, lambda1=0.8, lambda2=0.3)
            yield pytest.param(one, id=f"{name}-{mode}")
    base = replace(BASE, name=COUNTER, max_counter=4.0, adjustment_ub=0.6)
    for i, change in enumerate(
        (
            {
                "weight_decay_mode": "l2",
                "learning_rate_mode": "tail_id_lr_increase",
                "counter_halflife": -1,
            },
            {
                "weight_decay_mode": "l2",
                "learning_rate_mode": "tail_id_lr_decrease",
                "adjustment_iter": 5,
            },
            {
                "weight_decay_mode": "decoupled",
                "learning_rate_mode": "counter_sgd",
                "counter_halflife": 7,
            },
            {"weight_decay_mode": "decoupled", "counter_halflife": 0, "weight_decay": 0.0},
            {"weight_decay_mode": "adagradw"},
            {"weight_decay_mode": "adagradw", "counter_halflife": -2, "adjustment_iter": 2},
            {
                "weight_decay_mode": "adagradw",
                "counter_halflife": 4,
                "learning_rate_mode": "tail_id_lr_decrease",
            },
            {"learning_rate_mode": "tail_id_lr_increase", "max_counter": 1e6},
            {
                "learning_rate_mode": "tail_id_lr_increase",
                "tail_id_threshold": 0.7,
                "tail_id_threshold_is_ratio": True,
            },
            {
                "learning_rate_mode": "tail_id_lr_increase",
                "tail_id_threshold": 3.0,
                "counter_halflife": -1,
            },
        )
    ):
        yield pytest.param(replace(base, **change), id=f"counter-{i}")


@pytest.mark.parametrize("optimizer", list(settings()))
def test_rules_follow_their_formulas(optimizer):
    rng = np.random.default_rng(4)
    w = rng.standard_normal(D).astype(np.float32)
    gradients = {t: rng.standard_normal(D).astype(np.float32) for t in STEPS}
    formula = Formula(optimizer, w.astype(np.float64))
    for t, g in gradients.items():
        formula.step(g.astype(np.float64), t)
    np.testing.assert_allclose(ours(optimizer, w, gradients), formula.w, rtol=2e-6, atol=2e-6)
    # tolerances tell it from any rule that forgets a part
    assert np.abs(formula.w - w).max() > 0.05


@pytest.mark.parametrize("name", ["lamb", "partial_rowwise_lamb", "lars_sgd"])
def test_the_trust_ratio_is_1_where_a_norm_is_0(name):
    optimizer = SparseOptimizer(name, 0.5, momentum=0.0)
    rng = np.random.default_rng(2)
    zero = np.zeros(D, np.float32)
    g = rng.standard_normal(D).astype(np.float32)
    w = ours(optimizer, zero, {1: g})
    assert np.isfinite(w).all() and w.any()
    if name == "lars_sgd":
        np.testing.assert_array_equal(w, np.float32(-0.5) * g)
    np.testing.assert_array_equal(ours(optimizer, g, {1: zero}), g)


def test_a_counter_with_a_negative_half_life_never_makes_rows_grow():
    """FBGEMM's default half-life -1 gives its frequency a sign, and decoupled weight decay then
    grows the row.
    """
    optimizer = SparseOptimizer(COUNTER, 0.1, weight_decay=0.5, weight_decay_mode="decoupled")
    w = np.ones(D, np.float32)
    np.testing.assert_allclose(ours(optimizer, w, {1: 0 * w}), 0.95)


def test_clipping_by_cowclip_grows_with_the_count():
    optimizer = SparseOptimizer(COWCLIP, 0.1, weight_norm_coefficient=0.0, lower_bound=1.0)
    w = np.zeros(D, np.float32)
    g = np.full(D, 100, np.float32)
    moved = [np.abs(ours(optimizer, w, dict.fromkeys(range(1, n + 1), g))).max() for n in (1, 2)]
    once = 0.1 * (1 / np.linalg.norm(g))
    np.testing.assert_allclose(moved, [once, once * (1 + 2 / math.sqrt(2))], rtol=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "make"),
    [
        (
            SparseOptimizer("momentum_sgd", 0.1, momentum=0.7),
            lambda o, p: o.SGD([p], 0.1, momentum=0.7),
        ),
        (
            SparseOptimizer("exact_adagrad", 0.1, eps=1e-3),
            lambda o, p: o.Adagrad([p], 0.1, eps=1e-3),
        ),
        (
            SparseOptimizer("adam", 0.1, beta2=0.9),
            lambda o, p: o.Adam([p], 0.1, betas=(0.9, 0.9), eps=1e-8),
        ),
        (
            SparseOptimizer("adam", 0.1, weight_decay=0.2, weight_decay_mode="l2"),
            lambda o, p: o.Adam([p], 0.1, weight_decay=0.2),
        ),
        (
            SparseOptimizer("adam", 0.1, weight_decay=0.2, weight_decay_mode="decoupled"),
            lambda o, p: o.AdamW([p], 0.1, weight_decay=0.2),
        ),
        (
            SparseOptimizer("momentum_sgd", 0.1, weight_decay=0.2, weight_decay_mode="l2"),
            lambda o, p: o.SGD([p], 0.1, momentum=0.9, weight_decay=0.2),
        ),
    ],
    ids=["momentum", "adagrad", "adam", "adam-l2", "adamw", "momentum-l2"],
)
def test_torch_goes_the_same_way(optimizer, make):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
    rng = np.random.default_rng(9)
    w = rng.standard_normal(D).astype(np.float32)
    gradients = {t: rng.standard_normal(D).astype(np.float32) for t in range(1, 6)}
    p = torch.nn.Parameter(torch.tensor(w.copy(), dtype=torch.float64))
    theirs = make(torch.optim, p)
    for g in gradients.values():
        p.grad = torch.tensor(g, dtype=torch.float64)
        theirs.step()
    np.testing.assert_allclose(
        ours(optimizer, w, gradients), p.detach().numpy(), rtol=2e-6, atol=2e-6
    )
