"""How many elements show a biased rounding in one answer? Large cases of stochastic rounding.

131,072 elements each, which lie (2k + 1)/512 of the way between two numbers of the format, in an
order in which neighbours have nothing in common, of both signs and four exponents. Rows repeat
after PERIOD, so that a case takes little room in a suite. Numbers `near` one end lie 1/1024 of the
way from a number of the format: 8 random bits round them never, or four times too often.
"""

from collections.abc import Iterator

import numpy as np

from neocpu.core.codecs import LAYOUTS, ROUNDINGS
from neocpu.core.types import Floats
from neocpu.kernels.twins.codecs.small_floats import encode_rows
from neocpu.oracle.cases.draw import Draw
from neocpu.oracle.cases.updates import EXACT
from neocpu.oracle.operator import Arrays, Case, Value
from neocpu.oracle.truth.formats import FORMATS

ROWS = 1024
COLUMNS = 128
PERIOD = 16  # rows until the numbers repeat: 2,048 different ones
LEVELS = 256  # fractions (2k + 1)/512
NEAR = 2.0**-10  # of the distance of two numbers, from one of them
NARROW = ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2")
ABOUT = {
    "many": "how often each fraction goes up, independent random numbers",
    "near": "one in 1,024 goes the long way: more than 8 random bits",
}


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; rows have 128 columns, whatever multiple is asked for."""
    for name in NARROW:
        yield _round(seed, name)
    for name in NARROW:
        yield _backward(seed, name, "stochastic")
    yield _backward(seed, "fp16", "fbgemm")
    yield _round(seed, "bf16", near=True)
    yield _backward(seed, "fp16", "stochastic", near=True)
    yield _again(_round(seed, "bf16"), "seed")
    yield _again(_round(seed, "bf16"), "step")
    yield _again(_backward(seed, "bf16", "stochastic"), "step")


def _again(case: Case, counter: str) -> Case:
    """The same question with the next seed or step, which has other random numbers."""
    options = {**case.options, counter: int(case.options[counter]) + 1}
    about = f"as {case.name} with the next {counter}: random numbers of its own"
    return Case(f"{case.name}-next-{counter}", case.op, case.inputs, options, about)


def _numbers(seed: int, label: str, name: str, near: bool = False) -> tuple[Floats, Floats]:
    """Numbers of a format f32[PERIOD, COLUMNS], and how far beyond them values lie.

    Both are exact in fp32, and so is their sum.
    near : values lie near a number of the format, else anywhere between two.
    """
    form = FORMATS[name]
    draw = Draw(seed, f"stochastic-{label}")
    shape = (PERIOD, COLUMNS)
    count = PERIOD * COLUMNS
    # every fraction count / LEVELS times, in a random order
    order = np.argsort(draw.words(count), kind="stable")
    fraction = ((2 * (order % LEVELS) + 1) / (2.0 * LEVELS)).reshape(shape)
    if near:
        fraction = np.where(fraction < 0.5, NEAR, 1 - NEAR)
    steps = 2 ** (form.precision - 1)
    # Normal numbers only, so that all steps of an exponent are alike.
    mantissa = steps + draw.whole(shape, 0, steps)
    unit = np.ldexp(1.0, draw.whole(shape, -2, 2) - form.precision + 1)
    sign = np.where(draw.whole(shape, 0, 2) == 0, -1.0, 1.0)
    start = (sign * mantissa * unit).astype(np.float32)
    beyond = (sign * fraction * unit).astype(np.float32)
    return start, beyond


def _repeated(array: Floats, rows: int) -> Floats:
    return np.ascontiguousarray(np.tile(array, (rows // len(array), 1)))


def _round(seed: int, name: str, near: bool = False) -> Case:
    which = "near" if near else "many"
    start, beyond = _numbers(seed, f"round-{name}{_label(near)}", name, near)
    return Case(
        f"round-{name}-{which}",
        "round",
        {"x": _repeated(start + beyond, ROWS)},
        {"format": name, "rounding": "stochastic", "seed": seed, "step": 1},
        f"131,072 numbers to {name}: {ABOUT[which]}",
    )


def _label(near: bool) -> str:
    """What tells the streams of numbers near one end from those of the others."""
    return "-near" if near else ""


def _backward(seed: int, name: str, rounding: str, near: bool = False) -> Case:
    """Two tables of 512 rows; every row has one lookup and a gradient that moves it a fraction."""
    starts = []
    gradients = []
    for table in range(2):
        label = f"rows-{name}-{rounding}-{table}{_label(near)}"
        start, beyond = _numbers(seed, label, name, near)
        starts.append(_repeated(start, ROWS // 2))
        gradients.append(_repeated(beyond, ROWS // 2))
    values = np.concatenate(starts)
    codes = np.empty(values.shape, FORMATS[name].dtype)
    encode_rows(values, LAYOUTS[name], ROUNDINGS["nearest"], codes)
    lookups = np.tile(np.arange(ROWS // 2), 2)
    inputs: Arrays = {
        "weights": codes.view([(name, codes.dtype)]).reshape(-1),
        "rows": np.full(2, ROWS // 2),
        "dims": np.full(2, COLUMNS),
        "feature_table": np.arange(2),
        "indices": lookups,
        "offsets": np.arange(lookups.size + 1),
        "grad_output": np.concatenate(gradients, axis=1),
    }
    options: dict[str, Value] = {
        **EXACT,
        "optimizer": "exact_sgd",
        # The row becomes w + g, exactly the number that was meant.
        "learning_rate": -1.0,
        "weights_format": name,
        "rounding": rounding,
        "seed": seed,
        "step": 6,
    }
    how = "FBGEMM's 13 random bits" if rounding == "fbgemm" else "stochastic rounding"
    which = "near" if near else "many"
    return Case(
        f"backward-rows-{name}-{rounding}-{which}",
        "backward",
        inputs,
        options,
        f"131,072 elements of {name} rows, {how}: {ABOUT[which]}",
    )
