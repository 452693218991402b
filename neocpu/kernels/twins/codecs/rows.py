"""What do the bytes of a row-scaled integer mean, and which bytes does FBGEMM write?

The plain twin of `kernels/codecs/rows.py`, over whole arrays. Minimum and maximum are taken as
FBGEMM's AVX2 code takes them, because the order decides what happens to NaN: eight lanes go down
the row with `m = m < x ? m : x`, so a NaN makes its lane forget what it saw and the next number
makes it forget the NaN; then the lanes, then the last D mod 8 columns, with `x < m ? x : m`.
"""

import numpy as np

from neocpu.core.codecs import LAYOUTS
from neocpu.kernels.twins.codecs.small_floats import decode_rows, encode_rows
from neocpu.kernels.twins.numbers.fma import fma
from neocpu.kernels.twins.numbers.philox import words_at

_LARGEST = np.finfo(np.float32).max


def _lane_range(x):
    """(minimum, maximum) f32[R] of the rows of x, as FBGEMM's CPU code finds them."""
    rows, d = x.shape
    whole = d // 8 * 8
    ends = []
    # the maximum is the minimum of the negatives, comparison by comparison
    for sign in (np.float32(1), np.float32(-1)):
        lanes = np.full((rows, 8), _LARGEST)
        y = sign * x
        for first in range(0, whole, 8):
            columns = y[:, first : first + 8]
            lanes = np.where(lanes < columns, lanes, columns)
        least = np.full(rows, _LARGEST)
        # in this order: which zero is the least, and what a NaN hides, depends on it
        for column in [*lanes.T, *y[:, whole:].T]:
            least = np.where(column < least, column, least)
        ends.append(sign * least)
    return ends


def _plain_range(x):
    """(minimum, maximum) f32[R] without NaN, -0 below +0: fminf and fmaxf of a GPU. A row of NaN
    alone gives inf, -inf.
    """
    low = np.where(np.isnan(x), np.float32(np.inf), x).min(1, initial=np.inf)
    high = np.where(np.isnan(x), np.float32(-np.inf), x).max(1, initial=-np.inf)
    # NumPy's minimum does not tell -0 from +0, and the bias is written with its sign
    low = np.where((low == 0) & (np.signbit(x) & (x == 0)).any(1), np.float32(-0.0), low)
    high = np.where((high == 0) & (~np.signbit(x) & (x == 0)).any(1), np.float32(0.0), high)
    return low, high


def _integers(v):
    """v converted as 32-bit vector code does it, and as scalar C code does it: i64[R, D] each.

    What does not fit is the least integer in the first, and 0 in the second.
    """
    with np.errstate(invalid="ignore"):
        fits = np.abs(v) < 2.0**31
        # the AVX2 conversion gives the least integer for what does not fit
        vector = np.where(fits, np.rint(np.where(fits, v, 0)), -(2.0**31)).astype(np.int64)
        fits = np.abs(v) < 2.0**63
        long = np.rint(np.where(fits, v, 0)).astype(np.int64)
    return vector, long


def _byte_codes(v):
    """Codes of v in 8 bits: saturated in whole runs of 32 columns, after them the lowest byte."""
    whole = v.shape[1] // 32 * 32
    vector, _ = _integers(v)
    return np.where(np.arange(v.shape[1]) < whole, np.clip(vector, 0, 255), vector & 255)


