"""Would the tests notice a small bug? `python -m tests.mutants [--sample 500] [--seed DATE]`.

Bugs of `mutations.py` are drawn, put one by one into a copy of the repository, and the tests that
belong to the file are run on it. `--changed BASE` draws from the lines changed since a revision,
`--wing NAME` from a wing; `--least SHARE` exits with 1 where fewer are killed; after `--seconds N`
no other bug is tried. `--record FILE` keeps what was drawn and what became of it, so that the same
command goes on where it ended.

A bug is killed by a test that fails with it, and passes without it, or that ends in time only
without it. Which tests belong to a function `executed.py` has recorded; those of all bugs wait in
one process (`forked.py`), those of kernels in another, which interprets them; what these cannot
see, as a kernel that survives and has to be compiled, has one of its own. Of our own since mutmut
leaves out whatever has a decorator, so every kernel; cosmic-ray has one command for all files.
"""

import argparse
import ast
import datetime
import importlib.util
import itertools
import json
import math
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from tests.belonging import ROOT, TestMap, function_at
from tests.forked import ForkedTests, Outcome, is_of
from tests.mutations import Mutant, differs, mutants_of

SECONDS = 180.0  # that one test may take; kernels are compiled anew with a bug in one
FORKED_SECONDS = 30.0  # where none has to be
KERNELS = "neocpu/kernels/"  # which are compiled
TWINS = f"{KERNELS}twins/"
NO_CODE = "neocpu/kernels/simd/"  # it writes LLVM: what it means is in the kernels
KILLED = "killed"
SURVIVED = "survived"
UNTESTED = "untested"
DRAWN = "drawn"
BEGUN = "interrupted"

INTERPRETED = "interpreted"
FORKED = "forked"
ALONE = "alone"


class Verdict(NamedTuple):
    """What became of a bug; which test killed it, how that was run, and whether it was too long."""

    word: str
    by: str = ""
    way: str = ""
    late: bool = False

    def __str__(self) -> str:
        late = " which took too long" if self.late else ""
        return f"{self.word} by {self.by}{late}" if self.by else self.word


class Record:
    """Bugs and what became of them, kept in a file where there is one."""

    def __init__(self, path: Path | None) -> None:
        self.verdicts: dict[Mutant, Verdict] = {}
        self._path = path
        if path and path.exists():
            for line in path.read_text().splitlines():
                mutant, verdict = json.loads(line)
                self.verdicts[Mutant(**mutant)] = Verdict(*verdict)

    def note(self, mutant: Mutant, verdict: Verdict) -> None:
        """Keep what became of a bug."""
        self.verdicts[mutant] = verdict
        if self._path:
            with self._path.open("a") as file:
                print(json.dumps([asdict(mutant), verdict]), file=file)

    def open(self, root: Path) -> list[Mutant]:
        """Bugs to be tried that are still in their files; kernels, which are compiled, are behind
        others, and last is what was begun in vain.
        """
        bugs = [mutant for mutant, told in self.verdicts.items() if told.word in (DRAWN, BEGUN)]
        there = (mutant for mutant in bugs if mutant.is_in((root / mutant.file).read_bytes()))
        return sorted(there, key=lambda bug: (self.verdicts[bug].word, _is_kernel(bug.file)))


