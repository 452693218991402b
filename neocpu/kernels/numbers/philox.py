"""Where do random numbers come from, so that the order of drawing does not matter?

From a function of (tensor, row, column, step): Philox4x32-10 (Salmon et al., SC 2011, "Parallel
random numbers: as easy as 1, 2, 3") maps a 128-bit counter and a 64-bit key to four 32-bit words.
The key stands for the tensor and the purpose (`twins.numbers.philox.tensor_key`), the counter for
the element:

    counter = (row low 32, row high 32, column // 4, step)
    word i -> column 4 * (column // 4) + i

Any rank can draw any number, and a row of a huge table is created only when it is first used
(`docs/arithmetic.md` §9).
"""

import numpy as np
from numba import prange
from numba.extending import register_jitable

from neocpu.kernels.compile.jit import kernel, parallel_kernel

_MASK = np.uint64(0xFFFFFFFF)
_MULTIPLY_0 = np.uint64(0xD2511F53)
_MULTIPLY_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = np.uint64(0x9E3779B9)
_WEYL_1 = np.uint64(0xBB67AE85)
_U8 = np.uint64(8)
_U32 = np.uint64(32)


@register_jitable
def splitmix64(x):
    """One step of SplitMix64 (Steele, Lea, Flood 2014) as a mixing function of a uint64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@register_jitable
def philox4x32(key, row, block, step):
    """Four 32-bit random words, as uint64, of uint64 key, row, block = column // 4 and step."""
    # 64-bit words, although all are of 32 bits: their products need no second instruction for the
    # high half
    k0 = key & _MASK
    k1 = key >> _U32
    c0 = row & _MASK
    c1 = row >> _U32
    c2 = block & _MASK
    c3 = step & _MASK
    # 10 rounds: the number that passes all tests of TestU01's BigCrush with a margin (the paper's)
    for _ in range(10):
        p0 = _MULTIPLY_0 * c0
        p1 = _MULTIPLY_1 * c2
        c0 = (p1 >> _U32) ^ c1 ^ k0
        c1 = p1 & _MASK
        c2 = (p0 >> _U32) ^ c3 ^ k1
        c3 = p0 & _MASK
        k0 = (k0 + _WEYL_0) & _MASK
        k1 = (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


@register_jitable
def symmetric(word, scale):
    """fp32 in [-scale, scale): (u - 2^23) * 2^-23, which is exact, times scale; u = word >> 8."""
    return (np.float32(np.int64(word >> _U8) - 8388608) * np.float32(1.0 / 8388608.0)) * scale


@parallel_kernel
def uniform_rows(key, rows, column0, scale, out):
    """Initial values of some rows of a tensor: uniform in [-scale, scale).

    Shapes: key uint64; rows i64[u]; column0 i64, the column of out[:, 0]; scale f32; out f32[u, c].
    Source: docs/arithmetic.md §9 (step 0).
    Order: none, each element depends on its own row and column only.
    """
    columns = out.shape[1]
    first = np.int64(column0)
    for r in prange(rows.size):
        row = out[r]
        for block in range(first // 4, (first + columns + 3) // 4):
            words = philox4x32(np.uint64(key), np.uint64(rows[r]), np.uint64(block), np.uint64(0))
            column = 4 * block - first
            for i in range(4):
                if 0 <= column + i < columns:
                    row[column + i] = symmetric(words[i], scale)


@kernel
def random_words(key, row0, column0, step, out):
    """Raw 32-bit random words of consecutive rows and columns, for shuffles and generators.

    The words of an even column and the next one make a 64-bit word, low + high * 2^32.
    Shapes: key uint64; row0, column0, step i64; out u32[u, c], out[r, c] belongs to row row0 + r,
    column column0 + c.
    Source: docs/arithmetic.md §9.
    """
    columns = out.shape[1]
    first = np.int64(column0)
    for r in range(out.shape[0]):
        row = out[r]
        for block in range(first // 4, (first + columns + 3) // 4):
            words = philox4x32(
                np.uint64(key), np.uint64(row0 + r), np.uint64(block), np.uint64(step)
            )
            column = 4 * block - first
            for i in range(4):
                if 0 <= column + i < columns:
                    row[column + i] = np.uint32(words[i])
