"""What number of a small float is an operand of a product? The plain twin of
`kernels/dense/operands.py`, by the codecs of rows.
"""

import numpy as np

from neocpu.core.codecs import HALF_UP, STOCHASTIC
from neocpu.kernels.twins.codecs.small_floats import (
    decode_rows,
    encode_rows,
    encode_rows_randomly,
)


def _limited(x, scale, most):
    """x times the scale, in [-most, most]; a NaN stays."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.clip(x * scale, -most, most)


def _numbers(codes, layout, scale, x, out):
    """The numbers of codes, over the scale; a NaN for each NaN of x."""
    numbers = np.empty(codes.shape, np.float32)
    decode_rows(codes, layout, numbers)
    quiet = np.where(np.signbit(x), np.uint32(0xFFC00000), np.uint32(0x7FC00000))
    out[:] = np.where(np.isnan(x), quiet.view(np.float32), numbers / scale)


def _peak(x, scale, most):
    """The number of the largest bits of a magnitude; that of a NaN is above infinity's. 0 where
    numbers are neither scaled nor limited.
    """
    if scale == 1 and most == np.inf:
        return np.float32(0)
    bits = x.view(np.uint32) & np.uint32(0x7FFFFFFF)
    return bits.max(initial=np.uint32(0)).view(np.float32)


def _codes(layout, shape):
    return np.empty(shape, np.uint16 if layout[0] == 16 else np.uint8)


def round_operand(x, form, rounding, out, inside):
    """out = numbers of a small float, to nearest even, towards zero or half up; shapes and result
    as of the kernel.
    """
    layout, scale, most = form
    peak = _peak(x, scale, most)
    codes = _codes(layout, x.shape)
    # half up is defined on bits: it has neither scale nor limit
    plain = x if rounding == HALF_UP else _limited(x, scale, most)
    encode_rows(np.where(np.isnan(x), np.float32(0), plain), layout, rounding, codes)
    _numbers(codes, layout, scale, x, out)
    return peak


def round_operand_randomly(x, form, key, row0, step, out, inside):
    """out = numbers of a small float, each one of its two neighbours at random; shapes and result
    as of the kernel.
    """
    layout, scale, most = form
    peak = _peak(x, scale, most)
    codes = _codes(layout, x.shape)
    rows = row0 + np.arange(len(x), dtype=np.int64)
    plain = _limited(x, scale, most)
    encode_rows_randomly(plain, layout, STOCHASTIC, key, rows, 0, step, codes)
    _numbers(codes, layout, scale, x, out)
    return peak
