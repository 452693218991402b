"""Which numbers of rows tell all rows of a table by the digits of their numbers? In whole numbers,
so that they hold for any table.
"""

import math
from collections.abc import Sequence


def pair_of(rows: int, collisions: int = 0, compression: float = 0.0) -> tuple[int, int]:
    """(m, ceil(rows / m)): remainders and quotients of m collisions.

    compression : where given, about the least m for which both together are at most rows /
    compression; where there is none, that for which they are fewest.
    """
    m = min(collisions, rows)
    if compression:
        # m + ceil(rows / m) falls up to the root
        low = 1
        high = max(1, math.isqrt(rows - 1) + 1)
        while low < high:
            middle = (low + high) // 2
            if middle + -(-rows // middle) <= rows / compression:
                high = middle
            else:
                low = middle + 1
        m = low
    return m, -(-rows // m)


def balanced(rows: int, count: int) -> tuple[int, ...]:
    """`count` radices, r or r - 1 each, whose product is at least `rows`, with the least r."""
    radix = 1
    while radix**count < rows:
        radix *= 2
    low = radix // 2
    while radix - low > 1:
        middle = (low + radix) // 2
        if middle**count < rows:
            low = middle
        else:
            radix = middle
    fewer = 0
    while fewer < count and radix ** (count - fewer - 1) * (radix - 1) ** (fewer + 1) >= rows:
        fewer += 1
    return (*(radix,) * (count - fewer), *(radix - 1,) * fewer)


def coprime(sizes: Sequence[int]) -> tuple[int, ...]:
    """Numbers at or next above these, in order, none of which has a divisor in common with those
    before it.
    """
    moduli: list[int] = []
    for size in sizes:
        modulus = size
        while any(math.gcd(modulus, other) > 1 for other in moduli):
            modulus += 1
        moduli.append(modulus)
    return tuple(moduli)
