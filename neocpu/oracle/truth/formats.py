"""Which numbers can a format hold, and which of them may a stored result be?

Rounding as a model: from fp64, once. A format is a record (precision, smallest exponent, largest
number, what lies beyond) that follows from the one in `neocpu/core/formats.py`; rounding to it is
whole-number arithmetic on multiples of a quantum. It shares no code with the codecs in
`neocpu/kernels/`, which work on bits.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from neocpu.core import formats
from neocpu.core.formats import SmallFloat
from neocpu.core.types import Elements, Floats
from neocpu.oracle.operator import Truth
from neocpu.oracle.truth.numbers import Bounded, Real, settled


@dataclass(frozen=True)
class Format:
    """A floating-point format.

    precision : bits of it, the hidden one too. smallest : exponent of the smallest normal number.
    """

    name: str
    precision: int
    smallest: int
    largest: float
    beyond: float  # what RNE gives beyond the largest: infinity, or NaN where the format has none
    dtype: str  # of one element's code


def _format(name: str, dtype: str, number: SmallFloat) -> Format:
    """The model of a small float, from its layout."""
    beyond = np.inf if number.infinity else np.nan
    return Format(name, number.mantissa + 1, 1 - number.bias, number.largest, beyond, dtype)


_FP32 = SmallFloat(32, 23, 127)
FORMATS = {
    form.name: _format(form.name, form.dtype, form.number or _FP32)
    for form in formats.FORMATS.values()
    if not form.row_scaled
}
# What tensor cores take of fp32 numbers; nothing is stored so.
TF32 = replace(FORMATS["fp32"], name="tf32", precision=11)


def quantum(x: Real, form: Format) -> Real:
    """Distance of the format's numbers around x (for a power of two, the one above)."""
    exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))[1] - 1
    lowest = np.maximum(np.where(x == 0, form.smallest, exponent), form.smallest)
    return np.ldexp(1.0, lowest - form.precision + 1)


def _beyond(x: Real, y: Real, form: Format) -> Real:
    """y, which is x rounded as if exponents had no end, or what the format has beyond its end."""
    with np.errstate(invalid="ignore"):
        over = np.abs(y) > form.largest
        return np.where(
            np.isfinite(x),
            np.where(over, np.copysign(form.beyond, x), y),
            x if form.beyond > 0 else np.nan,
        )


def nearest(x: Real, form: Format) -> Real:
    """Round f64 numbers to a format: nearest, ties to even. Values stay f64."""
    with np.errstate(invalid="ignore"):
        q = quantum(x, form)
        return _beyond(x, np.rint(x / q) * q, form)


def away(x: Real, form: Format) -> Real:
    """Round to nearest, ties away from zero: the "add half and truncate" of hurried kernels."""
    with np.errstate(invalid="ignore"):
        q = quantum(x, form)
        return _beyond(x, np.copysign(np.floor(np.abs(x) / q + 0.5) * q, x), form)


def toward_zero(x: Real, form: Format) -> Real:
    """Round by dropping bits."""
    with np.errstate(invalid="ignore"):
        q = quantum(x, form)
        # Dropping bits never reaches infinity: it stops at the largest number.
        y = np.clip(np.trunc(x / q) * q, -form.largest, form.largest)
        return np.where(np.isfinite(x), y, x if form.beyond > 0 else np.nan)


def below(x: Real, form: Format) -> Real:
    """The largest number of the format that is not above x (-inf, or NaN, below its range)."""
    with np.errstate(invalid="ignore"):
        q = quantum(x, form)
        y = np.floor(x / q) * q
        # Above the range the largest number is the one below, not infinity.
        return np.where(y > form.largest, form.largest, _beyond(x, y, form))


def above(x: Real, form: Format) -> Real:
    """The smallest number of the format that is not below x (inf, or NaN, above its range)."""
    # Formats are symmetric.
    return -below(-x, form)


ROUNDINGS = {"nearest": nearest, "away": away, "toward_zero": toward_zero}


def decode(codes: NDArray[np.generic], name: str) -> Real:
    """Exact values f64 of fp32 numbers, or of codes of a format, bare or as named records."""
    array = np.asarray(codes)
    array = array[array.dtype.names[0]] if array.dtype.names else array
    with np.errstate(invalid="ignore"):  # signalling NaNs
        if array.dtype.kind == "f":
            return array.astype(np.float64)
        if name == "fp16":
            return array.view("<f2").astype(np.float64)
        if name == "bf16":
            return (array.astype("<u4") << 16).view("<f4").astype(np.float64)
    return _VALUES[name][array]


def joined_halves(high: Elements, low: Elements) -> Floats:
    """The fp32 numbers of which these are the upper (bf16) and the lower halves."""
    upper = high[high.dtype.names[0]] if high.dtype.names else high
    return ((upper.astype("<u4") << 16) | low.astype("<u4")).view("<f4")


