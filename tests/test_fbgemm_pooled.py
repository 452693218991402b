"""Do the operators on pooled and selected embeddings give FBGEMM's answers and gradients?"""

import contextlib
import io
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `peers`)")
with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
    warnings.simplefilter("ignore")
    pytest.importorskip("fbgemm_gpu", reason="fbgemm_gpu is not installed (extra `peers`)")

import numpy as np  # noqa: E402

from neocpu.oracle.checking import check  # noqa: E402
from neocpu.oracle.operator import Case  # noqa: E402
from neocpu.peers.fbgemm import OPERATORS  # noqa: E402
from neocpu.peers.fbgemm.operators.registry import Refused  # noqa: E402
from tests.oracle_cases import all_cases  # noqa: E402

KEYS = [["a", "b"], ["c", "d"]]
LENGTHS = [[1, 2], [3, 1]]


def peer(name: str, fbgemm: bool) -> Any:
    """An operator of FBGEMM's or of ours."""
    return getattr(torch.ops.fbgemm, name) if fbgemm else OPERATORS[name].function


def cases(op: str) -> list[Case]:
    """Cases of an operator with some samples."""
    return [case for case in all_cases([op]) if all(a.size for a in case.inputs.values())]


def right(case: Case, out: Any) -> None:
    """An answer to a case passes the oracle."""
    report = check(case.op, case.inputs, out.detach(), case.options)
    assert report, (case.name, str(report))


def agree(name: str, *arguments: Any) -> None:
    """Both give the same tensors or numbers."""
    expected = peer(name, True)(*arguments)
    actual = peer(name, False)(*arguments)
    for a, b in zip(expected, actual, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=0) if hasattr(a, "shape") else None
        assert hasattr(a, "shape") or a == b


def permuted(case: Case, pooled: Any, fbgemm: bool) -> Any:
    dims = case.inputs["dims"]
    order = case.inputs["permute"]
    lists = [
        np.append(0, np.cumsum(dims)),
        order,
        np.append(0, np.cumsum(dims[order])),
        np.argsort(order),
    ]
    duplicates = np.unique(order).size < order.size
    name = "permute_duplicate_pooled_embs" if duplicates else "permute_pooled_embs_auto_grad"
    return peer(name, fbgemm)(pooled, *(torch.from_numpy(x.astype(np.int64)) for x in lists))


@pytest.mark.parametrize("fbgemm", [True, False])
def test_permuted_columns_and_their_gradients(fbgemm: bool) -> None:
    for case, backward in zip(cases("permute_pooled"), cases("permute_pooled_backward")):
        pooled = torch.from_numpy(case.inputs["pooled"]).requires_grad_()
        out = permuted(case, pooled, fbgemm)
        right(case, out)
        if not fbgemm or "duplicates" not in case.name:  # FBGEMM differentiates none of them
            out.backward(torch.from_numpy(backward.inputs["grad_output"]))
            right(backward, pooled.grad)


def tensors(flat: Any, widths: Any, samples: int) -> list[Any]:
    parts = torch.split(flat, [samples * int(width) for width in widths])
    return [part.view(samples, -1) for part in parts]


@pytest.mark.parametrize("fbgemm", [True, False])
def test_regrouped_columns_and_their_gradients(fbgemm: bool) -> None:
    forward = cases("permute_multi_embedding")
    for case, backward in zip(forward, cases("permute_multi_embedding_backward")):
        x = case.inputs
        samples = int(x["samples"][0])
        values = torch.from_numpy(x["values"]).requires_grad_()
        shapes = [torch.from_numpy(x[name]).int() for name in ("permutes", "widths", "out_widths")]
        outputs = peer("permute_multi_embedding", fbgemm)(
            tensors(values, x["widths"], samples), *shapes, x["out_widths"].tolist()
        )
        right(case, torch.cat([out.reshape(-1) for out in outputs]))
        gradient = torch.from_numpy(backward.inputs["grad_output"])
        torch.autograd.backward(outputs, tensors(gradient, x["out_widths"], samples))
        right(backward, values.grad)


