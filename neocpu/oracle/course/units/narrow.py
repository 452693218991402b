"""Unit 5: are a student's bytes as near as bytes can be, and are its roundings fair?"""

from collections.abc import Iterator

import numpy as np

from neocpu.core.types import Elements
from neocpu.kernels.twins.codecs.rows import quantize_int8
from neocpu.oracle.course.unit import (
    Arguments,
    CourseUnit,
    Exercise,
    Problem,
    Returned,
    Slip,
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


UNIT = CourseUnit(
    name="narrow",
    title="narrow formats",
    reads="unit 3",
    exercises=(
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
            slips=(
                Slip(
                    "codes are cut off instead of rounded",
                    "astype(np.uint8) drops what is behind the point: np.rint first",
                    (
                        (
                            "np.rint((x - bias[:, None]) * inverse[:, None])",
                            "(x - bias[:, None]) * inverse[:, None]",
                        ),
                    ),
                ),
                Slip(
                    "the range is divided into 256 steps",
                    "256 codes have 255 steps between them",
                    (
                        ("np.float32(255)", "np.float32(256)"),
                        ("255 / np.where", "256 / np.where"),
                        ("np.rint(", "np.minimum(255, "),
                    ),
                ),
                Slip(
                    "the range is divided into 256 steps, and the codes are rounded",
                    "256 codes have 255 steps between them; 256 does not fit into a byte",
                    (("np.float32(255)", "np.float32(256)"), ("255 / np.where", "256 / np.where")),
                ),
                Slip(
                    "all rows share one scale and one bias",
                    "minimum and maximum are taken along the columns: axis=1",
                    (
                        ("x.min(axis=1)", "np.full(len(x), x.min())"),
                        ("x.max(axis=1)", "np.full(len(x), x.max())"),
                    ),
                ),
                Slip(
                    "the scale is that of the largest magnitude, and the bias is 0",
                    "the bias is the row's least number, the scale a 255th of its range",
                    (
                        ("x.min(axis=1)", "np.zeros(len(x), np.float32)"),
                        ("x.max(axis=1) - bias", "np.abs(x).max(axis=1)"),
                    ),
                ),
            ),
        ),
        Exercise(
            function="round_to_bf16",
            returned=(Returned("codes", "uint16", "a code for each number", output="codes"),),
            problems=bf16_problems,
            expected=bf16_reference,
            as_case=bf16_case,
            slips=(
                Slip(
                    "the highest random bit is always 0",
                    "all 16 random bits are added: else the sum carries too seldom",
                    (("random.astype(np.uint32)", "(random & 0x7FFF).astype(np.uint32)"),),
                ),
                Slip(
                    "the lower bits are cut off, whatever the random ones say",
                    "add the random bits first: the sum carries into the upper half now and then",
                    (("(bits + random.astype(np.uint32))", "bits"),),
                ),
                Slip(
                    "up and down are as likely, however near x is to either",
                    "the chance of the one farther from 0 is what the lower 16 bits are of 2^16",
                    (
                        (
                            "(bits + random.astype(np.uint32)) >> np.uint32(16)",
                            "(bits >> np.uint32(16)) + (random & 1)",
                        ),
                    ),
                ),
                Slip(
                    "every number is rounded to nearest",
                    "add the random bits, not half a unit",
                    (("random.astype(np.uint32)", "np.uint32(0x8000)"),),
                ),
            ),
        ),
    ),
    hints="""\
A code is the number of scales above the bias, rounded. keepdims=True, or [:, None], makes scale
and bias of a row go with all of its columns.

A row of equal numbers has no range: its inverse scale is 0, not 255 / 0.

For bf16: x.view(np.uint32) has the bits. Whether the lower 16 bits, as a whole number, and a
random one of 16 bits together reach 2^16 is a matter of chance, and of just the right chance:
add them, and cut the lower half off.
""",
)
