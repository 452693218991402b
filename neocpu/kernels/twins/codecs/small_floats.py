"""What is the nearest code of a number, and the number of a code?

Small floats, element by element, from their definition: the plain twin of
`kernels/codecs/small_floats.py`. Every code's value is written down in fp64, and a number is
rounded by looking for its neighbours in that list.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neocpu.core.codecs import FBGEMM, HALF_UP, TRUNCATE
from neocpu.kernels.twins.numbers.philox import words_at

Floats = NDArray[np.float32]
Codes = NDArray[Any]  # u16 or u8
Words = NDArray[np.int64]


def _magnitudes(layout):
    """Values f64 of the codes 0, 1, … up to the largest finite one; not to be written to."""
    return _magnitudes_of(*(int(word) for word in layout))


@cache
def _magnitudes_of(bits, mantissa, bias, kind, limit):
    """`_magnitudes` of the words of a layout."""
    last = (1 << (bits - 1)) - 1
    top = {0: last - 1, 1: last - (1 << mantissa), 2: last}[kind]
    code = np.arange(top + 1)
    exponent = code >> mantissa
    fraction = (code & ((1 << mantissa) - 1)) / 2.0**mantissa
    with np.errstate(over="ignore"):
        values = np.where(
            exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias)
        )
    if kind == 2:  # the code of the limit, or the one it rounds to, is the last that is written
        values = values[
            : np.searchsorted(values, float(np.int32(limit).view(np.float32)), side="right") + 1
        ]
    return values


def decode_rows(codes: Codes, layout: Words, out: Floats) -> None:
    """out = the numbers of the codes, exactly; shapes as in the kernel."""
    bits = int(layout[0])
    kind = int(layout[3])
    size = 1 << (bits - 1)
    table = np.full(size, np.nan)
    values = _magnitudes(layout if kind != 2 else [*layout[:4], np.float32(np.inf).view(np.int32)])
    table[: values.size] = values[:size]
    if kind == 1:
        table[values.size] = np.inf
    number = table[codes & (size - 1)].astype(np.float32)
    out[:] = np.where(codes & size, -number, number)
    nan = np.isnan(out)
    out[nan] = (
        (0x7FC00000 | ((codes[nan] & size) != 0).astype(np.uint32) << 31)
        .astype(np.uint32)
        .view(np.float32)
    )


def _neighbours(x, layout):
    """(code of the largest number <= |x|, fraction of the way to the next), |x| up to the last."""
    values = _magnitudes(layout)
    # fp64 holds every fp32 number and every midpoint, so comparisons are exact
    a = np.minimum(np.abs(x).astype(np.float64), values[-1])
    low = np.searchsorted(values, a, side="right") - 1
    # above the last number there is no way to go: the fraction is 0
    step = np.append(np.diff(values), np.inf)
    return low, (a - values[low]) / step[low]


def _finish(x, code, layout):
    """Codes with their signs, and what stands for NaN."""
    bits, mantissa, _, kind, _ = (int(w) for w in layout)
    top = _magnitudes(layout).size - 1
    if kind != 2:
        code = np.where(
            np.isnan(x), top + 1 if kind == 0 else top + 1 + (1 << (mantissa - 1)), code
        )
    return (code | np.signbit(x).astype(np.int64) << (bits - 1)).astype(
        np.uint16 if bits == 16 else np.uint8
    )


def _plain(x, layout):
    """x without NaN; with a limit, no larger than that, NaN included."""
    limit = np.int32(layout[4]).view(np.float32)
    return (
        np.where(np.abs(x) <= limit, x, limit)
        if layout[3] == 2
        else np.where(np.isnan(x), np.float32(0), x)
    )


def _nearest(x, layout):
    """Codes of magnitudes, nearest, ties to even.

    Beyond the midpoint above the largest number it is the code after the largest one's.
    """
    values = _magnitudes(layout)
    low, fraction = _neighbours(x, layout)
    # the parity of a code is that of its last mantissa bit
    code = low + ((fraction > 0.5) | ((fraction == 0.5) & (low & 1 == 1)))
    # as if the numbers went on in even steps: IEEE-754 rounds to infinity by the next one
    half = (values[-1] - values[-2]) / 2
    beyond = np.abs(x).astype(np.float64) - values[-1]
    above = (beyond > half) | ((beyond == half) & (values.size % 2 == 0))
    return np.where(above, values.size, np.where(beyond > 0, values.size - 1, code))


def encode_rows(x: Floats, layout: Words, rounding: int, out: Codes) -> None:
    """out = codes of x: nearest even, towards zero, or FBGEMM's bf16; shapes as in the kernel."""
    if rounding == HALF_UP:
        out[:] = (x.view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16)
        return
    plain = _plain(x, layout)
    if rounding == TRUNCATE:
        code = np.where(np.isinf(plain), _magnitudes(layout).size, _neighbours(plain, layout)[0])
    else:
        code = _nearest(plain, layout)
    out[:] = _finish(x, code, layout)


def encode_rows_randomly(
    x: Floats,
    layout: Words,
    rounding: int,
    key: int | np.uint64,
    rows: Words,
    column0: int,
    step: int,
    out: Codes,
) -> None:
    """out = codes of x, each one of its two neighbours, up if word / 2^32 + fraction >= 1.

    Shapes as in the kernel.
    """
    words = words_at(np.uint64(key), rows, int(column0) + np.arange(x.shape[1]), int(step))
    if rounding == FBGEMM:
        power = (x.view(np.uint32) & np.uint32(0xFF800000)).view(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            noise = (power.view(np.uint32) | words >> np.uint32(19)).view(np.float32) - power
            encode_rows(x + noise, layout, TRUNCATE, out)
        return
    plain = _plain(x, layout)
    low, fraction = _neighbours(plain, layout)
    up = words.astype(np.uint64) + np.floor(fraction * 2.0**32).astype(np.uint64) >= np.uint64(
        1 << 32
    )
    # no neighbour above: to nearest, which is not random
    beyond = np.abs(plain) > _magnitudes(layout)[-1]
    out[:] = _finish(x, np.where(beyond, _nearest(plain, layout), low + up), layout)


def split_rows(x: Floats, high: Codes, low: Codes) -> None:
    """Upper and lower 16 bits of x f32[R, D]: high, low u16[R, D], split-SGD's weights. `high` is
    the bf16 number towards zero (Kalamkar et al., arXiv 2005.04680). Kernels split as they update
    (`rows/narrow.py`).
    """
    bits = x.view(np.uint32)
    high[:] = bits >> np.uint32(16)
    low[:] = bits & np.uint32(0xFFFF)


def join_rows(high: Codes, low: Codes, out: Floats) -> None:
    """The fp32 numbers f32[R, D] whose halves these are, as `split_rows` has them."""
    out[:] = (high.astype(np.uint32) << np.uint32(16) | low).view(np.float32)
