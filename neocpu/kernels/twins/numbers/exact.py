"""What is the exact sum of some fp32 numbers? A whole number: every fp32 number is so many times
2^-149.

Python's integers have no width, so they add without error; one rounding at the end gives the fp32
result, ties to even. No words of fp64 (`docs/arithmetic.md` §3). Also right for fp64 words that are
such sums.
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

UNIT = 149  # fp32 numbers are multiples of 2^-149
EXACT_BITS = 53  # of whole numbers that fp64 holds


def whole(x: float) -> int:
    """x in units of 2^-149; x must be finite and a multiple."""
    # exact, whatever the exponent: `x * 2**149` could overflow
    numerator, denominator = float(x).as_integer_ratio()
    count, rest = divmod(numerator << UNIT, denominator)
    assert rest == 0, f"{x} is no sum of fp32 numbers"
    return count


def rounded(count: int, bits: int = 24) -> float:
    """count * 2^-149 rounded to `bits` bits, ties to even; beyond the fp32 range (for 24 bits)
    infinite.
    """
    size = abs(count)
    shift = max(0, size.bit_length() - bits)
    kept = size >> shift
    rest = size & ((1 << shift) - 1)
    half = 1 << shift >> 1
    if shift and (rest > half or (rest == half and kept & 1)):
        kept += 1
    # after rounding: what rounds up to 2^128 is infinite, as in IEEE-754
    if bits == 24 and kept << shift >= 1 << (128 + UNIT):
        return math.copysign(math.inf, count)
    return math.ldexp(math.copysign(kept, count), shift - UNIT) if kept else 0.0


def exact_sum(terms: Iterable[float], bits: int = 24) -> float:
    """Sum of the terms, rounded once to `bits` bits; +0 for none; NaN and infinities as in
    `docs/arithmetic.md` §3.
    """
    numbers = [float(x) for x in terms]
    special = [x for x in numbers if not math.isfinite(x)]
    if special:
        # one kind of infinity is the sum; both, or a NaN (which is equal to nothing), give NaN
        return special[0] if len(set(special)) == 1 else math.nan
    return rounded(sum(map(whole, numbers)), bits)


def exact_sums(terms: NDArray[np.float32]) -> NDArray[np.float32]:
    """The `exact_sum` of every column of fp32 terms [m, width], in less time.

    Whole numbers of 64 bits take the place of Python's where they hold all terms of a column.
    """
    fraction, exponent = _parts(terms)
    lowest = np.where(fraction != 0, exponent, 255).min(axis=0, initial=255)
    highest = np.where(fraction != 0, exponent, 0).max(axis=0, initial=0)
    room = EXACT_BITS - 24 - len(terms).bit_length()
    short = (highest - lowest <= room) & np.isfinite(terms).all(axis=0)
    # columns that are not `short` may wrap round: they are replaced below
    with np.errstate(over="ignore"):
        units = (fraction << np.where(short, exponent - lowest, 0).clip(0)).sum(axis=0)
        sums = np.ldexp(units.astype(np.float64), lowest - UNIT).astype(np.float32)
    sums[~short] = [exact_sum(column) for column in terms.T[~short]]
    return sums


def _parts(x: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Fraction and exponent of x = fraction * 2^(exponent - 149), of finite fp32 numbers."""
    codes = np.ascontiguousarray(x).view(np.uint32)
    exponent = (codes >> 23 & 255).astype(np.int64)
    size = (codes & 0x7FFFFF).astype(np.int64) | (exponent > 0).astype(np.int64) << 23
    # subnormal numbers are multiples of the same unit as the smallest normal ones
    return np.where(codes >> 31, -size, size), np.maximum(exponent - 1, 0)
