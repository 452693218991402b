"""Is the flat twin the same suite, is a damaged one named, and does C++ judge as Python does?"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from neocpu.cli import cli
from neocpu.core.errors import OracleError
from neocpu.oracle.adapters import codes_of
from neocpu.oracle.answers import Answers, read_answers
from neocpu.oracle.checking import check_suite
from neocpu.oracle.flat import HEADER, HEADER_FILE, FlatSuite, open_suite, write_flat
from neocpu.oracle.operator import Case
from neocpu.oracle.suite import Question, ask, write_suite
from tests.jobs import ran
from tests.oracle_cases import all_cases

ROOT = Path(__file__).resolve().parent.parent
COMPILER = shutil.which("c++") or shutil.which("g++")
STRICT = ["-O0", "-Wall", "-Wextra", "-Werror", "-I", str(HEADER_FILE.parent)]
FLAGS = ["-std=c++17", *STRICT]
C_COMPILER = shutil.which("cc") or shutil.which("gcc")
C_FLAGS = ["-std=c99", "-pedantic", *STRICT]
needs_c = pytest.mark.skipif(C_COMPILER is None, reason="no C compiler")
needs_cpp = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    """Small ones of every operator."""
    by_operator: dict[str, list[Case]] = {}
    for case in all_cases():
        if sum(array.nbytes for array in case.inputs.values()) < 4096:
            by_operator.setdefault(case.op, []).append(case)
    return [ask(case) for cases in by_operator.values() for case in cases[::3]]


@pytest.fixture(scope="module")
def flat(questions: list[Question], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flat") / "suite.flat"
    write_flat(path, questions, 0)
    return path


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return ran([str(part) for part in command], timeout=120)


def test_both_forms_hold_the_same_suite(questions: list[Question], flat: Path) -> None:
    twin = flat.with_name("suite.h5")
    digest = write_suite(twin, questions, 0)
    with open_suite(flat) as suite, open_suite(twin) as hdf5:
        assert isinstance(suite, FlatSuite) and not isinstance(hdf5, FlatSuite)
        assert suite.sha256 == hdf5.sha256 == digest
        assert list(suite) == [question.case.name for question in questions]
        for name, question in suite.items():
            assert question.sha256 == hdf5[name].sha256
            assert question.case.options == hdf5[name].case.options
            assert question.case.about == hdf5[name].case.about
        answers = {
            f"{name}/{output}": expected.canonical
            for name, question in suite.items()
            for output, expected in question.outputs.items()
        }
        assert check_suite(suite, Answers(answers))


def test_arrays_stand_at_multiples_of_64_bytes(flat: Path) -> None:
    data = np.memmap(flat, np.uint8, "r")
    suite = FlatSuite(flat)
    question = suite[next(iter(suite))]
    weights = codes_of(question.case.inputs["weights"])
    place = bytes(data).find(weights.tobytes())
    assert place % 64 == 0 and place > HEADER.size


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "damaged"),
        (lambda data: data[:40], "not a flat suite"),
        (lambda data: data[:8] + b"\x09" + data[9:], "version 9"),
        (lambda data: data[:24] + b"\x09" + data[25:], r"\(9\)"),
        (lambda data: data[:70] + bytes([data[70] ^ 4]) + data[71:], "damaged"),
        (lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:], "damaged"),
        (lambda data: data[:8] + b"\x01" + data[9:], "version 1"),
        (lambda data: data[:28] + bytes([data[28] - 1]) + data[29:], "damaged"),
        (lambda data: data[:35] + bytes([data[35] ^ 1]) + data[36:], "damaged"),
        (lambda data: data + b"x", "damaged"),
    ],
)
def test_a_damaged_file_is_named(flat: Path, tmp_path: Path, damage: object, message: str) -> None:
    path = tmp_path / "damaged.flat"
    path.write_bytes(damage(flat.read_bytes()))  # type: ignore[operator]
    with pytest.raises(OracleError, match=message):
        FlatSuite(path)
    with pytest.raises(OracleError, match=r"damaged\.flat"):
        open_suite(path)


def test_the_command_writes_it_and_checks_against_it(tmp_path: Path) -> None:
    suite = tmp_path / "suite.flat"
    answers = tmp_path / "answers.npz"

    def invoke(*arguments: object) -> object:
        done = CliRunner().invoke(cli, [str(a) for a in arguments], standalone_mode=False)
        return done.output if done.exception is None else done.exception

    written = invoke("oracle", "export", suite, "--flat", "--cases", "lookup-mean")
    assert "1 cases" in str(written)
    canonical = open_suite(suite)["lookup-mean"].outputs["out"].canonical
    assert canonical is not None
    np.savez(answers, **{"lookup-mean/out": canonical})
    assert "passed (within bounds): 1 passed" in str(invoke("oracle", "check", suite, answers))
    assert str(invoke("oracle", "include")).strip() == str(HEADER_FILE.parent)


@pytest.mark.parametrize(
    "language", [pytest.param("c", marks=needs_c), pytest.param("cpp", marks=needs_cpp)]
)
def test_c_and_cpp_judge_every_output_as_python_does(
    questions: list[Question], flat: Path, tmp_path: Path, language: str
) -> None:
    program = tmp_path / "judge"
    source = ROOT / f"tests/cpp/judge_canonical.{language}"
    compiler = [C_COMPILER, *C_FLAGS] if language == "c" else [COMPILER, *FLAGS]
    built = run(*compiler, "-o", program, source, "-lm")
    assert built.returncode == 0, built.stderr
    done = run(program, flat)
    assert done.returncode == 0, done.stderr
    sha256, *lines = done.stdout.splitlines()
    assert sha256 == FlatSuite(flat).sha256
    verdicts = {line.split()[0]: line.split()[1:] for line in lines}
    for question in questions:
        for output, expected in question.outputs.items():
            right, changed = verdicts[f"{question.case.name}/{output}"]
            truth = expected.truth
            anything_passes = truth.reference.size == 0 or np.isinf(truth.bound.reshape(-1)[-1])
            assert (right, changed) == ("1", "1" if anything_passes else "0"), question.case.name
    data = flat.read_bytes()
    damaged = tmp_path / "damaged.flat"
    for content, message in (
        (data[:-9], "damaged or truncated"),
        (data[:28] + bytes([data[28] - 1]) + data[29:], "damaged or truncated"),  # a case less
        (data[:8] + b"\x01" + data[9:], "older layout"),
    ):
        damaged.write_bytes(content)
        done = run(program, damaged)
        assert done.returncode == 2 and message in done.stderr
    done = run(program, tmp_path)
    assert done.returncode == 2 and str(tmp_path) in done.stderr
    assert run(program, tmp_path / "absent.flat").returncode == 2


@needs_cpp
def test_cpp_takes_half_types_as_numbers_and_tells_what_a_kernel_did_to_memory(
    tmp_path: Path,
) -> None:
    narrow = [case for case in all_cases(["lookup"]) if case.options.get("output_format") == "fp16"]
    smallest = min(narrow, key=lambda case: sum(array.nbytes for array in case.inputs.values()))
    write_flat(tmp_path / "suite.flat", [ask(smallest)], 0)
    program = tmp_path / "memory"
    built = run(COMPILER, *FLAGS, "-o", program, ROOT / "tests/cpp/judge_memory.cpp")
    assert built.returncode == 0, built.stderr
    answers = tmp_path / "answers.safetensors"
    done = run(program, tmp_path / "suite.flat", answers)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "codes: right",
        "half numbers: right",
        "half numbers, one changed: wrong",
        "guarded: right",
        "one unwritten: left unwritten: element 3",
        "one behind: wrote outside: 0 bytes behind the end",
        "one before: wrote outside: 1 bytes before the beginning",
        "input: changed an input: element 0",
    ]
    with open_suite(tmp_path / "suite.flat") as suite:
        assert check_suite(suite, read_answers(answers))


@needs_cpp
def test_the_mistake_of_the_example_is_found_and_named(tmp_path: Path) -> None:
    suite = tmp_path / "suite.flat"
    cases = [case for case in all_cases(["lookup"]) if "-pair-" not in case.name]
    write_flat(suite, map(ask, cases), 0)
    source = ROOT / "examples/cpp/check_lookup.cpp"
    program = tmp_path / "check_lookup"
    built = run(COMPILER, *FLAGS, "-DWITH_A_MISTAKE", "-o", program, source)
    assert built.returncode == 0, built.stderr
    answers = tmp_path / "answers.safetensors"
    done = run(program, suite, answers)
    assert done.returncode == 1 and "FAILED lookup-" in done.stdout
    explained = CliRunner().invoke(
        cli, ["oracle", "check", str(suite), str(answers)], standalone_mode=False
    )
    assert "last_lookup_dropped" in explained.output


@needs_c
def test_the_example_in_c_finds_a_lost_row(tmp_path: Path) -> None:
    suite = tmp_path / "suite.flat"
    write_flat(suite, map(ask, all_cases(["segment_sum"])), 0)
    source = ROOT / "examples/cpp/check_segments.c"
    program = tmp_path / "check_segments"
    for flags, status in ([], 0), (["-DWITH_A_MISTAKE"], 1):
        built = run(C_COMPILER, *C_FLAGS, *flags, "-o", program, source, "-lm")
        assert built.returncode == 0, built.stderr
        done = run(program, suite)
        assert done.returncode == status, done.stdout
        assert ("FAILED segment-sum" in done.stdout) == bool(status)


@pytest.mark.skipif(COMPILER is None or not shutil.which("cmake"), reason="no cmake")
def test_cmake_builds_the_example_and_ctest_runs_it(tmp_path: Path) -> None:
    program = shutil.which("neocpu")
    if program is None:
        pytest.skip("neocpu is not on the PATH")
    build = tmp_path / "build"
    configured = run(
        "cmake",
        "-S",
        ROOT / "examples/cpp",
        "-B",
        build,
        f"-DNEOCPU={program}",
        "-DCMAKE_BUILD_TYPE=Debug",
    )
    assert configured.returncode == 0, configured.stderr
    built = run("cmake", "--build", build)
    assert built.returncode == 0, built.stdout
    tested = run("ctest", "--test-dir", build, "--output-on-failure")
    assert tested.returncode == 0, tested.stdout
    assert "100% tests passed" in tested.stdout


EXAMPLE = ROOT / "examples/ci"


@pytest.mark.parametrize("mistake", [False, True])
def test_the_workflow_fails_a_wrong_kernel_and_keeps_the_report(
    tmp_path: Path, mistake: bool
) -> None:
    program = (EXAMPLE / "answer.py").read_text()
    if mistake:
        assert "if mean and bag.size" in program
        program = program.replace("if mean and bag.size", "if False")
    (tmp_path / "answer.py").write_text(program)
    steps = re.findall(r"- run: (.*)", (EXAMPLE / "oracle.yml").read_text())
    assert steps[0] == "pip install neocpu" and len(steps) == 4
    names = {"neocpu": [sys.executable, "-m", "neocpu"], "python": [sys.executable]}
    for step in steps[1:]:
        # some cases say as much, and a test has less time
        words = step.replace("examples/ci/", "").replace("--op", "--cases lookup-mean --op").split()
        done = ran([*names[words[0]], *words[1:]], cwd=tmp_path)
        assert (done.returncode != 0) == (mistake and "check" in words), done.stdout + done.stderr
    assert ("mean_not_divided" in done.stdout) == mistake
    assert (tmp_path / "report.html").is_file() and (tmp_path / "report.json").is_file()
