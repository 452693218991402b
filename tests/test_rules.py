"""Is every rule of the registry there, and is it its formula, one IEEE operation after the other,
over several steps?

The rules in `kernels/rows/rules.py` are plain functions that compile into the update kernels; here
they run as they stand.
"""

import importlib
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from neocpu.core.rules import HYPER, RULES
from neocpu.kernels.rows import rules
from neocpu.kernels.twins.rows import rules as twin
from neocpu.kernels.twins.rows.row_counters import missed_decay
from neocpu.tables.specs.optimizers import DENSE_NAMES, SparseOptimizer
from tests.cases import assert_same, floats

MODES = ("none", "l2", "decoupled")
UPDATING = [name for name, rule in RULES.items() if rule.updates]
COUNTER = "exact_rowwise_adagrad_with_counter"
COWCLIP = "exact_rowwise_adagrad_with_cowclip"
f32 = np.float32


def test_every_rule_has_a_kernel_function_and_a_twin():
    for name, rule in RULES.items():
        assert rule.name == name and len(rule.element_state) <= 2 and rule.row_scalars <= 2
        for phase in (name, f"{name}_prepare", f"{name}_direct"):
            function = getattr(rules, phase, None)
            twin_function = getattr(twin, phase, None)
            assert (function and function.__doc__) == (twin_function and twin_function.__doc__), (
                f"{phase}: the docstring of kernel and twin is its formula, once"
            )
            assert (function is not None) >= (phase == name and rule.updates)
        assert hasattr(rules, f"{name}_direct") == rule.direct
        assert (twin.prepare(name) is twin.regularise) != hasattr(rules, f"{name}_prepare")
    assert set(DENSE_NAMES.values()) <= {
        name for name, rule in RULES.items() if not (rule.row_state or rule.row_scalars)
    }
    assert set(SparseOptimizer().numbers(1)) == set(HYPER)


def test_docs_have_every_rule(monkeypatch):
    docs = Path(__file__).parent.parent / "docs"
    norm = (docs / "arithmetic.md").read_text()
    assert [name for name in RULES if f"\n| {name} |" not in norm] == []
    monkeypatch.syspath_prepend(str(docs / "_ext"))
    page = (docs / "design.md").read_text()
    assert page == importlib.import_module("optimizer_table").updated(page), (
        "write its table anew: python docs/_ext/optimizer_table.py"
    )


def test_the_picture_of_a_step_is_what_its_script_draws(monkeypatch):
    docs = Path(__file__).parent.parent / "docs"
    monkeypatch.syspath_prepend(str(docs / "_ext"))
    drawn = importlib.import_module("step_picture").picture()
    assert (docs / "step.svg").read_text() == drawn, "draw it: python docs/_ext/step_picture.py"


def run(module, rule, w, g, states, row, squares, hyper):
    """All phases of a rule, the row scalars given: squares of each phase."""
    columns = f32(w.size)
    prepare = getattr(module, f"{rule.name}_prepare", module.regularise)
    prepare(w, g, states, hyper)
    if rule.direct:
        direct = getattr(module, f"{rule.name}_direct")
        direct(w, g, states, row, squares[:1], columns, hyper)
    own = squares[1 : 3 + rule.counts]
    getattr(module, rule.name)(w, g, states, row, own, columns, hyper)
    module.limit_norm(w, g, states, row, squares[4:], columns, hyper)


