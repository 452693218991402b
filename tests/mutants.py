"""Would the tests notice a small bug? `python -m tests.mutants [--sample 500] [--seed DATE]`.

Bugs of `mutations.py` are drawn, put one by one into a copy of the repository, and the tests that
belong to the file are run on it. `--changed BASE` draws from the lines changed since a revision,
`--wing NAME` from a wing; `--least SHARE` exits with 1 where fewer are killed.

A bug is killed by a test that fails with it, and passes without it, or that ends in time only
without it. Of our own since mutmut leaves out whatever has a decorator, so every kernel, and first
runs all tests to know which belong to a function; cosmic-ray has one command for all files.
"""

import argparse
import ast
import datetime
import importlib.util
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
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests import workers
from tests.mutations import Mutant, differs, mutants_of

ROOT = Path(__file__).resolve().parent.parent
MOST_FILES = 4  # of tests, for a file of the package
MOST_OF_KERNELS = 3  # which are compiled anew; their twins see most bugs
SECONDS = 180.0  # that one test may take; kernels are compiled anew with each bug
NO_CODE = "neocpu/kernels/simd/"  # it writes LLVM: what it means is in the kernels
# of the whole house: they look at texts of files, or at copies of the package
LEFT_OUT = {f"tests/test_{name}.py" for name in ("house", "recipes", "mutants", "readme")}
START_MPI = {f"tests/test_{name}.py" for group in workers.LAST.values() for name in group}
# tests that hold the numbers of a folder against recorded ones
RECORDED = {
    "neocpu/core/": "tests/test_recorded.py",
    "neocpu/oracle/ops/": "tests/test_oracle_cases.py",
    "neocpu/oracle/truth/": "tests/test_oracle_cases.py",
    "neocpu/oracle/": "tests/test_oracle_reports.py",
    "neocpu/plan/": "tests/test_recorded.py",
    "neocpu/train/before/": "tests/test_recorded.py",
    "neocpu/train/model/": "tests/test_recorded.py",
}
KILLED = "killed"
SURVIVED = "survived"
UNTESTED = "untested"
NOTHING = ""  # that failed


class TestMap:
    """Which files of tests belong to a file of the package?

    Those that docs/map.md names or that have its name, then those from which the fewest imports
    lead to it; of equally near ones, those with words of its name, then those that import most from
    its wing. Last those that hold its numbers against recorded ones.
    """

    __test__ = False  # pytest: no class of tests

    def __init__(self, root: Path) -> None:
        page = root / "docs" / "map.md"
        self._named = _named_in(page.read_text()) if page.exists() else {}
        paths = [*root.glob("neocpu/**/*.py"), *root.glob("tests/*.py")]
        self._files = {path.relative_to(root).as_posix() for path in paths}
        self._importers: dict[str, set[str]] = defaultdict(set)
        self._imports: dict[str, set[str]] = {}
        self._words: dict[str, set[str]] = {}
        for file in sorted(self._files):
            tree = ast.parse((root / file).read_text())
            imported = self._imported(tree)
            self._imports[file] = imported
            for other in imported:
                self._importers[other].add(file)
            if file.startswith("tests/"):
                texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
                self._words[file] = {text for text in texts if isinstance(text, str)}

    def tests(self, file: str) -> list[str]:
        """Files of tests, the one that most probably sees a bug first."""
        near = self._distances(file)
        own = f"tests/test_{Path(file).stem}.py"
        named = [*self._named.get(file, []), *({own} & self._files)]
        path = Path(file)
        if not near and not named and len(path.parts) > 2:  # imported by a name put together
            up = path.parent.parent if path.stem == "__init__" else path.parent
            return self.tests(f"{up}/__init__.py")
        words = set(path.stem.split("_"))

        def order(test: str) -> tuple[object, ...]:
            told = set(Path(test).stem.split("_"))
            alike = 4 * len(words & told) + len(told & set(path.parts))
            alike += 2 * (path.stem in self._words[test])
            far = near.get(test, 0) + (test in START_MPI)
            return test not in named, far, -alike, self._common(test, path), test

        most = MOST_OF_KERNELS if file.startswith("neocpu/kernels/") else MOST_FILES
        tests = sorted({*near, *named} - LEFT_OUT, key=order)[:most]
        recorded = {test for folder, test in RECORDED.items() if file.startswith(folder)}
        return [*tests, *sorted((recorded & self._files) - {*tests})]

    def _common(self, test: str, path: Path) -> tuple[int, int]:
        """How many files a file of tests imports from the folder of a file, and from its wing."""
        rooms = (f"{path.parent}/", "/".join(path.parts[:2]))
        folder, wing = (sum(o.startswith(r) for o in self._imports[test]) for r in rooms)
        return -folder, -wing

    def _distances(self, file: str) -> dict[str, int]:
        """Imports that lead from each file of tests to a file."""
        distance = {file: 0}
        queue = deque([file])
        while queue:
            here = queue.popleft()
            for importer in sorted(self._importers[here]):
                if importer not in distance:
                    distance[importer] = distance[here] + 1
                    queue.append(importer)
        return {path: far for path, far in distance.items() if path.startswith("tests/test_")}

    def _imported(self, tree: ast.AST) -> set[str]:
        """Files that a file imports or, where it imports by name, tells in a text."""
        names = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names |= set(re.findall(r"\bneocpu(?:\.\w+)+", node.value))
        stems = {name.replace(".", "/") for name in names}
        stems |= {f"tests/{stem}" for stem in stems}  # pytest puts tests/ into sys.path
        places = {place for stem in stems for place in (f"{stem}.py", f"{stem}/__init__.py")}
        return places & self._files


