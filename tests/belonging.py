"""Which tests belong to a file, or to a function, of the package?"""

import ast
import bisect
import functools
import gzip
import json
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests import workers

ROOT = Path(__file__).resolve().parent.parent
RECORD = "tests/executed.json.gz"
MOST_FILES = 4  # of tests, for a file of the package
FEW = 12  # tests of a function: those of its users in other files are asked, too
CLASSES = (1.0, 8.0)  # seconds: tests that take fewer are run before those that take more
KERNELS = "neocpu/kernels/"
MOST_OF_KERNELS = 3  # which are compiled anew; their twins see most bugs
# of the whole house: they look at texts of files, or at copies of the package
LEFT_OUT = {f"tests/test_{name}.py" for name in ("house", "recipes", "mutants", "readme")}
_WAITING = (workers.FIRST["waiting"], *workers.MPI.values())
START_MPI = {f"tests/test_{name}.py" for group in _WAITING for name in group}
# of lines outside of functions: they may be keys of a config, or options
DEFAULTS = "tests/test_public.py::test_defaults_are_those_that_were_recorded"
# tests that hold the numbers of a folder against recorded ones; they need not run its functions,
# but may take what a test before them did
TRUTHS = "tests/test_oracle_cases.py::test_the_truths_are_those_that_were_recorded"
RECORDED = {
    "neocpu/core/": "tests/test_recorded.py",
    "neocpu/oracle/cases/": "tests/test_oracle_cases.py::test_cases_are_the_same_for_ever",
    "neocpu/oracle/ops/": TRUTHS,
    "neocpu/oracle/truth/": TRUTHS,
    "neocpu/oracle/": "tests/test_oracle_reports.py",
    "neocpu/plan/": "tests/test_recorded.py",
    "neocpu/plan/learned/": "tests/test_learned.py::test_networks_learn_what_was_recorded",
    "neocpu/plan/machines/measure/": "tests/test_phases.py",
    "neocpu/plan/search/": "tests/test_search.py::test_each_stage_finds_what_was_recorded",
    "neocpu/train/before/": "tests/test_recorded.py",
    "neocpu/train/model/": "tests/test_recorded.py",
}


