"""How are tests run for one bug after the other without starting pytest each time? By forks.

With this plugin pytest waits, and collects files of tests when they are first asked for. For each
bug, which is in its file already, it forks, and the child gives the functions that it has loaded
the code of the file and runs tests: so a bug costs what these cost. What modules and tests did when
they were imported stays as it was; a trace of it tells which bugs a new process has to be asked
about.
"""

import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, TextIO

import pytest

from tests.mutations import facts

PIPES = "NEOCPU_FORKED"  # variable: numbers of the pipes for requests and for answers
OPTIMIZED = 1  # flag of functions' code, which that of modules and bodies of classes has not
AT_ONCE = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")  # run where they stand

TICK = 0.5  # seconds between two looks at what a fork does
PASSED = "passed"
SKIPPED = "skipped"
IMPORTED = "imported "  # and the names of modules
PACKAGE = "neocpu."
NO_FORKS = ("neocpu.parallel.transport.mpi",)  # they start MPI, which a fork may not share

Key = tuple[str, int]  # of a function in its file: name, line
AT_IMPORT: set[CodeType] = set()  # what ran before the tests waited
FOLDERS: dict[Path, Any] = {}  # their nodes
LATER: set[str] = set()  # modules that a fork has imported, and the next one shall not have to


@dataclass(frozen=True)
class Outcome:
    """What became of tests: the one that failed or did not end, "" where none; whether any ran to
    its end; whether a new process would see no more; whether the one that failed took too long.
    """

    failed: str = ""
    passed: bool = False
    whole: bool = False
    late: bool = False


class ForkedTests:
    """Tests that wait in a process of pytest; their files are in folder/tests.

    words : further ones for pytest.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], *words: str) -> None:
        # outside of the copy, or a pytest that a test starts takes the options of its project
        self._temporary = tempfile.TemporaryDirectory()
        requests, write = os.pipe()
        read, answers = os.pipe()
        options = ["-n", "0", "-p", "no:cacheprovider", "-p", "tests.forked"]
        options += [f"--basetemp={self._temporary.name}/tests"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *words, "tests"],
            cwd=folder,
            env={**environment, PIPES: f"{requests} {answers}"},
            pass_fds=(requests, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(requests)
        os.close(answers)
        self._requests = os.fdopen(write, "w")
        self._answers = os.fdopen(read)
        self._collected: set[str] = set()

    def collect(self, tests: Iterable[str]) -> None:
        """Collect the files of tests, and import what tests before them imported while they ran;
        a bug that is in a file of these would be in all forks.
        """
        files = {test.partition("::")[0] for test in tests} - self._collected
        self._collected |= files
        self._answer({"files": sorted(files)})

    def outcome(self, file: str, before: bytes, tests: Sequence[str], seconds: float) -> Outcome:
        """What becomes of tests, whose files are collected, now that a file is not as it was
        before.

        seconds : for each test, of a processor or in which all that it started sleeps; so they are
            as many beside other work.
        """
        request = {"file": file, "before": before.decode(), "tests": [*tests], "seconds": seconds}
        return Outcome(**json.loads(self._answer(request) or "{}"))

    def _answer(self, request: dict[str, Any]) -> str:
        """What the process says; nothing where it ended."""
        try:
            print(json.dumps(request), file=self._requests, flush=True)
        except BrokenPipeError:
            return ""
        return self._answers.readline()

    def close(self) -> None:
        """End the process."""
        self._answers.close()
        with suppress(BrokenPipeError):
            self._requests.close()
        self._process.wait()
        self._temporary.cleanup()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Note which functions are run when modules and tests are imported."""
    sys.settrace(_note)


