"""Are questions that say something else than their author means refused, and valid ones not?"""

import numpy as np
import pytest

from neocpu import oracle
from neocpu.core.errors import OracleError
from neocpu.oracle.operator import Value
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.options import Number, OneOf, Whole, wanted
from neocpu.oracle.testing import chosen

F = np.float32
BATCH = {
    "weights": np.arange(40, dtype=F) / 8,
    "rows": np.array([10]),
    "dims": np.array([4]),
    "feature_table": np.array([0]),
    "indices": np.array([0, 2, 3, 2, 9, 9, 1, 4, 5]),
    "offsets": np.array([0, 3, 4, 4, 9]),
}
GRADIENT = {"grad_output": np.ones((4, 4), F)}
DECAYED = {"optimizer": "exact_sgd", "learning_rate": 0.1, "weight_decay": 0.5}


@pytest.mark.parametrize(
    ("op", "options", "words"),
    [
        (
            "backward",
            {**DECAYED, "weight_decay_mode": "DECOUPLE"},
            (
                "backward: weight_decay_mode is 'DECOUPLE': choose none, l2, decoupled, adagradw, "
                r"decoupled_global \(did you mean decoupled\?\)"
            ),
        ),
        ("backward", {**DECAYED, "weight_decay_mode": "decouple"}, "did you mean decoupled"),
        ("backward", {**DECAYED, "weight_decay_mode": "adagradw"}, "adagradw: use exact_row"),
        ("backward", DECAYED, "'none': \"none\" makes weight_decay void; choose l2 or decoupled"),
        (
            "backward",
            {"optimizer": "exact_sgd", "momentum": 0.5},
            "backward: momentum is 0.5: it has no effect on exact_sgd; it is of momentum_sgd, lars",
        ),
        ("backward", {"rounding": "stochastik"}, "choose nearest, stochastic, fbgemm"),
        ("backward", {"optimizer": "adagrad"}, "did you mean exact_adagrad"),
        ("backward", {"optimizer": "none"}, "optimizer is 'none': choose exact_sgd"),
        ("backward", {"weights_format": "fp33"}, "did you mean fp32"),
        ("backward", {"weights_format": "nbit4"}, "weights_format is 'nbit4': choose fp32"),
        ("backward", {"learning_rate": "0.1"}, "learning_rate is '0.1': give a number"),
        ("backward", {"learning_rate": np.nan}, "give a finite number"),
        ("backward", {"eps": -1}, "eps is -1: choose 0 or more"),
        ("backward", {"beta1": 1.0}, "choose 0 or more, below 1"),
        ("backward", {"step": 1.5}, "step is 1.5: give a whole number"),
        ("backward", {"step": 0}, "step is 0: choose 1 or more"),
        ("backward", {"tail_id_threshold_is_ratio": "no"}, "choose True or False"),
        ("lookup", {"pooling": "MEAN"}, "did you mean mean"),
        ("lookup", {"pooling": "avg"}, "did you mean mean"),
        ("lookup", {"pooling": True}, "choose sum, mean, none"),
        ("lookup", {"output_format": "float16"}, "did you mean fp16"),
        ("lookup", {"bounds_check": "FATAL"}, "did you mean fatal"),
        ("lookup", {"row_alignment": 0}, "choose 1 or more"),
    ],
)
def test_values_that_an_option_cannot_have_are_refused(
    op: str, options: dict[str, Value], words: str
) -> None:
    inputs = BATCH | GRADIENT if op == "backward" else BATCH
    answer = {"weights": BATCH["weights"]} if op == "backward" else np.zeros((4, 4), F)
    with pytest.raises(OracleError, match=words):
        oracle.check(op, inputs, answer, options)
    with pytest.raises(OracleError, match=words):
        oracle.run(op, inputs, options, "reference")
    with pytest.raises(OracleError, match=words):
        oracle.check_repeatedly(op, inputs, lambda inputs, options: answer, options)


def test_tests_that_would_get_no_case_are_refused() -> None:
    with pytest.raises(OracleError, match=r"pooling is 'MEAN': choose sum, mean, none \(did you"):
        chosen("lookup", pooling="MEAN")
    with pytest.raises(OracleError, match="choose"):
        chosen(format="nbit8")
    assert chosen(format="mx4") and chosen(format="fp8_e5m2")


def test_a_forgotten_decay_is_wrong_under_every_mode_that_exists() -> None:
    inputs = BATCH | GRADIENT
    plain = oracle.run("backward", inputs, {**DECAYED, "weight_decay": 0.0}, "reference")
    for mode in ("l2", "decoupled"):
        options = {**DECAYED, "weight_decay_mode": mode}
        assert not oracle.check("backward", inputs, {"weights": plain["weights"]}, options)


def test_every_text_option_says_what_it_may_be() -> None:
    """Only an option of free text could be without, and there is none."""
    for op in OPERATORS.values():
        for name, default in op.options.items():
            assert not isinstance(default, str) or isinstance(default, OneOf), (op.name, name)
            assert wanted(default, default) == "", (op.name, name)
        complete = op.complete({})
        assert complete == op.options
        assert {type(value) for value in complete.values()} <= {str, int, float, bool}


def test_what_fbgemm_hands_to_every_rule_is_no_mistake() -> None:
    inputs = BATCH | GRADIENT
    handed = {"momentum": 0.9, "beta1": 0.5, "beta2": 0.75, "eps": 1e-3}
    plain = oracle.run("backward", inputs, {"optimizer": "exact_sgd"}, "reference")
    given = oracle.run("backward", inputs, {"optimizer": "exact_sgd", **handed}, "reference")
    assert np.array_equal(plain["weights"], given["weights"])


