"""How does a pytest suite of one's own ask the oracle? With a marker and a fixture.

    pytest_plugins = ["neocpu.oracle.pytest_plugin"]  # in conftest.py; or -p on the command line

    @pytest.mark.oracle("lookup", pooling="mean")
    def test_my_lookup(oracle_case):
        oracle_case.check(my_lookup(oracle_case.inputs, oracle_case.options))

The test runs once per case of the operator whose options have these values (of all operators
without a name). A wrong answer fails with the oracle's report; at the end of the session the
explanations of all failures stand together, those that explain most first, also with pytest-xdist.

    --oracle-seed N            other numbers of the same shapes
    --oracle-dim-multiple N    rows have such a multiple of columns
    --oracle-cases PATTERN     only such cases
    --oracle-draw N            N more cases of each operator, drawn by the seed
    --oracle-bits              neocpu's bits, or those of the preset
    --oracle-preset NAME       a peer's semantics
    --oracle-answers FILE.npz  keep the answers, for `neocpu oracle check`

No entry point loads this module: pytest would rewrite the assertions of the whole package, kernels
too, so that their code, and the keys under which they are cached, would be others.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import pytest

if TYPE_CHECKING:
    from neocpu.oracle.guards import GuardedCall
    from neocpu.oracle.operator import Arrays, Case, Options
    from neocpu.oracle.report import Report

PROPERTY = "neocpu_oracle"  # of the report of a test: what the oracle said, as JSON
PARAMETER = "oracle_case"
EXPLANATIONS_SHOWN = 5


class CheckedCase(TypedDict):
    """What the oracle said of one case, as a test's report carries it from a worker."""

    case: str
    passed: bool
    explanations: list[list[str]]  # title, kind, about, fix of each


@dataclass(repr=False)
class OracleCase:
    """One question to the kernel under test."""

    case: "Case"
    settings: "Settings"
    # what came of it: status of the case, names of the explanations of a failure
    outcomes: list[CheckedCase] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<case {self.name} of {self.op}>"

    @property
    def name(self) -> str:
        """Name of the case."""
        return self.case.name

    @property
    def op(self) -> str:
        """Name of the operator."""
        return self.case.op

    @property
    def inputs(self) -> "Arrays":
        """Arrays by name: copies between guard zones, which `check` looks at (guards.py)."""
        return self._call.inputs

    @cached_property
    def _call(self) -> "GuardedCall":
        from neocpu.oracle.guards import GuardedCall

        return GuardedCall(self.case.inputs)

    @property
    def options(self) -> "Options":
        """All options, the defaults included."""
        return self.case.options

    def check(self, answer: object, **options: Any) -> "Report":
        """Raise AssertionError with the report unless the answer is right, and nothing else done.

        answer, options : as those of `neocpu.oracle.check`.
        """
        __tracebackhide__ = True
        from neocpu.oracle.checking import check, find_operator

        settings = self.settings
        arguments = {"bits": settings.bits, "preset": settings.preset, **options}
        effects = self._call.verdicts(find_operator(self.op).updated)
        report = check(
            self.op, self.case.inputs, answer, self.options, effects=effects, **arguments
        )
        self._keep(answer, report)
        failures = [diagnosis for outcome in report.failures for diagnosis in outcome.diagnoses]
        self.outcomes.append(
            CheckedCase(
                case=self.name,
                passed=bool(report),
                explanations=[[d.title, d.kind, d.about, d.fix] for d in failures],
            )
        )
        report.raise_if_failed()
        return report

    def _keep(self, answer: object, report: "Report") -> None:
        from neocpu.oracle.adapters import arrays
        from neocpu.oracle.answers import REPEATS

        if self.settings.answers_file is None:
            return
        outputs = [verdict.output for verdict in report.cases[0].verdicts]
        only = outputs[0].removesuffix(REPEATS)
        by_output = answer if isinstance(answer, Mapping) else {only: answer}
        for output, array in arrays(by_output, "answer").items():
            repeats = f"{output}{REPEATS}" in outputs
            key = f"{self.name}/{output}{REPEATS if repeats else ''}"
            self.settings.answers[key] = array


