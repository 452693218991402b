"""Are several runs of a kernel all judged, and are races and other differences named?"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from neocpu import oracle
from neocpu.core.errors import OracleError
from neocpu.oracle.answers import Answers, read_answers
from neocpu.oracle.checking import check_suite
from neocpu.oracle.operator import Arrays, Case, Truth
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.report import Report
from neocpu.oracle.suite import Question, ask
from neocpu.oracle.testing import assert_correct
from neocpu.oracle.verdicts.runs import has_runs
from tests.oracle_cases import all_cases

RUNS = 8
CASES = {case.name: case for case in all_cases()}
Array = NDArray[Any]


@cache
def question(name: str) -> Question:
    return ask(CASES[name])


def bits(name: str, output: str) -> tuple[Case, Truth, Array]:
    expected = question(name).outputs[output]
    assert expected.canonical is not None
    return question(name).case, expected.truth, expected.canonical


def repeated(array: Array) -> Array:
    return np.repeat(array[None], RUNS, axis=0)


def judged(name: str, output: str, answer: Array, with_bits: bool = False) -> Report:
    """The report on an answer; its bits are compared with those of the twins."""
    return check_suite(
        {name: question(name)}, Answers({f"{name}/{output}": answer}), bits=with_bits
    )


def test_an_axis_of_runs_is_told_by_shape_and_size() -> None:
    assert has_runs((4, 3), (5, 4, 3)) and not has_runs((4, 3), (4, 3))
    assert not has_runs((4, 3), (5, 12)) and not has_runs((4, 3), (3, 4))
    assert has_runs((12,), (5, 12)) and has_runs((12,), (5, 4, 3))
    assert not has_runs((12,), (4, 3)) and not has_runs((12,), (1, 12))
    assert not has_runs((12,), (60,)) and not has_runs((0,), (5, 0))
    assert not has_runs((1,), (5,)) and has_runs((1,), (5, 1))


def test_runs_that_differ_within_the_bounds_are_a_warning() -> None:
    name = "backward-exact_sgd"
    _, truth, canonical = bits(name, "weights")
    runs = repeated(canonical)
    beside = np.nextafter(canonical, np.float32(9))
    differing = np.flatnonzero(np.abs(beside - truth.reference) <= truth.bound)[:7]
    runs[3, differing] = beside[differing]
    report = judged(name, "weights", runs)
    (verdict,) = [v for v in report.cases[0].verdicts if v.output == "weights"]
    assert report and verdict.elements == runs.size
    (warning,) = verdict.warnings
    assert warning.startswith(
        f"not deterministic: 7 elements differ between {RUNS} runs, all within bounds (unordered"
    )
    assert f"warning: {name}/weights: not deterministic" in str(report)
    assert not judged(name, "weights", runs, with_bits=True), "one run has other bits"
    assert judged(name, "weights", repeated(canonical), with_bits=True)
    assert not judged(name, "weights", repeated(canonical)).cases[0].verdicts[0].warnings


def lost_updates(case: Case, canonical: Array) -> Array:
    """In runs 2 and 5 the hot rows miss a lookup."""
    runs = repeated(canonical)
    lookups = np.bincount(case.inputs["indices"], minlength=9)
    hot = int(np.argmax(lookups))
    width = canonical.size // 9
    runs[[2, 5], hot * width : (hot + 1) * width] += np.float32(0.25)
    return runs


def test_a_lost_update_is_a_race_with_its_rows_and_runs() -> None:
    name = "backward-hot-row"
    case, _, canonical = bits(name, "weights")
    report = judged(name, "weights", lost_updates(case, canonical))
    assert not report
    (verdict,) = report.cases[0].verdicts
    width = canonical.size // 9
    assert verdict.message.startswith(
        f"a race: {width} elements are right in some of {RUNS} runs and wrong in others "
        "(table 0 row 4 in 2 runs)"
    )
    assert verdict.first is not None and verdict.first.place["run"] == 2
    assert verdict.ratio is not None and verdict.ratio.shape == canonical.shape
    names = {name for diagnosis in report.cases[0].diagnoses for name in diagnosis.names}
    assert "lost_updates" in names


def _zeros(runs: Array) -> None:
    runs[3, 1] = 0
    runs[6, 5] = 0


def _garbage(runs: Array) -> None:
    runs[1, 0, 2] = np.nan
    runs[4, 2, 1] = 3e30


def _kept(runs: Array) -> None:
    runs[1:] += 1


def _first(runs: Array) -> None:
    runs[0, 2:4] += 1


def _rows(runs: Array) -> None:
    runs[2, 0] += 3
    runs[5, 3] -= 2


def _scattered(runs: Array) -> None:
    runs[2, :4, 0] += 3
    runs[5, 2:6, 1] -= 2


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (_zeros, "not_always_written"),
        (_garbage, "uninitialised_memory"),
        (_kept, "kept_between_runs"),
        (_first, "first_run_wrong"),
        (_rows, "rows_race"),
        (_scattered, "race"),
    ],
)
def test_races_are_named_by_what_stands_where(damage: Any, expected: str) -> None:
    x = np.arange(1, 49, dtype=np.float32).reshape(6, 8)
    options = {"format": "int8", "columns": 8}
    codes = oracle.run("quantize", {"x": x}, {"format": "int8"}, backend="reference")["codes"]
    out = oracle.run("dequantize", {"codes": codes}, options, backend="reference")["out"]
    runs = repeated(out)
    damage(runs)
    report = oracle.check("dequantize", {"codes": codes}, runs, options)
    assert not report
    names = [name for diagnosis in report.cases[0].diagnoses for name in diagnosis.names]
    assert expected in names
    assert f"of {RUNS} runs" in report.cases[0].verdicts[0].message


def test_all_runs_wrong_in_the_same_way_are_explained_as_one() -> None:
    name = "lookup-mean"
    case, _, _ = bits(name, "out")
    wrong = OPERATORS["lookup"].truth(case.inputs, case.options, frozenset({"mean_not_divided"}))
    runs = repeated(wrong["out"].reference.astype(np.float32))
    report = judged(name, "out", runs)
    assert not report and not report.cases[0].verdicts[0].message
    assert report.cases[0].diagnoses[0].names == ("mean_not_divided",)


def test_runs_of_one_seed_and_of_several_are_told_apart(tmp_path: Path) -> None:
    name = "backward-rows-bf16-stochastic"
    case, _, canonical = bits(name, "weights")
    same = repeated(canonical)
    by_seed = np.stack(
        [
            OPERATORS["backward"].run(case.inputs, {**case.options, "seed": s}, "reference")[
                "weights"
            ]
            for s in range(RUNS)
        ]
    )
    assert judged(name, "weights@repeats", same)
    assert judged(name, "weights@repeats", same, with_bits=True)
    assert judged(name, "weights", by_seed)
    assert "one answer per seed" in str(judged(name, "weights", by_seed, with_bits=True))
    differing = judged(name, "weights@repeats", by_seed)
    assert differing and "the random numbers are others in each run of one seed" in str(differing)
    many = repeated(np.repeat(canonical[None], 20, 0)).reshape(-1, *canonical.shape)
    assert "every seed or step gives the same random" in str(judged(name, "weights", many))
    answers = tmp_path / "answers.npz"
    keys: dict[str, Any] = {
        f"{name}/weights@repeats": same["bf16"],
        f"{name}/weights": by_seed["bf16"],
    }
    np.savez(answers, **keys)
    with read_answers(answers) as arrays:
        report = check_suite({name: question(name)}, arrays)
    assert report and not report.unknown
    assert {v.output for v in report.cases[0].verdicts if v.status == "passed"} == {
        "weights",
        "weights@repeats",
    }
    with pytest.raises(OracleError, match='not "seeds" or "repeats"'):
        oracle.check("backward", case.inputs, {"weights": same}, case.options, runs="twice")


def test_a_kernel_is_called_repeatedly() -> None:
    case = question("backward-rows-fp16-stochastic").case
    before = {name: array.tobytes() for name, array in case.inputs.items()}
    seeds: list[int] = []

    def kernel(inputs: dict[str, Any], options: dict[str, Any]) -> Arrays:
        seeds.append(options["seed"])
        outputs = OPERATORS["backward"].run(inputs, options, "reference")
        inputs["weights"][:] = 0  # a copy
        return outputs

    def forgetful(inputs: dict[str, Any], options: dict[str, Any]) -> Arrays:
        outputs = kernel(inputs, options)
        if len(seeds) % 5 == 4:
            outputs["sum"][0] += 1
        return outputs

    assert assert_correct("backward", case.inputs, kernel, case.options, runs=4)
    assert seeds == [0] * 4
    assert oracle.check_repeatedly(
        "backward", case.inputs, kernel, case.options, runs=4, seeds=True
    )
    assert seeds[4:] == [0, 1, 2, 3]
    assert {name: array.tobytes() for name, array in case.inputs.items()} == before
    with pytest.raises(AssertionError, match="a race: 1 elements are right in some of 6 runs"):
        assert_correct("backward", case.inputs, forgetful, case.options, runs=6)
    sizes = iter((3, 4))
    with pytest.raises(OracleError, match="run 1 answered"):
        oracle.check_repeatedly(
            "backward", case.inputs, lambda *_: np.zeros(next(sizes)), case.options, runs=2
        )
    with pytest.raises(OracleError, match="no option seed"):
        oracle.check_repeatedly("lookup", {}, kernel, seeds=True)


def test_strict_holds_for_kernels_that_are_called() -> None:
    case = CASES["lookup-skewed"]
    calls = []

    def kernel(inputs: dict, options: dict) -> np.ndarray:
        """Right, but in the last bit of one element of every other run."""
        out = oracle.run(case.op, inputs, options, backend="reference")["out"].copy()
        if len(calls) % 2:
            out.reshape(-1)[-1] = np.nextafter(out.reshape(-1)[-1], np.float32(9))
        calls.append(1)
        return out

    assert_correct(case.op, case.inputs, kernel, case.options, runs=2)
    with pytest.raises(AssertionError, match="not deterministic"):
        assert_correct(case.op, case.inputs, kernel, case.options, runs=2, strict=True)
