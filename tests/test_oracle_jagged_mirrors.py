"""Have the mirrors of copies and products on jagged rows FBGEMM's bits, and do they pass?"""

import contextlib
import io
import warnings
from typing import Any

import numpy as np
import pytest

from neocpu.oracle.checking import check
from neocpu.oracle.mirrors import NoMirror, mirror_bits, mirrors_of
from neocpu.oracle.operator import Arrays, Case
from neocpu.oracle.ops.jagged import OPERATORS as JAGGED
from neocpu.oracle.ops.moves import OPERATORS as MOVES
from tests.oracle_cases import all_cases

MIRRORED = [
    op.name
    for op in (*MOVES, *JAGGED)
    if any(m.preset == "fbgemm_cpu" for m in mirrors_of(op.name))
]
CASES = {case.name: case for case in all_cases(MIRRORED)}


@pytest.mark.parametrize("name", CASES)
def test_the_mirrors_pass(name: str) -> None:
    case = CASES[name]
    try:
        bits = mirror_bits("fbgemm_cpu", case.op, case.inputs, case.options)
    except NoMirror:
        assert "duplicates" in name or "empty" in name
        return
    assert check(case.op, case.inputs, bits, case.options, preset="fbgemm_cpu")


def with_other_numbers(case: Case) -> Case:
    """The case with numbers of 24 bits, some of them -0."""
    rng = np.random.default_rng(len(case.name))
    inputs = dict(case.inputs)
    for name, array in inputs.items():
        if array.dtype == np.float32:
            numbers = rng.standard_normal(array.shape).astype(np.float32)
            inputs[name] = np.where(rng.random(array.shape) < 0.05, np.float32(-0.0), numbers)
    return Case(case.name, case.op, inputs, case.options, case.about)


def asked_of_fbgemm(case: Case, grad_output: np.ndarray | None) -> Arrays:
    """FBGEMM's answer to a forward case, and with a gradient the gradients of its operands."""
    import torch

    from tests import test_fbgemm_jagged_math as math
    from tests import test_fbgemm_pooled as pooled

    x = {name: torch.from_numpy(array) for name, array in case.inputs.items()}
    names = math.OUTPUTS.get(case.op, ("pooled",) if case.op == "permute_pooled" else ("values",))
    operands = [x[name].requires_grad_() for name in names]
    outputs: list[Any]
    if case.op == "permute_pooled":
        outputs = [pooled.permuted(case, x["pooled"], True)]
    elif case.op == "permute_multi_embedding":
        samples = int(x["samples"][0])
        outputs = torch.ops.fbgemm.permute_multi_embedding(
            pooled.tensors(x["values"], x["widths"], samples),
            *(x[name].int() for name in ("permutes", "widths", "out_widths")),
            x["out_widths"].tolist(),
        )
    elif case.op == "group_index_select":
        interleaved = bool(case.options.get("interleaved", False))
        geometry = [x[name].tolist() for name in ("counts", "rows", "dims")]
        select = torch.ops.fbgemm.batch_index_select_dim0
        outputs = [select(x["values"], x["select"], *geometry, interleaved)]
    else:
        outputs = [math.called(case, x, True)]
    out = outputs[0] if len(outputs) == 1 else torch.cat([o.reshape(-1) for o in outputs])
    if grad_output is None:
        return {"out": out.detach().numpy()}
    out.backward(torch.from_numpy(grad_output))
    return {f"{name}_grad": operand.grad.numpy() for name, operand in zip(names, operands)}


@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")
def test_the_mirrors_have_fbgemms_bits() -> None:
    pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        reason = "fbgemm_gpu is not installed (extra `peers`)"
        pytest.importorskip("fbgemm_gpu", reason=reason)
    count = 0
    for original in CASES.values():
        case = with_other_numbers(original)
        try:
            bits = mirror_bits("fbgemm_cpu", case.op, case.inputs, case.options)
        except NoMirror:
            continue
        if "empty" in case.name:  # FBGEMM fails on groups and batches of nothing
            continue
        gradient = case.inputs.get("grad_output")
        forward = case
        if gradient is not None:
            inputs = dict(CASES[case.name.removesuffix("-backward")].inputs) | case.inputs
            name = case.op.removesuffix("_backward")
            forward = Case(case.name, name, inputs, case.options, case.about)
        for name, answer in asked_of_fbgemm(forward, gradient).items():
            np.testing.assert_array_equal(
                bits[name].view(np.int32), answer.view(np.int32), case.name
            )
        count += 1
    assert count >= 30