def _values(form: Format) -> Real:
    """Values of all codes of a narrow format, from its definition."""
    bits = 8 * np.dtype(form.dtype).itemsize
    sign = 1 << (bits - 1)
    code = np.arange(2 * sign)
    magnitude = code & (sign - 1)
    fraction_bits = form.precision - 1
    exponent = magnitude >> fraction_bits
    fraction = code & ((1 << fraction_bits) - 1)
    bias = 1 - form.smallest
    normal = np.ldexp(1.0 + fraction / (1 << fraction_bits), exponent - bias)
    value = np.where(
        exponent == 0, np.ldexp(fraction / (1 << fraction_bits), form.smallest), normal
    )
    if np.isnan(form.beyond):  # one NaN per sign, no infinity
        value[magnitude == sign - 1] = np.nan
    else:
        top = exponent == exponent.max()
        value[top] = np.where(fraction[top] == 0, np.inf, np.nan)
    return np.where(code >= sign, -value, value)


_VALUES = {
    name: _values(form) for name, form in FORMATS.items() if name not in ("fp32", "fp16", "bf16")
}


def stored(x: Bounded, name: str, rounding: str = "nearest") -> Bounded:
    """What a kernel holds after writing x in a format.

    The value is x rounded, the error how far another allowed rounding may be from it.
    """
    if name == "fp32":
        return settled(x)
    form = FORMATS[name]
    to = ROUNDINGS[rounding if rounding in ROUNDINGS else "nearest"]
    low, high = limits(x, name, rounding)
    value = to(x.value, form)
    with np.errstate(invalid="ignore"):
        error = np.maximum(high - value, value - low)
    single = (low == high) | (np.isnan(low) & np.isnan(high))
    return Bounded(value, np.where(single, 0.0, np.where(np.isnan(error), np.inf, error)))


def limits(x: Bounded, name: str, rounding: str = "nearest") -> tuple[Real, Real]:
    """Smallest and largest number of the format that a correct kernel may store for x.

    (NaN, NaN) where it stores NaN.
    """
    form = FORMATS[name]
    with np.errstate(invalid="ignore"):
        low = x.value - x.error
        high = x.value + x.error
    low = np.where(np.isinf(x.error), -np.inf, low)
    high = np.where(np.isinf(x.error), np.inf, high)
    if rounding == "stochastic":  # beyond the largest number there is nothing to choose: as nearest
        beyond = np.abs(low) > form.largest, np.abs(high) > form.largest
        return (
            np.where(beyond[0], nearest(low, form), below(low, form)),
            np.where(beyond[1], nearest(high, form), above(high, form)),
        )
    to = ROUNDINGS[rounding]
    return to(low, form), to(high, form)


def in_format(x: Bounded, name: str, rounding: str = "nearest") -> Truth:
    """The truth of an output in a format.

    fp32: the value and its error. Narrower: also the numbers of the format that may stand there;
    with stochastic rounding, the chance of the upper one.
    """
    if name == "fp32":
        x = settled(x)
        return Truth(x.value, x.error)
    form = FORMATS[name]
    low, high = limits(x, name, rounding)
    with np.errstate(invalid="ignore", over="ignore"):
        # Of the far end, where the format's numbers are widest apart.
        step = quantum(np.abs(x.value) + np.where(np.isfinite(x.error), x.error, 0), form)
        bound = x.error + step * (0.5 if rounding == "nearest" else 1.0)
    probability = None
    if rounding == "stochastic":
        with np.errstate(invalid="ignore", divide="ignore"):
            # Meaningful for two neighbours only, which `one_step` sees to.
            chance = (x.value - low) / (high - low)
        one_step = (
            np.isfinite(low)
            & np.isfinite(high)
            & (high > low)
            & (above(np.nextafter(low, np.inf), form) >= high)
        )
        probability = np.where(one_step, chance, np.nan)
    single = (low == high) | (np.isnan(low) & np.isnan(high))
    with np.errstate(invalid="ignore"):  # surely beyond the format, which says what stands there
        certain = single & (
            ~np.isfinite(low)
            | ((np.abs(low) == form.largest) & (np.abs(x.value) > form.largest + step))
        )
    perhaps = ~single & ~(np.isfinite(low) & np.isfinite(high)) & np.isfinite(x.value)
    reference = np.where(certain, low, x.value)
    bound = np.where(
        certain | (~np.isfinite(x.value) & np.isfinite(x.error)),
        0.0,
        np.where(perhaps | np.isinf(x.error), np.inf, bound),
    )
    return Truth(reference, bound, low, high, probability, format=name)
