"""Do cases of narrow products accept every honest kernel, and are the mistakes of others named?"""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from neocpu.oracle.cases import all_cases
from neocpu.oracle.operator import Arrays, Case
from neocpu.oracle.ops import OPERATORS
from neocpu.oracle.ops.products import OPERATORS as PRODUCTS
from neocpu.oracle.testing import check

CASES = {case.name: case for case in all_cases([op.name for op in PRODUCTS])}
DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}
GEMM = CASES["narrow-gemm-bf16"]
LONG = CASES["narrow-gemm-long-bf16"]


def rounded(x: np.ndarray, form: str) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(DTYPES[form]).astype(np.float32)


def by_tiles(a: np.ndarray, b: np.ndarray, tile: int = 16, truncate: bool = True) -> np.ndarray:
    """Sums of tiles of K from the last one on, as a matrix unit may make them: a tile's products
    exactly, and what a tile adds to the accumulator cut off to 24 bits.
    """
    total = np.zeros((len(a), len(b)), np.float32)
    starts = range(0, a.shape[1], tile)
    for start in reversed(starts):
        piece = a[:, start : start + tile].astype(np.float64) @ b[:, start : start + tile].T
        exact = total + piece
        near = exact.astype(np.float32)
        toward_zero = np.nextafter(near, np.float32(0))
        over = np.abs(near.astype(np.float64)) > np.abs(exact)
        total = np.where(over & truncate, toward_zero, near)
    return total


def answer(case: Case, truncate: bool = True) -> Arrays:
    """A GEMM in another order."""
    form = str(case.options["format"])
    a, b = (rounded(case.inputs[name], form) for name in ("a", "b"))
    out = by_tiles(a, b, truncate=truncate) + case.inputs.get("bias", np.float32(0))
    return {"out": out.astype(np.float32)}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_canonical_bits_are_the_twins_and_inside(case: Case) -> None:
    op = OPERATORS[case.op]
    bits = op.run(case.inputs, case.options)
    plain = op.run(case.inputs, case.options, "reference")
    for name, array in bits.items():
        nan = np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, bool)
        assert array[~nan].tobytes() == plain[name][~nan].tobytes()
    assert check(case.op, case.inputs, bits, case.options)


@pytest.mark.parametrize("name", ["bf16", "long-bf16", "long-fp16", "tiles-bf16", "cancel"])
@pytest.mark.parametrize("truncate", [False, True])
def test_sums_in_other_orders_pass(name: str, truncate: bool) -> None:
    case = CASES[f"narrow-gemm-{name}"]
    options = {"format": "bf16", **case.options}
    plain = Case(case.name, case.op, case.inputs, {**options, "relu": False}, case.about)
    assert check(case.op, case.inputs, answer(plain, truncate), plain.options)


def accumulated(case: Case) -> np.ndarray:
    a, b = (rounded(case.inputs[name], "bf16") for name in ("a", "b"))
    total = np.zeros((len(a), len(b)), np.float32)
    for step in range(a.shape[1]):
        total = rounded(total + np.outer(a[:, step], b[:, step]).astype(np.float32), "bf16")
    return total


def half_up(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32) + np.uint32(0x8000)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def truncated(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def product(case: Case, operand: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    a, b = (operand(case.inputs[name]).astype(np.float64) for name in ("a", "b"))
    with np.errstate(invalid="ignore"):
        return (a @ b.T + case.inputs.get("bias", 0)).astype(np.float32)


def without_low_bits(x: np.ndarray) -> np.ndarray:
    """TF32."""
    bits = x.view(np.uint32)
    bits = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize(
    ("case", "wrong", "switch"),
    [
        (LONG, accumulated, "accumulated_in_operand_format"),
        (GEMM, lambda case: product(case, truncated), "operands_truncated"),
        (CASES["narrow-gemm-ties-bf16"], lambda c: product(c, half_up), "operands_half_up"),
        (CASES["narrow-gemm-specials-bf16"], lambda c: product(c, half_up), "operands_half_up"),
        (GEMM, lambda case: product(case, without_low_bits), "operands_in_tf32"),
        (GEMM, lambda case: product(case, lambda x: x), "operands_not_rounded"),
        (
            CASES["narrow-gemm-ties-bf16"],
            lambda c: product(c, lambda x: rounded(without_low_bits(x), "bf16")),
            "operands_rounded_twice",
        ),
        (GEMM, lambda case: answer(case)["out"] - case.inputs["bias"], "bias_missing"),
    ],
)
def test_wrong_kernels_are_named(
    case: Case, wrong: Callable[[Case], np.ndarray], switch: str
) -> None:
    report = check(case.op, case.inputs, {"out": wrong(case)}, case.options)
    assert not report and switch in str(report), str(report)