def test_keys_are_regrouped_as_by_fbgemm() -> None:
    values = [torch.randn(5, 3), torch.randn(5, 4)]
    for groups in ([["c", "a"], ["b", "c", "d"]], [["c", "c", "a", "c"], ["b", "c"]], [["a"]] * 3):
        agree("kt_regroup_arguments", values[0], KEYS, LENGTHS, groups)
        agree("regroup_keyed_tensor", values, KEYS, LENGTHS, groups)
        arguments = torch.ops.fbgemm.kt_regroup_arguments(values[0], KEYS, LENGTHS, groups)
        agree("permute_multi_embedding_function", values, *arguments, False)
        gradients = peer("permute_multi_embedding", True)(values, *arguments)
        permutes, in_shapes, out_shapes, _ = arguments
        reverse = (gradients, permutes, out_shapes, in_shapes, [3, 4], True)
        ours, theirs = (peer("permute_multi_embedding_function", x)(*reverse) for x in (0, 1))
        if {name for group in groups for name in group} == {"a", "b", "c", "d"}:
            # FBGEMM leaves the gradients of other keys uninitialised; ours are 0
            for a, b in zip(ours, theirs):
                torch.testing.assert_close(a, b)  # sums of floats, ours exact
    with pytest.raises(Refused, match="groups name the key 'z'"):
        OPERATORS["regroup_keyed_tensor"].function(values, KEYS, LENGTHS, [["z"]])


@pytest.mark.parametrize("fbgemm", [True, False])
def test_rows_selected_of_several_matrices_and_their_gradients(fbgemm: bool) -> None:
    forward = cases("group_index_select")
    for case, backward in zip(forward, cases("group_index_select_backward")):
        x = case.inputs
        values = torch.from_numpy(x["values"]).requires_grad_()
        select = torch.from_numpy(x["select"])
        gradient = torch.from_numpy(backward.inputs["grad_output"])
        geometry = [x[name].tolist() for name in ("counts", "rows", "dims")]
        interleaved = bool(case.options.get("interleaved", False))
        if fbgemm and not all(geometry[0]):
            continue
        out = peer("batch_index_select_dim0", fbgemm)(values, select, *geometry, interleaved)
        right(case, out)
        out.backward(gradient)
        right(backward, values.grad)
        if interleaved:
            continue
        sizes = [rows * dim for rows, dim in zip(geometry[1], geometry[2])]
        matrices = [
            part.view(rows, dim)
            for part, rows, dim in zip(torch.split(values, sizes), geometry[1], geometry[2])
        ]
        outputs = peer("group_index_select_dim0", fbgemm)(
            matrices, list(torch.split(select, geometry[0]))
        )
        right(case, torch.cat([out.reshape(-1) for out in outputs]))


def test_bags_selected_of_every_key() -> None:
    """FBGEMM has no such operator on CPUs."""
    forward = cases("keyed_jagged_index_select")
    for case, backward in zip(forward, cases("keyed_jagged_index_select_backward")):
        lengths = torch.from_numpy(case.inputs["lengths"])
        flat = lengths.reshape(-1)
        offsets = torch.nn.functional.pad(torch.cumsum(flat, 0), (1, 0))
        values = torch.from_numpy(case.inputs["values"]).requires_grad_()
        select = torch.from_numpy(case.inputs["select"])
        out, selected, weights = OPERATORS["keyed_jagged_index_select_dim1"].function(
            values, flat, offsets, select, lengths.shape[1], values.detach()
        )
        right(case, out)
        right(case, weights)
        assert torch.equal(selected.view(len(lengths), -1), lengths[:, select])
        out.backward(torch.from_numpy(backward.inputs["grad_output"]))
        right(backward, values.grad)
    with pytest.raises(Refused, match="below the batch size, 4"):
        bad = torch.tensor([4])
        OPERATORS["keyed_jagged_index_select_dim1"].function(values, flat, offsets, bad, 4)
