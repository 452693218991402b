"""What is the exact sum of some fp32 numbers? A whole number: every fp32 number is so many times
2^-149.

Python's integers have no width, so they add without error; one rounding at the end gives the fp32
result, ties to even. No exponent certificate, no words, no fp64 (`docs/arithmetic.md` §3). Also
right for fp64 words that are such sums.
"""

import math
from collections.abc import Iterable

UNIT = 149  # fp32 numbers are multiples of 2^-149


def whole(x: float) -> int:
    """x in units of 2^-149; x must be finite and a multiple."""
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
        return special[0] if len(set(special)) == 1 else math.nan
    return rounded(sum(map(whole, numbers)), bits)
