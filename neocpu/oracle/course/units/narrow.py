"""Unit 5: are a student's bytes as near as bytes can be, and are its roundings fair?"""

from collections.abc import Iterator

import numpy as np

from neocpu.core.types import Elements
from neocpu.kernels.twins.codecs.rows import quantize_int8
from neocpu.oracle.course.unit import (
    Arguments,
    Exercise,
    Problem,
    Returned,
    unit_of,
)
from neocpu.oracle.course.units.operators import bf16_case, bf16_reference

NEAR_TIE = 1e-3  # of a code: how near to the middle of two codes either one is right


def our_rows(x: Elements) -> tuple[Elements, Elements, Elements]:
    """(codes, scale, bias) by the twin of FBGEMM's int8 rows."""
    out = np.empty((len(x), x.shape[1] + 8), np.uint8)
    quantize_int8(x, 0, out)
    scale, bias = np.ascontiguousarray(out[:, -8:]).view(np.float32).T
    return out[:, :-8], scale, bias


def row_fault(arguments: Arguments, answer: dict[str, Elements]) -> str:
    """Why rows of bytes are wrong, in words; "" where each code is a nearest one."""
    x = arguments["x"]
    codes, scale, bias = our_rows(x)
    for name, theirs, ours in (
        ("codes", answer["codes"], codes),
        ("scale", answer["scale"], scale),
        ("bias", answer["bias"], bias),
    ):
        if theirs.shape != ours.shape:
            return f"{name} has the shape {list(theirs.shape)}, expected {list(ours.shape)}"
    for name, theirs, ours in (("bias", answer["bias"], bias), ("scale", answer["scale"], scale)):
        wrong = ~(np.abs(theirs - ours) <= 2e-6 * np.abs(ours))
        if wrong.any():
            row = int(np.argmax(wrong))
            return f"{name}, row {row}: yours is {theirs[row]!s}, expected {ours[row]!s}"
    span = np.where(scale > 0, scale, 1).astype(np.float64)[:, None]
    steps = (x.astype(np.float64) - bias[:, None]) / span
    wrong = np.abs(answer["codes"] - steps) > 0.5 + NEAR_TIE
    if not wrong.any():
        return ""
    row, column = (int(i) for i in np.argwhere(wrong)[0])
    return (
        f"codes, row {row}, column {column}: yours is {answer['codes'][row, column]}, expected "
        f"{codes[row, column]} for {x[row, column]!s}, which is {steps[row, column]:.3f} scales "
        "above the bias"
    )


def row_problems() -> Iterator[Problem]:
    """Rows of small whole numbers, equal numbers, far from zero, of every magnitude."""
    yield Problem("one row", {"x": np.array([[0, 1, 2, 4]], np.float32)})
    yield Problem("a row far from zero", {"x": np.array([[100.5, 101, 103]], np.float32)})
    yield Problem(
        "rows of ranges of their own",
        {"x": np.array([[0, 1, 2, 4], [-1000, 10, 500, 1000]], np.float32)},
    )
    yield Problem("rows of equal numbers", {"x": np.array([[3, 3, 3], [0, 0, 0]], np.float32)})
    yield Problem("rows of one column", {"x": np.array([[-2], [5]], np.float32)})
    rng = np.random.default_rng(5)
    for magnitude in (1e-3, 1.0, 1e5):
        x = rng.standard_normal((5, 9)) * magnitude
        yield Problem(f"random rows around {magnitude:g}", {"x": x.astype(np.float32)})


def bf16_problems() -> Iterator[Problem]:
    """Numbers of bf16, then many others with many random bits: the oracle weighs these."""
    rng = np.random.default_rng(6)
    exact = np.array([[0, 1, -2, 1.5, 3.25]], np.float32)
    yield Problem(
        "numbers that are bf16 already, and all random bits 1",
        {"x": exact, "random": np.full((1, 5), 65535, np.uint16)},
    )
    yield Problem(
        "numbers that are bf16 already", {"x": exact, "random": np.arange(5, dtype=np.uint16)[None]}
    )
    for about, x in (
        ("131,072 numbers of either sign", rng.standard_normal((512, 256))),
        ("131,072 numbers, a sixteenth of the way up", np.full((512, 256), 1 + 2.0**-11)),
    ):
        random = rng.integers(0, 65536, x.shape).astype(np.uint16)
        yield Problem(about, {"x": x.astype(np.float32), "random": random})


UNIT = unit_of(
    __file__,
    Exercise(
        function="quantize",
        returned=(
            Returned("codes", "uint8", "a byte for each number", ("row", "column")),
            Returned("scale", "float32", "one number for each row", ("row",)),
            Returned("bias", "float32", "one number for each row", ("row",)),
        ),
        problems=row_problems,
        expected=our_rows,
        fault=row_fault,
    ),
    Exercise(
        function="round_to_bf16",
        returned=(Returned("codes", "uint16", "a code for each number", output="codes"),),
        problems=bf16_problems,
        expected=bf16_reference,
        as_case=bf16_case,
    ),
)
