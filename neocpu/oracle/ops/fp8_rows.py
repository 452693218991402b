"""Which codes may rows of fp8 under one scale have, when the scale may be rounded in two ways?

The operator `quantize` wants FBGEMM's bytes. Here a kernel may compute the scale with another
rounding: the scale has a bound, and a code may be either neighbour where that decides.
"""

import numpy as np

from neocpu.core.formats import HFP8_BACKWARD, HFP8_FORWARD, WIRES
from neocpu.kernels.compile.choice import backend_module
from neocpu.oracle.operator import Arrays, Field, Operator, Options, Switches, Truth, Truths
from neocpu.oracle.ops.lookup import rounding_of
from neocpu.oracle.truth.formats import ROUNDINGS, Format, in_format, quantum
from neocpu.oracle.truth.numbers import Bounded, Real, where
from neocpu.oracle.truth.scaled import interval_of

EPSILON = 1e-20  # added to the largest number, as FBGEMM does
LEAST_EXACT = 2.0**-40  # of a largest number to which fp32 does not add EPSILON
_FORMS = {"hfp8_forward": HFP8_FORWARD, "hfp8_backward": HFP8_BACKWARD}


def _form(options: Options) -> Format:
    """The format of the codes: numbers beyond its limit become the limit."""
    name = "hfp8_backward" if options["backward"] else "hfp8_forward"
    number = _FORMS[name]
    limit = number.limit
    return Format(name, number.mantissa + 1, 1 - number.bias, limit, limit, "|u1")


def _scales(x: Real, limit: float, switches: Switches) -> Bounded:
    """limit / (1e-20 + largest |x| of the row): [R]; NaN is skipped."""
    with np.errstate(invalid="ignore"):
        size = x if "fp8_largest_signed" in switches else np.abs(x)
        # fmax skips NaN, as FBGEMM's comparisons do.
        largest = np.fmax.reduce(size, axis=1, initial=0.0)
    if "fp8_scale_of_tensor" in switches:
        largest = np.full(largest.shape, largest.max(initial=0.0))
    divisor = Bounded.constant(EPSILON) + Bounded.exactly(largest)
    # FBGEMM's kernels begin the search at 0 or at EPSILON: smaller rows have either scale
    started_high = np.maximum(EPSILON - largest, 0.0)
    low = Bounded.exactly(limit) / Bounded(divisor.value + started_high, divisor.error)
    scale = Bounded.exactly(limit) / divisor
    # Of powers of two times the limit, quotient and product with the reciprocal have no error, and
    # EPSILON is lost; so ties between codes must go to even.
    fraction, _ = np.frexp(limit / np.where(largest > LEAST_EXACT, largest, np.nan))
    return where(
        fraction == 0.5,
        Bounded.exactly(limit / largest),
        Bounded(scale.value, np.maximum(scale.error, scale.value - low.value + low.error)),
    )


def _truth(inputs: Arrays, options: Options, switches: Switches) -> Truths:
    x = np.asarray(inputs["x"], np.float64)
    form = _form(options)
    scale = _scales(x, form.largest, switches)
    # an infinity makes a scale of 0, and codes that FBGEMM does not define
    finite = np.asarray(np.isfinite(x).all(1))
    scaled = Bounded.exactly(x) * scale.column()
    error = np.where(finite[:, None] & np.isfinite(scaled.value), scaled.error, np.inf)
    to_nearest = ROUNDINGS[rounding_of({}, switches)]
    low = to_nearest(np.where(np.isinf(error), -np.inf, scaled.value - error), form)
    high = to_nearest(np.where(np.isinf(error), np.inf, scaled.value + error), form)
    value = np.where(np.isinf(error), 0.0, np.clip(scaled.value, -form.largest, form.largest))
    bound = np.where(np.isinf(error), np.inf, error + quantum(value, form))
    if "fp8_scale_inverted" in switches:
        scale = Bounded.exactly(1.0) / scale
    scale = Bounded(scale.value, np.where(finite, scale.error, np.inf))
    return {
        "scale": in_format(scale, "fp32"),
        "numbers": Truth(
            value,
            bound,
            lower=np.where(np.isinf(error), -np.inf, low),
            upper=np.where(np.isinf(error), np.inf, high),
        ),
    }


def fp8_numbers(x: Real, backward: bool) -> Bounded:
    """Numbers [R, D] that went through fp8 rows and back."""
    truths = _truth({"x": x}, {"backward": backward}, frozenset())
    return interval_of(truths["numbers"]) / interval_of(truths["scale"]).column()


def _bits(inputs: Arrays, options: Options, backend: str) -> Arrays:
    """Scale and numbers of the bytes that `quantize` writes."""
    x = np.ascontiguousarray(inputs["x"], np.float32)
    backward = int(bool(options["backward"]))
    rows = backend_module("codecs.rows", backend)
    codes = np.empty((len(x), WIRES["fp8_row_forward"].row_bytes(x.shape[1])), np.uint8)
    rows.quantize_fp8_row(x, backward, codes)
    scale = np.ascontiguousarray(codes[:, -8:-4]).view(np.float32)[:, 0]
    unscaled = codes.copy()
    # A scale of 1, so that decoding gives what the codes mean by themselves.
    unscaled[:, -8:-4] = np.full((len(x), 1), 1, np.float32).view(np.uint8)
    numbers = np.empty(x.shape, np.float32)
    rows.dequantize_fp8_row(unscaled, backward, numbers)
    return {"scale": scale, "numbers": numbers}


OPERATORS = (
    Operator(
        "fp8_rowwise",
        "Rows as fp8 numbers under one scale each (FBGEMM: FloatToFP8RowwiseQuantized), judged "
        "within bounds. forward: 4 exponent bits, bias 15, limit 0.9375; backward: 5, 31, 0.875.",
        {"x": Field("fp32[R, D]", ("row", "column"))},
        {"backward": False},
        {
            "scale": Field("limit / (1e-20 + largest |x| of the row), fp32[R]", ("row",)),
            "numbers": Field(
                "what the codes mean before they are divided by the scale (HFP8QuantizedToFloat), "
                "fp32[R, D]",
                ("row", "column"),
            ),
        },
        _bits,
        _truth,
    ),
)
