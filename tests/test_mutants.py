"""Does the tool of mutants kill what a test sees, and does every file have tests?"""

from pathlib import Path

import pytest

from tests import mutants
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
        ("y = a.reshape(-1)", None),
    ],
)
def test_kinds_of_bugs(line: str, edit: str | None) -> None:
    found = edits(f"def f(a, b, c, n):\n    {line}\n")
    assert edit in found if edit else not found


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


def test_files_have_tests_that_belong_to_them() -> None:
    known = mutants.TestMap(mutants.ROOT)
    for file in mutants.ROOT.glob("neocpu/*/**/*.py"):
        name = file.relative_to(mutants.ROOT).as_posix()
        tests = known.tests(name)
        assert 0 < len(tests) <= mutants.MOST_FILES + len(mutants.RECORDED), name
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


def test_lines_changed_since_a_revision() -> None:
    shown = "--- a/neocpu/a.py\n+++ b/neocpu/a.py\n@@ -1,2 +3 @@ def f\n-x\n+y\n@@ -9 +8,0 @@\n-z\n"
    assert mutants.lines_in(shown) == {"neocpu/a.py": {3}}
