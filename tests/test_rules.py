"""Is every rule of the registry there, and is it its formula, one IEEE operation after the other, over several steps?

The rules in `kernels/rules.py` are plain functions that compile into the update kernels; here they run as they stand.
"""

import math

import numpy as np
import pytest

from neocpu.embedding.optimizers import DENSE_NAMES, SparseOptimizer
from neocpu.kernels import rules
from neocpu.reference import rules as twin
from neocpu.reference.rules import HYPER, RULES
from tests.cases import assert_same, floats

MODES = ("none", "l2", "decoupled")


def test_every_rule_has_a_kernel_function_and_a_twin():
    for name, rule in RULES.items():
        assert getattr(rules, name).__doc__ == getattr(twin, name).__doc__
        assert rule.name == name and len(rule.element_state) <= 2 and len(rule.row_state) <= 1 and rule.row_scalars <= 2
    assert set(DENSE_NAMES.values()) <= {name for name, rule in RULES.items() if not rule.row_state}
    places = [rules.LR, rules.EPS, rules.BETA1, rules.REST1, rules.BETA2, rules.REST2, rules.FIX1, rules.FIX2, rules.L2]
    assert places == list(range(9)) and rules.KEEP == 9 == len(HYPER) - 1


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fill", ["normal", "wild", "zeros", "special"])
def test_rules_equal_twins(name, mode, fill):
    rng, rule, width = np.random.default_rng(2), RULES[name], 9
    none = np.empty(0, np.float32)
    w = floats(rng, width, fill)
    states = [np.abs(floats(rng, width, "normal")) if i < len(rule.element_state) else none for i in range(2)]
    r = np.abs(floats(rng, 1, "normal"))
    ours, theirs = ([x.copy() for x in (w, *states, r)] for _ in "ab")
    with np.errstate(all="ignore"):
        for step in range(1, 5):
            hyper = SparseOptimizer(name, 0.1, weight_decay=0.1, weight_decay_mode=mode).hyper(step)
            g = floats(rng, width, fill)
            squares, columns = floats(rng, 2, "normal") ** 2, np.float32(width)
            for module, (w, *states) in ((rules, ours), (twin, theirs)):
                mine = g.copy()
                module.regularise(w, mine, *states, hyper)
                getattr(module, name)(w, mine, *states, squares, columns, hyper)
    for a, b in zip(ours, theirs):
        assert_same(a, b)


def scalar_adam(w, g, m, v, step, rate, wd):
    """Adam with decoupled decay for one number, every operation rounded to fp32 by hand."""
    f = np.float32
    correct1, correct2 = f(1 / (1 - 0.9**step)), f(1 / (1 - 0.999**step))
    m = f(f(f(0.9) * m) + f(f(1 - 0.9) * g))
    v = f(f(f(0.999) * v) + f(f(1 - 0.999) * f(g * g)))
    w = f(f(1 - rate * wd) * w)
    w = f(w - f(f(rate) * f(f(m * correct1) / f(f(math.sqrt(f(v * correct2))) + f(1e-8)))))
    return w, m, v


def test_adam_by_hand():
    w, m, v, g = np.float32([0.5]), np.zeros(1, np.float32), np.zeros(1, np.float32), np.float32([0.3])
    hand = (w[0], m[0], v[0])
    for step in (1, 2):
        hyper = SparseOptimizer("adam", 0.1, weight_decay=0.25, weight_decay_mode="decoupled").hyper(step)
        rules.adam(w, g, m, v, w, w, w[0], hyper)
        hand = scalar_adam(hand[0], g[0], *hand[1:], step, 0.1, 0.25)
        assert (w[0], m[0], v[0]) == hand
