"""Which numbers break codecs? Cases of `round`, `quantize` and `dequantize`."""

from collections.abc import Iterator

import numpy as np

from neocpu.core.types import Floats
from neocpu.oracle.cases.draw import Draw, Recipe, scaled_rows
from neocpu.oracle.operator import Arrays, Case, Value
from neocpu.oracle.ops.codecs import QUANTIZE
from neocpu.oracle.truth.formats import FORMATS

# Rows of these have a multiple of so many columns in FBGEMM's kernels: bytes of int4 and int2 rows
# fill fp16 words, MX4 blocks have 32 elements. All others take any width.
MULTIPLES = {"int4": 4, "int2": 8, "mx4": 32}
FORMATS_OF_ROWS = (
    "int8",
    "int8_gpu",
    "int4",
    "int2",
    "fp8_row_forward",
    "fp8_row_backward",
    "mx4",
)


def cases(seed: int, dim_multiple: int) -> Iterator[Case]:
    """All of them; `dim_multiple` as in `all_cases`."""
    recipe = Recipe(seed, dim_multiple)
    for make in (_rounding, _bytes, _not_finite, _any_codes):
        yield from make(recipe)


def columns_of(name: str, columns: int, recipe: Recipe) -> int:
    """So many columns, or the next number that real kernels take for rows of this format."""
    multiple = MULTIPLES.get(name, 1) if recipe.dim_multiple > 1 else 1
    return -(-columns // multiple) * multiple


def _special(draw: Draw, name: str) -> Floats:
    """Numbers that are hard to round to a format, f32[R, 8].

    Ties, neighbours of ties, subnormals, the ends of the range, infinities and NaN.
    """
    form = FORMATS[name]
    step = 2.0 ** (1 - form.precision)
    tiny = 2.0 ** (form.smallest - form.precision + 1)
    base = [
        1 + step / 2,
        1 + 3 * step / 2,
        1 + step / 2 + 2.0**-22,
        1 + step / 2 - 2.0**-22,
        2 - step / 2,
        1.0,
    ]
    low = [tiny, tiny / 2, tiny * 1.5, tiny * 2.5, tiny * 0.75, 2.0**form.smallest - tiny / 2]
    half = form.largest * step / 4
    high = [
        form.largest,
        form.largest + half / 2,
        3e38,
        -3e38,
        np.inf,
        -np.inf,
        np.nan,
        0.0,
        -0.0,
        1e-45,
    ]
    with np.errstate(over="ignore"):
        edge = np.array([*base, *low, *high], np.float64).astype(np.float32)
    signed = np.concatenate([edge, -edge, draw.floats(40, form.smallest - 4, 8)])
    return np.concatenate([signed, np.zeros(-signed.size % 8, np.float32)]).reshape(-1, 8)


def _rounding(recipe: Recipe) -> Iterator[Case]:
    for name in ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2"):
        x: Arrays = {"x": _special(Draw(recipe.seed, f"round-{name}"), name)}
        for rounding in ("nearest", "truncate", "stochastic"):
            about = f"ties, subnormals, both ends and specials to {name}, {rounding}"
            options: dict[str, Value] = {"format": name, "rounding": rounding, "seed": recipe.seed}
            yield Case(f"round-{name}-{rounding}", "round", x, options, about)


def _pair(name: str, suffix: str, x: Floats, about: str) -> Iterator[Case]:
    """Rows x f32[R, D] to bytes of a format, and these bytes back to numbers."""
    yield Case(f"quantize-{name}{suffix}", "quantize", {"x": x}, {"format": name}, about)
    # By the twin: cases must not depend on compiled code.
    codes = QUANTIZE.run({"x": x}, {"format": name}, "reference")["codes"]
    options: dict[str, Value] = {"format": name, "columns": x.shape[1]}
    about = f"bytes of {name} back to numbers: {about}"
    yield Case(f"dequantize-{name}{suffix}", "dequantize", {"codes": codes}, options, about)


def _bytes(recipe: Recipe) -> Iterator[Case]:
    for name in FORMATS_OF_ROWS:
        draw = Draw(recipe.seed, f"bytes-{name}")
        columns = columns_of(name, 37, recipe)
        x = draw.floats((9, columns))
        x[1] = 0.0
        x[2] = 3.25
        x[3, ::2] = -x[3, ::2]
        x[4] *= np.float32(2.0**-31)  # a range of the size of FBGEMM's eps
        x[5] *= np.float32(2.0**9)
        x[6] = np.arange(columns) / 2  # ties
        about = f"rows of zeros, constant rows, tiny and large ranges, ties, {columns} columns"
        yield from _pair(name, "", x, about)
        wide = draw.floats((3, columns_of(name, 1028, recipe)))
        yield from _pair(name, "-wide", wide, "rows wider than a block of threads")


def _not_finite(recipe: Recipe) -> Iterator[Case]:
    for name in FORMATS_OF_ROWS:
        x = Draw(recipe.seed, f"not-finite-{name}").floats((6, columns_of(name, 64, recipe)))
        # neither the least nor the greatest number comes before a NaN in its lane of a vector
        x[0, [13, 14]] = np.array([-8, 8])
        # the scale of an fp8 row with an infinity is 0, and the sign of the NaN 0 * inf is nobody's
        if not name.startswith("fp8_row"):
            x[0, 5] = np.nan
            x[1, 9] = np.inf
            x[2, 9] = -np.inf
            x[3, [3, 40]] = np.array([np.inf, -np.inf])
        x[4, 60] = np.float32(1e38)
        x[5, [2, 3]] = np.array([-0.0, 0.0])
        about = "a NaN, infinities and a huge number, each in a row of its own, and zeros"
        if name.startswith("fp8_row"):
            about = "a huge number, and zeros of both signs"
        yield from _pair(name, "-specials", x, about)


def _any_codes(recipe: Recipe) -> Iterator[Case]:
    for name in ("int8", "int4", "int2"):
        draw = Draw(recipe.seed, f"codes-{name}")
        columns = columns_of(name, 13, recipe)
        codes = scaled_rows(draw, name, (40,), (columns,)).reshape(40, -1)
        yield Case(
            f"dequantize-{name}-any",
            "dequantize",
            {"codes": codes},
            {"format": name, "columns": columns},
            f"any {name} codes, any scale",
        )
