"""Which codes must numbers become, and which numbers codes?

Operators `round`, `quantize` and `dequantize`. Formats of single elements (fp16, bf16, fp8) have an
exact model: rounding in fp64, where either neighbour may be right only with stochastic rounding.
Bytes of row-scaled formats have no tolerance: FBGEMM's arithmetic is their definition
(docs/formats.md), so `quantize` knows one answer, and its mistakes are small models of their own.
"""

import numpy as np

from neocpu.core.codecs import CODECS, LAYOUTS, ROUNDINGS
from neocpu.core.formats import FORMATS, WIRES
from neocpu.core.types import Bytes, Floats
from neocpu.kernels.compile.choice import backend_module
from neocpu.kernels.twins.numbers.philox import STOCHASTIC_ROUNDING, tensor_key
from neocpu.oracle.operator import Arrays, Field, Operator, Options, Switches, Truth, Truths
from neocpu.oracle.ops.lookup import FLOATS, rounding_of
from neocpu.oracle.options import OneOf, Whole
from neocpu.oracle.truth.bags import rows_of
from neocpu.oracle.truth.formats import in_format
from neocpu.oracle.truth.numbers import TINY, Bounded, U

FUSED = tuple(name for name, form in FORMATS.items() if form.row_scaled)
ROWS = tuple(name for name, codec in CODECS.items() if codec.module != "codecs")


def _round_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    rounding = rounding_of(options, switches)
    name = {"truncate": "toward_zero"}.get(rounding, rounding)
    if options["format"] == "bf16" and rounding == "nearest" and "bf16_cast_half_up" in switches:
        name = "away"
    return {"codes": in_format(Bounded.exactly(inputs["x"]), str(options["format"]), name)}


def _round_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    name = str(options["format"])
    x = np.ascontiguousarray(inputs["x"], np.float32)
    codes = np.empty(x.shape, FORMATS[name].dtype)
    rounding = ROUNDINGS[str(options["rounding"])]
    if options["rounding"] != "stochastic":
        backend_module("codecs.small_floats", backend).encode_rows(
            x, LAYOUTS[name], rounding, codes
        )
    else:
        key = tensor_key(int(options["seed"]), STOCHASTIC_ROUNDING, "table0")
        rows = np.arange(len(x))
        encode = backend_module("codecs.small_floats", backend).encode_rows_randomly
        encode(x, LAYOUTS[name], rounding, key, rows, 0, int(options["step"]), codes)
    return {"codes": FORMATS[name].view(codes)}


def _arguments(name: str, options: dict[str, object]) -> list[object]:
    """A codec's options in order, choices as the numbers that the functions take."""
    choices = CODECS[name].choices
    return [
        choices[key][value] if isinstance(value, str) else value for key, value in options.items()
    ]


def _quantize_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    name = str(options["format"])
    x = np.ascontiguousarray(inputs["x"], np.float32)
    codec = CODECS[name]
    form = FORMATS.get(name) or WIRES[name]
    out = np.empty((len(x), form.row_bytes(x.shape[1])), np.uint8)
    arguments = _arguments(name, codec.quantize_options)
    if name == "mx4":
        # a key, rows and a step, for stochastic exponents
        arguments += [np.uint64(0), np.arange(len(x)), 0]
    getattr(backend_module(codec.module, backend), codec.quantize)(x, *arguments, out)
    return {"codes": out}


def _quantize_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    out = _quantize_bits(inputs, options, "reference")["codes"]
    name = str(options["format"])
    if name in ("int8", "int8_gpu"):
        gpu = (name == "int8_gpu") != ("int8_epsilon_swapped" in switches)
        rounding = rounding_of({}, switches)
        # Without switches the twins' bytes are the definition; the model is for mistakes alone.
        if switches:
            out = int8_rows(np.asarray(inputs["x"], np.float32), gpu, rounding, out.shape[1])
    return {"codes": Truth.exactly(out, "uint8")}


