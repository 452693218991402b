"""How are tests run for one bug after the other without starting pytest each time? By forks.

With this plugin pytest collects tests and waits. For each bug, which is in its file already, it
forks, and the child gives the functions that it has loaded the code of the file and runs tests: so
a bug costs what these cost. What modules and tests did when they were imported stays as it was.
"""

import gc
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TextIO

import pytest

from tests.mutations import facts

PIPES = "NEOCPU_FORKED"  # variable: numbers of the pipes for requests and for answers
OPTIMIZED = 1  # flag of functions' code, which that of modules and bodies of classes has not
AT_ONCE = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")  # run where they stand


class ForkedTests:
    """Tests of files that wait in a process of pytest."""

    def __init__(self, folder: Path, environment: Mapping[str, str], files: Sequence[str]) -> None:
        requests, write = os.pipe()
        read, answers = os.pipe()
        options = ["-n", "0", "-p", "no:cacheprovider", "-p", "tests.forked"]
        options += ["--continue-on-collection-errors", f"--basetemp={folder / 'forked'}"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *files],
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

    def failed(self, file: str, before: bytes, tests: Sequence[str], seconds: float) -> str:
        """The test that fails, or takes longer, now that a file is not as it was before; "" where
        none does, or only new processes would see it.
        """
        try:
            print(json.dumps([file, before.decode(), [*tests], seconds]), file=self._requests)
            self._requests.flush()
        except BrokenPipeError:
            return ""
        return json.loads(self._answers.readline() or '""')

    def close(self) -> None:
        """End the process."""
        self._answers.close()
        with suppress(BrokenPipeError):
            self._requests.close()
        self._process.wait()


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Answer requests instead of running the tests."""
    requests, answers = map(int, os.environ[PIPES].split())
    with os.fdopen(requests) as lines, os.fdopen(answers, "w") as written:
        for line in lines:
            print(json.dumps(_failed(session, *json.loads(line))), file=written, flush=True)
    return True


def _failed(
    session: pytest.Session, file: str, before: str, tests: Sequence[str], seconds: float
) -> str:
    items = [item for test in tests for item in session.items if is_of(item.nodeid, test)]
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        try:
            session.config.pluginmanager.register(_Watch())
            if give_code(file, before):
                _run(items, os.fdopen(write, "w"))
        finally:
            os._exit(0)
    os.close(write)
    told = b""
    while select.select([read], [], [], seconds)[0] and (news := os.read(read, 1 << 16)):
        told += news
    os.close(read)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    # a test that was begun, and neither ended nor was followed, took too long or ended the process
    begun = told.decode().splitlines()
    return begun[-1] if begun and begun[-1] else ""


def is_of(test: str, whole: str) -> bool:
    """Whether a test is the whole, or a case of this test, or in this file."""
    return test == whole or test.startswith((f"{whole}[", f"{whole}::"))


class _Watch:
    """Ends the process after a test that fails."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os._exit(1)


def _run(items: Sequence[pytest.Item], written: TextIO) -> None:
    """Write the name of each test that begins, and an empty line after the last one."""
    for item, following in zip(items, [*items[1:], None]):
        print(item.nodeid, file=written, flush=True)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    print(file=written, flush=True)


def give_code(file: str, before: str) -> bool:
    """Give functions of a loaded file the code that it has now; False where that is not enough."""
    module = sys.modules.get(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    if module is None:
        return True  # whoever imports it sees the bug
    path = str(module.__file__)
    texts = (before, Path(path).read_text())
    old, new = (compile(text, path, "exec", dont_inherit=True) for text in texts)
    codes = dict(_changed(old, new))
    if None in codes:
        return False
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == path:
            key = _key(function.__code__)
            function.__code__ = codes.get(key, function.__code__)
    return True


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _changed(old: CodeType, new: CodeType) -> Iterator[tuple[tuple[str, int] | None, CodeType]]:
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
