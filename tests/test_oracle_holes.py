"""Does a case fail a kernel that has the bug it was made for? A wrong kernel for each hole."""

from collections.abc import Callable

import numpy as np
import pytest

from neocpu.oracle.checking import check
from neocpu.oracle.operator import Arrays, Case
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.verdicts.compare import numbers
from tests.oracle_cases import all_cases

CASES = {case.name: case for case in all_cases()}
F = np.float32
BLOCK = 1024  # rows that one block of threads takes


def answer_to(case: Case, **inputs: np.ndarray) -> Arrays:
    return OPERATORS[case.op].run({**case.inputs, **inputs}, case.options, "reference")


def keys_as_fp64(case: Case) -> Arrays:
    keys = case.inputs["indices"]
    # The largest fp64 number below 2^63: the next one is no key.
    rounded = np.minimum(keys.astype(np.float64), 2.0**63 - 1024).astype(np.int64)
    return answer_to(case, indices=rounded)


def numbers_of_8_bits(case: Case) -> Arrays:
    return answer_to(case, select=case.inputs["select"] % 256)


def one_block_of_rows(case: Case) -> Arrays:
    """Of each table the first 1,024 touched rows are updated."""
    answer = answer_to(case)
    dim = int(case.inputs["dims"][0])
    rows = int(case.inputs["rows"][0])
    output = "weights" if case.op == "backward" else "values"
    before = case.inputs["weights"] if output == "weights" else np.zeros_like(answer["values"])
    changed = answer[output].copy()
    changed[BLOCK * dim : rows * dim] = before[BLOCK * dim : rows * dim]
    return {**answer, output: changed}


def segments_by_row_alone(case: Case) -> Arrays:
    """Sorted by table and row, but a segment ends only where the number of the row changes."""
    x = case.inputs
    dim = int(x["dims"][0])
    owner = np.repeat(x["feature_table"], np.diff(x["offsets"]).reshape(3, -1).sum(1))
    bag = np.repeat(np.arange(x["offsets"].size - 1), np.diff(x["offsets"]))
    gradient = x["grad_output"].reshape(2, 3, dim)[bag % 2, bag // 2]
    order = np.lexsort((x["indices"], owner))
    begins = np.append(True, np.diff(x["indices"][order]) != 0)
    segment = np.cumsum(begins) - 1
    total = np.zeros((int(segment[-1]) + 1, dim), F)
    np.add.at(total, segment, gradient[order])
    begin = order[begins]
    first_row = np.cumsum(np.append(0, x["rows"]))
    place = first_row[owner[begin]] + x["indices"][begin]
    if case.op == "unique_gradient":
        return {"rows": place, "values": total.reshape(-1)}
    weights = x["weights"].reshape(-1, dim).copy()
    weights[place] -= F(case.options["learning_rate"]) * total
    return {"weights": weights.reshape(-1)}


def eight_random_bits(case: Case) -> Arrays:
    truths = OPERATORS[case.op].truth(case.inputs, case.options)
    answer = {}
    for name, truth in truths.items():
        assert truth.lower is not None and truth.upper is not None
        assert truth.probability is not None
        word = np.random.default_rng(1).integers(0, 256, truth.reference.shape)
        up = word / 256 + np.floor(truth.probability * 256) / 256 >= 1
        answer[name] = np.where(up, truth.upper, truth.lower).astype(F)
    return answer


def ties_away_from_zero(case: Case) -> Arrays:
    bent = OPERATORS[case.op].truth(case.inputs, case.options, frozenset({"half_up"}))
    return {**answer_to(case), "numbers": np.asarray(bent["numbers"].lower, F)}


def starts_early(case: Case) -> Arrays:
    options = {**case.options, "step_start": int(case.options["step_start"]) - 1}
    return OPERATORS[case.op].run(case.inputs, options, "reference")


def bent(switch: str) -> Callable[[Case], Arrays]:
    def kernel(case: Case) -> Arrays:
        truths = OPERATORS[case.op].truth(case.inputs, case.options, frozenset({switch}))
        return {
            name: np.asarray(truth.reference, truth.reference.dtype if truth.exact else F)
            for name, truth in truths.items()
        }

    return kernel


HOLES: dict[str, Callable[[Case], Arrays]] = {
    "unique-beyond-fp64": keys_as_fp64,
    "group-select-tall": numbers_of_8_bits,
    "unique-gradient-beyond-a-block": one_block_of_rows,
    "backward-beyond-a-block": one_block_of_rows,
    "unique-gradient-meeting-tables": segments_by_row_alone,
    "backward-meeting-tables": segments_by_row_alone,
    "round-bf16-near": eight_random_bits,
    "backward-rows-fp16-stochastic-near": eight_random_bits,
    "fp8-rowwise-forward": ties_away_from_zero,
    "fp8-rowwise-backward": ties_away_from_zero,
    "trajectory-ensemble-start": starts_early,
    "kv-counter-large": bent("kv_counts_8_bits"),
    "backward-partial_rowwise_lamb-zero-rows": bent("ratio_unguarded"),
}


@pytest.mark.parametrize("name", HOLES)
def test_the_bug_fails_and_a_right_answer_passes(name: str) -> None:
    case = CASES[name]
    report = check(case.op, case.inputs, HOLES[name](case), case.options, budget=0)
    assert not report, "the bug passes"
    assert check(case.op, case.inputs, answer_to(case), case.options, budget=0)


def test_eight_random_bits_are_named() -> None:
    case = CASES["round-bf16-near"]
    report = check(case.op, case.inputs, eight_random_bits(case), case.options, budget=0)
    assert "8 random bits" in str(report)


def test_ties_of_fp8_rows_are_certain() -> None:
    case = CASES["fp8-rowwise-forward"]
    truth = OPERATORS[case.op].truth(case.inputs, case.options)["numbers"]
    assert truth.lower is not None and truth.upper is not None
    row = 5  # whose scale is 1
    np.testing.assert_array_equal(truth.lower[row], truth.upper[row])
    assert (numbers(truth, answer_to(case)["numbers"])[row] == truth.lower[row]).all()
