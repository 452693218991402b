"""How does FBGEMM's own test suite run against neocpu? `pytest -p neocpu.peers.fbgemm.plugin`.

The summary says how many of the passed tests neocpu answered, and names the others;
`--neocpu-raise` makes every replaced operator and lookup raise instead, so that exactly the tests
that never reach neocpu pass.
"""

from collections import Counter
from collections.abc import Iterator

import pytest

from neocpu.peers.fbgemm import reach
from neocpu.peers.fbgemm.installing import install, installed

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
    reach.watch(refuse=config.getoption(_RAISE))
    install()


def pytest_report_header(config: pytest.Config) -> str:
    """A line in the report's header, so that nobody mistakes whose answers were tested."""
    return "neocpu stands in for FBGEMM" if installed() else "neocpu does not stand in for FBGEMM"


def _total(calls: Counter[str]) -> int:
    return sum(calls.values())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Note for each test how often it called neocpu."""
    calls = _total(reach.CALLS)
    constructed = _total(reach.CONSTRUCTED)
    try:
        return (yield)
    finally:
        _REACH[item.nodeid] = (
            _total(reach.CALLS) - calls,
            _total(reach.CONSTRUCTED) - constructed,
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