class TestMap:
    """Which tests belong to a line of the package?

    Those that run its function by the record of `executed.py`, or one that names it: in its file,
    and where these are few in those that import it.
    Where that has none, as of a kernel, and for a constant of a module beside those that run what
    reads it, files of tests: those that docs/map.md names or that have its name, then those from
    which the fewest imports lead to it; of equally near ones, those with words of its name, then
    those that import most from its wing. Last those that hold its numbers against recorded ones.
    """

    __test__ = False  # pytest: no class of tests

    def __init__(self, root: Path) -> None:
        page = root / "docs" / "map.md"
        self._root = root
        self._named = _named_in(page.read_text()) if page.exists() else {}
        paths = [*root.glob("neocpu/**/*.py"), *root.glob("tests/*.py")]
        self._files = {path.relative_to(root).as_posix() for path in paths}
        self._importers: dict[str, set[str]] = defaultdict(set)
        self._imports: dict[str, set[str]] = {}
        self._words: dict[str, set[str]] = {}
        self.all: set[str] = set()  # tests
        for file in sorted(self._files):
            text = (root / file).read_text()
            imported = self._imported(text)
            self._imports[file] = imported
            for other in imported:
                self._importers[other].add(file)
            if file.startswith("tests/"):
                self._words[file] = {*re.findall(r"""["'](\w+)["']""", text)}
                functions = (n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef))
                names = (function.name for function in functions)
                self.all |= {f"{file}::{name}" for name in names if name.startswith("test_")}
        self.executed, self.seconds = _record(root)
        self._moved = self._of_moved()

    def of_line(self, file: str, source: bytes, line: int) -> list[str]:
        """Tests of a line, or files of them: short ones first, of these the one that most probably
        sees a bug, with others of its file.
        """
        rooms: dict[str, tuple[int, str]] = {}
        for test in self._of_line(file, source, line):
            rooms[test] = self._class(test), test.partition("::")[0]
        order = [*dict.fromkeys(rooms.values())]
        return sorted(rooms, key=lambda test: (rooms[test][0], order.index(rooms[test])))

    def _class(self, test: str) -> int:
        """Is a test, or a file of some, short or long? What is not recorded is neither."""
        own = [self.seconds[test]] if test in self.seconds else []
        if "::" not in test:
            own = [self.seconds[name] for name in self.seconds if name.startswith(f"{test}::")]
        return bisect.bisect(CLASSES, sum(own) if own else CLASSES[0])

    def _of_line(self, file: str, source: bytes, line: int) -> list[str]:
        near = self.tests(file)
        function, names = function_at(source, line)
        known = self._running(file, [function, *users_of(source, names)])
        if len(known) < FEW and not (known and file.startswith(KERNELS)):
            for other in sorted(self._importers[file] - {*self._words}):
                users = users_of((self._root / other).read_bytes(), names)
                known += self._running(other, users)
        known = [*dict.fromkeys(known)]
        kept = [test for test in near if "::" in test]
        if not function:
            return [*dict.fromkeys([*({DEFAULTS} & self.all), *kept, *known, *near])]
        if not known:
            return near
        # what was written since they were recorded
        fresh = (test for test in self.all - {*self.seconds} if test.partition("::")[0] in near)
        return [*dict.fromkeys([*known, *sorted(fresh), *kept])]

    def _running(self, file: str, functions: Sequence[str]) -> list[str]:
        """Recorded tests of functions."""
        executed = self.executed.get(file, {})
        own = (test for name in functions for test in executed.get(name) or self._moved[name])
        return [test for test in own if test in self.all]

    def _of_moved(self) -> dict[str, list[str]]:
        """Recorded tests of functions that have left their file, by name."""
        moved: dict[str, list[str]] = defaultdict(list)
        for file, functions in self.executed.items():
            text = (self._root / file).read_text() if file in self._files else ""
            defined = {*re.findall(r"\bdef (\w+)", text)}
            for function, tests in functions.items():
                if function.rpartition(".")[2] not in defined:
                    moved[function] += tests
        return moved

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

        most = MOST_OF_KERNELS if file.startswith(KERNELS) else MOST_FILES
        tests = sorted({*near, *named} - LEFT_OUT, key=order)[:most]
        return [*tests, *sorted((held(file) & {*self._files, *self.all}) - {*tests})]

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

    def _imported(self, text: str) -> set[str]:
        """Files that a file imports or, where it imports by name, tells in a text."""
        # walking through the syntax trees of all files takes seconds
        names = {*re.findall(r"\bneocpu(?:\.\w+)+", text)}
        names |= {*re.findall(r"(?m)^ *import ([\w.]+)", text)}
        for module, imported in re.findall(r"(?m)^ *from ([\w.]+) import (\([^)]*\)|.*)", text):
            names |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", imported))}
        stems = {name.replace(".", "/") for name in names}
        stems |= {f"tests/{stem}" for stem in stems}  # pytest puts tests/ into sys.path
        places = {place for stem in stems for place in (f"{stem}.py", f"{stem}/__init__.py")}
        return places & self._files


def held(file: str) -> set[str]:
    """Tests, or files of them, that hold the numbers of a file against recorded ones."""
    return {test for folder, test in RECORDED.items() if file.startswith(folder)}


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


def _record(root: Path) -> tuple[dict[str, dict[str, list[str]]], dict[str, float]]:
    """Recorded tests by file and function, and the seconds of all that were recorded."""
    path = root / RECORD
    if not path.exists():
        return {}, {}
    stored = json.loads(gzip.decompress(path.read_bytes()))
    tests = stored["tests"]
    files = {
        file: {function: [tests[number] for number in numbers] for function, numbers in own.items()}
        for file, own in stored["files"].items()
    }
    return files, dict(zip(tests, stored["seconds"]))


def function_at(source: bytes, line: int) -> tuple[str, set[str]]:
    """The outermost function that a line is in, as "name" or "Class.name", "" where in none; and
    the names by which it, or what the line defines, is asked for.
    """
    module = _parsed(source)
    held = [name for name, node in _functions(source) if _holds(node, line)]
    if held:
        owner, _, name = held[0].rpartition(".")
        return held[0], {owner if name == "__init__" else name}
    return "", {
        node.id
        for statement in module.body
        if _holds(statement, line)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def users_of(source: bytes, names: set[str]) -> list[str]:
    """Functions that name one of these.

    A function may be younger than the record of tests that run it, and who calls it seldom is.
    """
    return [
        name
        for name, function in _functions(source)
        for nodes in [ast.walk(function)]
        if any(getattr(node, "attr", getattr(node, "id", None)) in names for node in nodes)
    ]


@functools.cache
def _parsed(source: bytes) -> ast.Module:
    return ast.parse(source)


@functools.cache
def _functions(source: bytes) -> list[tuple[str, ast.stmt]]:
    """Functions of a file that are in no other."""
    return [*_outermost(_parsed(source).body)]


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)


def _outermost(inside: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Functions that are in no other, with their names."""
    for node in inside:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _outermost(node.body, f"{prefix}{node.name}.")