def int8_rows(x: Floats, gpu: bool, rounding: str, size: int) -> Bytes:
    """A plain model of fused int8 rows of `size` bytes, of numbers x f32[R, D].

    Codes, padding, scale, bias. A NaN does not count for the range; its code is 0.
    """
    f = np.float32
    out = np.zeros((len(x), size), np.uint8)
    # fmin and fmax pass over NaN, as FBGEMM's comparisons do.
    low = np.fmin.reduce(x, 1, keepdims=True)
    high = np.fmax.reduce(x, 1, keepdims=True)
    with np.errstate(all="ignore"):
        inverse = f(255) / ((high - low) + f(1e-20 if gpu else 1e-8))
        steps = (x - low) * inverse
        if rounding == "nearest":
            codes = np.rint(steps)
        else:
            codes = np.floor(steps + f(0.5) if rounding == "away" else steps)
        out[:, : x.shape[1]] = np.where(np.isnan(codes), 0, np.clip(codes, 0, 255))
        out[:, -8:-4] = ((high - low) / f(255)).view(np.uint8)
        out[:, -4:] = low.view(np.uint8)
    return out


def _dequantize_bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    name = str(options["format"])
    codes = np.ascontiguousarray(inputs["codes"], np.uint8)
    codec = CODECS[name]
    out = np.empty((len(codes), int(options["columns"])), np.float32)
    dequantize = getattr(backend_module(codec.module, backend), codec.dequantize)
    dequantize(codes, *_arguments(name, codec.dequantize_options), out)
    return {"out": out}


def _dequantize_truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    name = str(options["format"])
    columns = int(options["columns"])
    codes = inputs["codes"]
    if name not in (*FUSED, "int8_gpu"):
        # one operation on two exact numbers: a product with a power of two, or a quotient
        value = _dequantize_bits(inputs, options, "reference")["out"].astype(np.float64)
        slack = 0.0 if name == "mx4" else 1.5 * 2 * U
        error = np.where(np.isfinite(value), np.abs(value) * slack + (TINY if slack else 0.0), 0.0)
        return {"out": in_format(Bounded(value, error), "fp32")}
    if name == "int8_gpu":  # padding between codes and header
        codes = np.concatenate([codes[:, :columns], codes[:, -8:]], axis=1)
    table = {
        "weights": codes.reshape(-1),
        "rows": np.array([len(codes)]),
        "dims": np.array([columns]),
    }
    form = "int8" if name == "int8_gpu" else name
    rows = rows_of(table, {"weights_format": form}, switches)
    shape = (len(codes), columns)
    numbers = Bounded(rows.value, rows.error).reshape(*shape)
    return {"out": in_format(numbers, "fp32")}


ROUND = Operator(
    "round",
    "Numbers as codes of fp16, bf16 or fp8, to nearest even or stochastically.",
    {"x": Field("fp32[R, D]", ("row", "column"))},
    {
        "format": OneOf("bf16", FLOATS[1:]),
        "rounding": OneOf("nearest", ("nearest", "stochastic", "truncate")),
        "seed": 0,
        "step": 1,
    },
    {"codes": Field("codes [R, D], of the format", ("row", "column"))},
    _round_bits,
    _round_truth,
)
QUANTIZE = Operator(
    "quantize",
    (
        "Rows of numbers as bytes of a row-scaled format, byte for byte as FBGEMM writes them: "
        f"{', '.join(ROWS)}."
    ),
    {"x": Field("fp32[R, D]", ("row", "column"))},
    {"format": OneOf("int8", ROWS)},
    {"codes": Field("uint8[R, bytes of a row]", ("row", "byte"))},
    _quantize_bits,
    _quantize_truth,
)
DEQUANTIZE = Operator(
    "dequantize",
    f"Numbers of the bytes of row-scaled rows: {', '.join(ROWS)}.",
    {"codes": Field("uint8[R, bytes of a row]", ("row", "byte"))},
    {"format": OneOf("int8", ROWS), "columns": Whole(4, 0)},
    {"out": Field("fp32[R, columns]", ("row", "column"))},
    _dequantize_bits,
    _dequantize_truth,
)

OPERATORS = (ROUND, QUANTIZE, DEQUANTIZE)