def test_numbers_of_numpy_are_numbers() -> None:
    assert wanted(Number(0.5, 0), np.float32(0.25)) == wanted(Number(0.5, 0), 1) == ""
    assert wanted(Whole(1, 1), np.int64(3)) == wanted(False, np.True_) == ""
    assert wanted(Whole(1, 1), True) == "give a number"


WEIGHTS = np.full(9, 0.5, F)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"per_sample_weight": WEIGHTS}, "lookup has no input per_sample_weight .did you mean per"),
        ({"sample_weights": WEIGHTS}, "did you mean per_sample_weights"),
        (
            {"lookup_weights": WEIGHTS},
            "no input lookup_weights .*; it has weights, rows",
        ),
        ({"per_sample_weights": WEIGHTS[1:]}, "per_sample_weights has 8 numbers, but indices 9"),
        ({"offsets": np.array([0, 3, 2, 4, 9])}, r"lookup: offsets\[2\] is 2, below offsets\[1\]"),
        ({"offsets": np.array([0, 3, 4, 4, 8])}, "offsets end at 8, but indices has 9 lookups"),
        ({"offsets": np.array([0, 3, 4, 4, 10])}, "offsets end at 10"),
        ({"offsets": np.array([1, 3, 4, 4, 9])}, "offsets must begin with 0"),
        ({"offsets": np.empty(0, int)}, "offsets must begin with 0"),
        ({"offsets": BATCH["offsets"] / 1}, "offsets has elements of type float64: give whole"),
        ({"rows": np.array([11])}, "weights has 40 elements, but by rows and dims it has 44"),
        ({"rows": np.array([5, 5])}, "rows has 2 tables, dims has 1"),
        ({"rows": np.array([-10]), "dims": np.array([-4])}, "must be 0 or more"),
        ({"feature_table": np.array([1])}, "feature_table names tables 1 to 1, of 1 tables"),
        ({"feature_table": np.array([0, 0, 0])}, "4 bags, no multiple of the 3 features"),
        ({"batch_sizes": np.array([3])}, "batch_sizes add up to 3 bags, but offsets has 4"),
        ({"batch_sizes": np.array([2, 2])}, "a number for each of the 1 features"),
        ({"indices": np.append(BATCH["indices"][1:], 10)}, "asks for row 10 of a table with 10"),
    ],
)
def test_inputs_that_do_not_fit_are_no_fault_of_the_kernel(
    changed: dict[str, np.ndarray], words: str
) -> None:
    right = oracle.run("lookup", BATCH, backend="reference")
    for preset in (None, "fbgemm_cpu"):
        with pytest.raises(OracleError, match=words):
            oracle.check("lookup", BATCH | changed, right, preset=preset)
    with pytest.raises(OracleError, match=words):
        oracle.run("lookup", BATCH | changed, backend="reference")
    with pytest.raises(OracleError, match=words):
        oracle.check_repeatedly("lookup", BATCH | changed, lambda inputs, options: right)


def test_bytes_of_padded_rows_are_counted() -> None:
    options: dict[str, Value] = {"weights_format": "nbit4", "row_alignment": 16}
    inputs = BATCH | {"weights": np.zeros(160, np.uint8)}
    assert oracle.check("lookup", inputs, np.zeros((4, 4), F), options)
    with pytest.raises(OracleError, match="160 elements, but by rows and dims it has 60"):
        oracle.check("lookup", inputs, np.zeros((4, 4), F), {**options, "row_alignment": 1})


@pytest.mark.parametrize(
    ("op", "inputs", "options", "words"),
    [
        ("backward", {"grad_output": np.ones((4, 3), F)}, {}, r"shape \(4, 3\), but .* \(4, 4\)"),
        ("backward", {**GRADIENT, "sum": np.ones(40, F)}, {}, "sum has 40 elements, .* has 10"),
        ("backward", {**GRADIENT, "momentum1": np.ones(10, F)}, {}, "has no input momentum1"),
        (
            "backward",
            GRADIENT,
            {"pooling": "none"},
            r"shape \(4, 4\), but .* \(9, 4\)",
        ),
    ],
)
def test_gradients_and_states_have_the_sizes_of_their_tables(
    op: str, inputs: dict[str, np.ndarray], options: dict[str, Value], words: str
) -> None:
    with pytest.raises(OracleError, match=words):
        oracle.check(op, BATCH | inputs, {"weights": BATCH["weights"]}, options)


def test_lengths_and_inputs_of_steps_are_looked_at_too() -> None:
    lengths = {"lengths": np.array([[2, 1]]), "indices": np.arange(4), "permute": np.array([0])}
    with pytest.raises(OracleError, match="permute: lengths add up to 3, but indices has 4"):
        oracle.check("permute", lengths, {"lengths": np.array([[2, 1]])})
    (case, *_) = chosen("trajectory")
    named = dict(case.inputs)
    named["step1/index"] = named.pop("step1/indices")
    with pytest.raises(OracleError, match="trajectory has no input step1/index"):
        oracle.run("trajectory", named, case.options)
    short = {**case.inputs, "step1/indices": case.inputs["step1/indices"][1:]}
    with pytest.raises(OracleError, match="trajectory: step1/offsets end at"):
        oracle.run("trajectory", short, case.options)
    with pytest.raises(OracleError, match="out of bounds"):
        oracle.check("index_select", {"values": np.ones((2, 4), F), "select": [7]}, np.ones((1, 4)))
