"""Is it told what a kernel does to memory beside its answer, and a right one left in peace?"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from neocpu import oracle
from neocpu.oracle.guards import Guarded
from neocpu.oracle.operator import Case
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.testing import assert_correct
from tests.oracle_cases import all_cases

SMALL = 1 << 16  # bytes of the inputs of a case
CASES = {case.name: case for case in all_cases()}
LOOKUP = CASES["lookup-mean"]
BACKWARD = CASES["backward-exact_rowwise_adagrad"]

Arrays = Mapping[str, Any]


def right(inputs: Arrays, options: Arrays) -> Any:
    return oracle.run("lookup", inputs, options, backend="reference")["out"]


def beyond(array: Any, elements: int) -> Any:
    """A view that goes some elements too far."""
    return as_strided(array, (array.size + elements,), (array.itemsize,))


def changes_indices(inputs: Arrays, options: Arrays) -> Any:
    answer = right(inputs, options)
    inputs["indices"][:2] += 1
    return answer


def changes_a_row(inputs: Arrays, options: Arrays) -> Any:
    answer = right(inputs, options)
    inputs["weights"][-1] = 0
    return answer


def writes_behind(inputs: Arrays, options: Arrays) -> Any:
    beyond(inputs["offsets"], 2)[-1] = 7
    return right(inputs, options)


def writes_before_its_output(inputs: Arrays, options: Arrays, outputs: Arrays) -> None:
    outputs["out"][...] = right(inputs, options)
    flat = outputs["out"].reshape(-1)
    as_strided(flat, (2,), (-flat.itemsize,))[1] = 7


def reads_behind(inputs: Arrays, options: Arrays) -> Any:
    answer = right(inputs, options)
    answer[0, 0] += beyond(inputs["weights"], 1)[-1]
    return answer


def leaves_a_bag_unwritten(inputs: Arrays, options: Arrays, outputs: Arrays) -> None:
    outputs["out"][1:] = right(inputs, options)[1:]


@pytest.mark.parametrize(
    ("kernel", "place", "message"),
    [
        (changes_indices, "inputs/indices", "changed an input: 2 elements have other bits"),
        (changes_a_row, "inputs/weights", "changed an input: 1 elements"),
        (writes_behind, "inputs/offsets", "wrote outside: 8 bytes up to 16 behind its end"),
        (writes_before_its_output, "out", "wrote outside: 4 bytes up to 4 before its beginning"),
        (reads_behind, "answer", "read outside: 1 elements depend on what lies beyond the inputs"),
        (leaves_a_bag_unwritten, "out", "left unwritten: "),
    ],
)
def test_what_a_kernel_does_beside_its_answer_fails_by_name(
    kernel: Callable[..., Any], place: str, message: str
) -> None:
    report = oracle.check_repeatedly("lookup", LOOKUP.inputs, kernel, LOOKUP.options, runs=2)
    assert not report
    (outcome,) = report.failures
    effects = [v for v in outcome.verdicts if v.output == place and v.mistakes]
    assert effects and effects[0].message.startswith(message), str(report)
    assert bool(effects[0].wrong) != message.startswith("wrote"), (
        "elements of an output are counted"
    )
    name = effects[0].mistakes[0].name
    assert any(name in finding.diagnosis.names for finding in report.findings), str(report)
    with pytest.raises(AssertionError, match=message.partition(":")[0]):
        assert_correct("lookup", LOOKUP.inputs, kernel, LOOKUP.options)


def test_an_update_in_place_may_change_tables_and_states_only() -> None:
    def in_place(inputs: Arrays, options: Arrays) -> Arrays:
        outputs = oracle.run("backward", inputs, options, backend="reference")
        for name in OPERATORS["backward"].updated & outputs.keys() & inputs.keys():
            inputs[name][...] = outputs[name]
        return outputs

    def gradient_too(inputs: Arrays, options: Arrays) -> Arrays:
        outputs = in_place(inputs, options)
        inputs["grad_output"][...] = 0
        return outputs

    assert oracle.check_repeatedly("backward", BACKWARD.inputs, in_place, BACKWARD.options, runs=2)
    report = oracle.check_repeatedly("backward", BACKWARD.inputs, gradient_too, BACKWARD.options, 1)
    assert "inputs/grad_output: changed an input" in str(report)


def smallest_cases() -> list[Case]:
    """Of each operator the one of the smallest inputs, with narrow outputs where it has them."""
    chosen: dict[tuple[str, object], Case] = {}
    for case in CASES.values():
        kind = (case.op, case.options.get("output_format"))
        size = sum(array.nbytes for array in case.inputs.values())
        earlier = chosen.get(kind)
        if size < SMALL and (
            earlier is None or size < sum(a.nbytes for a in earlier.inputs.values())
        ):
            chosen[kind] = case
    return list(chosen.values())


@pytest.mark.parametrize("case", smallest_cases(), ids=lambda case: case.name)
def test_a_right_kernel_of_any_operator_fails_nothing_and_may_use_the_buffers(case: Case) -> None:
    def returns(inputs: Arrays, options: Arrays) -> Arrays:
        return oracle.run(case.op, inputs, options, backend="reference")

    def fills(inputs: Arrays, options: Arrays, outputs: Arrays) -> None:
        for name, bits in returns(inputs, options).items():
            outputs[name][...] = bits.view(outputs[name].dtype).reshape(outputs[name].shape)

    for kernel in (returns, fills):
        report = oracle.check_repeatedly(case.op, case.inputs, kernel, case.options, runs=1)
        assert report, str(report)


def test_guarded_arrays_are_copies_of_any_layout() -> None:
    for original in (
        np.arange(12, dtype=np.float32).reshape(3, 4).T,
        np.zeros((0, 4), np.int32),
        np.array(3.0),
        np.arange(6, dtype=np.uint16).view([("bf16", "<u2")])[::2],
        np.array([np.nan, -0.0]),
    ):
        guarded = Guarded(original)
        assert guarded.array.dtype == original.dtype and guarded.array.flags.c_contiguous
        np.testing.assert_array_equal(guarded.array, original)
        assert guarded.outside() == "" and guarded.changed() == 0


def test_torch_tensors_have_guard_zones_too() -> None:
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(array) for name, array in LOOKUP.inputs.items()}

    def kernel(inputs: Arrays, options: Arrays, outputs: Arrays) -> None:
        host = {name: tensor.numpy() for name, tensor in inputs.items()}
        outputs["out"].copy_(torch.from_numpy(right(host, options)))

    def dirty(inputs: Arrays, options: Arrays, outputs: Arrays) -> None:
        kernel(inputs, options, outputs)
        weights = inputs["weights"]
        weights.as_strided((weights.numel() + 1,), (1,))[-1] = 0
        inputs["indices"][0] += 1
        outputs["out"][0, 0] = float("nan")

    assert oracle.check_repeatedly("lookup", tensors, kernel, LOOKUP.options, runs=2)
    text = str(oracle.check_repeatedly("lookup", tensors, dirty, LOOKUP.options, runs=1))
    assert "inputs/weights: wrote outside: 4 bytes up to 4 behind its end" in text
    assert "inputs/indices: changed an input: 1 elements" in text
    assert all(
        tensors[name].equal(torch.from_numpy(array)) for name, array in LOOKUP.inputs.items()
    )
