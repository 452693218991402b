"""Which random number belongs to (seed, purpose, tensor, row, column, step)?

The plain twin of `kernels/numbers/philox.py`, and the keys: the key of a tensor mixes the seed, the
purpose and the tensor's name, so two tensors, or two uses of one tensor, never share a stream
(`docs/arithmetic.md` §9).
"""

import numpy as np

# purposes of random numbers
INIT = 1
STOCHASTIC_ROUNDING = 2
BLOCK_PERMUTATION = 3
WINDOW_PERMUTATION = 4
GENERATOR = 5
LEAVING = 6
DENSE_ROUNDING = 7  # operands of products
SEARCH = 16  # noise of a search's samples
FIT = 17  # order of a fit's samples

_MASK64 = (1 << 64) - 1


def splitmix64(x: int) -> int:
    """One step of SplitMix64 on a Python integer in [0, 2^64)."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK64
    return x ^ (x >> 31)


def fnv1a64(text: str) -> int:
    """FNV-1a, 64 bits, of the UTF-8 bytes of `text`."""
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 & _MASK64
    return h


def feature_key(seed: int, feature: str) -> np.uint64:
    """Key of a feature in the row hash: splitmix64(seed ^ FNV1a64(feature))."""
    # the feature's name is part of it: equal codes of two features go to different rows
    return np.uint64(splitmix64(seed % 2**64 ^ fnv1a64(feature)))


def tensor_key(seed: int, purpose: int, name: str) -> np.uint64:
    """Philox key of a tensor for one purpose: key word 0 in the low half, 1 in the high half."""
    h = splitmix64(seed & _MASK64)
    h = splitmix64(h ^ purpose)
    return np.uint64(splitmix64(h ^ fnv1a64(name)))


def _philox4x32(key: np.uint64, row: np.ndarray, block: np.ndarray, step: int) -> np.ndarray:
    """Words u32[4, ...] of the broadcast (row, block): ten rounds on whole arrays of uint64."""
    low = np.uint64(0xFFFFFFFF)
    row, block = np.broadcast_arrays(row.astype(np.uint64), block.astype(np.uint64))
    c = [
        row & low,
        row >> np.uint64(32),
        block & low,
        np.full(row.shape, step & 0xFFFFFFFF, np.uint64),
    ]
    k0 = int(key) & 0xFFFFFFFF
    k1 = int(key) >> 32
    for _ in range(10):
        a = c[0] * np.uint64(0xD2511F53)
        b = c[2] * np.uint64(0xCD9E8D57)
        c = [
            b >> np.uint64(32) ^ c[1] ^ np.uint64(k0),
            b & low,
            a >> np.uint64(32) ^ c[3] ^ np.uint64(k1),
            a & low,
        ]
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c).astype(np.uint32)


def words_at(key: np.uint64, rows: np.ndarray, columns: np.ndarray, step: int) -> np.ndarray:
    """Word u32[u, c] of every (row, column)."""
    words = _philox4x32(key, rows[:, None], (columns // 4)[None, :], step)
    return np.take_along_axis(words, (columns % 4)[None, None, :], axis=0)[0]


def uniform_rows(key, rows, column0, scale, out):
    """Initial values of some rows of a tensor; see `kernels.numbers.philox.uniform_rows`."""
    words = words_at(key, rows, column0 + np.arange(out.shape[1]), 0)
    # 24 bits: fp32 holds them exactly, so nothing is rounded before the product
    factor = (words >> np.uint32(8)).astype(np.float64) / 2.0**23 - 1.0
    out[:] = factor.astype(np.float32) * np.float32(scale)


def random_words(key, row0, column0, step, out):
    """Raw 32-bit words of consecutive rows and columns.

    See `kernels.numbers.philox.random_words`.
    """
    rows, width = out.shape
    blocks = np.arange(column0 // 4, (column0 + width + 3) // 4)
    words = _philox4x32(key, (row0 + np.arange(rows))[:, None], blocks[None, :], step)
    lines = words.transpose(1, 2, 0).reshape(rows, 4 * blocks.size)
    out[:] = lines[:, column0 % 4 :][:, :width]


def random_words64(key, rows, column, step, out):
    """One 64-bit random word per row: the words of `column` (low half) and `column + 1`.

    Shapes: key uint64; rows i64[n]; column i64, even; step i64; out u64[n].
    Source: docs/arithmetic.md §9.
    """
    pair = words_at(key, rows, column + np.arange(2), step).astype(np.uint64)
    out[:] = pair[:, 0] + (pair[:, 1] << np.uint64(32))
