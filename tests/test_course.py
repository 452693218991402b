"""Does the course pass what is right, name what is wrong, and bear what students write? Do its
pages run?
"""

import importlib.util
import io
import json
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from neocpu.core.errors import DataError
from neocpu.kernels.twins.numbers.exact import exact_sum
from neocpu.oracle.course.solutions import exercise_function, source, starter
from neocpu.oracle.course.solutions.planner import place
from neocpu.oracle.course.solutions.tiers import cache
from neocpu.oracle.course.teacher import Marks, examine
from neocpu.oracle.course.unit import CourseUnit, Slip
from neocpu.oracle.course.units import UNITS
from neocpu.oracle.course.units import run as run_unit
from neocpu.plan.search.partition import Packing, greedy
from neocpu.tables.tiers.cache import Cache
from tests import recorded
from tests.course_answers import ANSWERS
from tests.course_mistakes import EDIT, MISTAKES
from tests.jobs import invoke, ran

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "course"
WORDS = 900  # of a page: ten minutes
NUMBERED = list(enumerate(UNITS, 1))
NAMES = [unit.name for unit in UNITS]
EXERCISES = [(unit, exercise) for unit in UNITS for exercise in unit.exercises]
SLIPS = [(unit, slip) for unit, exercise in EXERCISES for slip in exercise.slips]
MISTAKEN = [(unit, *mistake) for unit in UNITS for mistake in MISTAKES[unit.name]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A student's folder, with the files of a run on 4 ranks with tiers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "course").mkdir(parents=True)
    tier = {"table": "C1", "tier": "hbm", "unique": 100, "unique_misses": 7}
    record = {"ranks": 4, "tiers": [tier], "digest": run_unit.DIGEST}
    (tmp_path / "runs" / "course" / "run.json").write_text(json.dumps(record))
    trace = {"traceEvents": run_unit.trace(1, 4, False)}
    (tmp_path / "runs" / "course-trace.json").write_text(json.dumps(trace))
    return tmp_path


def examined(unit: CourseUnit, text: str, seconds: float = 10.0) -> Marks:
    path = Path("my.py")
    path.write_text(text)
    return examine(unit, path, seconds, "neocpu course start")


def said(unit: CourseUnit, text: str, seconds: float = 10.0) -> str:
    """What a check says of a file that is not right."""
    marks = examined(unit, text, seconds)
    assert not marks.passed
    return "\n".join(marks.lines)


def edited(text: str, *edits: tuple[str, str]) -> str:
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


def unit_of(name: str) -> CourseUnit:
    return UNITS[NAMES.index(name)]


# ---- right and wrong answers ----


@pytest.mark.parametrize("unit", UNITS, ids=NAMES)
def test_the_solution_of_a_unit_passes(unit: CourseUnit) -> None:
    marks = examined(unit, source(unit.name))
    assert marks.passed, marks.lines
    for exercise, line in zip(unit.exercises, marks.lines):
        count = len(list(exercise.problems()))
        assert line == f"{exercise.function}: right on all {count} problems"


@pytest.mark.parametrize("unit", UNITS, ids=NAMES)
def test_the_problems_are_those_of_the_years_before(unit: CourseUnit) -> None:
    entries: list[recorded.Entry] = []
    for exercise in unit.exercises:
        for problem in exercise.problems():
            for name, value in problem.arguments.items():
                label = f"{exercise.function}, {problem.about}: {name}"
                if isinstance(value, np.ndarray):
                    numbers = recorded.summary(value) if value.dtype.kind in "iufb" else []
                    entries.append((f"{label} {value.dtype}", [*value.shape, *numbers]))
                else:
                    entries += [(label, []), *recorded.lines_of(repr(value))]
    recorded.check(f"course {unit.name}", entries)


@pytest.mark.parametrize("unit", UNITS, ids=NAMES)
def test_a_right_answer_of_another_kind_passes(unit: CourseUnit) -> None:
    marks = examined(unit, f"import numpy as np\n{ANSWERS[unit.name]}")
    assert marks.passed, marks.lines


@pytest.mark.parametrize(("unit", "slip"), SLIPS, ids=lambda value: getattr(value, "about", ""))
def test_a_slip_is_named_and_no_other(unit: CourseUnit, slip: Slip) -> None:
    words = said(unit, edited(source(unit.name), *slip.edits))
    assert re.findall(r"as if (.*)", words) == [slip.about], words
    assert slip.fix in words


def test_two_slips_at_once_are_named_together() -> None:
    slips = unit_of("dlrm").exercises[0].slips
    one, other = slips[1], slips[3]
    text = edited(source("dlrm"), *one.edits, *other.edits)
    words = said(unit_of("dlrm"), text)
    assert f"looks as if {one.about}, and {other.about}" in words


def test_slips_that_do_not_fit_together_explain_nothing() -> None:
    for _, exercise in EXERCISES:
        for pair in combinations(exercise.slips, 2):
            exercise_function(exercise.function, pair)


def test_what_two_slips_advise_alike_is_said_once() -> None:
    slips = [slip for slip in unit_of("planner").exercises[0].slips if "bytes" in slip.fix]
    edits = [edit for slip in slips[-2:] for edit in slip.edits]
    words = said(unit_of("planner"), edited(source("planner"), *edits))
    assert words.count(slips[-1].fix) == 1


def test_every_unit_has_planted_mistakes() -> None:
    assert list(MISTAKES) == NAMES
    assert min(map(len, MISTAKES.values())) >= 3


@pytest.mark.parametrize(("unit", "mistake", "words"), MISTAKEN, ids=[m[2] for m in MISTAKEN])
def test_a_mistake_that_students_make_is_told(unit: CourseUnit, mistake: str, words: str) -> None:
    text = source(unit.name)
    if "def " in mistake:
        # the last definition of a name counts
        text += mistake
    else:
        old, new = mistake.split(EDIT)
        text = edited(text, (old, new))
    assert words in said(unit, text)


@pytest.mark.parametrize(("number", "unit"), NUMBERED, ids=NAMES)
def test_a_starter_is_refused_in_words(number: int, unit: CourseUnit) -> None:
    text = starter(unit.name, number, unit.title)
    words = said(unit, text)
    assert re.match(r"my\.py, line \d+:", words)
    assert f"{unit.exercises[0].function} is still to be written" in words
    assert "Traceback" not in words
    for exercise in unit.exercises:
        assert f"def {exercise.function}(" in text


# ---- what students write ----

BAGS = unit_of("bags")
ORDER = unit_of("order")


def exact(body: str) -> str:
    return f"import numpy as np\n\ndef exact_sum(terms):\n{body}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def exact_sum(terms:\n    return 0", r"line 1:\n    def exact_sum.*this is not Python"),
        ("import nowhere_at_all", r"line 1:\n    import nowhere_at_all\n.*cannot be imported"),
        ("def exactsum(terms): return 0", r"no function exact_sum\(terms\); is exactsum meant"),
        ("exact_sum = 3", "exact_sum is a int, not a function"),
        ("def exact_sum(a, b): return 0", r"exact_sum\(a, b\) is called as exact_sum\(terms\)"),
        (exact("    terms.sum()"), "returns nothing; does it end with `return sum`"),
        (exact("    return 'three'"), "sum is a str, expected numbers"),
        (exact("    return [[1], [1, 2]]"), "lists of different lengths"),
        (exact("    return terms[:1]"), r"sum has the shape \[1\], expected \[\]"),
        (exact("    return terms[0] / 0 if nothing else 1"), "nothing has this name"),
        (exact("    return terms[9]"), r"line 4:\n    return terms\[9\]\n  an index lies outside"),
        (
            f"def term(x):\n    return x[99]\n{exact('    return term(terms)')}",
            r"line 2:\n    return x\[99\]",
        ),
        (exact("    return exact_sum(terms)"), "calls itself without an end"),
        (exact("    return {}['a']"), "a dictionary has no such key"),
        (exact("    raise SystemExit"), "this ends the program, not the function"),
        (exact("    return np.float32(input())"), "EOF"),
        (exact("    terms += 1; return np.float32(0)"), "wrong on"),
        (
            exact("    exact_sum.n = getattr(exact_sum, 'n', 0) + 1\n    return np.float32(4)"),
            "wrong on",
        ),
    ],
)
def test_what_does_not_run_is_told_as_a_line(
    text: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert re.search(words, said(ORDER, text), re.DOTALL)


def test_a_shape_is_told_before_its_numbers() -> None:
    wrong = "import numpy as np\ndef pool(table, offsets, rows, weights, mean):\n    return {}\n"
    columns = wrong.format("np.zeros((table.shape[1], len(offsets) - 1), np.float32)[:, :3]")
    assert "expected [3, 2]: a row for each bag" in said(BAGS, columns)
    assert "returns 3 things, expected 2: table, sums" in said(
        unit_of("backward"),
        "def backward(table, sums, offsets, rows, gradient, rate, eps): return 1, 2, 3",
    )
    assert "returns a int, expected 2 things" in said(
        unit_of("backward"),
        "def backward(table, sums, offsets, rows, gradient, rate, eps): return 1",
    )


def test_arguments_are_copies_and_calls_leave_nothing_behind() -> None:
    changing = edited(
        source("bags"), ("    out = ", "    table, weights = table.copy(), weights * 1\n    out = ")
    )
    assert examined(
        BAGS, edited(changing, ("    return out", "    rows[:] = 0\n    return out"))
    ).passed
    calls = len(list(ORDER.exercises[0].problems()))
    counted = f"CALLS.append(0)\n    total = (len(CALLS) > {calls}) << 150 "
    kept = edited(source("order"), ("total = 0 ", counted))
    assert "asked a second time, has another answer" in said(ORDER, f"CALLS = []\n{kept}")


def test_a_loop_without_an_end_is_stopped_at_its_line() -> None:
    words = said(ORDER, exact("    while True:\n        terms = terms + 0"), seconds=0.3)
    assert re.search(r"line [45]:.*still here after 0.3 seconds", words, re.DOTALL)
    # a loop at the top of a file, too
    assert "still here" in said(ORDER, "while True:\n    pass", seconds=0.3)


def test_a_loop_that_catches_everything_ends_the_process(folder: Path) -> None:
    body = """    while True:
        try:
            sum(range(10**6))
        except:
            pass"""
    (folder / "my3.py").write_text(exact(body))
    command = [sys.executable, "-m", "neocpu", "course", "check", "3", "--seconds", "0.2"]
    outcome = ran(command, timeout=60)
    assert outcome.returncode == 1
    assert "catches every exception" in outcome.stderr


def test_files_that_are_no_python_are_refused(folder: Path) -> None:
    for name, words in (("no.py", "there is no such file"), ("my.ipynb", "this is a notebook")):
        with pytest.raises(DataError, match=words):
            examine(ORDER, Path(name), 1.0, "neocpu course start 3")
    with pytest.raises(DataError, match="cannot be read"):
        examine(ORDER, folder, 1.0, "neocpu course start 3")
    (folder / "nul.py").write_bytes(b"\0\0")
    assert not examine(ORDER, folder / "nul.py", 1.0, "").passed
    # other encodings are Python's affair
    text = f"# -*- coding: latin-1 -*-\n# \xe9\n{source('order')}"
    (folder / "latin.py").write_bytes(text.encode("latin-1"))
    assert examine(ORDER, folder / "latin.py", 9.0, "").passed


def test_a_file_may_import_its_neighbour(folder: Path) -> None:
    (folder / "order_of_mine.py").write_text(source("order"))
    assert examined(ORDER, "from order_of_mine import exact_sum").passed
    assert str(folder) not in sys.path


# ---- what solutions say against the rest of the package ----


def test_an_exact_sum_is_the_twins() -> None:
    rng = np.random.default_rng(7)
    mine = exercise_function("exact_sum")
    assert mine is not None
    for _ in range(200):
        terms = (rng.standard_normal(9) * 10.0 ** rng.uniform(-44, 30, 9)).astype(np.float32)
        assert mine(terms) == np.float32(exact_sum(terms.tolist()))


def test_the_courses_cache_hits_where_ours_does() -> None:
    """A set of our cache is 32 ways; asked for one row at a time, lru is the course's."""
    rng = np.random.default_rng(3)
    rows = rng.zipf(1.2, 600) % 90
    ours = Cache(1, "lru")
    there = []
    for row in rows:
        there.append(bool(ours.locate(np.array([row]))[0] >= 0))
        ours.release(ours.prefetch(np.array([row]), np.array([1])).lines)
    hits, _ = cache(rows, np.zeros(600, bool), 32, "lru")
    assert hits.tolist() == there


def test_the_greedy_plan_is_near_the_best() -> None:
    """LPT's slowest rank takes at most 4/3 - 1/(3m) of the least time (Graham, 1969)."""
    from itertools import product

    rng = np.random.default_rng(2)
    for _ in range(20):
        seconds = rng.integers(1, 20, 7).astype(float)
        owner = place(seconds, np.ones(7, int), 2, 7)
        best = min(
            max(seconds[np.array(choice) == rank].sum() for rank in (0, 1))
            for choice in product((0, 1), repeat=7)
        )
        assert np.bincount(owner, weights=seconds).max() <= best * (4 / 3 - 1 / 6) + 1e-9


def test_the_courses_greedy_plan_is_the_planners() -> None:
    for problem in unit_of("planner").exercises[0].problems():
        x = problem.arguments
        none = np.zeros((x["ranks"], 1))
        items = x["seconds"][:, None], x["sizes"][:, None].astype(float)
        limits = np.full_like(none, x["room"])
        planned = greedy(Packing(*items, none, none, limits, np.ones(x["ranks"])))
        assert planned is not None
        assert place(**x).tolist() == planned.tolist(), problem.about


def test_problems_are_the_same_every_time() -> None:
    for _, exercise in EXERCISES:
        for one, other in zip(exercise.problems(), exercise.problems()):
            assert one.about == other.about
            assert all(
                np.array_equal(x, other.arguments[name]) for name, x in one.arguments.items()
            )


def test_an_own_run_is_asked_for_and_read(folder: Path) -> None:
    unit = unit_of("run")
    lines = "\n".join(examined(unit, source("run")).lines)
    assert "rank 3:" in lines and "93.0% of the rows" in lines
    assert f"digest {run_unit.DIGEST}: that of" in lines
    path = folder / "runs" / "course" / "run.json"
    path.write_text(json.dumps({"ranks": 1, "tiers": []}))
    assert "a run of 1 ranks without tiers" in said(unit, source("run"))
    path.write_text(json.dumps({"ranks": 4, "tiers": [{}]}))
    trace = {"traceEvents": run_unit.trace(1, 2, False)}
    (folder / "runs" / "course-trace.json").write_text(json.dumps(trace))
    assert "not a trace of 4 ranks" in said(unit, source("run"))
    path.unlink()
    assert run_unit.COMMAND in said(unit, source("run"))


# ---- the command ----


def course(*arguments: str) -> Result:
    return invoke("course", *arguments)


def test_a_unit_is_begun_checked_and_passed(folder: Path) -> None:
    assert "neocpu course start 1" in course().output
    assert "my3.py is written" in course("start", "3").output
    with pytest.raises(DataError, match=r"my3\.py exists and stays as it is"):
        course("start", "3")
    assert re.search(r"the order of a sum +begun", course().output)
    result = course("check", "3")
    assert result.return_value == 1
    assert "`neocpu course hint 3`" in result.output
    assert [course("hint", "3").output.count(" of 3:") for _ in range(5)] == [1, 2, 3, 3, 3]
    solution = course("solution", "3").output
    (folder / "my3.py").write_text(solution)
    assert course("check", "3").return_value == 0
    assert re.search(r"the order of a sum +passed", course().output)
    assert "1 of 10 are passed" in course().output
    (folder / "my3.py").write_text(solution + "# changed\n")
    assert "my3.py has changed since it passed" in course().output
    (folder / "elsewhere.py").write_text(solution)
    assert course("check", "3", "elsewhere.py").return_value == 0


def test_a_command_without_a_number_means_the_next_unit(folder: Path) -> None:
    assert "my1.py is written" in course("start").output
    assert course("check").return_value == 1
    (folder / "my1.py").write_text(course("solution").output)
    assert "a DLRM in 40 lines of NumPy: passed" in course("check").output
    assert "my2.py is written" in course("start").output


def test_each_function_of_a_file_is_judged() -> None:
    text = source("trees")
    broken = text.replace("    nodes = []\n", "    raise NotImplementedError('later')\n")
    words = said(unit_of("trees"), broken)
    assert "later" in words and "climb: right on all" in words


def test_a_journal_that_is_none_is_refused(folder: Path) -> None:
    for text in ("[]", "{", '{"units": {"3": 1}}'):
        (folder / "course.json").write_text(text)
        with pytest.raises(DataError, match="not the journal of a course"):
            course()


def test_there_are_ten_units() -> None:
    for number in ("0", "11"):
        with pytest.raises(Exception, match="there are the units 1 to 10"):
            course("check", number)
    assert len(UNITS) == 10


# ---- pages ----


def page_of(number: int, unit: CourseUnit) -> Path:
    return PAGES / f"{number:02}_{unit.name}.md"


@pytest.mark.parametrize(("number", "unit"), NUMBERED, ids=NAMES)
def test_a_page_is_short_and_complete(number: int, unit: CourseUnit) -> None:
    text = page_of(number, unit).read_text()
    assert len(text.split()) <= WORDS
    assert text.startswith(f"# {number}. ")
    assert f"]({number:02}_{unit.name}.svg)" in text
    for section in ("**Before.**", "## Exercise", "## Read on"):
        assert section in text
    assert f"neocpu course check {number}" in text


@pytest.mark.parametrize(("number", "unit"), NUMBERED, ids=NAMES)
def test_the_code_of_a_page_runs(number: int, unit: CourseUnit) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page_of(number, unit).read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    assert blocks
    for block in blocks:
        exec(block, names)


def test_units_lead_to_every_lesson() -> None:
    pages = "".join(page_of(number, unit).read_text() for number, unit in NUMBERED)
    lessons = (ROOT / "examples" / "lessons").glob("[0-9]*.py")
    assert [path.name for path in lessons if f"/lessons/{path.name})" not in pages] == []


NO_NUMBA = """
import sys
from pathlib import Path
from neocpu.oracle.course.solutions import source
from neocpu.oracle.course.teacher import examine
from neocpu.oracle.course.units import UNITS
for unit in UNITS:
    Path("my.py").write_text(source(unit.name))
    assert examine(unit, Path("my.py"), 10.0, "").passed, unit.name
assert "numba" not in sys.modules
"""


def test_checks_need_no_compiler() -> None:
    subprocess.run([sys.executable, "-c", NO_NUMBA], timeout=120, check=True)


def test_pages_hide_the_solutions() -> None:
    text = (PAGES / "solutions.md").read_text()
    for unit in UNITS:
        assert f"neocpu/oracle/course/solutions/{unit.name}.py" in text


def test_the_pictures_are_drawn_as_the_script_draws_them() -> None:
    path = ROOT / "docs" / "_ext" / "course_pictures.py"
    spec = importlib.util.spec_from_file_location("course_pictures", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    drawn = module.pictures()
    assert set(drawn) == {f"{number:02}_{unit.name}.svg" for number, unit in NUMBERED}
    for name, picture in drawn.items():
        assert (PAGES / name).read_text() == picture, "run python docs/_ext/course_pictures.py"