@dataclass
class Settings:
    """What the command line asks for, and the answers that it wants to keep."""

    seed: int
    dim_multiple: int | None
    draw: int
    pattern: str
    bits: bool
    preset: str | None
    answers_file: Path | None
    answers: "Arrays" = field(default_factory=dict)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the command line."""
    group = parser.getgroup("neocpu oracle", "kernels checked by neocpu's oracle")
    group.addoption("--oracle-seed", type=int, default=0, help="Seed of the cases (default: 0).")
    group.addoption("--oracle-dim-multiple", type=int, help="Rows have such a multiple of columns.")
    group.addoption(
        "--oracle-draw", type=int, default=0, metavar="N", help="Draw N more of each operator."
    )
    group.addoption("--oracle-cases", default="*", metavar="PATTERN", help="Only such cases.")
    group.addoption("--oracle-bits", action="store_true", help="Ask for bits instead of bounds.")
    group.addoption("--oracle-preset", metavar="NAME", help="Check against a peer's semantics.")
    group.addoption(
        "--oracle-answers",
        type=Path,
        metavar="FILE.npz",
        help="Keep all answers in a file for `neocpu oracle check`; not with pytest-xdist.",
    )


SETTINGS = pytest.StashKey[Settings]()
SUMMARY = pytest.StashKey["Summary"]()


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker; remember what the command line asks for."""
    config.addinivalue_line(
        "markers",
        "oracle(op, **options): run once per case of neocpu's oracle, as the fixture oracle_case",
    )
    option = config.getoption
    answers_file = option("--oracle-answers")
    # Workers of pytest-xdist have memory of their own, so no process would have all answers.
    if answers_file is not None and option("numprocesses", None):
        raise pytest.UsageError("--oracle-answers keeps the answers of one process: use -n 0")
    config.stash[SETTINGS] = Settings(
        seed=option("--oracle-seed"),
        dim_multiple=option("--oracle-dim-multiple"),
        draw=option("--oracle-draw"),
        pattern=option("--oracle-cases"),
        bits=option("--oracle-bits"),
        preset=option("--oracle-preset"),
        answers_file=answers_file,
    )
    summary = Summary(config)
    config.stash[SUMMARY] = summary
    config.pluginmanager.register(summary, "neocpu-oracle-summary")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per case of the marker. Raises UsageError for names that choose none."""
    if PARAMETER not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("oracle")
    settings = metafunc.config.stash[SETTINGS]
    cases = _chosen(marker, settings)
    if not cases:
        raise pytest.UsageError(
            f"{metafunc.function.__name__}: the oracle has no such case; `neocpu oracle list` "
            "shows all"
        )
    matching = [case for case in cases if fnmatch(case.name, settings.pattern)]
    metafunc.parametrize(PARAMETER, matching, ids=[case.name for case in matching], indirect=True)


def _chosen(marker: "pytest.Mark | None", settings: Settings) -> "list[Case]":
    """The cases that a marker names. Raises UsageError for what the oracle does not know."""
    from neocpu.core.errors import OracleError
    from neocpu.oracle.testing import chosen

    names = marker.args if marker is not None else ()
    options = marker.kwargs if marker is not None else {}
    multiple = {} if settings.dim_multiple is None else {"dim_multiple": settings.dim_multiple}
    try:
        return [
            case
            for name in names or (None,)
            for case in chosen(name, settings.seed, draw=settings.draw, **multiple, **options)
        ]
    except (OracleError, ValueError) as error:
        raise pytest.UsageError(str(error)) from error


@pytest.fixture
def oracle_case(request: pytest.FixtureRequest) -> Iterator[OracleCase]:
    """One case of the oracle; `oracle_case.check(answer)` judges the kernel's answer."""
    question = OracleCase(request.param, request.config.stash[SETTINGS])
    yield question
    if question.outcomes:
        # Properties are what pytest-xdist carries from a worker.
        request.node.user_properties.append((PROPERTY, json.dumps(question.outcomes)))


class Summary:
    """Gathers what the oracle said, of all workers, and says it once more at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.failed: set[str] = set()
        self.passed: set[str] = set()
        # cases by explanation: (title, kind, about, fix)
        self.explained: dict[tuple[str, ...], set[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Properties of a test come with the report of its teardown, from a worker too."""
        if report.when != "teardown":
            return
        for name, text in report.user_properties:
            if name == PROPERTY:
                for outcome in json.loads(str(text)):
                    self._count(outcome)

    def _count(self, outcome: CheckedCase) -> None:
        if outcome["passed"]:
            self.passed.add(outcome["case"])
            return
        self.failed.add(outcome["case"])
        for explanation in outcome["explanations"]:
            self.explained.setdefault(tuple(explanation), set()).add(outcome["case"])

    def _fewest_explanations(self) -> Iterator[tuple[tuple[str, ...], set[str]]]:
        """Explanations with their cases: that of most cases, then those of the rest."""
        unexplained = set(self.failed)
        for _ in range(EXPLANATIONS_SHOWN):
            best = max(
                self.explained.items(), key=lambda entry: len(entry[1] & unexplained), default=None
            )
            if best is None or not best[1] & unexplained:
                return
            unexplained -= best[1]
            yield best

    def pytest_sessionfinish(self) -> None:
        """Write the answers, if they are wanted."""
        settings = self._config.stash[SETTINGS]
        if settings.answers_file is None or not settings.answers:
            return
        import numpy as np

        from neocpu.oracle.adapters import codes_of

        codes: dict[str, Any] = {key: codes_of(array) for key, array in settings.answers.items()}
        np.savez(settings.answers_file, **codes)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Counts, and what explains the failures."""
        if not self.failed and not self.passed:
            return
        write = terminalreporter.write_line
        count = len(self.failed | self.passed)
        terminalreporter.section("neocpu oracle")
        write(f"{count} cases, {len(self.failed)} failed")
        for (title, kind, about, fix), cases in self._fewest_explanations():
            write(f"{len(cases)} of {len(self.failed)} explained by {title} ({kind}): {about}")
            if fix:
                write(f"  {fix}")
        settings = self._config.stash[SETTINGS]
        if settings.answers_file is not None and settings.answers:
            write(f"answers in {settings.answers_file}")