class Copy:
    """A copy of the repository in which bugs are put."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder / "copy"
        for name in ("neocpu", "tests", "docs", "benchmarks", "examples", "data"):
            if (root / name).exists():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(root / name, self.folder / name, ignore=ignored)
        for path in root.iterdir():
            if path.is_file():
                shutil.copy(path, self.folder)
        # compiled files are told from their source by its contents: a bug may keep its size
        hashed = ["--invalidation-mode", "checked-hash", "-q", "neocpu"]
        subprocess.run([sys.executable, "-m", "compileall", *hashed], cwd=self.folder, check=True)
        data = os.environ.get("NEOCPU_TEST_DATA") or str(root.parent / "shared" / "data")
        self._environment = os.environ | {
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NEOCPU_TEST_DATA": data,
        }
        self._waiting: dict[str, ForkedTests] = {}
        self._alone: dict[tuple[str, str], bool] = {}  # does a test pass without a bug?
        self._unfit: set[tuple[str, str]] = set()
        self._kills: Counter[tuple[str, str]] = Counter()  # by file and test

    def verdict(
        self, mutant: Mutant, tests: Sequence[str], interpreted: Sequence[str] = ()
    ) -> Verdict:
        """What became of a bug; UNTESTED where no test could be run.

        interpreted : tests that are run first, with kernels interpreted.
        """
        source = (self.folder / mutant.file).read_bytes()
        if _cannot_run(ast.parse(source)):
            return Verdict(UNTESTED)
        tests = sorted(tests, key=lambda test: -self._kills[mutant.file, test])
        while (verdict := self._verdict(mutant, source, tests, interpreted)).word == KILLED:
            by = verdict.by
            known = (by, verdict.way) in self._alone
            if not self._passes(by, verdict.way):
                print(f"{by} fails without a bug, too ({verdict.way})", flush=True)
                failing = (test for test in (*tests, *interpreted) if _is_of(test, by))
                self._unfit |= {(test, verdict.way) for test in failing}
            elif known or not verdict.late:  # what was late may have compiled what it needs
                self._kills[mutant.file, next((t for t in tests if is_of(by, t)), "")] += 1
                break
        return verdict

    def _verdict(
        self, mutant: Mutant, source: bytes, tests: Sequence[str], interpreted: Sequence[str]
    ) -> Verdict:
        """What becomes of a bug, whether or not it is the bug that fails a test."""
        if interpreted:
            outcome = self._in_forks(INTERPRETED, mutant, source, interpreted)
            if outcome.failed:
                return Verdict(KILLED, outcome.failed, INTERPRETED, outcome.late)
        way = FORKED
        outcome = self._in_forks(way, mutant, source, tests)
        # what compiles a kernel may have read its code before
        if not outcome.failed and (not outcome.whole or _is_kernel(mutant.file)):
            way = ALONE
            path = self.folder / mutant.file
            path.write_bytes(mutant.applied(source))
            outcome = self._outcome([test for test in tests if (test, way) not in self._unfit])
            path.write_bytes(source)
        if outcome.failed:
            return Verdict(KILLED, outcome.failed, way, outcome.late)
        return Verdict(SURVIVED if outcome.passed else UNTESTED)

    def _forks(self, way: str) -> ForkedTests:
        """The tests that wait, with kernels compiled or interpreted."""
        if way not in self._waiting:
            interpreted = way == INTERPRETED
            environment = self._environment | ({"NUMBA_DISABLE_JIT": "1"} if interpreted else {})
            words = ("-W", "ignore") if interpreted else ()
            self._waiting[way] = ForkedTests(self.folder, environment, *words)
        return self._waiting[way]

    def _in_forks(self, way: str, mutant: Mutant, source: bytes, tests: Sequence[str]) -> Outcome:
        """What becomes of tests in forks, file by file: most bugs are killed by the first, and need
        none of the others to be collected.
        """
        path = self.folder / mutant.file
        compiled = _is_kernel(mutant.file) and way == FORKED
        seconds = SECONDS if compiled else FORKED_SECONDS
        forks = self._forks(way)
        passed = False
        whole = True
        fit = (test for test in tests if (test, way) not in self._unfit)
        for _, of_file in itertools.groupby(fit, lambda test: test.partition("::")[0]):
            asked = [*of_file]
            forks.collect(asked)
            path.write_bytes(mutant.applied(source))
            outcome = forks.outcome(mutant.file, source, asked, seconds)
            path.write_bytes(source)
            if outcome.failed or not (outcome.passed or outcome.whole):
                return outcome
            passed |= outcome.passed
            whole &= outcome.whole
        return Outcome(passed=passed, whole=whole)

    def _passes(self, test: str, way: str) -> bool:
        """Whether a test passes without a bug, as it was run with one, or in a fork, which is
        quicker than a new process.
        """
        if (test, way) not in self._alone:
            forks = self._forks(FORKED if way == ALONE else way)
            forks.collect([test])
            passes = forks.outcome("", b"", [test], SECONDS).passed
            if way == ALONE and not passes:
                passes = not self._outcome([test]).failed
            self._alone[test, way] = passes
        return self._alone[test, way]

    def close(self) -> None:
        """End what waits for bugs."""
        for forks in self._waiting.values():
            forks.close()

    def _outcome(self, tests: Sequence[str]) -> Outcome:
        """What becomes of tests in a new process; a file that fails, where no test can be named."""
        if not tests:
            return Outcome(whole=True)
        options = ["-x", "-v", "-n", "0", "-p", "no:cacheprovider"]
        with subprocess.Popen(
            [sys.executable, "-u", "-m", "pytest", *options, *tests],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            shown = _until_silent(process)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                started = re.findall(r"^(tests/\S+?::.*?) *$", shown, re.MULTILINE)
                return Outcome(started[-1] if started else tests[0], late=True)
        if process.returncode in (0, 5):  # 5: no tests
            return Outcome(passed=bool(re.search(r"\b\d+ passed", shown)), whole=True)
        name = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", shown, re.MULTILINE)
        return Outcome(name[1] if name else tests[0])


def _is_of(test: str, failed: str) -> bool:
    """Whether a test, or a file of tests, holds the one that failed, or is held by it."""
    names = {failed, failed.partition("[")[0], failed.partition("::")[0]}
    return test in names or is_of(test, failed)


def _cannot_run(module: ast.Module) -> bool:
    """Whether a module imports a library that is not installed."""
    names = set()
    for node in module.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return any(importlib.util.find_spec(name.split(".")[0]) is None for name in names)


def _until_silent(process: subprocess.Popen[bytes]) -> str:
    """What a process writes until it ends, or has written nothing for the time of a test."""
    assert process.stdout is not None
    shown = b""
    while select.select([process.stdout], [], [], SECONDS)[0]:
        read = os.read(process.stdout.fileno(), 1 << 16)
        if not read:
            process.wait()
            break
        shown += read
    return shown.decode(errors="replace")


def lines_in(diff: str) -> dict[str, set[int]]:
    """Lines of files that a diff without context adds or changes."""
    lines: dict[str, set[int]] = {}
    file = ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ b/")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            start = int(hunk[1])
            count = int(hunk[2] or 1)
            lines.setdefault(file, set()).update(range(start, start + count))
    return lines


def changed_lines(root: Path, base: str) -> dict[str, set[int]]:
    """Lines of the package that are other than at a revision."""
    command = ["git", "diff", "-U0", "--no-color", "--no-ext-diff", base, "--", "neocpu"]
    shown = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return lines_in(shown)


def drawn(root: Path, options: argparse.Namespace) -> Iterator[Mutant]:
    """Bugs in a drawn order, each of which is in the bytecode: first their files, by the number of
    their lines, so that edits of few files have to be found.
    """
    generator = random.Random(options.seed)
    changed = changed_lines(root, options.changed) if options.changed else None
    sources: dict[str, bytes] = {}
    lines: dict[str, set[int]] = {}
    for path in sorted((root / "neocpu" / (options.wing or "")).rglob("*.py")):
        file = path.relative_to(root).as_posix()
        if not file.startswith(NO_CODE):
            sources[file] = path.read_bytes()
            everywhere = {*range(1, sources[file].count(b"\n") + 2)}
            lines[file] = everywhere if changed is None else changed.get(file, set())
    counts = {file: len(own) for file, own in lines.items() if own}
    mutants: dict[str, list[Mutant]] = {}
    while counts:
        (file,) = generator.choices([*counts], [*counts.values()])
        if file not in mutants:
            mutants[file] = [m for m in mutants_of(file, sources[file]) if m.line in lines[file]]
            generator.shuffle(mutants[file])
        if not mutants[file]:
            del counts[file]
        elif differs(mutant := mutants[file].pop(), sources[file]):
            yield mutant


def main(words: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """The command; its exit status."""
    options = _options(words)
    record = Record(options.record)
    if not record.verdicts:
        for mutant, _ in zip(drawn(root, options), range(options.sample)):
            record.note(mutant, Verdict(DRAWN))
    if not record.verdicts:
        print("no line of the package in which a bug could be put")
        return 0
    belonging = TestMap(root)
    end = time.monotonic() + options.seconds
    runs = record.open(root)
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(root, Path(folder))
        for number, mutant in enumerate(runs, 1):
            start = time.monotonic()
            if start > end:
                print(f"{len(runs) - number + 1} are not tried: time is over")
                break
            record.note(mutant, Verdict(BEGUN))
            source = (root / mutant.file).read_bytes()
            tests = belonging.of_line(mutant.file, source, mutant.line)
            function, _ = function_at(source, mutant.line)
            ran = belonging.executed.get(mutant.file, {}).get(function, [])
            verdict = copy.verdict(mutant, tests, ran if _is_kernel(mutant.file) else ())
            record.note(mutant, verdict)
            seconds = f"{time.monotonic() - start:.0f} s"
            print(f"{number}/{len(runs)} {seconds} {verdict}: {mutant}", flush=True)
        copy.close()
    return _report(record.verdicts, options)


def _is_kernel(file: str) -> bool:
    return file.startswith(KERNELS) and not file.startswith(TWINS)


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=500)
    parser.add_argument("--seed", default=datetime.datetime.now(datetime.UTC).date().isoformat())
    parser.add_argument("--changed", metavar="BASE")
    parser.add_argument("--wing", metavar="NAME")
    parser.add_argument("--least", type=float, default=0.0, metavar="SHARE")
    parser.add_argument("--seconds", type=float, default=math.inf, metavar="N")
    parser.add_argument("--record", type=Path, metavar="FILE")
    return parser.parse_args(words)


def _report(verdicts: dict[Mutant, Verdict], options: argparse.Namespace) -> int:
    """Shares by wing and what survived; 1 where fewer than `--least` were killed."""
    wings = Counter((mutant.file.split("/")[1], told.word) for mutant, told in verdicts.items())
    print(f"\nseed {options.seed}")
    for wing in sorted({wing for wing, _ in wings}):
        killed = wings[wing, KILLED]
        print(f"  {wing}: {killed} of {killed + wings[wing, SURVIVED]} killed")
    for word in (SURVIVED, UNTESTED):
        for mutant, told in verdicts.items():
            if told.word == word:
                print(f"{word}: {mutant}")
    words = Counter(told.word for told in verdicts.values())
    tried = words[KILLED] + words[SURVIVED]
    share = words[KILLED] / tried if tried else 1.0
    late = sum(told.late for told in verdicts.values())
    print(f"{late} by a test that took too long")
    print(f"{words[KILLED]} of {tried} killed, {100 * share:.1f} %")
    return int(share < options.least)


if __name__ == "__main__":
    sys.exit(main())
