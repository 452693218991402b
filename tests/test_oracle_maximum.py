"""Is MAX pooling what torch computes, bit for bit, and are small mistakes found and named?"""

import numpy as np
import pytest

from neocpu.oracle.checking import check
from neocpu.oracle.mirrors import NoMirror, mirror_bits
from neocpu.oracle.operator import Arrays, Case
from neocpu.oracle.ops import OPERATORS
from tests.oracle_cases import all_cases

CASES = {case.name: case for case in all_cases(["lookup_max", "lookup_max_backward"])}


def mirrored(case: Case) -> Arrays | None:
    """torch's bits of a case; None where it has no answer."""
    try:
        return mirror_bits("torch", case.op, case.inputs, case.options)
    except NoMirror:
        return None


def test_the_mirror_passes_with_torchs_preset() -> None:
    count = 0
    for case in CASES.values():
        bits = mirrored(case)
        if bits is not None:
            count += 1
            report = check(case.op, case.inputs, bits, case.options, preset="torch")
            assert report, (case.name, str(report))
    assert count >= 12


def asked_of_torch(case: Case) -> Arrays:
    """A case's answer by torch."""
    import torch

    x = case.inputs
    sizes = x["rows"] * x["dims"]
    parts = np.split(x["weights"], np.cumsum(sizes)[:-1])
    tables = [
        torch.from_numpy(part.reshape(rows, dim)).requires_grad_()
        for part, rows, dim in zip(parts, x["rows"], x["dims"])
    ]
    features = x["feature_table"].tolist()
    batch = (x["offsets"].size - 1) // len(features)
    outputs = []
    for f, t in enumerate(features):
        offsets = x["offsets"][f * batch : (f + 1) * batch + 1]
        indices = torch.from_numpy(x["indices"][offsets[0] : offsets[-1]])
        starts = torch.from_numpy(offsets[:-1] - offsets[0])
        pool = torch.nn.functional.embedding_bag
        outputs.append(pool(indices, tables[t], starts, mode="max"))
    out = torch.cat(outputs, 1)
    if case.op == "lookup_max":
        return {"out": out.detach().numpy()}
    out.backward(torch.from_numpy(x["grad_output"]))
    grads = [torch.zeros_like(t) if t.grad is None else t.grad for t in tables]
    return {"weights_grad": torch.cat([grad.reshape(-1) for grad in grads]).numpy()}


def test_the_mirror_has_torchs_bits() -> None:
    pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
    for case in CASES.values():
        bits = mirrored(case)
        if bits is None:
            continue
        for name, answer in asked_of_torch(case).items():
            np.testing.assert_array_equal(bits[name], answer, err_msg=case.name)


def small(grad: list[list[float]] | None = None) -> Arrays:
    """One table of two columns; a bag of rows 0 and 1, an empty one, a bag of row 2 twice."""
    inputs = {
        "weights": np.array([-1, 3, 2, -5, -7, -8], np.float32),
        "rows": np.array([3]),
        "dims": np.array([2]),
        "feature_table": np.array([0]),
        "indices": np.array([0, 1, 2, 2]),
        "offsets": np.array([0, 2, 2, 4]),
    }
    if grad is not None:
        inputs["grad_output"] = np.array(grad, np.float32)
    return inputs


def test_an_answer_by_hand_and_small_mistakes() -> None:
    right = np.array([[2, 3], [0, 0], [-7, -8]], np.float32)
    assert check("lookup_max", small(), right)
    for wrong, name in (
        ([[2, 3], [0, 0], [0, 0]], "max_from_zero"),
        ([[2, 3], [-np.inf, -np.inf], [-7, -8]], "max_empty_is_lowest"),
        ([[-1, 3], [0, 0], [-7, -8]], "last_lookup_dropped"),
    ):
        report = check("lookup_max", small(), np.array(wrong, np.float32))
        assert not report and name in str(report)
    inputs = small([[1, 2], [4, 8], [16, 32]])
    right = np.array([0, 2, 1, 0, 16, 32], np.float32)
    assert check("lookup_max_backward", inputs, right)
    wrong = np.array([0, 2, 1, 0, 32, 64], np.float32)
    assert not check("lookup_max_backward", inputs, wrong), "both ties got the gradient"
    shifted = right.copy()
    shifted[[2, 3]] = shifted[[3, 2]]
    assert not check("lookup_max_backward", inputs, shifted)


@pytest.mark.parametrize("switch", ["max_gradient_to_ties", "max_takes_last", "max_from_zero"])
def test_a_wrong_gradient_is_named(switch: str) -> None:
    case = CASES["lookup-max-ties-backward"]
    bent = OPERATORS[case.op].truth(case.inputs, case.options, frozenset({switch}))
    answer = {name: truth.reference.astype(np.float32) for name, truth in bent.items()}
    report = check(case.op, case.inputs, answer, case.options)
    assert not report and switch in str(report), str(report)


def test_other_orders_of_addition_pass() -> None:
    case = CASES["lookup-max-ragged-backward"]
    reverse = {**case.inputs}
    bits = mirrored(case)
    assert bits is not None
    assert check(case.op, reverse, bits, case.options)
    assert not check(case.op, reverse, bits["weights_grad"] + np.float32(1e-4), case.options)
