"""What is an MX4 block? 32 numbers as e2m1 codes and one power of two.

The plain twin of `kernels/codecs/mx.py`. The exponent is found with frexp (exact), never with a
rounded log2.
"""

import numpy as np

from neocpu.kernels.twins.numbers.philox import words_at

_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
# from here on the next code: halves go up
_THRESHOLDS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


def _exponents(most, rounding, words):
    """Exponents i64 of blocks whose largest magnitude is `most`: those of its power of two.

    The largest exponent of e2m1 is still to be subtracted.
    """
    fraction, exponent = np.frexp(most.astype(np.float64))
    # most = fraction * 2^floor, 1 <= fraction < 2
    fraction = fraction * 2
    floor = exponent - 1
    if rounding == 0:  # the nearest logarithm
        return floor + (fraction >= np.sqrt(2.0))
    if rounding == 2:  # as if the mantissa were rounded to e2m1's one bit first, ties down
        return floor + (fraction > 1.75)
    if rounding == 3:
        return floor + ((fraction - 1) * 2.0**23 + (words >> np.uint32(10)) >= 2.0**23)
    return floor + (fraction > 1) if rounding == 4 else floor


def quantize_mx4(x, rounding, key, rows, step, out):
    """Blocks of 32 e2m1 codes and an exponent; shapes as in the kernel."""
    n, d = x.shape
    blocks = (d + 31) // 32
    padded = np.zeros((n, blocks * 32), np.float32)
    padded[:, :d] = x
    block = padded.reshape(n, blocks, 32)
    a = np.where(np.isnan(block), np.inf, np.abs(block).astype(np.float64))
    most = np.where(np.isnan(block), 0, a).max(2)
    tiny = 2.0**-126
    huge = 2.0**128
    most = np.where(most == 0, tiny, np.minimum(most, huge))
    subnormal = most < tiny
    words = words_at(np.uint64(key), rows, 32 * np.arange(blocks), int(step))
    exponent = np.where(
        subnormal, -127, _exponents(np.where(subnormal, tiny, most), rounding, words)
    )
    exponent = np.clip(exponent - 2, -127, 125)
    code = (
        np.searchsorted(_THRESHOLDS, a / 2.0 ** exponent[:, :, None], side="right")
        | np.signbit(block) * 8
    )
    bytes_ = out.reshape(n, blocks, 17)
    bytes_[:, :, :16] = code[:, :, 0::2] | code[:, :, 1::2] << 4
    bytes_[:, :, 16] = exponent + 127


def dequantize_mx4(codes, out):
    """e2m1 value times the shared power of two; shapes as in the kernel."""
    n, d = out.shape
    block = codes.reshape(n, -1, 17)
    code = np.stack([block[:, :, :16] & 15, block[:, :, :16] >> 4], axis=3).reshape(n, -1, 32)
    value = np.where(code & 8, -_VALUES[code & 7], _VALUES[code & 7])
    scale = 2.0 ** (block[:, :, 16:].astype(np.float64) - 127)
    with np.errstate(over="ignore"):
        number = np.where(block[:, :, 16:] == 255, np.nan, value * scale).astype(np.float32)
    out[:] = number.reshape(n, -1)[:, :d]
