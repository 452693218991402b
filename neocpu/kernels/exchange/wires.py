"""How do fp32 numbers travel as small codes? Encoded while they are packed into a message, decoded
while they are put in place.

Jobs are those of `exchange/blocks.py`, but a place in a message is counted in bytes:

    encode_blocks   columns of a matrix -> bytes of a message
    decode_blocks   bytes of a message  -> columns of a matrix
    round_blocks    both, for numbers that stay where they are

What one row of a job becomes is decided by a `WireCode`: fp16 and bf16 number by number; int8, int4
and fp8 in blocks of columns, each as FBGEMM writes a row of its own (`codecs/rows.py`). Limits,
NaN and the scale: `docs/arithmetic.md` §13.
"""

from typing import NamedTuple

import numpy as np
from numba import prange

from neocpu.core.formats import FP16 as FP16_FORMAT
from neocpu.core.formats import HFP8_BACKWARD, HFP8_FORWARD
from neocpu.kernels.codecs.rows import (
    get_float,
    put_float,
    put_word,
)
from neocpu.kernels.codecs.small_floats import words_of
from neocpu.kernels.compile.jit import inlined, parallel_kernel
from neocpu.kernels.simd import fma
from neocpu.kernels.simd.bags import view
from neocpu.kernels.simd.decoders import HALVES
from neocpu.kernels.simd.small_floats import (
    bfloat_bits,
    bfloat_value,
    half_bits,
    half_value,
    lowest_byte,
    magnitude,
    nearest_code,
    number_of_code,
    number_of_key,
    order_key,
)

# values of `WireCode.form`
FP16 = 0
BF16 = 1
INT8 = 2
INT4 = 3
FP8_FORWARD = 4
FP8_BACKWARD = 5

USUAL = 32  # columns of a block whose loops the compiler knows the length of: twice as fast
TASKS = 16  # slices of the rows of every job
TILE = 16  # rows that are encoded before they are decoded again, so that their codes stay in L1
_NAN = np.float32(np.nan)  # bits 0x7fc00000
_ZERO = np.float32(0)
_BYTE = np.float32(255)
_NIBBLE = np.float32(15)
_ROUND = np.float32(8388608)  # 2^23
_INFINITE = np.int32(0x7F800000)
_INT8_EPS = np.float32(1e-8)
_ONE = np.float32(1)
_HALF = FP16_FORMAT.words
_HALF_LIMIT = np.float32(65504)
_BFLOAT_LIMIT = np.uint32(0x7F7F0000).view(np.float32)
_FORWARD = HFP8_FORWARD.words
_BACKWARD = HFP8_BACKWARD.words
_FORWARD_LIMIT = np.float32(HFP8_FORWARD.limit)
_BACKWARD_LIMIT = np.float32(HFP8_BACKWARD.limit)
_FP8_EPS = np.float32(1e-20)
_FINITE = np.int32(0x7F7FFFFF)


class WireCode(NamedTuple):
    """How numbers are encoded.

    form  : FP16 .. FP8_BACKWARD
    block : columns under one header, of forms from INT8 on
    scale : f32, numbers are multiplied by it before they are encoded and divided by it afterwards
    """

    form: int
    block: int
    scale: np.float32


@inlined
def block_bytes(form, width):
    """Bytes of one block of so many columns, or of a row of fp16 or bf16."""
    if form <= BF16:
        return 2 * width
    if form == INT8:
        return width + 8
    if form == INT4:
        return (width + 1) // 2 + 4
    return (width + 3) // 4 * 4 + 8


@inlined
def clamped(x, limit):
    """x moved into [-limit, limit]; the quiet NaN for a NaN."""
    x = limit if x > limit else x
    x = -limit if x < -limit else x
    return x if x == x else _NAN


@inlined
def half_code(x):
    """uint32 fp16 code of x, clamped to infinity; NaN becomes the quiet one."""
    x = x if x == x else _NAN
    return np.uint32(half_bits(x)) if HALVES else np.uint32(nearest_code(x, words_of(_HALF)))


@inlined
def half_number(code):
    """fp32 number of an fp16 code."""
    if HALVES:
        return half_value(np.uint16(code))
    return number_of_code(np.uint32(code), words_of(_HALF))


@inlined
def block_range(line):
    """(minimum, maximum) of a block, NaN both if it has any; zeros count as +0."""
    low = np.int32(0x7FFFFFFF)
    high = np.int32(-0x80000000)
    for c in range(line.size):
        key = order_key(line[c])
        low = key if key < low else low
        high = key if key > high else high
    odd = high > _INFINITE or low < ~_INFINITE
    least = _NAN if odd else number_of_key(low) + _ZERO
    return least, _NAN if odd else number_of_key(high) + _ZERO


@inlined
def code_byte(x, low, inverse, most):
    """uint8 nearest to (x - low) * inverse, in 0 .. most; 0 for NaN."""
    v = (x - low) * inverse
    v = v if v > _ZERO else _ZERO
    v = v if v < most else most
    return lowest_byte(v + _ROUND)


