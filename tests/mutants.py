"""Would the tests notice a small bug? `python -m tests.mutants [--sample 500] [--seed DATE]`.

Bugs of `mutations.py` are drawn, put one by one into a copy of the repository, and the tests that
belong to the file are run on it. `--changed BASE` draws from the lines changed since a revision,
`--wing NAME` from a wing; `--least SHARE` exits with 1 where fewer are killed; after `--seconds N`
no other bug is tried.

A bug is killed by a test that fails with it, and passes without it, or that ends in time only
without it. Which tests belong to a function `executed.py` has recorded; those of all bugs wait in
one process (`forked.py`); what it cannot see, as a kernel that survives, has one of its own. Of our
own since mutmut leaves out whatever has a decorator, so every kernel; cosmic-ray has one
command for all files.
"""

import argparse
import ast
import datetime
import importlib.util
import itertools
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
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.belonging import ROOT, START_MPI, TestMap
from tests.forked import ForkedTests, Outcome, is_of
from tests.mutations import Mutant, differs, mutants_of

SECONDS = 180.0  # that one test may take; kernels are compiled anew with a bug in one
FORKED_SECONDS = 30.0  # of a processor, where none has to be
KERNELS = "neocpu/kernels/"  # which are compiled
TWINS = f"{KERNELS}twins/"
NO_CODE = "neocpu/kernels/simd/"  # it writes LLVM: what it means is in the kernels
KILLED = "killed"
SURVIVED = "survived"
UNTESTED = "untested"

Run = tuple[Mutant, list[str]]  # and the tests to be run


class Verdict(NamedTuple):
    """What became of a bug; which test killed it, and whether in a fork."""

    word: str
    by: str = ""
    forked: bool = False


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
        self._forked = ForkedTests(self.folder, self._environment)
        self._kills: Counter[tuple[str, str]] = Counter()  # by file and test

    def verdict(self, mutant: Mutant, tests: Sequence[str]) -> Verdict:
        """What became of a bug; UNTESTED where no test could be run."""
        path = self.folder / mutant.file
        source = path.read_bytes()
        if not tests or _cannot_run(ast.parse(source)):
            return Verdict(UNTESTED)
        tests = sorted(tests, key=lambda test: -self._kills[mutant.file, test])
        outcome = self._in_forks(mutant, source, tests)
        # what compiles a kernel may have read its code before
        forked = bool(outcome.failed) or (outcome.whole and not _is_kernel(mutant.file))
        if not forked:
            path.write_bytes(mutant.applied(source))
            outcome = self._outcome(tests)
            path.write_bytes(source)
        if outcome.failed:
            by = next((test for test in tests if is_of(outcome.failed, test)), "")
            self._kills[mutant.file, by] += 1
            return Verdict(KILLED, outcome.failed, forked)
        return Verdict(SURVIVED if outcome.passed else UNTESTED)

    def _in_forks(self, mutant: Mutant, source: bytes, tests: Sequence[str]) -> Outcome:
        """What becomes of tests in forks, file by file: most bugs are killed by the first, and need
        none of the others to be collected.
        """
        path = self.folder / mutant.file
        seconds = SECONDS if _is_kernel(mutant.file) else FORKED_SECONDS
        passed = False
        whole = True
        for _, of_file in itertools.groupby(tests, lambda test: test.partition("::")[0]):
            asked = [*of_file]
            self._forked.collect(asked)
            path.write_bytes(mutant.applied(source))
            outcome = self._forked.outcome(mutant.file, source, asked, seconds)
            path.write_bytes(source)
            if outcome.failed or not (outcome.passed or outcome.whole):
                return outcome
            passed |= outcome.passed
            whole &= outcome.whole
        return Outcome(passed=passed, whole=whole)

    def failing(self, tests: Sequence[str], forked: bool) -> set[str]:
        """Those of some tests that fail without a bug, in forks or in a new process."""
        if forked:
            self._forked.collect(tests)
            outcomes = {t: self._forked.outcome("", b"", [t], FORKED_SECONDS) for t in tests}
            return {test for test, outcome in outcomes.items() if outcome.failed}
        failing: set[str] = set()
        rest = {*tests}
        while rest and (failed := self._outcome(sorted(rest)).failed):
            failing |= {test for test in rest if _is_of(test, failed)} or rest
            rest -= failing
        return failing

    def close(self) -> None:
        """End what waits for bugs."""
        self._forked.close()

    def _outcome(self, tests: Sequence[str]) -> Outcome:
        """What becomes of tests in a new process; a file that fails, where no test can be named."""
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
                return Outcome(started[-1] if started else tests[0])
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
    mutants = [mutant for mutant, _ in zip(drawn(root, options), range(options.sample))]
    if not mutants:
        print("no line of the package in which a bug could be put")
        return 0
    belonging = TestMap(root)
    runs: list[Run] = []
    for mutant in mutants:
        source = (root / mutant.file).read_bytes()
        runs.append((mutant, belonging.of_line(mutant.file, source, mutant.line)))
    runs.sort(key=_is_slow)
    end = time.monotonic() + options.seconds
    verdicts: dict[str, list[Mutant]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(root, Path(folder))
        while runs:
            killers: dict[tuple[str, bool], list[Run]] = defaultdict(list)
            for number, (mutant, tests) in enumerate(runs, 1):
                start = time.monotonic()
                if start > end:
                    print(f"{len(runs) - number + 1} are not tried: time is over")
                    break
                word, by, forked = copy.verdict(mutant, tests)
                if by:
                    killers[by, forked].append((mutant, tests))
                else:
                    verdicts[word].append(mutant)
                told = f"{time.monotonic() - start:.0f} s {word}{by and f' by {by}'}"
                print(f"{number}/{len(runs)} {told}: {mutant}", flush=True)
            # once for all bugs: starting pytest takes longer than most tests
            failing = {
                forked: copy.failing([by for by, in_fork in killers if in_fork == forked], forked)
                for forked in (True, False)
            }
            runs = []
            for (by, forked), killed in killers.items():
                if by not in failing[forked]:
                    verdicts[KILLED] += [mutant for mutant, _ in killed]
                    continue
                print(f"{by} fails without a bug, too")
                for mutant, tests in killed:
                    runs.append((mutant, [test for test in tests if not _is_of(test, by)]))
        copy.close()
    return _report(verdicts, options)


def _is_slow(run: Run) -> bool:
    """Is a kernel compiled, or may a test start mpiexec?"""
    mutant, tests = run
    return _is_kernel(mutant.file) or bool(START_MPI & {t.partition("::")[0] for t in tests})


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
    return parser.parse_args(words)


def _report(verdicts: dict[str, list[Mutant]], options: argparse.Namespace) -> int:
    """Shares by wing and what survived; 1 where fewer than `--least` were killed."""
    wings = Counter(
        (mutant.file.split("/")[1], word) for word in verdicts for mutant in verdicts[word]
    )
    print(f"\nseed {options.seed}")
    for wing in sorted({wing for wing, _ in wings}):
        killed = wings[wing, KILLED]
        print(f"  {wing}: {killed} of {killed + wings[wing, SURVIVED]} killed")
    for word in (SURVIVED, UNTESTED):
        for mutant in verdicts[word]:
            print(f"{word}: {mutant}")
    tried = len(verdicts[KILLED]) + len(verdicts[SURVIVED])
    share = len(verdicts[KILLED]) / tried if tried else 1.0
    print(f"{len(verdicts[KILLED])} of {tried} killed, {100 * share:.1f} %")
    return int(share < options.least)


if __name__ == "__main__":
    sys.exit(main())
