"""Do right answers in other orders pass, and small mistakes fail with their names?

Operators on permuted, selected and jagged embeddings, and fp8 rows.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from neocpu.oracle.checking import check
from neocpu.oracle.operator import Arrays, Case
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.ops.jagged import OPERATORS as JAGGED
from neocpu.oracle.ops.moves import OPERATORS as MOVES
from neocpu.oracle.truth import moves
from tests.oracle_cases import all_cases

F = np.float32
CASES = {
    case.name: case for case in all_cases([*(op.name for op in (*MOVES, *JAGGED)), "fp8_rowwise"])
}


def complete(case: Case) -> dict:
    return OPERATORS[case.op].complete(case.options)


def bags(case: Case) -> list[slice]:
    """Rows of each bag, at most max_length."""
    ends = case.inputs["offsets"].tolist()
    longest = int(complete(case).get("max_length", 0)) or 1000
    return [slice(a, min(b, a + longest)) for a, b in pairwise(ends)]


def scattered(case: Case) -> Arrays:
    """Gradients of copies, added from the last to the first, rounding each time."""
    name = case.op.removesuffix("_backward")
    move = getattr(moves, name)(case.inputs, complete(case), frozenset())
    out = np.zeros(int(np.prod(move.shape)), F)
    gradient = case.inputs["grad_output"].reshape(-1)
    np.add.at(out, move.source.reshape(-1)[::-1], gradient[::-1])
    (output,) = OPERATORS[case.op].outputs
    return {output: out.reshape(move.shape)}


def dense_bmm(case: Case) -> Arrays:
    x = case.inputs
    out = np.zeros((len(x["values"]), x["dense"].shape[2]), F)
    for bag, matrix in zip(bags(case), x["dense"]):
        out[bag] = x["values"][bag] @ matrix
    return {"out": out}


def dense_bmm_backward(case: Case) -> Arrays:
    x = case.inputs
    values = np.zeros(x["values"].shape, F)
    dense = np.zeros(x["dense"].shape, F)
    for number, bag in enumerate(bags(case)):
        values[bag] = x["grad_output"][bag] @ x["dense"][number].T
        dense[number] = x["values"][bag].T @ x["grad_output"][bag]
    return {"values_grad": values, "dense_grad": dense}


def jagged_bmm(case: Case) -> Arrays:
    x = case.inputs
    return {"out": np.stack([x["values"][bag].T @ x["other"][bag] for bag in bags(case)])}


def subtracted_softmax(case: Case) -> Arrays:
    x = case.inputs["values"]
    out = np.zeros(x.shape, F)
    for bag in bags(case):
        if x[bag].size:
            power = np.exp2((x[bag] - x[bag].max(0)) * F(1.4426950408889634))
            out[bag] = power * (F(1) / power.sum(0))
    return {"out": out}


def plain_softmax(case: Case) -> Arrays:
    x = case.inputs["values"]
    out = np.zeros(x.shape, F)
    for bag in bags(case):
        power = np.exp(x[bag])
        out[bag] = power / np.cumsum(power, 0)[-1:]
    return {"out": out}


def softmax_backward(case: Case) -> Arrays:
    y = case.inputs["output"]
    g = case.inputs["grad_output"]
    out = np.zeros(y.shape, F)
    for bag in bags(case):
        product = y[bag] * g[bag]
        out[bag] = product - y[bag] * product.sum(0, keepdims=True)
    return {"values_grad": out}


def fp8_by_reciprocal(case: Case) -> Arrays:
    """The scale is the limit times a reciprocal, and the codes come from it."""
    x = case.inputs["x"]
    plain = OPERATORS["fp8_rowwise"].run(case.inputs, case.options, "reference")
    limit = F(0.875 if case.options["backward"] else 0.9375)
    scale = limit * (F(1) / (np.fmax.reduce(np.abs(x), 1) + F(1e-20)))
    difference = np.abs(scale - plain["scale"]) / np.spacing(plain["scale"])
    assert np.nanmax(difference[plain["scale"] < 1e19]) >= 1, "another rounding, or no test"
    return {"scale": scale, "numbers": plain["numbers"]}


HONEST: dict[str, Callable[[Case], Arrays]] = {
    **{op.name: scattered for op in MOVES if op.name.endswith("backward")},
    "jagged_dense_bmm": dense_bmm,
    "jagged_dense_bmm_backward": dense_bmm_backward,
    "jagged_jagged_bmm": jagged_bmm,
    "jagged_softmax": subtracted_softmax,
    "jagged_softmax_backward": softmax_backward,
    "fp8_rowwise": fp8_by_reciprocal,
}


@pytest.mark.parametrize("op", HONEST)
def test_right_answers_in_other_orders_pass(op: str) -> None:
    for case in CASES.values():
        if case.op == op and not case.name.endswith("specials"):
            with np.errstate(all="ignore"):
                answer = HONEST[op](case)
            report = check(op, case.inputs, answer, case.options)
            assert report, (case.name, str(report))


def test_a_softmax_without_subtraction_passes_until_it_overflows() -> None:
    for name, right in (("", True), ("-nan", True), ("-large", False), ("-low", False)):
        case = CASES[f"jagged-softmax{name}"]
        with np.errstate(all="ignore"):
            answer = plain_softmax(case)
        assert bool(check(case.op, case.inputs, answer, case.options)) == right, name


MISTAKES = {
    "permute_inverted": "permute-pooled",
    "last_duplicate_wins": "group-select-backward",
    "first_duplicate_wins": "keyed-select-one-backward",
    "duplicates_averaged": "permute-pooled-duplicates-backward",
    "regroup_reads_output_columns": "regroup",
    "first_matrix_only": "group-select",
    "samples_of_first_key": "keyed-select",
    "last_lookup_dropped": "jagged-dense-bmm-cut-backward",
    "first_lookup_dropped": "jagged-jagged-bmm",
    "matrix_transposed": "jagged-dense-bmm-square",
    "heads_bag_minor": "vec-jagged-mul-heads",
    "beyond_dense_swapped": "jagged-mul-short",
    "softmax_counts_padding": "jagged-softmax",
    "softmax_over_batch": "jagged-softmax-far",
    "softmax_of_row": "jagged-softmax-large",
    "softmax_gradient_without_sum": "jagged-softmax-backward",
    "fp8_scale_inverted": "fp8-rowwise-forward",
    "fp8_scale_of_tensor": "fp8-rowwise-backward",
    "fp8_largest_signed": "fp8-rowwise-forward",
    "truncated": "fp8-rowwise-forward",
}


@pytest.mark.parametrize("switch", MISTAKES)
def test_a_mistake_fails_and_is_named(switch: str) -> None:
    case = CASES[MISTAKES[switch]]
    truths = OPERATORS[case.op].truth(case.inputs, case.options, frozenset({switch}))
    answer = {
        name: np.asarray(truth.reference if truth.lower is None else truth.lower, F)
        for name, truth in truths.items()
    }
    report = check(case.op, case.inputs, answer, case.options)
    assert not report and switch in str(report), str(report)


@pytest.mark.parametrize("name", CASES)
def test_one_element_moved_by_a_thousandth_fails(name: str) -> None:
    case = CASES[name]
    answer = OPERATORS[case.op].run(case.inputs, case.options, "reference")
    truths = OPERATORS[case.op].truth(case.inputs, case.options)
    for output, array in answer.items():
        size = np.abs(truths[output].reference)
        size = np.where(np.isfinite(size) & (truths[output].bound < 5e-4 * size), size, 0)
        if not size.any():
            continue
        place = np.unravel_index(np.argmax(size), size.shape)
        wrong = array.copy()
        wrong[place] *= F(1.001)
        assert not check(case.op, case.inputs, {**answer, output: wrong}, case.options)
