"""How are rows of small floats written and read, element by element?

To nearest even, stochastically, or as FBGEMM does it. A small float is described by five words
(`core.formats.SmallFloat.words`), so fp16, bf16, both fp8 and HFP8 share one loop. The arithmetic
of one element is in `simd/small_floats.py`; LLVM makes vectors of it. Formats and golden bytes:
`docs/formats.md`.

Stochastic rounding takes its random word from (table, row, column, step) alone, so any plan, thread
count or order of rows gives the same bits: x goes up iff word / 2^32 + fraction >= 1, with the
fraction of the way to the upper neighbour.
"""

import numpy as np
from numba import prange

from neocpu.kernels.compile.jit import inlined, parallel_kernel
from neocpu.kernels.numbers.philox import philox4x32
from neocpu.kernels.simd.bags import view
from neocpu.kernels.simd.small_floats import (
    half_up_code,
    magnitude,
    nearest_code,
    number_of_code,
    random_code,
    truncated_code,
    with_noise,
)

RUN = 1 << 14  # elements of one task
# rounding modes besides nearest (0) and stochastic (1), core/codecs.py
TRUNCATE = 2
HALF_UP = 3
FBGEMM = 4
_TOP = 0x7FFFFFFF


@inlined
def words_of(layout):
    """The words int32 that `simd/small_floats.py` takes, of a layout i64[5]."""
    bits = layout[0]
    m = layout[1]
    bias = layout[2]
    kind = layout[3]
    limit = layout[4]
    # kind 1 is IEEE-754: the topmost exponent is infinity and NaN; e4m3fn has one NaN, HFP8 neither
    over = (1 << (bits - 1)) - (1 << m) if kind == 1 else (1 << (bits - 1)) - 1
    quiet = over + (1 << (m - 1)) if kind == 1 else over
    return (
        np.int32(23 - m),
        np.int32((127 - bias) << 23),
        np.int32((128 - bias) << 23),
        np.int32((151 - bias - m) << 23),
        np.int32(_TOP if kind == 2 else over),
        np.int32(quiet),
        np.int32(limit if kind == 2 else _TOP),
        np.int32(32 - bits),
        np.int32(m),
    )


@inlined
def largest_of(words):
    """int32 bits of the largest finite number of a format."""
    top = np.int32(_TOP)
    return top if words[4] == top else magnitude(number_of_code(np.uint32(words[4] - 1), words))


@inlined
def draw_words(key, row, column0, step, words):
    """words[c] = the random word u32 of column column0 + c, c < words.size, which is 0 or more past
    a multiple of 4.

    `column0` is a multiple of 4 and `words` as long as whole blocks of 4 columns.
    """
    # Philox gives four words at once: columns are drawn in blocks of the whole table, so that a
    # shard of some columns draws the same ones
    for block in range(words.size // 4):
        a, b, c, d = philox4x32(key, row, np.uint64(column0 // 4 + block), step)
        words[4 * block] = np.uint32(a)
        words[4 * block + 1] = np.uint32(b)
        words[4 * block + 2] = np.uint32(c)
        words[4 * block + 3] = np.uint32(d)


@parallel_kernel
def encode_rows(x, layout, rounding, out):
    """out = codes of x: nearest even (rounding 0), towards zero (2), or half up on the bits, bf16
    only (3).

    Shapes: x f32[R, D]; layout i64[5]; out u16 or u8 [R, D]. Half up is FBGEMM's bf16: of a tie it
    keeps the larger magnitude, and it adds to NaN as to any number, so 0x7fffffff becomes -0 and
    0x7f800001 infinity.
    Source: IEEE 754-2019; OCP 8-bit floats; arXiv 1905.12322; FBGEMM's FloatToBfloat16. Order:
    none.
    """
    words = words_of(layout)
    flat = x.reshape(-1)
    codes = out.reshape(-1)
    top = largest_of(words)
    for task in prange((flat.size + RUN - 1) // RUN):
        n = min(RUN, flat.size - task * RUN)
        line = view(flat, task * RUN, n)
        to = view(codes, task * RUN, n)
        # asked once for a run, so that LLVM makes vectors of each loop
        if rounding == HALF_UP:
            for i in range(n):
                to[i] = half_up_code(line[i])
        elif rounding == TRUNCATE:
            for i in range(n):
                to[i] = truncated_code(line[i], top, words)
        else:
            for i in range(n):
                to[i] = nearest_code(line[i], words)


@parallel_kernel
def encode_rows_randomly(x, layout, rounding, key, rows, column0, step, out):
    """out = codes of x, each one of its two neighbours at random (rounding 1), or FBGEMM's trick
    for fp16 (4).

    Shapes: x f32[R, D]; layout i64[5]; key uint64; rows i64[R] row numbers; column0 i64, the column
    of x[:, 0]; step i64; out u16 or u8 [R, D]. Numbers of the format never move, and beyond its
    largest one rounding is to nearest even. The trick adds 13 random bits below the mantissa and
    truncates: wrong for subnormals, infinity becomes NaN.
    Source: docs/arithmetic.md §9; FBGEMM's stochastic_rounding_scalar. Order: none.
    """
    words = words_of(layout)
    flat = x.reshape(-1)
    codes = out.reshape(-1)
    d = x.shape[1]
    top = largest_of(words)
    # a shard may begin inside a block of four words: those before it are drawn and left out
    before = np.int64(column0) % 4
    first = np.int64(column0) - before
    blocks = (before + d + 3) // 4
    share = max(1, RUN // max(1, d))
    for task in prange((x.shape[0] + share - 1) // share):
        drawn = np.empty(4 * blocks, np.uint32)
        word = view(drawn, before, d)
        for r in range(task * share, min(task * share + share, x.shape[0])):
            draw_words(np.uint64(key), np.uint64(rows[r]), first, np.uint64(step), drawn)
            line = view(flat, r * d, d)
            to = view(codes, r * d, d)
            if rounding == FBGEMM:
                for c in range(d):
                    to[c] = truncated_code(with_noise(line[c], word[c]), top, words)
            else:
                for c in range(d):
                    to[c] = random_code(line[c], word[c], top, words)


@parallel_kernel
def decode_rows(codes, layout, out):
    """out = the numbers of the codes, exactly; NaN becomes sign and 0x7fc00000.

    Shapes: codes u16 or u8 [R, D]; layout i64[5]; out f32[R, D]. Source: as `encode_rows`. Order:
    none.
    """
    words = words_of(layout)
    flat = codes.reshape(-1)
    numbers = out.reshape(-1)
    for task in prange((flat.size + RUN - 1) // RUN):
        n = min(RUN, flat.size - task * RUN)
        line = view(flat, task * RUN, n)
        to = view(numbers, task * RUN, n)
        for i in range(n):
            to[i] = number_of_code(np.uint32(line[i]), words)
