"""Is a kernel right on cases that nobody chose? Random ones; one that fails is shrunk and kept."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from neocpu.core.errors import OracleError
from neocpu.oracle.cases import DIM_MULTIPLE
from neocpu.oracle.cases.covers.drawn import FACTORS, Drawn, drawn_cases
from neocpu.oracle.checking import find_operator
from neocpu.oracle.operator import Value
from neocpu.oracle.outcome import CaseOutcome
from neocpu.oracle.repeat import Kernel, check_repeatedly
from neocpu.oracle.report import Report
from neocpu.oracle.suite import ask, write_suite

Fits = Callable[[Drawn], bool]
DRAWS = 100
MOST_LOOKED_AT = 1000  # draws for each that is asked: options may be rare
MOST_SMALLER = 200  # cases that are tried while one is shrunk


def check_drawn(
    op: str,
    kernel: Kernel,
    draw: int = DRAWS,
    seed: int = 0,
    options: Mapping[str, Value] | None = None,
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
    op: str, draw: int, seed: int, options: Mapping[str, Value], dim_multiple: int
) -> Iterator[Drawn]:
    """So many drawn cases with these values of options, or fewer where they are rare."""
    looked_at = islice(drawn_cases(op, seed, dim_multiple), draw * MOST_LOOKED_AT)
    return islice(filter(partial(_has, options), looked_at), draw)


def _has(options: Mapping[str, Value], drawn: Drawn) -> bool:
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
