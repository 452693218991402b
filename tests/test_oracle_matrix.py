"""Does every bend of every optimizer's rule fail, for each format of rows, in quick suites too?"""

import importlib
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from neocpu.core.rules import RULES
from neocpu.oracle.cases import DIM_MULTIPLE
from neocpu.oracle.cases.covers import rules
from neocpu.oracle.diagnosis.facets import telling_cases
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.verdicts.compare import agrees
from tests.oracle_cases import all_cases

DOCS = Path(__file__).parent.parent / "docs"
TRAINED = [name for name, rule in RULES.items() if rule.updates]
# L2 and decoupled decay of SGD are one formula, rounded in another order.
EQUAL = {("exact_sgd", "weight_decay_swapped")}


@pytest.fixture
def oracle_matrix(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    return importlib.import_module("oracle_matrix")


@pytest.mark.long(period=16)
@pytest.mark.parametrize("row_format", ["fp32", *rules.NARROW])
@pytest.mark.parametrize("rule", TRAINED)
def test_the_page_says_what_the_cases_of_a_rule_show(
    oracle_matrix: ModuleType, rule: str, row_format: str
) -> None:
    shown = oracle_matrix.cell(oracle_matrix.cases_of(rule, row_format))
    page = (DOCS / "oracle.md").read_text()
    (row,) = re.findall(rf"^\| `{rule}` \| (.*) \|$", page, re.MULTILINE)
    assert row.split(" | ")[oracle_matrix.ROW_FORMATS.index(row_format)] == str(shown)
    if row_format == "fp32":
        assert {(rule, switch) for switch in shown.passes} <= EQUAL
    elif shown.passes:
        assert f"* `{rule}`, {row_format}: {oracle_matrix._names(shown.passes)}\n" in page


def test_quick_suites_have_the_fp32_cases_of_all_rules() -> None:
    few = telling_cases(
        all_cases(["backward"]),
        lambda case: OPERATORS[case.op].complete(case.options),
        rules.shows_rule,
    )
    names = {case.name for case in few}
    for rule in TRAINED:
        assert {f"{rules.PREFIX}{rule}-fp32-{mode}" for mode in rules.MODES} <= names


@pytest.mark.parametrize("rule", TRAINED)
def test_each_hyper_parameter_in_fp16_fails(rule: str) -> None:
    op = OPERATORS["backward"]
    read = set()
    for case in rules.cases(0, DIM_MULTIPLE):
        if not rules.shows_rule(case) or case.options["optimizer"] != rule:
            continue
        truths = op.truth(case.inputs, case.options)
        for name, value in case.options.items():
            if isinstance(value, float):
                narrow = float(np.float16(value))
                answer = op.run(case.inputs, {**case.options, name: narrow}, "reference")
                if any(not agrees(truths[key], array) for key, array in answer.items()):
                    read.add(name)
    record = RULES[rule]
    states = (*record.element_state, *record.row_state)
    wanted = {"learning_rate", "weight_decay"}
    wanted |= {"beta1", "beta2"} if "exp_avg" in states else set()
    wanted |= {"eps"} if {"sum", "exp_avg", "square_avg"} & {*states} else set()
    floats = {name for name in record.options if isinstance(rules.RULE_HYPER.get(name), float)}
    assert wanted | floats <= read