def _note(frame: FrameType, event: str, value: Any) -> None:
    AT_IMPORT.add(frame.f_code)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> bool:
    """Collect nothing yet."""
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collect_directory(path: Path) -> Iterator[None]:
    """A folder has one node: pytest gives fixtures of a conftest.py to the first that it makes."""
    return FOLDERS.setdefault(path, (yield))


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Answer requests instead of running the tests."""
    sys.settrace(None)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    requests, answers = map(int, os.environ[PIPES].split())
    items: list[pytest.Item] = []
    with os.fdopen(requests) as lines, os.fdopen(answers, "w") as written:
        for line in lines:
            request = json.loads(line)
            if "files" in request:
                items += _collected(session, request["files"])
                print(file=written, flush=True)
            else:
                print(json.dumps(asdict(_outcome(items, **request))), file=written, flush=True)
    return True


def _collected(session: pytest.Session, files: Sequence[str]) -> list[pytest.Item]:
    """The tests of files; none of those that cannot be imported."""
    sys.settrace(_note)
    for name in sorted(LATER):
        with suppress(ImportError):  # which a test had put together
            importlib.import_module(name)
    LATER.clear()
    items = session.perform_collect(files) if files else []
    sys.settrace(None)
    return [item for item in items if isinstance(item, pytest.Item)]


def _outcome(
    all_items: Sequence[pytest.Item], file: str, before: str, tests: Sequence[str], seconds: float
) -> Outcome:
    path, codes = changed_codes(file, before)
    if None in codes:
        return Outcome()
    items = [item for test in tests for item in all_items if is_of(item.nodeid, test)]
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        try:
            give_code(path, codes)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _run(items, os.fdopen(write, "w"))
        finally:
            os._exit(0)
    os.close(write)
    try:
        told, late = _followed(child, read, seconds)
    finally:
        os.close(read)
        for process in {child, *_family(child)}:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    lines = []
    for line in told.decode().splitlines():
        if line.startswith(IMPORTED):
            LATER.update(line.split()[1:])
        else:
            lines.append(line)
    if not lines:
        return Outcome()
    if lines[-1] in (PASSED, SKIPPED):
        at_import = {_key(code) for code in AT_IMPORT if code.co_filename == path}
        return Outcome(passed=lines[-1] == PASSED, whole=not at_import & codes.keys())
    # a test that was begun, and neither ended nor was followed, took too long or ended the process
    return Outcome(failed=lines[-1], late=late)


def _followed(child: int, read: int, seconds: float) -> tuple[bytes, bool]:
    """What a fork writes until it ends, or a test has had its seconds; whether it had."""
    told = b""
    begun = 0.0
    asleep = 0.0
    while True:
        news = select.select([read], [], [], TICK)[0] and os.read(read, 1 << 16)
        if news == b"":
            return told, False
        family = _family(child)
        spent = sum(taken for taken, _ in family.values())
        if news:
            told += news
            begun = spent
            asleep = 0.0
        elif not any(runs for _, runs in family.values()):
            asleep += TICK
        if spent - begun + asleep > seconds:
            return told, True


def _family(process: int) -> dict[int, tuple[float, bool]]:
    """Seconds of a processor that a process, and each that it started, and their dead, have taken,
    and whether it runs or would; {} on a system that does not tell.
    """
    everyone: dict[int, list[str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            everyone[int(folder.name)] = _fields(folder)
    family: dict[int, tuple[float, bool]] = {}
    found = {process} & {*everyone}
    while found:
        for one in found:
            taken = sum(map(int, everyone[one][11:15])) / os.sysconf("SC_CLK_TCK")
            family[one] = taken, _runs(one)
        found = {one for one, (_, parent, *_) in everyone.items() if int(parent) in found}
    return family


def _runs(process: int) -> bool:
    """Whether any thread of a process runs, or waits for a processor or a disk."""
    with suppress(OSError):
        return any(_fields(task)[0] in "RD" for task in Path(f"/proc/{process}/task").iterdir())
    return False


def _fields(folder: Path) -> list[str]:
    """What Linux tells of a process or thread, from its state on."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


def is_of(test: str, whole: str) -> bool:
    """Whether a test is the whole, or a case of this test, or in this file."""
    return test == whole or test.startswith((f"{whole}[", f"{whole}::"))


class _Watch:
    """Ends the process after a test that fails; says what modules tests import; notes whether any
    passed.
    """

    passed = False

    def __init__(self, written: TextIO) -> None:
        self._written = written
        self._before = {*sys.modules}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        new = (name for name in {*sys.modules} - self._before if name.startswith(PACKAGE))
        names = [name for name in new if not name.startswith(NO_FORKS)]
        self._before |= {*names}
        if names:
            print(f"{IMPORTED}{' '.join(names)}", file=self._written, flush=True)
        if report.failed:
            os._exit(1)
        self.passed |= report.when == "call" and report.passed


def _run(items: Sequence[pytest.Item], written: TextIO) -> None:
    """Write the name of each test that begins, and after the last one whether any passed."""
    watch = _Watch(written)
    for item in items[:1]:
        item.config.pluginmanager.register(watch)
    for item, following in zip(items, [*items[1:], None]):
        print(item.nodeid, file=written, flush=True)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    print(PASSED if watch.passed else SKIPPED, file=written, flush=True)


def changed_codes(file: str, before: str) -> tuple[str, dict[Key | None, CodeType]]:
    """The path of a loaded file, and the new code of its functions that are not as before; code of
    None where what is around them is not. None are changed in a file that is not loaded: whoever
    imports it sees the bug.
    """
    module = sys.modules.get(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    if module is None:
        return "", {}
    path = str(module.__file__)
    texts = (before, Path(path).read_text())
    old, new = (compile(text, path, "exec", dont_inherit=True) for text in texts)
    return path, dict(_changed(old, new))


def give_code(path: str, codes: Mapping[Key | None, CodeType]) -> None:
    """Give functions of a loaded file other code."""
    gc.unfreeze()  # what conftest.py froze is not among the objects
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == path:
            key = _key(function.__code__)
            function.__code__ = codes.get(key, function.__code__)


def _key(code: CodeType) -> Key:
    return code.co_qualname, code.co_firstlineno


def _changed(old: CodeType, new: CodeType) -> Iterator[tuple[Key | None, CodeType]]:
    """New code of functions, by name and line of the old; None where code around them differs."""
    if facts(old) == facts(new):
        return
    if old.co_flags & OPTIMIZED and old.co_name not in AT_ONCE:
        yield _key(old), new
        return
    inside, around = zip(*map(_split, (old, new)))
    if around[0] != around[1] or len(inside[0]) != len(inside[1]):
        yield None, new
        return
    for pair in zip(*inside):
        yield from _changed(*pair)


def _split(code: CodeType) -> tuple[list[CodeType], list[Any]]:
    """Code inside of other code, and what is around it."""
    inside = [const for const in code.co_consts if isinstance(const, CodeType)]
    values = [repr(const) for const in code.co_consts if not isinstance(const, CodeType)]
    return inside, [code.co_code, code.co_names, *values]