@inlined
def encode_int8(line, row):
    """One block: codes, fp32 scale and bias; a header that would not be finite is NaN."""
    low, high = block_range(line)
    span = high - low
    scale = span / _BYTE
    # infinity or NaN
    if scale - scale != _ZERO:
        scale = _NAN
        low = _NAN
    inverse = _BYTE / (span + _INT8_EPS)
    for c in range(line.size):
        row[c] = code_byte(line[c], low, inverse, _BYTE)
    put_float(row, line.size, scale)
    put_float(row, line.size + 4, low)


@inlined
def encode_int4(line, row):
    """One block: packed codes, fp16 scale and bias; a header that would not be finite is NaN."""
    low, high = block_range(line)
    bias = half_code(low)
    low = half_number(bias)
    span = high - low
    scale = half_code(_ONE if span == _ZERO else span / _NIBBLE)
    inverse = _ONE / half_number(scale)
    if abs(inverse) == np.float32(np.inf):
        scale = np.uint32(0x3C00)
        inverse = _ONE
    if (scale & np.uint32(0x7FFF)) >= 0x7C00 or (bias & np.uint32(0x7FFF)) >= 0x7C00:
        scale = np.uint32(0x7E00)
        bias = scale
        low = _NAN
    pairs = line.size // 2
    for k in range(pairs):
        first = code_byte(line[2 * k], low, inverse, _NIBBLE)
        second = code_byte(line[2 * k + 1], low, inverse, _NIBBLE)
        row[k] = np.uint8(first | second << np.uint8(4))
    if line.size % 2:
        row[pairs] = code_byte(line[2 * pairs], low, inverse, _NIBBLE)
    at = (line.size + 1) // 2
    put_word(row, at, scale, 2)
    put_word(row, at + 2, bias, 2)


@inlined
def encode_fp8(line, limit, words, row):
    """One block: codes, zero bytes, fp32 scale, four zero bytes; NaN as scale where a number is not
    finite.
    """
    most = magnitude(_FP8_EPS)
    for c in range(line.size):
        a = magnitude(line[c])
        most = a if a > most else most
    end = (line.size + 3) // 4 * 4
    if most > _FINITE:
        for c in range(end):
            row[c] = 0
        put_float(row, end, _NAN)
    else:
        scale = limit / (_FP8_EPS + np.int32(most).view(np.float32))
        for c in range(line.size):
            row[c] = np.uint8(nearest_code(line[c] * scale, words))
        for c in range(line.size, end):
            row[c] = 0
        put_float(row, end, scale)
    put_float(row, end + 4, _ZERO)


@inlined
def encode_block(line, form, row):
    """One block of a form from INT8 on."""
    if form == INT8:
        encode_int8(line, row)
    elif form == INT4:
        encode_int4(line, row)
    else:
        limit = _FORWARD_LIMIT if form == FP8_FORWARD else _BACKWARD_LIMIT
        words = words_of(_FORWARD) if form == FP8_FORWARD else words_of(_BACKWARD)
        encode_fp8(line, limit, words, row)


