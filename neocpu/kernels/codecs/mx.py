"""How are 32 numbers packed into 17 bytes?

The largest number gives a power of two that all share, then seven comparisons give the code of
each. MX4 as FBGEMM lays it out for its wires: sixteen bytes of e2m1 codes, even columns in the low
nibble, then the exponent. Layout, rounding modes and an example: `docs/formats.md`.
"""

import numpy as np
from numba import prange

from neocpu.kernels.codecs.small_floats import RUN
from neocpu.kernels.compile.jit import inlined, parallel_kernel
from neocpu.kernels.numbers.philox import philox4x32
from neocpu.kernels.simd.bags import view
from neocpu.kernels.simd.small_floats import code4, magnitude, number4

# of the shared exponent (`core/codecs.py`); floor, 1, has no test of its own: it never rounds up
NEAREST = 0
EVEN = 2
STOCHASTIC = 3
CEIL = 4
BLOCK = 32  # numbers
# bytes of codes, written out: Numba 0.68 miscompiles a store to view[32 // 2] in a parallel loop
CODES = 16
BYTES = 17  # of a block, with its exponent


@inlined
def power(exponent):
    """2^exponent as fp32, -149 <= exponent <= 127."""
    # 2^-127 and below are subnormal: their bit is in the mantissa
    bits = exponent + 127 << 23 if exponent > -127 else 1 << exponent + 149
    return np.uint32(bits).view(np.float32)


@inlined
def shared_exponent(most, rounding, word):
    """Exponent of a block from the bits int64 of its largest magnitude, rounded up or down."""
    # no normal number: the least exponent that a byte can hold
    if most < 0x00800000:
        return -127
    floor = (most >> 23) - 127
    mantissa = most & 0x7FFFFF
    if rounding == NEAREST:
        up = mantissa >= 0x3504F4  # the first fp32 mantissa above the square root of 2
    elif rounding == EVEN:
        up = mantissa > 0x600000
    elif rounding == STOCHASTIC:
        up = mantissa + (word >> 10) >= 0x800000
    else:
        up = rounding == CEIL and mantissa > 0
    # - 2: the largest e2m1 number is 6, between 2^2 and 2^3
    return min(max(floor + (1 if up else 0) - 2, -127), 125)


@parallel_kernel
def quantize_mx4(x, rounding, key, rows, step, out):
    """Blocks of 32 e2m1 codes and their exponent.

    Shapes: x f32[R, D]; rounding of the shared exponent: 0 nearest logarithm, 1 floor, 2 even (up
    above 1.75), 3 stochastic, 4 ceil; key uint64, rows i64[R] row numbers, step i64 (stochastic
    only); out u8[R, 17 * ceil(D / 32)]. A row's last block is filled with zeros. Source: FBGEMM
    triton/quantize.py; OCP Microscaling Formats v1.0. Order: none.
    """
    flat = x.reshape(-1)
    bytes_ = out.reshape(-1)
    d = x.shape[1]
    width = out.shape[1]
    share = max(1, RUN // max(1, d))
    for task in prange((x.shape[0] + share - 1) // share):
        block = np.zeros(BLOCK, np.float32)
        code = np.empty(BLOCK, np.uint8)
        for r in range(task * share, min(task * share + share, x.shape[0])):
            for first in range(0, d, BLOCK):
                n = min(BLOCK, d - first)
                line = view(flat, r * d + first, n)
                to = view(bytes_, r * width + first // BLOCK * BYTES, BYTES)
                most = np.int32(0)
                # a row's last block has no other numbers; zeros do not raise its exponent
                for c in range(n, BLOCK):
                    block[c] = 0
                for c in range(n):
                    block[c] = line[c]
                    a = magnitude(line[c])
                    # NaN does not count: it would give every number of the block its exponent
                    a = a if a <= np.int32(0x7F800000) else np.int32(0)
                    most = a if a > most else most
                # one word for a block: it is the exponent that is rounded at random, not each
                # number
                word = np.int64(0)
                if rounding == STOCHASTIC:
                    word = np.int64(
                        philox4x32(
                            np.uint64(key),
                            np.uint64(rows[r]),
                            np.uint64(first // 4),
                            np.uint64(step),
                        )[0]
                    )
                exponent = shared_exponent(np.int64(most), rounding, word)
                inverse = power(-exponent)
                for c in range(BLOCK):
                    code[c] = code4(block[c], inverse)
                for k in range(CODES):
                    to[k] = code[2 * k] | code[2 * k + 1] << np.uint8(4)
                to[CODES] = np.uint8(exponent + 127)


@parallel_kernel
def dequantize_mx4(codes, out):
    """out = e2m1 value * 2^(exponent byte - 127), exactly; an exponent byte of 255 makes the block
    NaN.

    Shapes: codes u8[R, 17 * ceil(D / 32)]; out f32[R, D]. Source: as `quantize_mx4`. Order: none.
    """
    flat = out.reshape(-1)
    bytes_ = codes.reshape(-1)
    d = out.shape[1]
    width = codes.shape[1]
    share = max(1, RUN // max(1, d))
    for task in prange((out.shape[0] + share - 1) // share):
        number = np.empty(BLOCK, np.float32)
        for r in range(task * share, min(task * share + share, out.shape[0])):
            for first in range(0, d, BLOCK):
                block = view(bytes_, r * width + first // BLOCK * BYTES, BYTES)
                byte = np.int64(block[CODES])
                # 255 is OCP's NaN for the shared scale
                scale = np.float32(np.nan) if byte == 255 else power(byte - 127)
                for k in range(CODES):
                    number[2 * k] = number4(block[k]) * scale
                    number[2 * k + 1] = number4(block[k] >> np.uint8(4)) * scale
                line = view(flat, r * d + first, min(BLOCK, d - first))
                for c in range(line.size):
                    line[c] = number[c]
