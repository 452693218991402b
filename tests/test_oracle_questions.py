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


def test_numbers_of_numpy_are_numbers() -> None:
    assert wanted(Number(0.5, 0), np.float32(0.25)) == wanted(Number(0.5, 0), 1) == ""
    assert wanted(Whole(1, 1), np.int64(3)) == wanted(False, np.True_) == ""
    assert wanted(Whole(1, 1), True) == "give a number"
