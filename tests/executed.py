"""Which tests run a function of the package? `python -m tests.executed` records it anew.

Tests are run with every line of the package traced that they execute in their process. What other
processes do is not seen, nor are kernels, since Numba compiles them, but with NUMBA_DISABLE_JIT=1:
then those tests are recorded that pass, and take few seconds, while kernels are interpreted. What a
fixture runs that several tests share belongs to each of them.
"""

import functools
import gzip
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.belonging import RECORD, ROOT, TestMap, held

FOLDER = "NEOCPU_EXECUTED"  # variable with the folder for what each process saw
PACKAGE = f"{ROOT}{os.sep}neocpu{os.sep}"
INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
INTERPRETED_SECONDS = 10.0  # of a processor
TOO_LONG = "interpreted, it takes too long"
MOST_EVENTS = 20_000  # lines of a function that a test runs until no other is looked for
MOST_SECONDS = 10.0  # of the tests of a function, if they run all of its lines

Line = tuple[str, str, int]  # file, function, line
Seen = dict[str, tuple[float, list[Line]]]  # by tests; their seconds
Tracer = Callable[[FrameType, str, Any], Any]


class Recorder:
    """A plugin of pytest that notes the lines of the package which each test executes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tracers: dict[CodeType, Tracer | None] = {}
        self._lines: dict[CodeType, set[int]] = {}
        self._events: Counter[CodeType] = Counter()
        self._of_tests: dict[str, set[Line]] = defaultdict(set)
        self._of_fixtures: dict[Any, set[Line]] = {}
        self._seconds: Counter[str] = Counter()
        self._failed: set[str] = set()
        signal.signal(signal.SIGPROF, _end)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace a test and its fixtures."""
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, INTERPRETED_SECONDS if INTERPRETED else 0)
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        result = yield
        sys.settrace(None)
        threading.settrace(None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        test = item.nodeid.partition("[")[0]
        self._seconds[test] += time.process_time() - start
        self._of_tests[test] |= self._taken()
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            for definition in definitions:
                self._of_tests[test] |= self._of_fixtures.get(definition, set())
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: pytest.FixtureRequest) -> Iterator:
        """Note what a shared fixture runs."""
        if fixturedef.scope == "function":
            return (yield)
        test = request._pyfuncitem.nodeid.partition("[")[0]
        self._of_tests[test] |= self._taken()
        result = yield
        self._of_fixtures[fixturedef] = self._taken()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which tests do not pass: what runs before they fail says little."""
        if report.failed or (report.skipped and TOO_LONG in str(report.longrepr)):
            self._failed.add(report.nodeid.partition("[")[0])

    def pytest_sessionfinish(self) -> None:
        """Write what this process saw of tests that pass."""
        seen = {
            test: (self._seconds[test], sorted(lines))
            for test, lines in self._of_tests.items()
            if test not in self._failed
        }
        (self._folder / f"{os.getpid()}-{time.time_ns()}.json").write_text(json.dumps(seen))

    def _enter(self, frame: FrameType, event: str, value: Any) -> Tracer | None:
        """What traces the lines of a call: nothing outside the package."""
        code = frame.f_code
        if code not in self._tracers:
            self._tracers[code] = self._tracer(code)
        return self._tracers[code]

    def _tracer(self, code: CodeType) -> Tracer | None:
        file = code.co_filename
        at_import = not code.co_flags & inspect.CO_OPTIMIZED  # modules and bodies of classes
        if at_import or not file.startswith(PACKAGE):
            return None
        lines = self._lines.setdefault(code, set())
        most = len({line for _, _, line in code.co_lines() if line})

        def trace(frame: FrameType, event: str, value: Any) -> Tracer:
            lines.add(frame.f_lineno)
            self._events[code] += 1
            if len(lines) == most or self._events[code] > MOST_EVENTS:
                frame.f_trace_lines = False
            return trace

        return trace

    def _taken(self) -> set[Line]:
        """Lines that were run since this was asked last."""
        taken = set()
        self._events.clear()
        for code, lines in self._lines.items():
            if lines:
                file = Path(code.co_filename).relative_to(ROOT).as_posix()
                function = code.co_qualname.partition(".<locals>")[0]
                taken |= {(file, function, line) for line in lines}
                lines.clear()
        return taken


def _end(number: int, frame: FrameType | None) -> None:
    """End a test that takes too long by what hypothesis does not try again."""
    pytest.skip(TOO_LONG)


def pytest_configure(config: pytest.Config) -> None:
    """Record in this process, be it that of the command or one of its workers."""
    config.pluginmanager.register(Recorder(Path(os.environ[FOLDER])))


def chosen(seen: Seen, near: Callable[[str], list[str]]) -> dict[str, dict[str, list[str]]]:
    """Tests of each function: those in files `near` its own come first, then what runs little else.

    As many as MOST_SECONDS allow, any that runs a line which those before it do not, and those that
    hold its numbers against recorded ones.
    """
    of_functions: dict[tuple[str, str], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for test, (_, lines) in seen.items():
        for file, function, line in lines:
            of_functions[file, function][test].add(line)
    files: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for (file, function), tests in sorted(of_functions.items()):
        close = {*near(file)}
        always = held(file)
        ranks = {
            test: (test.partition("::")[0] not in close, len(seen[test][1]), test) for test in tests
        }
        kept = []
        left = MOST_SECONDS
        ran: set[int] = set()
        for test in sorted(tests, key=ranks.__getitem__):
            seconds = seen[test][0]
            holds = not always.isdisjoint((test, test.partition("::")[0]))
            if seconds <= left or tests[test] - ran or holds:
                kept.append(test)
                left -= seconds
                ran |= tests[test]
        files[file][function] = kept
    return files


def record(words: Sequence[str]) -> None:
    """Run the tests, with further words for pytest, and amend the record by what they executed.

    Where FOLDER is set, it keeps what was seen: so slices of the tests make one record.
    """
    seen: Seen = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.environ.get(FOLDER, temporary)
        options = ["-q", "-p", "tests.executed", "-m", "not long", *words]
        options += ["-W", "ignore"] if INTERPRETED else []
        environment = os.environ | {FOLDER: folder, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "pytest", *options]
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        for path in sorted(Path(folder).iterdir(), key=os.path.getmtime):
            seen |= json.loads(path.read_text())
    amend(seen)


def amend(seen: Seen) -> None:
    """Put what tests executed into the record, instead of what it said of them."""
    known = TestMap(ROOT)
    kept = {test: known.seconds[test] for test in known.seconds.keys() & known.all - {*seen}}
    files = chosen(seen, functools.cache(known.tests))
    for file, functions in known.executed.items():
        for function, tests in functions.items():
            if old := [test for test in tests if test in kept]:
                files[file].setdefault(function, []).extend(old)
    seconds = kept | {test: taken for test, (taken, _) in seen.items()}
    (ROOT / RECORD).write_bytes(packed(seconds, files))


def packed(seconds: Mapping[str, float], files: dict[str, dict[str, list[str]]]) -> bytes:
    """What is written: all tests with their seconds, and the numbers of those of each function."""
    tests = sorted(seconds)
    numbers = {test: number for number, test in enumerate(tests)}
    own = {
        file: {function: [numbers[test] for test in kept] for function, kept in functions.items()}
        for file, functions in sorted(files.items())
    }
    rounded = [round(seconds[test], 1) for test in tests]
    record = {"tests": tests, "seconds": rounded, "files": own}
    text = json.dumps(record, separators=(",", ":"))
    return gzip.compress(text.encode(), mtime=0)


if __name__ == "__main__":
    record(sys.argv[1:])