def _named_in(page: str) -> dict[str, list[str]]:
    """Tests by file, from the tables of docs/map.md; the last column names tests."""
    named: dict[str, list[str]] = {}
    for line in page.splitlines():
        *cells, last = line.strip("| ").split("|")
        tests = re.findall(r"`(tests/test_\w+\.py)`", last)
        if not tests and "tests/spmd_" in last:
            tests = ["tests/test_spmd.py"]  # it runs all of these
        for file in re.findall(r"`(neocpu/[\w/]+\.py)`", " ".join(cells)):
            named.setdefault(file, []).extend(tests)
    return named


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
        self._clean: dict[str, bool] = {}

    def verdict(self, mutant: Mutant, tests: Sequence[str]) -> tuple[str, str]:
        """What became of a bug, and which test killed it; UNTESTED where none could be run."""
        path = self.folder / mutant.file
        source = path.read_bytes()
        if _cannot_run(ast.parse(source)):
            return UNTESTED, ""
        rest = [*tests]
        while rest:
            path.write_bytes(mutant.applied(source))
            failed = self._failed(rest)
            path.write_bytes(source)
            if failed is None:
                return UNTESTED, ""
            if failed == NOTHING:
                return SURVIVED, ""
            if self._passes(failed):
                return KILLED, failed
            rest.remove(failed.partition("::")[0])
        return UNTESTED, ""

    def _passes(self, test: str) -> bool:
        """Whether a test passes without a bug."""
        if test not in self._clean:
            self._clean[test] = self._failed([test]) == NOTHING
        return self._clean[test]

    def _failed(self, tests: Sequence[str]) -> str | None:
        """The test that fails or does not end, or its file where it cannot be named; NOTHING where
        all pass, None where all are skipped.
        """
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
                return started[-1] if started else tests[0]
        if process.returncode in (0, 5):  # 5: no tests
            return NOTHING if re.search(r"\b\d+ passed", shown) else None
        name = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", shown, re.MULTILINE)
        return name[1] if name else tests[0]


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
    """Bugs in a drawn order, each of which is in the bytecode."""
    lines = changed_lines(root, options.changed) if options.changed else None
    sources = {}
    mutants = []
    for path in sorted((root / "neocpu" / (options.wing or "")).rglob("*.py")):
        file = path.relative_to(root).as_posix()
        if file.startswith(NO_CODE) or (lines is not None and file not in lines):
            continue
        sources[file] = path.read_bytes()
        found = mutants_of(file, sources[file])
        mutants += [m for m in found if lines is None or m.line in lines[file]]
    random.Random(options.seed).shuffle(mutants)
    return (mutant for mutant in mutants if differs(mutant, sources[mutant.file]))


def main(words: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """The command; its exit status."""
    options = _options(words)
    mutants = [mutant for mutant, _ in zip(drawn(root, options), range(options.sample))]
    if not mutants:
        print("no line of the package in which a bug could be put")
        return 0
    belonging = TestMap(root)
    mutants.sort(key=lambda mutant: bool(START_MPI & {*belonging.tests(mutant.file)}))
    verdicts: dict[str, list[Mutant]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(root, Path(folder))
        for number, mutant in enumerate(mutants, 1):
            start = time.monotonic()
            word, by = copy.verdict(mutant, belonging.tests(mutant.file))
            verdicts[word].append(mutant)
            told = f"{time.monotonic() - start:.0f} s {word}{by and f' by {by}'}"
            print(f"{number}/{len(mutants)} {told}: {mutant}", flush=True)
    return _report(verdicts, options)


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=500)
    parser.add_argument("--seed", default=datetime.datetime.now(datetime.UTC).date().isoformat())
    parser.add_argument("--changed", metavar="BASE")
    parser.add_argument("--wing", metavar="NAME")
    parser.add_argument("--least", type=float, default=0.0, metavar="SHARE")
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
