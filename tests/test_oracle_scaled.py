"""Are updated int8 and int4 rows judged by what an honest kernel may store, and by nothing more?"""

import numpy as np
import pytest

from neocpu.kernels.twins.codecs.rows import quantize_int8, quantize_nbit
from neocpu.oracle.cases.covers.update import cases
from neocpu.oracle.checking import check
from neocpu.oracle.operator import Arrays, Case
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.truth.scaled import parts_of

ROWS = 5
BACKWARD = OPERATORS["backward"]
SCALED = [case for case in cases(0, 4) if case.options["weights_format"] in ("int8", "int4")]


def encode(name: str, numbers: np.ndarray, variant: int = 0) -> np.ndarray:
    bits = {"int8": 8, "int4": 4}[name]
    columns = numbers.shape[1]
    if name == "int8":
        codes = np.empty((len(numbers), columns + 8), np.uint8)
        quantize_int8(numbers, variant, codes)
    else:
        codes = np.empty((len(numbers), columns // 2 + 4), np.uint8)
        quantize_nbit(numbers, bits, codes)
    return codes


def question(name: str, columns: int = 32) -> tuple[Case, np.ndarray]:
    """One SGD step of rate 1 on the first four of five rows, and the numbers that they become."""
    rng = np.random.default_rng(columns)
    numbers = rng.normal(size=(ROWS, columns)).astype(np.float32)
    gradient = rng.normal(size=(4, columns)).astype(np.float32)
    inputs: Arrays = {
        "weights": encode(name, numbers).reshape(-1),
        "rows": np.array([ROWS]),
        "dims": np.array([columns]),
        "feature_table": np.array([0]),
        "indices": np.arange(4),
        "offsets": np.arange(5),
        "grad_output": gradient,
    }
    parts = parts_of(inputs, name)
    decoded = parts["codes"].reshape(ROWS, -1) * parts["scale"][:, None] + parts["bias"][:, None]
    decoded[:4] -= gradient
    options = {"optimizer": "exact_sgd", "learning_rate": 1.0, "weights_format": name}
    return Case("scaled", "backward", inputs, options, ""), decoded.astype(np.float32)


def judged(case: Case, codes: np.ndarray) -> bool:
    """Is this the right content of the table? The row without a gradient keeps its bytes."""
    before = case.inputs["weights"].reshape(ROWS, -1)
    stored = np.concatenate([codes[:4], before[4:]])
    name = str(case.options["weights_format"])
    parts = parts_of({**case.inputs, "weights": stored.reshape(-1)}, name)
    answer = {part: values.astype(np.float32) for part, values in parts.items()}
    return bool(check("backward", case.inputs, answer, case.options))


@pytest.mark.parametrize("variant", [0, 1, 2])
@pytest.mark.parametrize("nudge", [-1, 0, 1])
def test_every_encoder_of_int8_rows_is_right_and_so_are_rows_an_ulp_away(
    variant: int, nudge: int
) -> None:
    case, numbers = question("int8")
    nudged = np.nextafter(numbers, np.float32(np.inf) * nudge) if nudge else numbers
    assert judged(case, encode("int8", nudged, variant))


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_wrong_rows_are_wrong(name: str) -> None:
    case, numbers = question(name)
    right = encode(name, numbers)
    assert judged(case, right)
    columns = numbers.shape[1] * (1 if name == "int8" else 0) + (16 if name == "int4" else 0)
    one_code = right.copy()
    one_code[2, 3] ^= 1
    old_scale = right.copy()
    old_scale[:, columns:] = case.inputs["weights"].reshape(ROWS, -1)[:, columns:]
    swapped = right.copy()
    half = (right.shape[1] - columns) // 2
    swapped[:, columns:] = np.roll(right[:, columns:], half, axis=1)
    not_updated = case.inputs["weights"].reshape(ROWS, -1)
    for wrong in (one_code, old_scale, swapped, not_updated, encode(name, -numbers)):
        assert not judged(case, wrong)


def test_the_row_without_a_gradient_must_keep_its_bytes() -> None:
    case, _ = question("int8")
    truths = BACKWARD.truth(case.inputs, case.options)
    assert not truths["scale"].bound[4] and truths["scale"].bound[:4].all()
    assert not truths["codes"].bound.reshape(ROWS, -1)[4].any()


def test_nearly_every_code_of_the_cases_is_certain() -> None:
    assert len(SCALED) > 15
    codes = certain = 0
    for case in SCALED:
        truth = BACKWARD.truth(case.inputs, case.options)["codes"]
        assert np.isfinite(truth.bound).all()
        codes += truth.reference.size
        if case.options["rounding"] == "stochastic":
            certain += int((truth.upper - truth.lower <= 1).sum())
        else:
            certain += int((truth.upper == truth.lower).sum())
    assert certain > 0.97 * codes


def test_half_up_and_truncated_codes_have_models_of_their_own() -> None:
    case, _ = question("int8")
    nearest = BACKWARD.truth(case.inputs, case.options)["codes"].reference
    cut = BACKWARD.truth(case.inputs, case.options, frozenset({"truncated"}))["codes"].reference
    assert (nearest - cut >= 0).all() and (nearest - cut == 1).mean() > 0.2
