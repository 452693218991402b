"""Does the tool of mutants kill what a test sees, and is it known which tests see a function?"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import belonging, executed, mutants
from tests.forked import ForkedTests, Outcome
from tests.mutations import Mutant, differs, mutants_of

SILENT = '''"""Numbers below 7 of them."""
import functools

@functools.lru_cache(5)
def kept(x: "1 < 2", most=9) -> "1 + 1":
    """Not more than 9."""
    if x < 0:
        raise ValueError(f"{x + 1} " + str(2))
    return min(x, most)
'''
TOY = """def kept(x, most):
    return min(x, most)
"""
TEST = """from neocpu.core.toy import kept


def test_kept():
    assert kept(3, 5) == 3
"""


def edits(source: str) -> list[str]:
    code = source.encode()
    found = mutants_of("toy.py", code)
    return [f"{each.old} -> {each.new}" for each in found if differs(each, code)]


def test_what_is_only_said_or_typed_has_no_bugs() -> None:
    assert edits(SILENT) == [
        "9 -> 10",
        "x < 0 -> x <= 0",
        "0 -> 1",
        "return min(x, most) -> return None",
        "return min(x, most) -> return x",
        "min -> max",
    ]


@pytest.mark.parametrize(
    ("line", "edit"),
    [
        ("y = a // b", "a // b -> -(-a // b)"),
        ("y = a + b * c", "b * c -> b + c"),
        ("y = 'a' + b", None),
        ("y = a[1:]", "1: -> 1 + 1:"),
        ("y = a[:]", None),
        ("y = range(n)", "range(n) -> range(0, n - 1)"),
        ("y = not a and b", "not a and b -> not a or b"),
        ("y = not (a or b)", "not (a or b) -> (a or b)"),
        ("a.append(b)", "a.append(b) -> pass"),
        ("a += b", "a += b -> pass"),
        ("a = b", "a = b -> pass"),
        ("y = True", "True -> False"),
        ("fetch_row(a, b + 1)", None),
        ("time.sleep(0.1)", None),
        ("y = time.monotonic() > a", None),
        ("b.wait(timeout=1)", "b.wait(timeout=1) -> pass"),
        ("y = zip(a, b, strict=True)", None),
        ("LOG.info('a', b + 1)", None),
        ("y = a.reshape(-1)", None),
        ("return False", "return False -> return a"),
        ("return []", "return [] -> return a"),
    ],
)
def test_kinds_of_bugs(line: str, edit: str | None) -> None:
    found = edits(f"def f(a, b, c, n):\n    {line}\n")
    assert edit in found if edit else not found


@pytest.mark.parametrize(
    ("line", "paced"),
    [
        ("PIECE = 1 << 16", True),
        ("LIMIT = 9.0  # seconds that it may take", True),
        ("READ = 1 << 20  # bytes hashed at a time", True),
        ("READ = 1 << 20  # bytes, at most", False),
        ("AHEAD = {'read': 1}", False),
    ],
)
def test_how_much_is_done_at_a_time_has_no_bugs(line: str, paced: bool) -> None:
    assert bool(edits(line)) != paced


def test_attributes_are_dropped_but_where_they_begin() -> None:
    dropped = ["self.b = x -> pass"]
    assert edits("def f(self, x):\n    self.b = x\n") == dropped
    assert edits("def __init__(self, x):\n    self.b = x\n") == []


def test_what_compiles_to_the_same_is_no_bug() -> None:
    source = b"x = 2 * 2\n"
    assert not differs(Mutant("toy.py", 1, 4, 9, "2 * 2", "2 + 2"), source)
    assert differs(Mutant("toy.py", 1, 4, 5, "2", "3"), source)


def test_a_bug_that_the_test_sees_and_one_that_it_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in {
        "neocpu/__init__.py": "",
        "neocpu/core/toy.py": TOY,
        "tests/test_toy.py": TEST,
        "tests/test_wrong.py": TEST.replace("== 3", "== 4"),  # it kills nothing
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert mutants.main(["--least", "0.9"], root=tmp_path) == 1
    shown = capsys.readouterr().out.splitlines()
    assert "  core: 2 of 3 killed" in shown and shown[-1] == "2 of 3 killed, 66.7 %"
    place = "neocpu/core/toy.py:2 "
    killer = "tests/test_toy.py::test_kept"
    assert any(f"killed by {killer}: {place} min  ->  max" in line for line in shown)
    assert f"survived: {place} return min(x, most)  ->  return x" in shown
    assert (tmp_path / "neocpu/core/toy.py").read_text() == TOY


LOADED = """BASE = 2
def total(x, most):
    return min(x, most) + BASE
class Toy:
    @staticmethod
    def twice(x): return 2 * x
