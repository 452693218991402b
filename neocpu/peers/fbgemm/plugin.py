"""How does FBGEMM's own test suite run against neocpu? `pytest -p neocpu.peers.fbgemm.plugin`.

The summary says how many of the passed tests neocpu answered, and names the others;
`--neocpu-raise` makes every replaced operator and lookup raise instead, so that exactly the tests
that never reach neocpu pass.

A test that passes may never have called an operator that neocpu replaces. `watch` puts counters
before every replaced operator and before the lookups of every replaced class; a constructor is no
lookup and counts for itself. With `refuse=True` each of them raises `Reached`.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import pytest

from neocpu.peers.fbgemm.installing import CLASSES, install, installed
from neocpu.peers.fbgemm.operators.registry import load

P = ParamSpec("P")
R = TypeVar("R")
# Calls of each operator and lookup, by name.
CALLS: Counter[str] = Counter()
# Modules constructed, by the name of their class.
CONSTRUCTED: Counter[str] = Counter()


class Reached(Exception):
    """An operator or lookup of neocpu was called where none should be."""


def _counted(
    name: str, function: Callable[P, R], calls: Counter[str], refuse: bool
) -> Callable[P, R]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        calls[name] += 1
        if refuse:
            raise Reached(f"{name} was called")
        return function(*args, **kwargs)

    return call


def watch(refuse: bool = False) -> None:
    """Count, or with `refuse` raise `Reached` at, every call; call it once, before `install`."""
    operators = load()
    # The records are replaced in the registry itself, from which `install` takes them.
    for name, operator in list(operators.items()):
        function = _counted(name, operator.function, CALLS, refuse)
        operators[name] = replace(operator, function=function)
    classes: dict[str, Any] = CLASSES
    for name, module in classes.items():
        module.forward = _counted(name, module.forward, CALLS, refuse)
        # A constructor is no lookup: it never raises, and is counted apart.
        module.__init__ = _counted(name, module.__init__, CONSTRUCTED, False)


# Of each test: calls that neocpu answered, and modules of neocpu that it constructed.
_REACH: dict[str, tuple[int, int]] = {}
# Tests that passed, in order.
_PASSED: list[str] = []
_RAISE = "--neocpu-raise"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--neocpu-raise`."""
    parser.addoption(
        _RAISE,
        action="store_true",
        help="replaced operators and lookups raise: tests that still pass do not reach neocpu",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Replace FBGEMM's classes and operators before any test file is imported."""
    # Before `install`, which hands out the functions as they are then.
    watch(refuse=config.getoption(_RAISE))
    install()


def pytest_report_header(config: pytest.Config) -> str:
    """A line in the report's header, so that nobody mistakes whose answers were tested."""
    return "neocpu stands in for FBGEMM" if installed() else "neocpu does not stand in for FBGEMM"


def _total(calls: Counter[str]) -> int:
    return sum(calls.values())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Note for each test how often it called neocpu."""
    calls = _total(CALLS)
    constructed = _total(CONSTRUCTED)
    try:
        return (yield)
    finally:
        _REACH[item.nodeid] = (
            _total(CALLS) - calls,
            _total(CONSTRUCTED) - constructed,
        )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note which tests passed."""
    # Setup and teardown have reports of their own.
    if report.when == "call" and report.passed:
        _PASSED.append(report.nodeid)


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """Say how many of the passed tests reached neocpu, and which did not."""
    answered = sum(_REACH[test][0] > 0 for test in _PASSED)
    terminalreporter.section("reach of neocpu")
    terminalreporter.line(f"neocpu answered in {answered} of {len(_PASSED)} passed tests")
    for test in _PASSED:
        calls, constructed = _REACH[test]
        if not calls:
            kind = "constructs modules only" if constructed else "never calls neocpu"
            terminalreporter.line(f"  {kind}: {test}")