def optimizers(name):
    """Settings of a rule that take its branches."""
    base = SparseOptimizer(name, 0.1, weight_decay=0.1, max_norm=0.5)
    if name == COUNTER:
        yield from (
            replace(
                base,
                weight_decay_mode=mode,
                counter_halflife=halflife,
                adjustment_iter=after,
                adjustment_ub=ub,
                **tail,
            )
            for mode, halflife, after, ub, tail in (
                ("none", 3, -1, 1.0, {}),
                ("l2", 3, 2, 1.0, {}),
                ("decoupled", -1, -1, 1.0, {}),
                ("adagradw", -1, 2, 1.0, {}),
                ("adagradw", -2, -1, 0.25, {}),
                ("adagradw", 2, -1, 0.7, {"learning_rate_mode": "counter_sgd"}),
                (
                    "l2",
                    0,
                    -1,
                    0.7,
                    {"learning_rate_mode": "tail_id_lr_increase", "max_counter": 7.0},
                ),
                (
                    "l2",
                    0,
                    -1,
                    1.0,  # a rate that grows to its bound
                    {"learning_rate_mode": "tail_id_lr_increase", "max_counter": 1e6},
                ),
                (
                    "l2",
                    5,
                    -1,
                    1.7,
                    {"learning_rate_mode": "tail_id_lr_decrease", "max_counter": 70.0},
                ),
                (
                    "none",
                    -1,
                    -1,
                    0.5,
                    {
                        "learning_rate_mode": "tail_id_lr_decrease",
                        "max_counter": 9.0,
                        "tail_id_threshold": 0.3,
                        "tail_id_threshold_is_ratio": True,
                    },
                ),
            )
        )
        return
    for mode in MODES:
        yield replace(
            base,
            weight_decay_mode=mode,
            counter_halflife=4,
            weight_norm_coefficient=0.1,
            lower_bound=0.01,
            ar_alpha=2.0,
        )


@pytest.mark.parametrize("name", UPDATING)
@pytest.mark.parametrize("fill", ["normal", "wild", "subnormal", "zeros", "special"])
def test_rules_equal_twins(name, fill):
    rule = RULES[name]
    width = 9
    for number, optimizer in enumerate(optimizers(name)):
        rng = np.random.default_rng(number)
        weights = floats(rng, width, fill)
        states = [np.abs(floats(rng, width, "normal")) for _ in rule.element_state]
        row_states = [f32([start]) for start in (0.5, 0, 0)[: len(rule.row_state)]]
        rows = [[x.copy() for x in (weights, *states, *row_states)] for _ in "ab"]
        with np.errstate(all="ignore"):
            for step in (1, 2, 4, 9):
                g = floats(rng, width, fill)
                squares = np.abs(floats(rng, 5, fill if step > 2 else "normal"))
                for module, (w, *arrays) in zip((rules, twin), rows):
                    element = rule.element_record(*arrays[: len(states)])
                    row = rule.row_record(*arrays[len(states) :])
                    hyper = optimizer.hyper(step)
                    run(module, rule, w, g.copy(), element, row, squares, hyper)
        for a, b in zip(*rows):
            assert_same(a, b)


def scalar_adam(w, g, m, v, step, rate, wd):
    """Adam with decoupled decay for one number, every operation rounded to fp32 by hand."""
    f = np.float32
    correct1 = f(1 / (1 - 0.9**step))
    correct2 = f(1 / (1 - 0.999**step))
    m = f(f(f(0.9) * m) + f(f(1 - 0.9) * g))
    v = f(f(f(0.999) * v) + f(f(1 - 0.999) * f(g * g)))
    w = f(f(1 - rate * wd) * w)
    w = f(w - f(f(rate) * f(f(m * correct1) / f(f(math.sqrt(f(v * correct2))) + f(1e-8)))))
    return w, m, v


def test_adam_by_hand():
    w = np.float32([0.5])
    m = np.zeros(1, np.float32)
    v = np.zeros(1, np.float32)
    g = np.float32([0.3])
    hand = (w[0], m[0], v[0])
    for step in (1, 2):
        hyper = SparseOptimizer(
            "adam", 0.1, weight_decay=0.25, weight_decay_mode="decoupled"
        ).hyper(step)
        states = RULES["adam"].element_record(exp_avg=m, exp_avg_sq=v)
        rules.adam(w, g, states, RULES["adam"].row_record(), w, w[0], hyper)
        hand = scalar_adam(hand[0], g[0], *hand[1:], step, 0.1, 0.25)
        assert (w[0], m[0], v[0]) == hand


def test_rows_decay_for_the_steps_that_they_missed():
    keep = f32(0.75)
    last = np.float32([0, 6, 5, 4, 2, 9])  # never, in the step before, ..., in a later one
    decay = missed_decay(last, 7, keep, 0.4)
    assert decay.dtype == np.float32
    assert decay.tolist() == [1, 1, 0.75, 0.75**2, f32(0.4), 1]
    assert missed_decay(last, 7, keep, 0.0)[4] == f32(0.75**4)
