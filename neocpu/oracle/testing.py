"""How does a pytest suite of yours use the oracle?

from neocpu.oracle.testing import assert_correct, cases

@cases("lookup")
def test_my_lookup(case):
    assert_correct(case.op, case.inputs, my_lookup, case.options)
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from neocpu.core.errors import OracleError
from neocpu.oracle.cases import DIM_MULTIPLE, all_cases
from neocpu.oracle.cases.covers.drawn import FACTORS
from neocpu.oracle.checking import check, find_operator, nearest_name
from neocpu.oracle.drawing import drawn_with
from neocpu.oracle.operator import Case, Value
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.repeat import check_repeatedly
from neocpu.oracle.report import Report

if TYPE_CHECKING:
    import pytest


def assert_correct(
    op: str,
    inputs: Mapping[str, object],
    answer: object,
    options: Mapping[str, Value] | None = None,
    bits: bool = False,
    preset: str | None = None,
    runs: int = 1,
    seeds: bool = False,
    strict: bool = False,
) -> Report:
    """`neocpu.oracle.check`, raising AssertionError with the report when the answer is wrong.

    answer : the answer, or the kernel itself, which is called `runs` times as
        kernel(inputs, options); see `neocpu.oracle.check_repeatedly`, also about `seeds`.
    strict : a warning fails, too.
    """
    __tracebackhide__ = True
    if callable(answer):
        report = check_repeatedly(op, inputs, answer, options, runs, seeds, bits, preset, strict)
    else:
        report = check(op, inputs, answer, options, bits, preset, strict)
    report.raise_if_failed()
    return report


def assert_matches_oracle(op: str, actual: object, **inputs_and_options: object) -> None:
    """Raise AssertionError with the whole report unless `actual` is right, in one line.

        assert_matches_oracle("lookup", out, weights=w, rows=[9], dims=[4], feature_table=[0],
                              indices=i, offsets=o, pooling="mean")

    actual : the output, or outputs by name. inputs_and_options : by the names of the operator;
        arrays, tensors on any device, or lists.
    Raises OracleError for a name that the operator lacks.
    """
    __tracebackhide__ = True
    operator = find_operator(op)
    known = {*operator.inputs, *operator.options}
    inputs: dict[str, object] = {}
    options: dict[str, Value] = {}
    for name, value in inputs_and_options.items():
        if name not in known:
            raise OracleError(
                f"{op} has no input or option {name}{nearest_name(name, known)}; it has "
                f"{', '.join([*operator.inputs, *operator.options])}"
            )
        if name in operator.options:
            options[name] = value  # type: ignore[assignment]
        else:
            inputs[name] = np.asarray(value) if isinstance(value, list | tuple) else value
    assert_correct(op, inputs, actual, options)


def chosen(
    op: str | None = None,
    seed: int = 0,
    dim_multiple: int = DIM_MULTIPLE,
    draw: int = 0,
    **options: Value,
) -> list[Case]:
    """Cases of an operator (of all without a name) whose options have these values.

    dim_multiple : rows have such a multiple of columns; 1 asks for odd widths, too.
    draw : so many more of each operator of which random cases can be drawn.
    The options of the cases returned include the defaults.
    Raises OracleError for an operator, or an option, that does not exist.
    """
    names = None if op is None else [find_operator(op).name]
    option_names = {option for name in names or OPERATORS for option in OPERATORS[name].options}
    for name in options:
        if name not in option_names:
            near = nearest_name(name, option_names)
            raise OracleError(f"{op or 'the oracle'} has no option {name}{near}")
    drawn = [
        one.case()
        for name in FACTORS
        if names is None or name in names
        for one in drawn_with(name, draw, seed, options, dim_multiple)
    ]
    complete = [
        replace(case, options=find_operator(case.op).complete(case.options))
        for case in (*all_cases(names, seed, dim_multiple), *drawn)
    ]
    return [case for case in complete if options.items() <= case.options.items()]


def cases(
    op: str | None = None,
    seed: int = 0,
    dim_multiple: int = DIM_MULTIPLE,
    draw: int = 0,
    **options: Value,
) -> "pytest.MarkDecorator":
    """A decorator that runs a test once per case, as its argument `case`.

    `options` choose among the cases, e.g. pooling="sum"; `dim_multiple`, `draw` as in `chosen`.
    """
    import pytest

    selection = chosen(op, seed, dim_multiple, draw, **options)
    return pytest.mark.parametrize("case", selection, ids=lambda case: case.name)