def half(x): return x // 2
HALF = half(6)
def unseen(x): return x
"""
OF_LOADED = """import gc
import pytest
from neocpu.core.toy import HALF, Toy, total
gc.freeze()
def test_total(): assert total(3, 5) == 5
def test_twice(): assert Toy.twice(2) == 4
def test_half(): assert HALF == 3
def test_no_project_is_around_its_folder(tmp_path):
    assert not any((folder / "pyproject.toml").exists() for folder in tmp_path.parents)
def test_skipped(): pytest.skip()
"""


def test_bugs_in_functions_that_are_loaded_show_in_forks(tmp_path: Path) -> None:
    file = "neocpu/core/toy.py"
    name = "tests/test_toy.py"
    texts = {name: OF_LOADED, file: LOADED, "neocpu/__init__.py": "", "pyproject.toml": ""}
    texts["tests/conftest.py"] = "import pytest\n@pytest.fixture\ndef shared(): return 5\n"
    texts[of_second := "tests/test_second.py"] = "def test_shared(shared): assert shared == 5\n"
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{belonging.ROOT}"}
    waiting = ForkedTests(tmp_path, environment)
    waiting.collect([f"{name}::test_total"])
    right = Outcome(passed=True, whole=True)
    for old, new, seconds, outcome in (
        ("min", "max", 30.0, Outcome(f"{name}::test_total")),  # while modules are imported
        ("2 * x", "3 * x", 30.0, Outcome(f"{name}::test_twice")),
        (
            "    return",
            "    while x:\n        pass\n    return",
            3.0,
            Outcome(f"{name}::test_total", late=True),
        ),
        ("return x\n", "return 5\n", 30.0, right),
        ("BASE = 2", "BASE = 3", 30.0, Outcome()),  # read when it was imported
        ("x // 2", "x // 3", 30.0, Outcome(passed=True)),  # run when it was imported
        ("x", "x", 30.0, right),
    ):
        (tmp_path / file).write_text(LOADED.replace(old, new, 1))
        assert waiting.outcome(file, LOADED.encode(), [name], seconds) == outcome, new
    skipped = waiting.outcome("", b"", [f"{name}::test_skipped"], 30.0)
    assert skipped == Outcome(whole=True)
    waiting.collect([of_second])  # fixtures of conftest.py are those of all files
    assert waiting.outcome("", b"", [of_second], 30.0) == right
    waiting.close()


@pytest.fixture(scope="module")
def known() -> belonging.TestMap:
    """The tests of this repository."""
    return belonging.TestMap(belonging.ROOT)


def test_files_have_tests_that_belong_to_them(known: belonging.TestMap) -> None:
    for file in belonging.ROOT.glob("neocpu/*/**/*.py"):
        name = file.relative_to(belonging.ROOT).as_posix()
        tests = known.tests(name)
        assert 0 < len(tests) <= belonging.MOST_FILES + len(belonging.RECORDED), name
    for name, test in (
        ("plan/search/partition", "partition"),
        ("train/watch/metrics", "metrics"),
        ("plan/simulation/picture", "simulation"),
        ("cli/sweep", "sweep"),
        ("kernels/rows/pooling", "pooling"),
    ):
        assert known.tests(f"neocpu/{name}.py")[0] == f"tests/test_{test}.py"


def test_what_cannot_be_imported_is_not_tested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in {
        "neocpu/__init__.py": "",
        "neocpu/core/toy.py": "import no_such_library\n" + TOY,
        "tests/test_toy.py": "def test_toy():\n    pass\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert mutants.main([], root=tmp_path) == 0
    shown = capsys.readouterr().out
    assert "untested: neocpu/core/toy.py:3 " in shown and "0 of 0 killed" in shown


def test_a_campaign_goes_on_where_it_ended(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(TOY)
    bugs = [*mutants_of("toy.py", TOY.encode())]
    kept = tmp_path / "record.jsonl"
    record = mutants.Record(kept)
    for bug in bugs:
        record.note(bug, mutants.Verdict(mutants.DRAWN))
    record.note(bugs[0], mutants.Verdict(mutants.BEGUN))  # the campaign was ended meanwhile
    killed = mutants.Verdict(mutants.KILLED, "tests/test_toy.py::test_kept", mutants.FORKED)
    record.note(bugs[1], killed)
    again = mutants.Record(kept)
    assert again.verdicts == record.verdicts and again.verdicts[bugs[1]] == killed
    assert again.open(tmp_path) == [*bugs[2:], bugs[0]]
    (tmp_path / "toy.py").write_text(TOY.replace("min", "maximum"))
    assert again.open(tmp_path) == []


def test_lines_changed_since_a_revision() -> None:
    shown = "--- a/neocpu/a.py\n+++ b/neocpu/a.py\n@@ -1,2 +3 @@ def f\n-x\n+y\n@@ -9 +8,0 @@\n-z\n"
    assert mutants.lines_in(shown) == {"neocpu/a.py": {3}}


# ---- which tests run a function ----

TRACED = """
import threading

import pytest

from neocpu.core import paths


