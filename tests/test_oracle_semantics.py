"""Does every switch do what its line says? One example each, small enough to check by hand."""

import re
from pathlib import Path

import numpy as np
import pytest

from neocpu.oracle.diagnosis.evidence import AskedSwitches
from neocpu.oracle.operator import Truth, Value
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.semantics import PRESETS, SWITCHES, switches_for
from tests import recorded
from tests.oracle_cases import all_cases
from tests.switch_examples import EXAMPLES, MEAN, ROWS, F, many, one

DOC = Path(__file__).resolve().parent.parent / "docs" / "semantics.md"


def numbers(truth: Truth) -> np.ndarray:
    """The one answer: the number of the format, where it is narrow and certain."""
    if truth.lower is not None:
        assert truth.upper is not None
        np.testing.assert_array_equal(truth.lower, truth.upper)
        return truth.lower.reshape(-1)
    return truth.reference.reshape(-1)


@pytest.mark.parametrize("weighted", [False, True])
def test_an_undivided_backward_does_not_divide_gradients_of_weights(weighted: bool) -> None:
    inputs = one(ROWS, [[0, 2]], [[8]], **({"per_sample_weights": [1, 3]} if weighted else {}))
    for switches, bent in (
        (frozenset[str](), [4, 16]),
        (frozenset({"weighted_mean_backward_not_divided"}), [8, 32]),
    ):
        truth = OPERATORS["weight_gradient"].truth(inputs, MEAN, switches)[
            "per_sample_weights_grad"
        ]
        assert truth.reference.tolist() == bent, "only weighted lookups have gradients of weights"


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_switch_does_what_its_example_says(name: str) -> None:
    op, batch, options, output, right, bent = EXAMPLES[name]
    # Some operators share a batch, whose gradient lookups do not have.
    inputs = {key: array for key, array in batch.items() if op != "lookup" or key != "grad_output"}
    plain = OPERATORS[op].truth(inputs, options)[output]
    np.testing.assert_allclose(numbers(plain), right, rtol=1e-8)
    np.testing.assert_allclose(
        numbers(OPERATORS[op].truth(inputs, options, frozenset({name}))[output]), bent, rtol=1e-8
    )
    answer = OPERATORS[op].run(inputs, options, "reference")[output]
    assert answer.size == len(right)


def test_a_pruned_row_has_no_element() -> None:
    """Two tables of two columns; the second bag looks up row 1 of the second one."""
    tables = [[[1.0, 2.0]] * 3, [[3.0, 4.0]] * 2]
    inputs = many(tables, [0, 1], [[[0, -1]], [[-1, 1]]])
    del inputs["weights"]
    op = OPERATORS["linear_index"]
    truth = op.truth(inputs, op.complete({}))
    answer = op.run(inputs, op.complete({}), "reference")
    for name, expected in (("element", [0, -1, -1, 8]), ("row", [0, -1, -1, 4])):
        assert numbers(truth[name]).tolist() == answer[name].tolist() == expected


def test_stochastic_rounding_that_is_ignored_always_goes_to_the_nearest() -> None:
    op = OPERATORS["round"]
    inputs = {"x": np.array([[1 + 2.0**-9]], F)}
    options: dict[str, Value] = {"format": "bf16", "rounding": "stochastic"}
    plain, bent = (
        op.truth(inputs, options, s)["codes"]
        for s in (frozenset(), frozenset({"stochastic_rounding_ignored"}))
    )
    assert plain.lower is not None and plain.upper is not None and plain.probability is not None
    assert (plain.lower, plain.upper, plain.probability) == (1, 1 + 2.0**-7, 0.25)
    assert bent.lower == bent.upper == 1


def test_every_switch_has_an_example_a_text_and_operators() -> None:
    assert EXAMPLES.keys() | {"stochastic_rounding_ignored"} == SWITCHES.keys()
    for switch in SWITCHES.values():
        assert set(switch.ops) <= OPERATORS.keys() and switch.about
        assert bool(switch.fix) == (switch.kind == "mistake")
    assert sum(s.kind == "mistake" for s in SWITCHES.values()) >= 40
    assert next(s.kind for s in switches_for("backward")) == "mistake"
    assert {s.kind for s in switches_for("backward", "quirk")} == {"quirk"}


def test_presets_are_sets_of_quirks() -> None:
    assert {"exact", "fbgemm_cpu", "fbgemm_cuda", "torchrec_row_wise", "torch"} <= PRESETS.keys()
    for name, switches in PRESETS.items():
        assert all(s in SWITCHES for s in switches), name
        kinds = {SWITCHES[s].kind for s in switches}
        assert name == "exact" or "quirk" in kinds


def test_the_page_has_every_switch_and_every_preset() -> None:
    text = DOC.read_text()
    lines = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE))
    assert lines.keys() == SWITCHES.keys() | PRESETS.keys()
    for switch in SWITCHES.values():
        assert lines[switch.name].startswith(switch.about), (
            f"{switch.name}: page and code say different things"
        )
    for name, switches in PRESETS.items():
        assert set(re.findall(r"`(\w+)`", lines[name])) == switches, name


# beginnings of the names of switches that some truth looks up in a set of its own
ASKED_OF_COPIES = ("global_decay_", "max_")


def test_every_switch_shows_in_some_case() -> None:
    """And its truths there are as recorded."""
    shown = set()
    entries: list[recorded.Entry] = []
    for case in all_cases():
        # large, and of stochastic rounding alone; and combinations of what other cases have alone
        large = any(array.size > 100_000 for array in case.inputs.values())
        if large or "-many" in case.name or "-pair-" in case.name:
            continue
        op = OPERATORS[case.op]
        missing = {switch.name for switch in switches_for(case.op)} - shown
        if not missing:
            continue
        asked = AskedSwitches()
        plain = op.truth(case.inputs, case.options, asked)
        for name in sorted(missing):
            if name not in asked.asked and not name.startswith(ASKED_OF_COPIES):
                continue
            bent = op.truth(case.inputs, case.options, frozenset({name}))
            if any(apart(plain[key], bent[key]) for key in plain):
                shown.add(name)
                entries += [
                    (f"{case.name} {name} {key} {kind}", recorded.summary(array))
                    for key, truth in bent.items()
                    for kind, array in truth.arrays().items()
                ]
    # rows of the cases have a multiple of 4 columns
    assert SWITCHES.keys() - shown <= {"stochastic_rounding_ignored", "mean_over_padded_4"}
    recorded.check("truths of switches", entries)


def apart(a: Truth, b: Truth) -> bool:
    """Whether no number could satisfy both truths."""
    if a.exact:
        return not np.array_equal(a.reference, b.reference)
    with np.errstate(invalid="ignore"):
        if (
            a.lower is not None
            and b.lower is not None
            and a.upper is not None
            and b.upper is not None
        ):
            return bool(((a.lower > b.upper) | (b.lower > a.upper)).any())
        far = np.abs(a.reference - b.reference) > a.bound + b.bound
        return bool((far | (np.isnan(a.reference) != np.isnan(b.reference))).any())
