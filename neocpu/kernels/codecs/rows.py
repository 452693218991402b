"""How is a row of numbers squeezed into 8, 4 or 2 bits each, in FBGEMM's own bytes? Two walks over
a row in the cache.

The first finds the row's range, the second rounds `(x - bias) * inverse` by adding 2^23, whose
lowest byte then is the code. A row that holds a NaN takes a slow path that follows FBGEMM's AVX2
code through its conversions, because which numbers vanish and what the others become depends on
where they stand. Layouts and examples: `docs/formats.md`.
"""

import numpy as np
from numba import prange

from neocpu.core.formats import FP16, HFP8_BACKWARD, HFP8_FORWARD
from neocpu.kernels.codecs.small_floats import RUN, draw_words, words_of
from neocpu.kernels.compile.jit import inlined, parallel_kernel
from neocpu.kernels.simd import fma
from neocpu.kernels.simd.bags import view
from neocpu.kernels.simd.quantize import quick_range, read_codes, row_range, write_codes
from neocpu.kernels.simd.small_floats import magnitude, nearest_code, number_of_code

# variants of int8 (`core/codecs.py`)
CPU = 0
GPU = 1
TBE = 2
_HALF = FP16.words
_FORWARD = HFP8_FORWARD.words
_BACKWARD = HFP8_BACKWARD.words
_FORWARD_LIMIT = np.float32(HFP8_FORWARD.limit)
_BACKWARD_LIMIT = np.float32(HFP8_BACKWARD.limit)
_BYTE = np.float32(255)
_FLOAT_EPS = np.float32(1e-8)
_GPU_EPS = np.float32(1e-20)
_ZERO = np.float32(0)
_ONE = np.float32(1)


@inlined
def put_word(row, at, bits, size):
    """Store the lowest `size` bytes of uint32 `bits` at row[at:], lowest first."""
    for i in range(size):
        row[at + i] = np.uint8(bits >> np.uint32(8 * i))


@inlined
def get_float(row, at):
    """The fp32 number at row[at:]."""
    bits = np.uint32(0)
    for i in range(4):
        bits |= np.uint32(row[at + i]) << np.uint32(8 * i)
    return np.uint32(bits).view(np.float32)


@inlined
def put_float(row, at, x):
    """Store an fp32 number at row[at:]."""
    put_word(row, at, np.float32(x).view(np.uint32), 4)


@inlined
def half_of(x):
    """fp16 code uint32 of x; NaN as x86 leaves it."""
    return np.uint32(nearest_code(x, words_of(_HALF))) if x == x else np.uint32(0xFE00)


@inlined
def half_number(code):
    """fp32 number of an fp16 code."""
    return number_of_code(np.uint32(code), words_of(_HALF))


@inlined
def get_half(row, at):
    """The fp16 number at row[at:], as fp32."""
    return half_number(np.uint32(row[at]) | np.uint32(row[at + 1]) << np.uint32(8))


@inlined
def gpu_range(line):
    """(minimum, maximum) without NaN, -0 below +0; of NaN alone inf, -inf."""
    low = np.float32(np.inf)
    high = np.float32(-np.inf)
    for c in range(line.size):
        x = line[c]
        low = x if x < low or (x == low and np.signbit(x)) else low
        high = x if x > high or (x == high and not np.signbit(x)) else high
    return low, high


@inlined
def line_range(line):
    """(minimum, maximum, whether any is NaN) of a row, as FBGEMM's CPU code finds them."""
    low, high, odd = quick_range(line)
    # the order decides what NaN hides, and which zero it is
    if odd or low == _ZERO or high == _ZERO:
        low, high, odd = row_range(line)
    return low, high, odd


@inlined
def int8_scales(line, variant):
    """(scale, bias, inverse scale, whether the row needs the slow path)."""
    low, high, odd = line_range(line)
    if variant != CPU:
        low, high = gpu_range(line)
    span = high - low
    scale = span / _BYTE
    if variant == TBE:
        inverse = _BYTE / fma(scale, _BYTE, _FLOAT_EPS)
    else:
        inverse = _BYTE / (span + (_GPU_EPS if variant == GPU else _FLOAT_EPS))
    return scale, low, inverse, odd


