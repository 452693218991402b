"""Which functions write and read the numbers of a format, and with which options? Plain data.

The words that describe small floats to kernels (`LAYOUTS`), the names of the rounding modes, and
the index of all codecs (`CODECS`), without Numba (`docs/formats.md`).
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from neocpu.core.formats import FORMATS, WIRES, SmallFloat
from neocpu.core.types import Ints

Words = NDArray[np.int64]

NEAREST = 0
STOCHASTIC = 1
TRUNCATE = 2
HALF_UP = 3
FBGEMM = 4
ROUNDINGS = {
    "nearest": NEAREST,
    "stochastic": STOCHASTIC,
    "truncate": TRUNCATE,
    "half_up": HALF_UP,
    "fbgemm": FBGEMM,
}


def layout(
    bits: int, mantissa: int, bias: int, infinity: bool = True, limit: float = np.inf
) -> Ints:
    """Words i64[5] that describe a small float (`formats.SmallFloat.words`)."""
    return np.array(SmallFloat(bits, mantissa, bias, infinity, limit).words, np.int64)


LAYOUTS = {
    name: layout(*form.number)
    for name, form in (FORMATS | WIRES).items()
    if form.number is not None
}


@dataclass(frozen=True)
class Codec:
    """Functions of a kernel file and of its twin that write and read a format, and their options.

    module : file in `kernels/` and in `kernels/twins/`, dotted.
    quantize : name of the function (x f32[R, D], *options, out).
    dequantize : name of the function (codes, *options, out f32[R, D]).
    quantize_options : its options in order, with defaults; a string is a choice in `choices`.
    dequantize_options : likewise.
    choices : option -> {name: number that the function takes}.
    randomly : name of the function of stochastic rounding, if there is one: (x, *options, key,
        rows, step, out).
    """

    module: str
    quantize: str
    dequantize: str
    quantize_options: dict[str, object] = field(default_factory=dict)
    dequantize_options: dict[str, object] = field(default_factory=dict)
    choices: dict[str, dict[str, int]] = field(default_factory=dict)
    randomly: str = ""


INT8_VARIANTS = {"cpu": 0, "gpu": 1, "tbe": 2}
MX_ROUNDINGS = {"nearest": 0, "floor": 1, "even": 2, "stochastic": 3, "ceil": 4}


def _small(name: str) -> Codec:
    # one pair of functions serves all small floats: the layout tells them apart
    words: dict[str, object] = {"layout": LAYOUTS[name]}
    choices = {
        "rounding": {n: v for n, v in ROUNDINGS.items() if v in (NEAREST, TRUNCATE, HALF_UP)}
    }
    return Codec(
        module="codecs.small_floats",
        quantize="encode_rows",
        dequantize="decode_rows",
        quantize_options=words | {"rounding": "nearest"},
        dequantize_options=words,
        choices=choices,
        randomly="encode_rows_randomly",
    )


def _int8(variant: str, randomly: str = "") -> Codec:
    return Codec(
        module="codecs.rows",
        quantize="quantize_int8",
        dequantize="dequantize_int8",
        quantize_options={"variant": variant},
        choices={"variant": INT8_VARIANTS},
        randomly=randomly,
    )


def _nbit(bits: int) -> Codec:
    return Codec(
        module="codecs.rows",
        quantize="quantize_nbit",
        dequantize="dequantize_nbit",
        quantize_options={"bits": bits},
        dequantize_options={"bits": bits},
        randomly="quantize_randomly",
    )


def _fp8_row(backward: int) -> Codec:
    return Codec(
        module="codecs.rows",
        quantize="quantize_fp8_row",
        dequantize="dequantize_fp8_row",
        quantize_options={"backward": backward},
        dequantize_options={"backward": backward},
    )


CODECS = {name: _small(name) for name in LAYOUTS} | {
    "int8": _int8("cpu", "quantize_randomly"),
    "int8_gpu": _int8("gpu"),
    "int4": _nbit(4),
    "int2": _nbit(2),
    "fp8_row_forward": _fp8_row(0),
    "fp8_row_backward": _fp8_row(1),
    "mx4": Codec(
        module="codecs.mx",
        quantize="quantize_mx4",
        dequantize="dequantize_mx4",
        quantize_options={"rounding": "even"},
        choices={"rounding": MX_ROUNDINGS},
    ),
}