def _nbit_codes(v, bits):
    """Codes of v in 2, 4 (or 8) bits, saturated.

    After whole runs of 32 columns the long integer is cut to 32 bits first.
    """
    whole = v.shape[1] // 32 * 32 if bits < 8 else 0
    vector, long = _integers(v)
    cut = (long & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
    return np.clip(np.where(np.arange(v.shape[1]) < whole, vector, cut), 0, (1 << bits) - 1)


def _pack(codes, bits):
    """Bytes u8[R, ceil(D * bits / 8)] of codes, low bits first."""
    per_byte = 8 // bits
    count = (codes.shape[1] + per_byte - 1) // per_byte
    padded = np.zeros((codes.shape[0], count * per_byte), np.uint8)
    padded[:, : codes.shape[1]] = codes
    shifts = (np.arange(per_byte) * bits).astype(np.uint8)
    return np.bitwise_or.reduce(padded.reshape(codes.shape[0], count, per_byte) << shifts, axis=2)


def _unpack(row_bytes, bits, columns):
    """Codes u8[R, columns] of bytes."""
    shifts = (np.arange(8 // bits) * bits).astype(np.uint8)
    codes = row_bytes[:, :, None] >> shifts & np.uint8((1 << bits) - 1)
    return codes.reshape(row_bytes.shape[0], row_bytes.shape[1] * shifts.size)[:, :columns]


def _half(x):
    """fp16 codes u16 of f32[R]; NaN as x86 leaves it."""
    out = np.empty((1, x.size), np.uint16)
    encode_rows(x[None], LAYOUTS["fp16"], 0, out)
    out[0][np.isnan(x)] = 0xFE00
    return out[0]


def _number(half):
    """f32[R] of fp16 codes u16[R]."""
    out = np.empty((1, half.size), np.float32)
    decode_rows(half[None], LAYOUTS["fp16"], out)
    return out[0]


def _bytes(*words):
    """u8[R, …]: the bytes of some words per row, one after the other."""
    return np.concatenate([np.ascontiguousarray(w)[:, None].view(np.uint8) for w in words], axis=1)


def _int8_scales(x, variant):
    """(scale, bias, inverse scale) f32[R]."""
    low, high = _plain_range(x) if variant else _lane_range(x)
    span = high - low
    scale = span / np.float32(255)
    eps = np.float32(1e-20) if variant == 1 else np.float32(1e-8)
    inverse = np.float32(255) / (
        fma(scale, np.full_like(scale, 255), np.full_like(scale, eps))
        if variant == 2
        else span + eps
    )
    return scale, low, inverse


def quantize_int8(x, variant, out):
    """Rows of 8-bit integers with fp32 scale and bias; shapes as in the kernel."""
    with np.errstate(all="ignore"):
        scale, low, inverse = _int8_scales(x, variant)
        codes = _byte_codes((x - low[:, None]) * inverse[:, None])
    out[:] = 0
    out[:, : x.shape[1]] = codes
    out[:, -8:] = _bytes(scale, low)


def dequantize_int8(codes, out):
    """fma(code, scale, bias); shapes as in the kernel."""
    scale, bias = np.ascontiguousarray(codes[:, -8:]).view(np.float32).T[:, :, None]
    out[:] = fma(codes[:, : out.shape[1]].astype(np.float32), scale, bias)


def _nbit_scales(x, bits):
    """(scale u16, bias u16, bias f32, inverse scale f32), all [R]."""
    low, high = _lane_range(x)
    bias = _half(low)
    low = _number(bias)
    span = high - low
    scale = _number(_half(np.where(span == 0, np.float32(1), span / np.float32((1 << bits) - 1))))
    scale = np.where(scale == 0, np.float32(1), scale)
    scale = np.where(np.isinf(np.float32(1) / scale), np.float32(1), scale)
    return _half(scale), bias, low, np.float32(1) / scale


def quantize_nbit(x, bits, out):
    """Rows of 4-, 2- or 8-bit integers with fp16 scale and bias; shapes as in the kernel."""
    with np.errstate(all="ignore"):
        scale, bias, low, inverse = _nbit_scales(x, bits)
        codes = _nbit_codes((x - low[:, None]) * inverse[:, None], bits)
    out[:, :-4] = _pack(codes, bits)
    out[:, -4:] = _bytes(scale, bias)


def dequantize_nbit(codes, bits, out):
    """fma(code, scale, bias); shapes as in the kernel."""
    scale, bias = np.ascontiguousarray(codes[:, -4:]).view(np.uint16).T
    q = _unpack(codes[:, :-4], bits, out.shape[1]).astype(np.float32)
    out[:] = fma(q, _number(scale)[:, None], _number(bias)[:, None])


def quantize_randomly(x, bits, key, rows, step, out):
    """Rows of 8-, 4- or 2-bit integers, each number one of its two neighbours at random; shapes as
    in the kernel.
    """
    most = (1 << bits) - 1
    with np.errstate(all="ignore"):
        if bits == 8:
            scale, low, inverse = _int8_scales(x, 0)
            header = _bytes(scale, low)
        else:
            scale, bias, low, inverse = _nbit_scales(x, bits)
            header = _bytes(scale, bias)
        v = (x - low[:, None]) * inverse[:, None]
        # fp64 from here on: the fraction is cut to 32 bits, of which fp32 would lose some
        v = np.where(v > 0, np.minimum(v, np.float32(most)), np.float32(0)).astype(np.float64)
    words = words_at(np.uint64(key), rows, np.arange(x.shape[1]), int(step)).astype(np.uint64)
    whole = np.floor(v)
    up = words + np.floor((v - whole) * 2.0**32).astype(np.uint64) >= np.uint64(1 << 32)
    out[:, : -header.shape[1]] = _pack(whole.astype(np.uint8) + up, bits)
    out[:, -header.shape[1] :] = header


def quantize_fp8_row(x, backward, out):
    """Rows of HFP8 with one fp32 scale; shapes as in the kernel."""
    layout = LAYOUTS["hfp8_backward" if backward else "hfp8_forward"]
    limit = np.int32(layout[4]).view(np.float32)
    largest = np.where(np.isnan(x), 0, np.abs(x)).max(1, initial=np.float32(1e-20))
    with np.errstate(all="ignore"):
        scale = limit / (np.float32(1e-20) + largest)
        scaled = x * scale[:, None]
    scaled[np.isnan(scaled)] = np.nan  # machines give the NaN of 0 times infinity either sign
    codes = np.empty(x.shape, np.uint8)
    encode_rows(scaled, layout, 0, codes)
    out[:] = 0
    out[:, : x.shape[1]] = codes
    out[:, -8:-4] = _bytes(scale)


def dequantize_fp8_row(codes, backward, out):
    """number / scale; shapes as in the kernel."""
    number = np.empty(out.shape, np.float32)
    decode_rows(
        codes[:, : out.shape[1]], LAYOUTS["hfp8_backward" if backward else "hfp8_forward"], number
    )
    with np.errstate(all="ignore"):
        out[:] = number / np.ascontiguousarray(codes[:, -8:-4]).view(np.float32)