@inlined
def nbit_scales(low, high, inverse, scales, biases, bits):
    """From the ranges f32[n] of some rows: their fp16 codes u16[n] of scale and bias, biases in
    `low`, inverse scales.
    """
    most = np.float32((1 << bits) - 1)
    for i in range(low.size):
        bias = half_of(low[i])
        least = half_number(bias)
        span = high[i] - least
        scale = half_of(_ONE if span == _ZERO else span / most)
        inverse_ = _ONE / half_number(scale)
        usable = abs(inverse_) < np.float32(np.inf) or inverse_ != inverse_
        scales[i] = scale if usable else np.uint32(0x3C00)
        inverse[i] = inverse_ if usable else _ONE
        biases[i] = bias
        low[i] = least


@inlined
def odd_line(line, low, inverse, bits, long, codes):
    """As `write_codes`, a byte each, for rows with NaN, whose numbers may lie anywhere: what
    FBGEMM's conversions make of it.

    Whole runs of 32 columns saturate. After them int8 takes the lowest byte of the integer; the
    others (`long`) saturate after a conversion to 64 bits of which 32 are kept.
    """
    whole = line.size // 32 * 32 if bits < 8 or not long else 0
    most = (1 << bits) - 1
    for c in range(line.size):
        v = np.rint((line[c] - low) * inverse)
        q = np.int64(0)
        if abs(v) < np.float32(2147483648.0):
            q = np.int64(v)
        elif c >= whole and long and abs(v) < np.float32(9223372036854775808.0):
            q = ((np.int64(v) & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
        if c < whole or long:
            q = min(max(q, 0), most)
        codes[c] = np.uint8(q & 255)


@inlined
def pack_line(codes, bits, row, n):
    """row[:n] = the codes, low bits first. `codes` is as long as whole words of 32 bits, with zeros
    after the last.
    """
    if bits == 8:
        for c in range(n):
            row[c] = codes[c]
    elif bits == 4:
        pairs = codes.view(np.uint16)
        for k in range(n):
            row[k] = np.uint8(pairs[k] | pairs[k] >> np.uint16(4))
    else:
        fours = codes.view(np.uint32)
        for k in range(n):
            q = fours[k]
            row[k] = np.uint8(q | q >> np.uint32(6) | q >> np.uint32(12) | q >> np.uint32(18))


@inlined
def read_line(row, bits, scale, bias, line):
    """line = fma(code, scale, bias) of the codes in row."""
    if bits == 8 and line.size >= 32:
        for c in range(line.size):
            line[c] = fma(np.float32(row[c]), scale, bias)
    else:
        read_codes(row, bits, scale, bias, line)


@parallel_kernel
def quantize_int8(x, variant, out):
    """Rows of 8-bit integers with fp32 scale and bias: FBGEMM's fused row-wise bytes.

    Shapes: x f32[R, D]; variant 0 CPU (eps 1e-8), 1 GPU (eps 1e-20, without NaN), 2 training TBE
    (inverse from the scale); out u8[R, W], W >= D + 8: codes, zero bytes, scale and bias in the
    last 8 bytes. `scale = (max - min) / 255`, `bias = min`, `code = (x - bias) * (255 / (max - min
    + eps))`, nearest even.
    Source: FBGEMM QuantUtilsAvx2.cc, quantize_fused_8bit_rowwise.cu, stochastic_rounding.cuh.
    Order: none.
    """
    flat = x.reshape(-1)
    bytes_ = out.reshape(-1)
    d = x.shape[1]
    width = out.shape[1]
    share = max(1, RUN // max(1, d))
    for task in prange((x.shape[0] + share - 1) // share):
        for r in range(task * share, min(task * share + share, x.shape[0])):
            line = view(flat, r * d, d)
            row = view(bytes_, r * width, width)
            scale, low, inverse, odd = int8_scales(line, variant)
            if odd and variant == CPU:
                odd_line(line, low, inverse, 8, False, row)
            else:
                write_codes(line, 8, low, inverse, row)
            for c in range(d, width - 8):
                row[c] = 0
            put_float(row, width - 8, scale)
            put_float(row, width - 4, low)


@parallel_kernel
def dequantize_int8(codes, out):
    """out = fma(code, scale, bias), rounded once, whatever the padding before scale and bias.

    Shapes: codes u8[R, W], W >= D + 8; out f32[R, D]. Source: as `quantize_int8`. Order: none.
    """
    flat = out.reshape(-1)
    bytes_ = codes.reshape(-1)
    d = out.shape[1]
    width = codes.shape[1]
    share = max(1, RUN // max(1, d))
    for task in prange((out.shape[0] + share - 1) // share):
        for r in range(task * share, min(task * share + share, out.shape[0])):
            row = view(bytes_, r * width, width)
            read_line(
                row, 8, get_float(row, width - 8), get_float(row, width - 4), view(flat, r * d, d)
            )


@parallel_kernel
def quantize_nbit(x, bits, out):
    """Rows of 4-, 2- or 8-bit integers, low bits first, then fp16 scale and bias: FBGEMM's "SBHalf"
    bytes.

    Shapes: x f32[R, D]; bits 4, 2 or 8; out u8[R, ceil(D * bits / 8) + 4]. `bias = fp16(min)`,
    `scale = fp16((max - bias) / (2^bits - 1))` (1 if max = bias, or if scale or its inverse is 0 or
    infinite), `code = (x - bias) * (1 / scale)`, nearest even, saturated. Source: FBGEMM
    QuantUtilsAvx2.cc. Order: none.
    """
    flat = x.reshape(-1)
    bytes_ = out.reshape(-1)
    d = x.shape[1]
    width = out.shape[1]
    share = max(1, RUN // max(1, d))
    for task in prange((x.shape[0] + share - 1) // share):
        begin = task * share
        n = min(share, x.shape[0] - task * share)
        low = np.empty(n, np.float32)
        high = np.empty(n, np.float32)
        inverse = np.empty(n, np.float32)
        scales = np.empty(n, np.uint16)
        biases = np.empty(n, np.uint16)
        odd = np.empty(n, np.uint8)
        for i in range(n):
            low[i], high[i], odd[i] = line_range(view(flat, (begin + i) * d, d))
        nbit_scales(low, high, inverse, scales, biases, bits)
        codes = np.zeros((d + 3) // 4 * 4, np.uint8)
        for i in range(n):
            line = view(flat, (begin + i) * d, d)
            row = view(bytes_, (begin + i) * width, width)
            if odd[i]:
                odd_line(line, low[i], inverse[i], bits, True, codes)
                pack_line(codes, bits, row, width - 4)
            else:
                write_codes(line, bits, low[i], inverse[i], row)
            put_word(row, width - 4, np.uint32(scales[i]), 2)
            put_word(row, width - 2, np.uint32(biases[i]), 2)


@parallel_kernel
def dequantize_nbit(codes, bits, out):
    """out = fma(code, scale, bias), rounded once.

    Shapes: codes u8[R, ceil(D * bits / 8) + 4]; bits 4, 2 or 8; out f32[R, D]. Source: as
    `quantize_nbit`. Order: none.
    """
    flat = out.reshape(-1)
    bytes_ = codes.reshape(-1)
    d = out.shape[1]
    width = codes.shape[1]
    share = max(1, RUN // max(1, d))
    for task in prange((out.shape[0] + share - 1) // share):
        for r in range(task * share, min(task * share + share, out.shape[0])):
            row = view(bytes_, r * width, width)
            read_line(
                row, bits, get_half(row, width - 4), get_half(row, width - 2), view(flat, r * d, d)
            )


@parallel_kernel
def quantize_randomly(x, bits, key, rows, step, out):
    """Rows as `quantize_int8` (CPU) and `quantize_nbit` write them, each number one of its two
    neighbours at random.

    Shapes: x f32[R, D]; bits 8, 4 or 2; key uint64; rows i64[R] row numbers; step i64; out u8[R,
    W], W = D + 8 or ceil(D * bits / 8) + 4. With `v = (x - bias) * inverse` limited to the codes,
    up iff word / 2^32 + (v - floor(v)) >= 1.
    Source: docs/arithmetic.md §9. Order: none.
    """
    flat = x.reshape(-1)
    bytes_ = out.reshape(-1)
    d = x.shape[1]
    width = out.shape[1]
    share = max(1, RUN // max(1, d))
    most = np.float32((1 << bits) - 1)
    for task in prange((x.shape[0] + share - 1) // share):
        codes = np.zeros((d + 3) // 4 * 4, np.uint8)
        word = np.empty((d + 3) // 4 * 4, np.uint32)
        lows = np.empty(1, np.float32)
        highs = np.empty(1, np.float32)
        inverses = np.empty(1, np.float32)
        scales = np.empty(1, np.uint16)
        biases = np.empty(1, np.uint16)
        for r in range(task * share, min(task * share + share, x.shape[0])):
            line = view(flat, r * d, d)
            row = view(bytes_, r * width, width)
            if bits == 8:
                scale, low, inverse, _ = int8_scales(line, CPU)
                put_float(row, width - 8, scale)
                put_float(row, width - 4, low)
            else:
                lows[0], highs[0], _ = line_range(line)
                nbit_scales(lows, highs, inverses, scales, biases, bits)
                put_word(row, width - 4, np.uint32(scales[0]), 2)
                put_word(row, width - 2, np.uint32(biases[0]), 2)
                low = lows[0]
                inverse = inverses[0]
            draw_words(np.uint64(key), np.uint64(rows[r]), np.int64(0), np.uint64(step), word)
            for c in range(d):
                v = (line[c] - low) * inverse
                v = v if v > _ZERO else _ZERO
                v = v if v < most else most
                whole = np.floor(v)
                chance = np.uint64((v - whole) * np.float32(4294967296.0))
                codes[c] = np.uint8(
                    np.int64(whole) + np.int64((np.uint64(word[c]) + chance) >> np.uint64(32))
                )
            pack_line(codes, bits, row, width - (8 if bits == 8 else 4))


@parallel_kernel
def quantize_fp8_row(x, backward, out):
    """Rows of HFP8 with one fp32 scale, for wires: `scale = largest / (1e-20 + max(|x|, 1e-20))`,
    code of `x * scale`.

    Shapes: x f32[R, D]; backward 0 (4 exponent bits, bias 15, largest 0.9375) or 1 (5, 31, 0.875);
    out u8[R, W], W = D rounded up to 4, + 8: codes, zero bytes, scale, four zero bytes. A NaN does
    not count and becomes the largest, whichever sign the machine gives it.
    Source: FBGEMM quantize_fp8_rowwise.cu (its kernel for more than 20 rows). Order: none.
    """
    flat = x.reshape(-1)
    bytes_ = out.reshape(-1)
    d = x.shape[1]
    width = out.shape[1]
    limit = _BACKWARD_LIMIT if backward else _FORWARD_LIMIT
    words = words_of(_BACKWARD) if backward else words_of(_FORWARD)
    share = max(1, RUN // max(1, d))
    for task in prange((x.shape[0] + share - 1) // share):
        for r in range(task * share, min(task * share + share, x.shape[0])):
            line = view(flat, r * d, d)
            row = view(bytes_, r * width, width)
            most = magnitude(_GPU_EPS)
            for c in range(d):
                a = magnitude(line[c])
                a = a if a <= np.int32(0x7F800000) else np.int32(0)
                most = a if a > most else most
            scale = limit / (_GPU_EPS + np.int32(most).view(np.float32))
            for c in range(d):
                y = line[c] * scale
                row[c] = np.uint8(nearest_code(y if y == y else np.float32(np.nan), words))
            for c in range(d, width):
                row[c] = 0
            put_float(row, width - 8, scale)


@parallel_kernel
def dequantize_fp8_row(codes, backward, out):
    """out = number of the code / scale.

    Shapes: codes u8[R, W], W = D rounded up to 4, + 8; backward 0 or 1; out f32[R, D]. Source: as
    `quantize_fp8_row`.
    Order: none.
    """
    flat = out.reshape(-1)
    bytes_ = codes.reshape(-1)
    d = out.shape[1]
    width = codes.shape[1]
    words = words_of(_BACKWARD) if backward else words_of(_FORWARD)
    share = max(1, RUN // max(1, d))
    for task in prange((out.shape[0] + share - 1) // share):
        for r in range(task * share, min(task * share + share, out.shape[0])):
            row = view(bytes_, r * width, width)
            line = view(flat, r * d, d)
            scale = get_float(row, width - 8)
            for c in range(d):
                line[c] = number_of_code(np.uint32(row[c]), words) / scale
