"""How does a pytest suite of yours use the oracle?

from neocpu.oracle.testing import assert_correct, cases

@cases("lookup")
def test_my_lookup(case):
    assert_correct(case.op, case.inputs, my_lookup, case.options)

`check_drawn` asks random cases that nobody chose; one that fails is shrunk and kept.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neocpu.core.errors import OracleError
from neocpu.oracle.cases import DIM_MULTIPLE, all_cases
from neocpu.oracle.cases.covers.drawn import FACTORS, Drawn, drawn_cases
from neocpu.oracle.checking import check, find_operator
from neocpu.oracle.operator import Case, Options, Value
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.options import nearest_name, wanted
from neocpu.oracle.outcome import CaseOutcome
from neocpu.oracle.repeat import Kernel, check_repeatedly
from neocpu.oracle.report import Report
from neocpu.oracle.suite import ask, write_suite

if TYPE_CHECKING:
    import pytest


def assert_correct(
    op: str,
    inputs: Mapping[str, object],
    answer: object,
    options: Options | None = None,
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
    Raises OracleError for an operator, an option, or a value of it, that does not exist.
    """
    names = None if op is None else [find_operator(op).name]
    defaults = [OPERATORS[name].options for name in names or OPERATORS]
    option_names = {option for known in defaults for option in known}
    for name, value in options.items():
        if name not in option_names:
            near = nearest_name(name, option_names)
            raise OracleError(f"{op or 'the oracle'} has no option {name}{near}")
        wishes = [wanted(known[name], value) for known in defaults if name in known]
        if all(wishes):
            raise OracleError(f"{name} is {value!r}: {wishes[0]}")
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


Fits = Callable[[Drawn], bool]
DRAWS = 100
MOST_LOOKED_AT = 1000  # draws for each that is asked: options may be rare
MOST_SMALLER = 200  # cases that are tried while one is shrunk


def check_drawn(
    op: str,
    kernel: Kernel,
    draw: int = DRAWS,
    seed: int = 0,
    options: Options | None = None,
    dim_multiple: int = DIM_MULTIPLE,
    folder: str | Path = ".",
) -> Report:
    """Ask a kernel random cases of an operator: options and shapes drawn, numbers too.

    kernel : as of `check_repeatedly`. options : only cases with these values, of options that the
        kernel is made for. folder : where the first case that fails is kept as a suite, after it
        was shrunk: fewer features, samples, lookups, rows, columns, and usual options.
    Returns the report on all cases, or on the smallest one that fails.
    Raises OracleError for operators that are not drawn, and for options that no case has.
    """
    if op not in FACTORS:
        raise OracleError(f"{find_operator(op).name} is not drawn; {', '.join(FACTORS)} are")
    wanted = dict(options or {})
    outcomes: list[CaseOutcome] = []
    for drawn in drawn_with(op, draw, seed, wanted, dim_multiple):
        report = _asked(drawn, kernel)
        if not report:
            fits = partial(_has, wanted)
            return _kept(*_shrunk(drawn, report, kernel, fits), Path(folder))
        outcomes += report.cases
    if not outcomes:
        raise OracleError(
            f"no case that was drawn has {wanted}; `neocpu oracle explain` shows options"
        )
    return Report(tuple(outcomes), (), ())


def drawn_with(
    op: str, draw: int, seed: int, options: Options, dim_multiple: int
) -> Iterator[Drawn]:
    """So many drawn cases with these values of options, or fewer where they are rare."""
    looked_at = islice(drawn_cases(op, seed, dim_multiple), draw * MOST_LOOKED_AT)
    return islice(filter(partial(_has, options), looked_at), draw)


def _has(options: Options, drawn: Drawn) -> bool:
    """Has a drawn case these values of options?"""
    return options.items() <= find_operator(drawn.op).complete(drawn.options).items()


def _asked(drawn: Drawn, kernel: Kernel) -> Report:
    """The report on one case, under its name."""
    case = drawn.case()
    report = check_repeatedly(case.op, case.inputs, kernel, case.options, runs=1)
    named = tuple(replace(outcome, case=case) for outcome in report.cases)
    return replace(report, cases=named)


def _shrunk(drawn: Drawn, report: Report, kernel: Kernel, fits: Fits) -> tuple[Drawn, Report]:
    """The smallest case in sight that fails, and its report."""
    left = MOST_SMALLER
    smaller = drawn.smaller()
    while left:
        left -= 1
        candidate = next(smaller, None)
        if candidate is None:
            break
        if not fits(candidate):
            continue
        again = _asked(candidate, kernel)
        if not again:
            drawn = candidate
            report = again
            smaller = drawn.smaller()
    return drawn, report


def _kept(drawn: Drawn, report: Report, folder: Path) -> Report:
    """The report, which names the file of the case."""
    path = folder / f"{drawn.name}.h5"
    write_suite(path, [ask(drawn.case())], drawn.recipe.seed)
    (outcome,) = report.cases
    case = replace(outcome.case, about=f"{outcome.case.about}; kept as {path}")
    return replace(report, cases=(replace(outcome, case=case),))
