"""Are hyper-parameters, schedules and the dense optimizer those of docs/arithmetic.md §5?"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from neocpu.core.rules import HYPER, RULES
from neocpu.kernels.twins.rows import update as twin
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer
from neocpu.tables.specs.optimizers import (
    COUNTER,
    COWCLIP,
    COWCLIPS,
    DENSE_NAMES,
    TABLE_RULES,
    WEIGHT_DECAY_MODES,
    Schedule,
    SparseOptimizer,
    power,
)
from tests import recorded
from tests.cases import assert_same, floats

DECAYED = {"weight_decay": 0.1, "weight_decay_mode": "l2"}
ADAGRADW = {"weight_decay_mode": "adagradw"}


def test_power_is_binary_and_lowest_bit_first():
    assert power(0.5, 0) == 1.0 and power(2.0, 10) == 1024.0
    assert power(0.9, 3) == 0.9 * (0.9 * 0.9) and power(0.9, 5) == 0.9 * ((0.9 * 0.9) * (0.9 * 0.9))
    assert float(abs(Fraction(power(0.999, 1234)) / Fraction(0.999) ** 1234 - 1)) < 1e-13


def test_schedule_warms_up_holds_and_decays():
    schedule = Schedule(
        warmup_steps=4, decay_start=6, decay_steps=4, decay_power=2, end_learning_rate=0.1
    )
    values = [schedule.value(1.0, t) for t in range(1, 13)]
    assert values[:6] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert values[6:] == [0.1 + 0.9 * (1 - x) ** 2 for x in (0.25, 0.5, 0.75, 1.0, 1.0, 1.0)]
    assert [Schedule().value(0.3, t) for t in (1, 10**9)] == [0.3, 0.3]


def test_hyper_is_computed_wide_and_rounded_once():
    optimizer = SparseOptimizer(
        "adam", 0.1, weight_decay=0.3, weight_decay_mode="decoupled", schedule=Schedule(10)
    )
    hyper = optimizer.hyper(3)
    assert hyper.lr == np.float32(0.1 * (3 / 10)) and hyper.l2 == 0
    assert hyper.keep == np.float32(1.0 - 0.1 * (3 / 10) * 0.3)
    assert hyper.one_minus_beta2 == np.float32(1 - 0.999)
    assert hyper.correction1 == np.float32(1 / (1 - 0.9 * (0.9 * 0.9)))
    assert all(type(number) is np.float32 for number in hyper)
    l2 = SparseOptimizer("exact_sgd", 0.1, weight_decay=0.3, weight_decay_mode="l2").hyper(1)
    assert l2.l2 == np.float32(0.3) and l2.keep == 1
    none = SparseOptimizer("exact_sgd", 0.1, weight_decay=0.3).hyper(1)
    assert none.l2 == 0 and none.keep == 1


@pytest.mark.parametrize("mode", WEIGHT_DECAY_MODES)
def test_numbers_of_rules_are_those_that_were_recorded(mode):
    schedule = Schedule(3, 5, 4, 2, 0.01)
    base = SparseOptimizer(
        "adam", 0.1, 1e-3, 0.7, 0.8, 0.3, mode, schedule=schedule, ar_alpha=0.2, max_counter=7.5
    )
    tail = replace(base, tail_id_threshold=0.3, tail_id_threshold_is_ratio=True)
    counted = replace(tail, counter_halflife=-4, adjustment_iter=6, steps_before=2)
    recorded.check(
        f"numbers of rules, {mode}",
        [
            (" ".join(optimizer.hyper(step)._fields), [float(x) for x in optimizer.hyper(step)])
            for optimizer in (base, tail, counted)
            for step in (1, 3, 6, 7, 12)
        ],
    )


@pytest.mark.parametrize("name", TABLE_RULES)
def test_keys_without_effect_are_told_with_their_owners(name):
    rule = RULES[name]
    for key in SparseOptimizer(name)._later():
        other = 3 if isinstance(getattr(SparseOptimizer(), key), int) else 0.25
        if key in ("learning_rate_mode", *rule.options, "max_norm", "max_gradient", "steps_before"):
            continue
        told = dict(SparseOptimizer(name, **{key: other}).faults())[key]
        owners = {each for each, known in RULES.items() if key in known.options}
        assert set(told.partition("; it is of ")[2].split(", ")) == owners
        assert f"no effect on {name}" in told and name not in owners


def test_steps_of_an_earlier_run_count_for_corrections_and_not_for_the_schedule():
    schedule = Schedule(warmup_steps=10)
    fresh = SparseOptimizer("adam", 0.1, schedule=schedule)
    later = SparseOptimizer("adam", 0.1, schedule=schedule, steps_before=4)
    hyper = later.hyper(2)
    assert hyper == fresh.hyper(6)._replace(lr=fresh.hyper(2).lr)
    assert hyper.step == 6
    counted = SparseOptimizer(COUNTER, adjustment_iter=5, steps_before=4)
    assert (counted.hyper(1).adjusting, counted.hyper(2).adjusting) == (0, 1)
    assert counted.hyper(2).adjusted_steps == 1


def test_counters_are_numbers_of_the_step():
    optimizer = SparseOptimizer(
        COUNTER,
        adjustment_iter=5,
        counter_halflife=-1,
        max_counter=10.0,
        tail_id_threshold=0.25,
        tail_id_threshold_is_ratio=True,
        learning_rate_mode="counter_sgd",
    )
    early = optimizer.hyper(5)
    late = optimizer.hyper(8)
    assert (early.adjusting, late.adjusting, late.adjusted_steps, late.step) == (0, 1, 3, 8)
    assert (late.counter_frequency, late.counter_halflife) == (1, -1)
    assert (late.tail_id_threshold, late.learning_rate_mode) == (2, 2)
    assert set(optimizer.numbers(3)) == set(HYPER)


def test_keys_that_do_not_go_together_are_found():
    def faults(name, **keys):
        return [key for key, _ in SparseOptimizer(name, **keys).faults()]

    # CowClip's own defaults, FBGEMM's, clip every gradient to 0; `defaults.py` has others
    assert [name for name in RULES if faults(name)] == list(COWCLIPS)
    assert faults(COWCLIP, weight_norm_coefficient=1.0) == []
    assert faults("ftrl", beta=0.0) == ["beta"]
    assert faults("ftrl", beta=0.0, initial_accumulator_value=0.1) == []
    assert faults("exact_sgd", momentum=0.5, max_norm=1.0, max_gradient=1.0) == ["momentum"]
    assert faults("lars_sgd", momentum=0.5, eta=1.0) == []
    assert faults("adam", beta1=1.0, weight_decay=0.1) == ["beta1", "weight_decay_mode"]
    assert faults("adam", weight_decay_mode="adagradw") == ["weight_decay_mode"]
    assert faults(COUNTER, weight_decay_mode="adagradw", weight_decay=0.1, counter_halflife=0) == []
    assert faults(COUNTER, weight_decay_mode="l2", weight_decay=0.1, counter_halflife=0) == [
        "counter_halflife"
    ]
    assert faults(COUNTER, max_counter=0.0, adjustment_ub=0.0) == ["max_counter", "adjustment_ub"]


def test_digests_of_old_configs_stay():
    first = list(SparseOptimizer("adam").header())
    assert first[-2:] == ["initial_accumulator_value", "schedule"] and len(first) == 9
    assert list(SparseOptimizer("lars_sgd", momentum=0.0, eta=0.1).header())[9:] == [
        "momentum",
        "eta",
    ]


@pytest.mark.parametrize("name", DENSE_NAMES)
@pytest.mark.parametrize("mode", ["none", "l2", "decoupled"])
def test_dense_optimizer(name, mode):
    rng = np.random.default_rng(1)
    record = SparseOptimizer(
        name,
        0.1,
        weight_decay=0.01,
        weight_decay_mode=mode,
        initial_accumulator_value=0.5,
        schedule=Schedule(2),
    )
    parameters = floats(rng, 5000, "normal")
    expected = parameters.copy()
    rule = RULES[DENSE_NAMES[name]]
    states = [
        np.full(5000, 0.5 if n == rule.accumulator else 0, np.float32) for n in rule.element_state
    ]
    optimizer = DenseOptimizer(record, parameters)
    assert tuple(optimizer.state) == rule.element_state
    for step in (1, 2, 3):
        gradient = floats(rng, 5000, "normal")
        kept = gradient.copy()
        optimizer.step(gradient, step)
        assert_same(gradient, kept)
        record_of_states = rule.element_record(*states)
        twin.elementwise(rule)(expected, record_of_states, kept, record.hyper(step))
    assert_same(parameters, expected)
    for state, expected_state in zip(optimizer.state.values(), states):
        assert_same(state, expected_state)


@pytest.mark.parametrize(
    ("values", "faulty"),
    [
        ({}, []),
        ({"beta1": 1.0}, ["beta1"]),
        ({"name": "adam", "beta2": 1.0, "beta1": 0.999}, ["beta2"]),
        ({"weight_decay": 0.1}, ["weight_decay_mode"]),
        ({"weight_decay_mode": "adagradw"}, ["weight_decay_mode"]),
        ({"name": "ftrl", "beta": 0.0}, ["beta"]),
        ({"name": "ftrl", "beta": 0.0, "lambda2": 0.1}, []),
        ({"name": "ftrl", "beta": 0.0, "initial_accumulator_value": 0.1}, []),
        ({"name": "adam_with_cowclip"}, ["weight_norm_coefficient"]),
        ({"name": "adam_with_cowclip", "lower_bound": 1e-5}, []),
        ({"name": "adam_with_cowclip", "weight_norm_coefficient": 1.0}, []),
        ({"name": COUNTER, "max_counter": 0.0}, ["max_counter"]),
        ({"name": COUNTER, "adjustment_ub": 0.0}, ["adjustment_ub"]),
        ({"name": COUNTER, "counter_halflife": 0}, []),
        ({"name": COUNTER, "counter_halflife": 0, **DECAYED, "weight_decay": 0.0}, []),
        ({"name": COUNTER, "counter_halflife": 1, **DECAYED}, []),
        ({"name": COUNTER, "counter_halflife": 0, **DECAYED}, ["counter_halflife"]),
        ({"name": COUNTER, "counter_halflife": 0, **DECAYED, **ADAGRADW}, []),
        ({"lambda1": 0.1, "max_norm": 1.0}, ["lambda1"]),
    ],
)
def test_values_that_do_not_serve_are_named(values, faulty):
    assert [key for key, _ in SparseOptimizer(**values).faults()] == faulty
    begun = [key for key, _ in SparseOptimizer(**values).faults(trains=False)]
    stops = ("beta", "weight_norm_coefficient")  # learning: runs of before may have them
    assert begun == [key for key in faulty if key not in stops]
    for_dense = [key for key, _ in SparseOptimizer(**values).faults(general=False)]
    assert sorted(for_dense) == sorted({*faulty} | ({*values} & {"max_norm"}))
