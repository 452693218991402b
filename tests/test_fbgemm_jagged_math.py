"""Do products, softmax and elementwise operators on jagged rows pass the oracle, as FBGEMM's do?"""

import contextlib
import io
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
    warnings.simplefilter("ignore")
    pytest.importorskip("fbgemm_gpu", reason="fbgemm_gpu is not installed (extra `peers`)")

from neocpu.oracle.checking import check  # noqa: E402
from neocpu.oracle.operator import Case  # noqa: E402
from neocpu.oracle.ops import OPERATORS as ORACLE  # noqa: E402
from neocpu.peers.fbgemm import OPERATORS  # noqa: E402
from neocpu.peers.fbgemm.operators.registry import Refused  # noqa: E402
from tests.oracle_cases import all_cases  # noqa: E402

LONGEST = 1000
OUTPUTS = {
    "jagged_dense_bmm": ("values", "dense"),
    "jagged_jagged_bmm": ("values", "other"),
    "dense_vec_jagged_mul": ("vectors", "values"),
    "jagged_dense_elementwise": ("values", "dense"),
}
ELEMENTWISE = {
    "add": "jagged_dense_elementwise_add",
    "add_jagged": "jagged_dense_elementwise_add_jagged_output",
    "mul": "jagged_dense_elementwise_mul",
}


def called(case: Case, x: dict[str, Any], fbgemm: bool) -> Any:
    """A case's answer, by FBGEMM's operator or ours."""
    options = ORACLE[case.op].complete(case.options)
    longest = int(options.get("max_length", 0)) or LONGEST
    offsets = x["offsets"]
    arguments: dict[str, tuple[str, tuple[Any, ...]]] = {
        "jagged_dense_bmm": ("jagged_dense_bmm", (x["values"], offsets, x.get("dense"), longest)),
        "jagged_jagged_bmm": ("jagged_jagged_bmm", (x["values"], x.get("other"), offsets, longest)),
        "dense_vec_jagged_mul": (
            "batched_dense_vec_jagged_2d_mul",
            (x.get("vectors"), x["values"], offsets),
        ),
        "jagged_dense_elementwise": (
            ELEMENTWISE.get(str(options.get("operation")), ""),
            (x["values"], [offsets], x.get("dense")),
        ),
        "jagged_softmax": ("jagged_softmax", (x["values"], offsets, longest)),
    }
    name, values = arguments[case.op]
    function = getattr(torch.ops.fbgemm, name) if fbgemm else OPERATORS[name].function
    out = function(*values)
    return out[0] if isinstance(out, tuple) else out


def right(case: Case, answer: Any) -> None:
    """An answer passes the oracle."""
    report = check(case.op, case.inputs, answer, case.options)
    assert report, (case.name, str(report))


@pytest.mark.parametrize("fbgemm", [True, False], ids=["FBGEMM", "neocpu"])
@pytest.mark.parametrize("op", OUTPUTS)
@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")
def test_answers_and_gradients_pass(op: str, fbgemm: bool) -> None:
    backwards = {case.name: case for case in all_cases([f"{op}_backward"])}
    for case in all_cases([op]):
        x = {name: torch.from_numpy(array) for name, array in case.inputs.items()}
        operands = [x[name].requires_grad_() for name in OUTPUTS[op]]
        out = called(case, x, fbgemm)
        right(case, out.detach())
        backward = backwards[f"{case.name}-backward"]
        out.backward(torch.from_numpy(backward.inputs["grad_output"]))
        names = [f"{name}_grad" for name in OUTPUTS[op]]
        right(backward, dict(zip(names, (operand.grad for operand in operands))))


@pytest.mark.parametrize("fbgemm", [True, False], ids=["FBGEMM", "neocpu"])
def test_softmax_and_its_gradient_pass(fbgemm: bool) -> None:
    for case in all_cases(["jagged_softmax"]):
        x = {name: torch.from_numpy(array) for name, array in case.inputs.items()}
        right(case, called(case, x, fbgemm))
    for case in all_cases(["jagged_softmax_backward"]):
        x = {name: torch.from_numpy(array) for name, array in case.inputs.items()}
        name = "jagged_softmax_backward"
        function = getattr(torch.ops.fbgemm, name) if fbgemm else OPERATORS[name].function
        right(case, function(x["grad_output"], x["output"], x["offsets"], LONGEST))


def test_softmax_is_differentiable_without_fbgemm() -> None:
    values = torch.randn(5, 2, requires_grad=True)
    offsets = torch.tensor([0, 3, 3, 5])
    out, _ = OPERATORS["jagged_softmax"].function(values, offsets, 3)
    weights = torch.randn(5, 2)
    (gradient,) = torch.autograd.grad((out * weights).sum(), values)
    plain = torch.cat([values[:3].softmax(0), values[3:].softmax(0)])
    (expected,) = torch.autograd.grad((plain * weights).sum(), values)
    torch.testing.assert_close(gradient, expected)
    with pytest.raises(Refused, match="longer than max_L"):
        OPERATORS["jagged_softmax"].function(values, offsets, 2)
    with pytest.raises(Refused, match="no fp64"):
        OPERATORS["jagged_softmax"].function(values.double(), offsets, 3)


def test_two_dense_tensors_and_two_jagged_dimensions() -> None:
    values = torch.randn(6, 4)
    offsets = [torch.tensor([0, 2, 3]), torch.tensor([0, 1, 4, 6])]
    dense = [torch.randn(2, 2, 2, 4) for _ in range(2)]
    for name, count in (
        ("jagged_dense_elementwise_add_jagged_output", 1),
        ("jagged_dense_elementwise_mul", 1),
        ("jagged_dense_dense_elementwise_add_jagged_output", 2),
    ):
        expected, _ = getattr(torch.ops.fbgemm, name)(values, offsets, *dense[:count])
        actual, _ = OPERATORS[name].function(values, offsets, *dense[:count])
        torch.testing.assert_close(actual, expected)
    name = "jagged_dense_elementwise_mul_backward"
    expected = getattr(torch.ops.fbgemm, name)(values, offsets, dense[0], values)
    actual = OPERATORS[name].function(values, offsets, dense[0], values)
    for a, b in zip(actual, expected):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_arrays_without_rows_columns_or_bags() -> None:
    none = torch.tensor([0])
    offsets = torch.tensor([0, 2, 2])
    for name, arguments in (
        ("batched_dense_vec_jagged_2d_mul", (torch.ones(2, 3), torch.ones(2, 0), offsets)),
        ("batched_dense_vec_jagged_2d_mul", (torch.ones(0, 3), torch.ones(0, 4), none)),
        ("jagged_dense_bmm_forward", (torch.ones(2, 0), offsets, torch.ones(2, 0, 3), 2)),
        ("jagged_dense_bmm_forward", (torch.ones(0, 4), none, torch.ones(0, 4, 3), 2)),
        ("jagged_jagged_bmm", (torch.ones(2, 0), torch.ones(2, 3), offsets, 2)),
        ("jagged_jagged_bmm", (torch.ones(0, 4), torch.ones(0, 3), torch.tensor([0, 0]), 2)),
    ):
        expected = getattr(torch.ops.fbgemm, name)(*arguments)
        actual = OPERATORS[name].function(*arguments)
        torch.testing.assert_close(actual, expected)