@inlined
def decode_block(row, form, line):
    """One block of a form from INT8 on."""
    if form == INT8:
        scale = get_float(row, line.size)
        bias = get_float(row, line.size + 4)
        for c in range(line.size):
            line[c] = fma(np.float32(row[c]), scale, bias)
    elif form == INT4:
        at = (line.size + 1) // 2
        scale = half_number(np.uint32(row[at]) | np.uint32(row[at + 1]) << np.uint32(8))
        bias = half_number(np.uint32(row[at + 2]) | np.uint32(row[at + 3]) << np.uint32(8))
        for k in range(line.size // 2):
            line[2 * k] = fma(np.float32(row[k] & np.uint8(15)), scale, bias)
            line[2 * k + 1] = fma(np.float32(row[k] >> np.uint8(4)), scale, bias)
        if line.size % 2:
            line[line.size - 1] = fma(np.float32(row[at - 1]), scale, bias)
    else:
        scale = get_float(row, (line.size + 3) // 4 * 4)
        words = words_of(_FORWARD) if form == FP8_FORWARD else words_of(_BACKWARD)
        for c in range(line.size):
            line[c] = number_of_code(np.uint32(row[c]), words) / scale
    if scale != scale:
        for c in range(line.size):
            line[c] = _NAN


@inlined
def encode_floats(line, form, codes):
    """fp16 or bf16 codes u16 of a row: clamped to the largest number, then nearest even."""
    if form == BF16:
        for c in range(line.size):
            codes[c] = np.uint16(bfloat_bits(clamped(line[c], _BFLOAT_LIMIT)))
    elif HALVES:
        for c in range(line.size):
            codes[c] = np.uint16(half_bits(clamped(line[c], _HALF_LIMIT)))
    else:
        for c in range(line.size):
            codes[c] = np.uint16(nearest_code(clamped(line[c], _HALF_LIMIT), words_of(_HALF)))


@inlined
def decode_floats(codes, form, line):
    """Numbers of fp16 or bf16 codes."""
    if form == BF16:
        for c in range(line.size):
            line[c] = bfloat_value(codes[c])
    elif HALVES:
        for c in range(line.size):
            line[c] = half_value(codes[c])
    else:
        for c in range(line.size):
            line[c] = number_of_code(np.uint32(codes[c]), words_of(_HALF))


@inlined
def encode_lines(source, target, job, first, last, code):
    """Rows first .. last of a job, into a message."""
    form = code.form
    width = job[5]
    step = code.block
    size = block_bytes(form, step)
    scaled = code.scale != _ONE
    multiplied = np.empty(width if scaled else 0, np.float32)
    codes = target[: target.size // 2 * 2].view(np.uint16)
    for i in range(first, last):
        a = job[0] + i * job[1]
        b = job[2] + i * job[3]
        line = view(source, a, width)
        if scaled:
            for c in range(width):
                multiplied[c] = line[c] * code.scale
            line = view(multiplied, 0, width)
        if form <= BF16:
            encode_floats(line, form, view(codes, b // 2, width))
        else:
            for left in range(0, width, step):
                n = min(step, width - left)
                row = view(target, b + left // step * size, block_bytes(form, n))
                if n == USUAL:
                    encode_block(view(line, left, USUAL), form, row)
                else:
                    encode_block(view(line, left, n), form, row)


@inlined
def decode_lines(source, target, job, first, last, code):
    """Rows first .. last of a job, out of a message."""
    form = code.form
    width = job[5]
    step = code.block
    size = block_bytes(form, step)
    codes = source[: source.size // 2 * 2].view(np.uint16)
    for i in range(first, last):
        a = job[0] + i * job[1]
        b = job[2] + i * job[3]
        line = view(target, b, width)
        if form <= BF16:
            decode_floats(view(codes, a // 2, width), form, line)
        else:
            for left in range(0, width, step):
                n = min(step, width - left)
                row = view(source, a + left // step * size, block_bytes(form, n))
                if n == USUAL:
                    decode_block(row, form, view(line, left, USUAL))
                else:
                    decode_block(row, form, view(line, left, n))
        if code.scale != _ONE:
            for c in range(width):
                line[c] = line[c] / code.scale


@parallel_kernel
def encode_blocks(source, target, jobs, code):
    """Columns into the bytes of a message.

    Shapes: source f32[n]; target u8[m]; jobs i64[J, 6] as in `copy_blocks`, the target's two in
    bytes, even ones for fp16 and bf16; code `WireCode`. Blocks of columns are counted from the
    first column of a job.
    Source: FBGEMM quantize_comm.py; docs/arithmetic.md §13.
    Order: none; the blocks of the target must not overlap.
    """
    for task in prange(TASKS):
        for j in range(jobs.shape[0]):
            first = jobs[j, 4] * task // TASKS
            last = jobs[j, 4] * (task + 1) // TASKS
            encode_lines(source, target, jobs[j], first, last, code)


@parallel_kernel
def decode_blocks(source, target, jobs, code):
    """Bytes of a message into columns.

    Shapes: source u8[n]; target f32[m]; jobs i64[J, 6], the source's two in bytes; code `WireCode`.
    Source: as `encode_blocks`. Order: none; the blocks of the target must not overlap.
    """
    for task in prange(TASKS):
        for j in range(jobs.shape[0]):
            first = jobs[j, 4] * task // TASKS
            last = jobs[j, 4] * (task + 1) // TASKS
            decode_lines(source, target, jobs[j], first, last, code)


@parallel_kernel
def round_blocks(source, target, jobs, code):
    """Columns to columns, as a wire would leave them: encoded and decoded.

    Shapes: source f32[n]; target f32[m], or the source itself with places equal; jobs i64[J, 6] as
    in `copy_blocks`; code `WireCode`.
    Source: as `encode_blocks`. Order: none; the blocks of the target must not overlap.
    """
    for task in prange(TASKS):
        for j in range(jobs.shape[0]):
            width = jobs[j, 5]
            last = jobs[j, 4] * (task + 1) // TASKS
            row_bytes = block_bytes(code.form, code.block) * (width // code.block)
            if width % code.block:
                row_bytes += block_bytes(code.form, width % code.block)
            if code.form <= BF16:
                row_bytes = block_bytes(code.form, width)
            codes = np.empty(TILE * row_bytes, np.uint8)
            into = jobs[j].copy()
            into[2] = 0
            into[3] = row_bytes
            back = jobs[j].copy()
            back[0] = 0
            back[1] = row_bytes
            for first in range(jobs[j, 4] * task // TASKS, last, TILE):
                n = min(TILE, last - first)
                into[0] = jobs[j, 0] + first * jobs[j, 1]
                back[2] = jobs[j, 2] + first * jobs[j, 3]
                encode_lines(source, codes, into, 0, n, code)
                decode_lines(codes, target, back, 0, n, code)
