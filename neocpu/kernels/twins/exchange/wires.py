"""Which bytes travel for a block of columns, and which numbers do they mean?

The plain twin of `kernels/exchange/wires.py`: whole arrays, each format from its definition in
`codecs/small_floats.py` and `codecs/rows.py`.
"""

import numpy as np

from neocpu.core.codecs import LAYOUTS
from neocpu.kernels.twins.codecs.rows import (
    dequantize_fp8_row,
    dequantize_int8,
    dequantize_nbit,
    quantize_fp8_row,
    quantize_int8,
    quantize_nbit,
)
from neocpu.kernels.twins.codecs.small_floats import decode_rows, encode_rows

_FLOATS = ("fp16", "bf16")
_LIMITS = (np.float32(65504), np.uint32(0x7F7F0000).view(np.float32))
_NAN = np.float32(np.nan)


def _words(header, kind):
    """The two numbers f32[2, R] of headers u8[R, n]."""
    return np.ascontiguousarray(header).view(kind).astype(np.float32).T


def _block_codes(x, form):
    """Bytes u8[R, n] of one block of columns f32[R, w]."""
    rows, width = x.shape
    zero = x + np.float32(0)  # the sign of a zero bias is positive
    if form == 2:
        codes = np.zeros((rows, width + 8), np.uint8)
        quantize_int8(zero, 0, codes)
        bad = ~np.isfinite(_words(codes[:, -8:], np.float32)).all(0)
        header = np.full(2, _NAN)
    elif form == 3:
        codes = np.zeros((rows, (width + 1) // 2 + 4), np.uint8)
        quantize_nbit(zero, 4, codes)
        bad = ~np.isfinite(_words(codes[:, -4:], np.float16)).all(0)
        header = np.full(2, 0x7E00, np.uint16)
    else:
        codes = np.zeros((rows, (width + 3) // 4 * 4 + 8), np.uint8)
        quantize_fp8_row(x, form - 4, codes)
        bad = np.zeros(rows, bool)
        header = np.array([_NAN, 0], np.float32)
    bad |= ~np.isfinite(x).all(1)
    # a number that is not finite makes its block NaN: a run that diverges is told by its loss
    codes[bad] = 0
    size = header.nbytes
    codes[bad, -size:] = header.view(np.uint8)
    return codes


def _block_numbers(codes, form, width):
    """Numbers f32[R, width] of the bytes of one block."""
    out = np.empty((len(codes), width), np.float32)
    with np.errstate(all="ignore"):
        if form == 2:
            dequantize_int8(codes, out)
        elif form == 3:
            dequantize_nbit(codes, 4, out)
        else:
            dequantize_fp8_row(codes, form - 4, out)
    out[np.isnan(out)] = _NAN
    return out


def _codes(x, code):
    """Bytes u8[R, n] of rows f32[R, w]."""
    form, block, scale = code
    with np.errstate(all="ignore"):
        x = x * scale
    if form < 2:
        limit = _LIMITS[form]
        clamped = np.where(np.isnan(x), _NAN, np.clip(x, -limit, limit))
        small = np.empty(x.shape, np.uint16)
        encode_rows(clamped, LAYOUTS[_FLOATS[form]], 0, small)
        return small.view(np.uint8).reshape(len(x), 2 * x.shape[1])
    firsts = range(0, x.shape[1], block)
    blocks = [_block_codes(np.ascontiguousarray(x[:, a : a + block]), form) for a in firsts]
    return np.concatenate([np.empty((len(x), 0), np.uint8), *blocks], axis=1)


def _numbers(codes, width, code):
    """Rows f32[R, width] of their bytes."""
    form, block, scale = code
    out = np.empty((len(codes), width), np.float32)
    if form < 2:
        decode_rows(np.ascontiguousarray(codes).view(np.uint16), LAYOUTS[_FLOATS[form]], out)
    else:
        at = 0
        for first in range(0, width, block):
            n = min(block, width - first)
            size = _size(form, n)
            block_codes = np.ascontiguousarray(codes[:, at : at + size])
            out[:, first : first + n] = _block_numbers(block_codes, form, n)
            at += size
    with np.errstate(all="ignore"):
        return out / scale


def _size(form, width):
    """Bytes of a block, or of a row of fp16 or bf16."""
    if form < 2:
        return 2 * width
    return {2: width + 8, 3: (width + 1) // 2 + 4}.get(form, (width + 3) // 4 * 4 + 8)


def _row_size(width, code):
    """Bytes of a row of so many columns."""
    if code[0] < 2:
        return 2 * width
    return sum(_size(code[0], min(code[1], width - a)) for a in range(0, width, code[1]))


def _rows(start, stride, rows, width):
    """Places [rows, width] of a block in a flat array."""
    return start + stride * np.arange(rows)[:, None] + np.arange(width)


def encode_blocks(source, target, jobs, code):
    """Columns into the bytes of a message; shapes as in the kernel."""
    for a, stride, b, pitch, rows, width in jobs.tolist():
        x = source[_rows(a, stride, rows, width)]
        target[_rows(b, pitch, rows, _row_size(width, code))] = _codes(x, code)


def decode_blocks(source, target, jobs, code):
    """Bytes of a message into columns; shapes as in the kernel."""
    for a, stride, b, pitch, rows, width in jobs.tolist():
        codes = source[_rows(a, stride, rows, _row_size(width, code))]
        target[_rows(b, pitch, rows, width)] = _numbers(codes, width, code)


def round_blocks(source, target, jobs, code):
    """Columns as a wire would leave them; shapes as in the kernel."""
    for a, stride, b, pitch, rows, width in jobs.tolist():
        x = source[_rows(a, stride, rows, width)]
        rounded = _numbers(_codes(x, code), width, code)
        target[_rows(b, pitch, rows, width)] = rounded