@pytest.fixture(scope="module")
def shared():
    return paths.beside("a", "b")


@pytest.mark.parametrize("turn", [1, 2])
def test_of_a_fixture(shared, turn):
    assert shared == "a/b"


@pytest.mark.parametrize("turn", [1, 2])
def test_in_a_thread(turn):
    thread = threading.Thread(target=paths.place_paths, args=({}, ""))
    thread.start()
    thread.join()


def test_of_the_fixture_too(shared):
    pass
"""


def test_lines_that_tests_run_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "test_traced.py").write_text(TRACED)
    environment = os.environ | {executed.FOLDER: str(tmp_path), "PYTHONPATH": str(belonging.ROOT)}
    options = ["-q", "-c", os.devnull, "--rootdir", tmp_path, "-p", "tests.executed"]
    command = [sys.executable, "-m", "pytest", *options, "test_traced.py"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    (file,) = tmp_path.glob("*.json")
    seen = json.loads(file.read_text())
    ran = {
        test.partition("::")[2]: {(*where, name) for *where, name, _ in lines}
        for test, (_, lines) in seen.items()
    }
    paths = "neocpu/core/paths.py"
    assert ran == {
        "test_of_a_fixture": {(paths, "beside")},
        "test_in_a_thread": {(paths, "place_paths")},
        "test_of_the_fixture_too": {(paths, "beside")},
    }
    lines = (belonging.ROOT / paths).read_text().splitlines()
    ran_lines = [
        lines[line - 1].strip() for _, _, line in seen["test_traced.py::test_in_a_thread"][1]
    ]
    assert ran_lines == ["if not folder:", "return []"]


def test_functions_of_lines() -> None:
    source = b"""X = 1
class A:
    b: int = 2
    def c(self):
        def d():
            return X
        return d
def e(): return A().c()
"""
    lines = [belonging.function_at(source, line) for line in range(1, 9)]
    assert lines == [("", {"X"}), *2 * [("", {"b"})], *4 * [("A.c", {"c"})], ("e", {"e"})]
    assert belonging.users_of(source, {"c"}) == ["e"] and belonging.users_of(source, {"X"}) == [
        "A.c"
    ]


def test_tests_of_a_function_are_near_ones_then_those_that_run_little_else() -> None:
    own = [("f.py", "g", 1)]
    both = [*own, ("f.py", "g", 2)]
    much = [("f.py", "h", line) for line in range(9)]
    seen = {
        "a.py::large": (1.0, [*both, *much]),
        "a.py::small": (2.0, own),
        "b.py::near": (6.0, [*both, *much]),
        "a.py::long": (9.0, both),
        "c.py::one_line": (99.0, [("f.py", "g", 3)]),
    }
    tests = executed.chosen(seen, lambda file: ["b.py"])
    assert tests["f.py"] == {
        "g": ["b.py::near", "a.py::small", "c.py::one_line"],
        "h": ["b.py::near", "a.py::large"],
    }
    alone = executed.chosen(seen, lambda file: [])["f.py"]["g"]
    assert alone == ["a.py::small", "c.py::one_line", "a.py::long"]


def test_what_is_recorded_is_there(known: belonging.TestMap) -> None:
    gone = {*known.seconds} - known.all
    assert 10 * len(gone) < len(known.all), f"python -m tests.executed records anew: {gone}"


def test_tests_of_a_line(tmp_path: Path) -> None:
    files = {
        "neocpu/core/toy.py": f"X = 1\n{TOY}\ndef caller(x):\n    return kept(x, X)\n",
        "tests/test_toy.py": TEST,
        "tests/test_other.py": "def test_far():\n    pass\ndef test_caller():\n    pass\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    far, _ = old = ["tests/test_other.py::test_far", "tests/test_toy.py::test_gone"]
    of_caller = ["tests/test_other.py::test_caller"]
    own = {"neocpu/core/toy.py": {"kept": old, "caller": of_caller}}
    seconds = dict.fromkeys([*of_caller, *old], 0.5) | {far: 9.0}
    (tmp_path / belonging.RECORD).write_bytes(executed.packed(seconds, own))
    known = belonging.TestMap(tmp_path)
    source = files["neocpu/core/toy.py"].encode()
    assert known.of_line("neocpu/core/toy.py", source, 1) == [*of_caller, "tests/test_toy.py"]
    # a test that is gone is left out, one that was written since is run; what takes long is last
    new = [*of_caller, "tests/test_toy.py::test_kept", far]
    assert known.of_line("neocpu/core/toy.py", source, 3) == new
    # functions keep their tests when they move to another file
    (tmp_path / "neocpu/core/toy.py").rename(tmp_path / "neocpu/core/moved.py")
    (tmp_path / "neocpu/core/toy.py").write_text("def other(): pass\n")
    moved = belonging.TestMap(tmp_path)
    assert {far, *of_caller} <= {*moved.of_line("neocpu/core/moved.py", source, 3)}
