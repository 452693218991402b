"""Do the cases ask what they claim, and do our own answers lie within the bounds of every one?"""

import hashlib
import sys
from collections import Counter

import numpy as np
import pytest

from neocpu.oracle import cases as drawing
from neocpu.oracle.canonical.layout_kernels import BY_KERNELS
from neocpu.oracle.cases.draw import ABOUT
from neocpu.oracle.operator import Arrays, Case, Truth
from neocpu.oracle.ops import OPERATORS, operator
from neocpu.oracle.truth.formats import decode
from tests import recorded
from tests.jobs import ran
from tests.oracle_cases import all_cases

ALL = list(all_cases())
CASES = {case.name: case for case in ALL}
OF_TABLES = {
    name for name, case in CASES.items() if case.op in ("lookup", "weight_gradient", "backward")
}


# Its kernel is compiled for other tests, too.
ROWWISE_INT8 = next(
    name
    for name, case in CASES.items()
    if case.options.get("weights_format") == "int8"
    and case.options.get("optimizer") == "exact_rowwise_adagrad"
    and "max_norm" not in case.options
)


def outside(truth: Truth, answer: np.ndarray) -> np.ndarray:
    """Where an answer is wrong: bool of its shape."""
    assert answer.shape == truth.reference.shape
    if truth.exact:
        return answer != truth.reference
    x = decode(answer, truth.format)
    ref = truth.reference
    bound = truth.bound
    with np.errstate(invalid="ignore"):
        near = np.abs(x - ref) <= bound
        if truth.lower is not None:
            near &= (x >= truth.lower) & (x <= truth.upper)
    same = (x == ref) | (np.isnan(x) & np.isnan(ref))
    return ~np.where(np.isfinite(ref), near, same) & np.isfinite(bound)


def check(case: Case, backend: str) -> list[recorded.Entry]:
    """Check a case's answers and bounds; what is recorded of its truths."""
    op = operator(case.op)
    before = {name: array.tobytes() for name, array in case.inputs.items()}
    truths = op.truth(case.inputs, case.options)
    answers = op.run(case.inputs, case.options, backend)
    assert {name: array.tobytes() for name, array in case.inputs.items()} == before, (
        "inputs were written to"
    )
    assert truths.keys() == answers.keys()
    for name, truth in truths.items():
        wrong = np.argwhere(outside(truth, answers[name]))
        assert not wrong.size, (case.name, name, op.locate(case, name, tuple(wrong[0])))
        assert (truth.bound >= 0).all() and truth.reference.shape == truth.bound.shape
        if truth.reference.size:
            last = tuple(n - 1 for n in truth.reference.shape)
            assert all(isinstance(v, int) for v in op.locate(case, name, last).values())
    return [
        (f"{case.name} {name} {kind}", recorded.summary(array))
        for name, truth in truths.items()
        for kind, array in truth.arrays().items()
    ]


@pytest.mark.parametrize("op", OPERATORS)
def test_our_twins_lie_within_the_bounds_and_these_are_as_recorded(op: str) -> None:
    """A wide bound admits wrong kernels, and no answer of ours would fall out of it."""
    summaries: list[recorded.Entry] = []
    for case in ALL:
        if case.op == op:
            summaries += check(case, "reference")
    recorded.check(f"truths of {op}", summaries)


@pytest.mark.parametrize(
    "name",
    [
        "lookup-weighted",
        "lookup-specials",
        "lookup-sequence",
        "lookup-long-bag",
        "backward-skewed",
        "backward-mean",
        ROWWISE_INT8,
    ],
)
def test_our_kernels_lie_within_the_bounds_and_give_the_bits_of_their_twins(name: str) -> None:
    case = CASES[name]
    check(case, "kernels")
    op = operator(case.op)
    answers, expected = (
        op.run(case.inputs, case.options, backend) for backend in ("kernels", "reference")
    )
    for output, array in answers.items():
        narrow = array.dtype.names  # a state of small floats names its format
        nan = np.isnan(decode(array, narrow[0]) if narrow else array)
        twin = expected[output]
        assert (nan == np.isnan(decode(twin, narrow[0]) if narrow else twin)).all()
        assert array[~nan].tobytes() == twin[~nan].tobytes()


@pytest.mark.parametrize("op", sorted(BY_KERNELS))
def test_our_kernels_on_jagged_data_give_the_answers(op: str) -> None:
    for case in CASES.values():
        if case.op == op:
            check(case, "kernels")


def test_there_are_enough_cases_of_every_operator() -> None:
    count = Counter(case.op for case in CASES.values())
    assert count.keys() == OPERATORS.keys(), "an operator without a case"
    assert 300 <= len(CASES) <= 1000
    assert len(CASES) == len(ALL), "two cases of one name"


