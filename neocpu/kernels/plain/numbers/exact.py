"""How is a sum of fp32 numbers rounded once? An fp64 sum is exact where the exponents of the terms
lie close together; elsewhere the terms are added as integers, in limbs of 32 bits.

A sum of m terms with nonzero biased exponents in [low, high] fits the 53 bits of fp64 where
ceil(log2 m) + high - low <= 29: every partial sum is a multiple of the smallest term's last bit
(docs/arithmetic.md §3). Integers have no such limit and no order (Kulisch).
"""

import math

import numpy as np

from neocpu.kernels.compile.jit import inlined

LIMBS = 11  # 32 bits each, the lowest bit being 2^-149: room for 2^31 terms below 2^128
MASK = 0xFFFFFFFF
MAGNITUDE = np.uint32(0x7FFFFFFF)
NOTHING = (np.uint32(0xFFFFFFFF), np.uint32(0))  # the range of no numbers
NAN = np.uint32(0x7FC00000).view(np.float32)


@inlined
def widen(words, low, high):
    """(low, high): least and largest magnitude of the numbers so far, with these fp32 bits too.

    Both are bit patterns; low is one less, so that a zero wraps round and is the largest of all.
    """
    for c in range(words.size):
        magnitude = words[c] & MAGNITUDE
        low = min(low, np.uint32(magnitude - np.uint32(1)))
        high = max(high, magnitude)
    return low, high


@inlined
def certain(terms, low, high):
    """Is every fp64 sum of `terms` terms of this range exact, or infinite or NaN anyway?"""
    lowest = max((np.int64(low) + 1) >> 23, 1)  # subnormals have the exponent 1
    highest = np.int64(high) >> 23
    log2_terms = 0
    while 1 << log2_terms < terms:
        log2_terms += 1
    return highest == 255 or log2_terms + highest - lowest <= 29


@inlined
def rounded(total):
    """An exact fp64 sum as fp32: one NaN, and +0 for zero."""
    result = np.float32(total + 0.0)
    return result if result == result else NAN


@inlined
def add_term(limbs, word):
    """limbs i64[LIMBS] += the finite fp32 number with the bits `word`."""
    bits = np.int64(word)
    exponent = (bits >> 23) & 255
    mantissa = bits & 0x7FFFFF
    if exponent:
        mantissa |= 0x800000
        exponent -= 1
    if bits >> 31:
        mantissa = -mantissa
    shifted = mantissa << (exponent % 32)
    limbs[exponent // 32] += shifted & MASK
    limbs[exponent // 32 + 1] += shifted >> 32


@inlined
def carry(limbs):
    """The same sum with every limb but the last in [0, 2^32)."""
    for k in range(LIMBS - 1):
        limbs[k + 1] += limbs[k] >> 32
        limbs[k] &= MASK


@inlined
def round_limbs(limbs):
    """The fp32 number nearest to the sum, ties to even; `limbs` are used up."""
    carry(limbs)
    sign = 1.0
    if limbs[LIMBS - 1] < 0:
        sign = -1.0
        for k in range(LIMBS):
            limbs[k] = -limbs[k]
        carry(limbs)
    top = LIMBS - 1
    while top > 0 and limbs[top] == 0:
        top -= 1
    # The highest 33 to 64 bits, cut to the 53 of fp64. Of what lies below them, only whether it is
    # nothing matters: the last bit says so, and lies below the rounding bit of fp32.
    head = np.uint64(limbs[top]) << np.uint64(32)
    if top:
        head |= np.uint64(limbs[top - 1])
    cut = 11 if head >> np.uint64(53) else 0
    below = head & np.uint64((1 << cut) - 1) != np.uint64(0)
    for k in range(top - 1):
        below |= limbs[k] != 0
    kept = np.float64((head >> np.uint64(cut)) | np.uint64(below))
    return np.float32(sign * math.ldexp(kept, 32 * (top - 1) + cut - 149))
