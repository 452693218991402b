"""Is every pair of options among the cases, and every kind of kernel that once had no case?"""

from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from neocpu.core.rules import RULES
from neocpu.oracle.cases import large
from neocpu.oracle.cases.covers import lookup as lookup_cover
from neocpu.oracle.cases.covers import update as update_cover
from neocpu.oracle.cases.covers.pairwise import pairwise
from neocpu.oracle.operator import Case
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.verdicts.compare import agrees
from tests.oracle_cases import all_cases

CASES = list(all_cases(["lookup", "weight_gradient", "backward", "unique_gradient", "quantize"]))
BY_NAME = {case.name: case for case in CASES}
UPDATES = [
    (case, OPERATORS["backward"].complete(case.options)) for case in CASES if case.op == "backward"
]
COVERS = {
    "lookup": (lookup_cover.LOOKUP, lookup_cover.fits, ()),
    "weight_gradient": (lookup_cover.WEIGHT_GRADIENT, lookup_cover.fits, ()),
    "unique_gradient": (lookup_cover.UNIQUE_GRADIENT, lookup_cover.fits, ()),
    "backward": (update_cover.BACKWARD, update_cover.fits, update_cover.CHEAPEST_FIRST),
}
TRAINED = tuple(name for name, rule in RULES.items() if rule.updates)
FORMATS = {
    op: factors["weights_format"]
    for op, (factors, _, _) in COVERS.items()
    if "weights_format" in factors
}


@pytest.mark.parametrize("op", COVERS)
def test_every_pair_that_is_allowed_occurs(op: str) -> None:
    factors, fits, cheapest_first = COVERS[op]
    rows = pairwise(factors, fits, cheapest_first)
    assert all(row.keys() == factors.keys() and fits(row) for row in rows)
    for a, b in combinations(factors, 2):
        expected = {(x, y) for x, y in product(factors[a], factors[b]) if fits({a: x, b: y})}
        assert {(row[a], row[b]) for row in rows} == expected, (a, b)
    names = [case.name for case in CASES if case.op == op and "-pair-" in case.name]
    assert len(names) == len(rows)
    largest = sorted(len(values) for values in factors.values())[-2:]
    assert len(rows) < 1.3 * largest[0] * largest[1], "a cover that is not greedy"


def test_a_cover_of_values_that_exclude_each_other_is_found() -> None:
    factors = {"a": (0, 1, 2), "b": (0, 1, 2), "c": (0, 1)}

    def allowed(row: dict[str, int]) -> bool:
        return row.get("a", -1) != row.get("b", -2) and not (row.get("c") and row.get("a") == 2)

    rows = pairwise(factors, allowed)
    assert all(allowed(row) for row in rows)
    assert {(row["a"], row["b"]) for row in rows} == {
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 2),
        (2, 0),
        (2, 1),
    }
    assert rows == pairwise(factors, allowed), "another cover each time"


def widest(case: Case) -> int:
    return int(case.inputs["dims"].max(initial=0))


def updates(**options: Any) -> bool:
    """Is there an update with these options?"""
    return any(all(full[key] == value for key, value in options.items()) for _, full in UPDATES)


def updates_where(condition: Callable[[Case, dict[str, Any]], bool]) -> bool:
    return any(condition(case, full) for case, full in UPDATES)


@pytest.mark.parametrize("rule", TRAINED)
def test_every_rule_has_means_weights_narrow_rows_decay_and_wide_rows(rule: str) -> None:
    assert updates(optimizer=rule, pooling="mean")
    assert updates(optimizer=rule, pooling="none")
    assert updates_where(lambda c, o: o["optimizer"] == rule and "per_sample_weights" in c.inputs)
    assert updates_where(
        lambda c, o: o["optimizer"] == rule and c.inputs["indices"].dtype == np.int32
    )
    assert updates_where(lambda c, o: o["optimizer"] == rule and "weights_low" in c.inputs)
    for name in FORMATS["backward"]:
        assert name == "split" or updates(optimizer=rule, weights_format=name)
    for mode in ("l2", "decoupled"):
        assert updates(optimizer=rule, weight_decay_mode=mode)
    widths = {int(dim) for c, o in UPDATES if o["optimizer"] == rule for dim in c.inputs["dims"]}
    assert {4, 1028, 2048} <= widths


@pytest.mark.parametrize("rule", TRAINED)
def test_a_kernel_that_ignores_weight_decay_fails_with_every_rule(rule: str) -> None:
    for mode in ("l2", "decoupled", "adagradw"):
        decayed = [
            case
            for case, full in UPDATES
            if full["optimizer"] == rule and full["weight_decay_mode"] == mode
        ]
        op = OPERATORS["backward"]
        failed = 0
        for case in decayed:
            plain = {**case.options, "weight_decay": 0.0, "weight_decay_mode": "none"}
            answer = op.run(case.inputs, plain, "reference")
            truths = op.truth(case.inputs, case.options)
            failed += not all(agrees(truths[name], array) for name, array in answer.items())
            if failed:
                break
        assert failed or not decayed, (rule, mode)
        assert decayed or (mode == "adagradw" and rule != update_cover.COUNTER)


@pytest.mark.parametrize("op", ["lookup", "weight_gradient"])
def test_rows_of_every_format_go_from_4_to_2048_columns(op: str) -> None:
    for name in FORMATS[op]:
        widths = {
            int(dim)
            for case in CASES
            if case.op == op and case.options.get("weights_format", "fp32") == name
            for dim in case.inputs["dims"]
        }
        assert {4, 1028, 2048} <= widths, name
    for output_format in lookup_cover.LOOKUP["output_format"]:
        cases = [case for case in CASES if case.options.get("output_format") == output_format]
        assert max(map(widest, cases)) == 2048


def test_rates_of_tails_and_adagradw_have_cases() -> None:
    for mode in ("tail_id_lr_increase", "tail_id_lr_decrease"):
        for ratio in (False, True):
            assert updates(learning_rate_mode=mode, tail_id_threshold_is_ratio=ratio)
    for halflife in (-1, -2, 8):
        assert updates(weight_decay_mode="adagradw", counter_halflife=halflife)


def test_sizes_beyond_16_bits_have_cases() -> None:
    for op in ("lookup", "backward", "unique_gradient"):
        assert any(case.op == op and case.inputs["rows"].max() > 65_536 for case in CASES)
    for op in ("lookup", "backward", "weight_gradient"):
        assert any(case.op == op and case.inputs["offsets"].size > 65_537 for case in CASES)
    for op in ("lookup", "backward"):
        assert any(case.op == op and case.inputs["indices"].size > 65_536 for case in CASES)
    assert np.gcd(large.PERIOD, 1 << 16) == 1


def test_numbers_that_are_not_finite_are_quantised() -> None:
    # rows of fp8 have none: nobody defines the sign of their NaN
    for name in ("int8", "int8_gpu", "int4", "int2", "mx4"):
        x = BY_NAME[f"quantize-{name}-specials"].inputs["x"]
        assert np.isnan(x).any() and np.isposinf(x).any() and np.isneginf(x).any()


def test_most_hyper_parameters_are_no_fp32_numbers() -> None:
    decimal = [full for _, full in UPDATES if float(np.float32(full["beta1"])) != full["beta1"]]
    assert 0.3 * len(UPDATES) < len(decimal) < len(UPDATES)
    assert {full["optimizer"] for full in decimal} == set(TRAINED)