def test_a_case_describes_itself() -> None:
    for name, case in CASES.items():
        assert "/" not in name and case.about and len(case.about) < 200, name
        op = operator(case.op)
        op.complete(case.options)
        by_step = {"indices", "offsets", "grad_output", "per_sample_weights"}
        names = {key for key in case.inputs if key.split("/")[-1] not in by_step}
        assert names <= op.inputs.keys(), name


def digest(case: Case) -> str:
    sha256 = hashlib.sha256(repr(sorted(case.options.items())).encode())
    for name, array in sorted(case.inputs.items()):
        sha256.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return sha256.hexdigest()


def test_every_row_of_the_catalogue_is_a_case() -> None:
    names = {case.name for case in all_cases()}
    assert [name for name in ABOUT if name not in names] == []


def test_cases_are_the_same_for_ever() -> None:
    again = {case.name: digest(case) for case in drawing.all_cases(["lookup", "trajectory"])}
    digests = {name: digest(case) for name, case in CASES.items()}
    assert again == {name: digests[name] for name in again}
    assert (
        hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()[:16]
        == "e497496d5a6928c2"
    ), "the options or numbers of the cases changed: a suite of one seed must never change"


def shapes(inputs: Arrays) -> dict[str, tuple[str, int]]:
    return {name: (array.dtype.str, array.ndim) for name, array in inputs.items()}


def test_another_seed_asks_the_same_questions_with_other_numbers() -> None:
    ops = ("lookup", "weight_gradient", "backward", "trajectory", "round", "quantize")
    of_seed_0 = {name: case for name, case in CASES.items() if case.op in ops}
    cases_of_seed_1 = {case.name: case for case in all_cases(ops, seed=1)}
    assert cases_of_seed_1.keys() == of_seed_0.keys()
    assert all(
        shapes(case.inputs) == shapes(CASES[name].inputs) for name, case in cases_of_seed_1.items()
    )
    changed = [
        name for name, case in cases_of_seed_1.items() if digest(case) != digest(CASES[name])
    ]
    assert len(changed) > len(of_seed_0) / 2
    for name in changed[::19]:
        check(cases_of_seed_1[name], "reference")


def dims(case: Case) -> list[int]:
    return [int(dim) for dim in case.inputs.get("dims", ())]


@pytest.mark.parametrize("multiple", [1, 8])
def test_rows_have_the_multiple_of_columns_that_was_asked_for(multiple: int) -> None:
    cases = list(all_cases(["lookup", "weight_gradient", "backward"], dim_multiple=multiple))
    assert [case.name for case in cases] == [name for name in CASES if name in OF_TABLES]
    assert all(dim % multiple == 0 for case in cases for dim in dims(case))
    widths = {dim for case in cases for dim in dims(case)}
    assert multiple in widths and max(widths) == 2048
    if multiple == 1:
        assert {1, 3, 5, 7, 31, 33, 255, 257} <= widths
        for case in cases[::20]:
            check(case, "reference")


def test_cases_of_some_operators_only() -> None:
    assert {case.op for case in drawing.all_cases(["unique", "round"])} == {"unique", "round"}
    for module, ops in drawing.OPERATORS_OF.items():
        assert {case.op for case in module.cases(0, drawing.DIM_MULTIPLE)} == ops, module


def test_unknown_names_are_refused_with_what_exists() -> None:
    with pytest.raises(KeyError, match="no operator 'lookups'; there are"):
        operator("lookups")
    with pytest.raises(ValueError, match="operator lookup has no option 'mode'"):
        operator("lookup").truth(CASES["lookup-mean"].inputs, {"mode": 1})
    with pytest.raises(ValueError, match="operator unique needs the input 'indices'"):
        operator("unique").truth({})
    with pytest.raises(ValueError, match="backend is 'gpu'"):
        operator("unique").run({"indices": np.zeros(1, np.int64)}, backend="gpu")


def test_the_oracle_needs_neither_numba_nor_torch() -> None:
    code = (
        "import sys, neocpu.oracle as o; from neocpu.oracle.cases import all_cases;"
        "c = next(all_cases(['backward'])); op = o.OPERATORS[c.op]; op.truth(c.inputs, c.options);"
        "op.run(c.inputs, c.options, 'reference'); print({'numba', 'torch', 'h5py'} & "
        "set(sys.modules)); o.check, o.SWITCHES; print({'numba', 'torch'} & set(sys.modules))"
    )
    process = ran([sys.executable, "-c", code], check=True)
    assert process.stdout.splitlines() == ["set()", "set()"]
