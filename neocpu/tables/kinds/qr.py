"""How can a row be told by a few small tables? By digits of its number (QR trick).

    row i of H rows, m collisions:  quotient i // m  in ceil(H/m) rows      q: C3.quotient
                                    remainder i mod m in m rows             r: C3.remainder
    vector of i:  q ∘ r, where ∘ is concat, add or mult

Every row has another pair, so that no two rows share all their numbers. The same holds of more
than two digits, in parts C3.digit1, C3.digit2, ...:

    scheme "radix"  digit j of i is (i // (m_1 ... m_(j-1))) mod m_j, where m_1 ... m_k >= H
                    (generalised quotient and remainder)
    scheme "crt"    digit j of i is i mod m_j, where no two m_j have a common divisor
                    (Chinese remainder theorem: their product >= H tells all rows)

Digits are divided out in whole numbers (i64), at any number of rows.

Order of pooling and composing. combine = "bags": bags are pooled in each table first, where they
are kept, and the pooled vectors are composed, as the published code does. For concat and add that
is the sum of the bag's composed rows; for mult it is not, where a bag has more than one row.
combine = "rows": rows are composed lookup by lookup, and then pooled, at the home of the sample:
the formula of the paper, for more bytes on the way. Weights of lookups are those of all parts, with
mult of the first one only: a bag of one row with weight w is w times that row.

Initial values. A full table of H rows starts with variance s^2 = 1 / (3 H) of every number, and
so do the composed rows, where parts are uniform in mean ± b (variance b^2 / 3), independently:

    concat  b = 1 / sqrt(H), mean 0                              the numbers of a row are of a part
    add     k b^2 / 3 = s^2:  b = 1 / sqrt(k H), mean 0
    mult    the first part has mean 0, the k - 1 others mean 1 and b = 1/2, so that the first one's
            gradient is as large as a full table's, not as a product of small numbers:
            b_1^2 / 3 * (1 + 1/12)^(k-1) = s^2:  b_1 = (12/13)^((k-1)/2) / sqrt(H)

Parameters: (rows of all parts) dim, with concat (rows of all parts) dim / k.

Source: Shi et al. 2020, arXiv 1909.02107.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from neocpu.core.errors import ConfigError
from neocpu.tables.specs.compositions import (
    Composition,
    Expanded,
    LogicalTable,
    terms_of,
)
from neocpu.tables.specs.specs import RowMap, Start, TableSpec
from neocpu.tables.specs.table_keys import check_choice, check_compression


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


OPERATIONS = {"concat": "copy", "add": "add", "mult": "multiply"}
SCHEMES = ("radix", "crt")
COMBINE = ("bags", "rows")
COLLISIONS = 4
# of factors beside the first
FACTOR_MEAN = 1.0
FACTOR_BOUND = 0.5


@dataclass(frozen=True)
class QrKeys:
    """Keys of a table of kind "qr"; at most one of `collisions`, `compression`, `partitions` and
    `radices` says how a row is told (none: 4 collisions).

    collisions : m, rows that share a quotient (0: not set).
    compression : how many times fewer numbers two parts have than the full table, as far as that
        goes (0: not set).
    partitions : number of parts of about equal rows (0: not set).
    radices : rows of the parts, whose product is at least that of the table.
    scheme : radix: quotients and remainders; crt: remainders only, by numbers without common
        divisors, at or next above the rows that the other keys say.
    operation : concat: side by side; add; mult: number by number.
    combine : bags: of pooled bags, as the published code; rows: of rows, which are pooled
        afterwards (the same for bags of one).
    """

    collisions: int = 0
    compression: float = 0.0
    partitions: int = 0
    radices: tuple[int, ...] = ()
    scheme: str = "radix"
    operation: str = "mult"
    combine: str = "bags"


def expand(tables: Sequence[LogicalTable]) -> list[Expanded]:
    """The parts of each table. Raises ConfigError for keys that do not fit it."""
    return [_expand(table) for table in tables]


def _expand(table: LogicalTable) -> Expanded:
    spec = table.spec
    keys: QrKeys = table.keys
    _check(spec, keys)
    radices = _radices(spec, keys)
    count = len(radices)
    if keys.operation == "concat" and spec.dim % count:
        raise ConfigError(
            f"tables.{spec.name}.dim: {spec.dim} cannot be cut in {count}; with operation concat "
            f"the {count} tables have an equal share of the columns"
        )
    parts = [
        replace(
            spec,
            name=f"{spec.name}.{name}",
            rows=row_map.modulus,
            dim=spec.dim // count if keys.operation == "concat" else spec.dim,
            maps=(row_map,) * len(spec.features),
            start=_start(spec, keys.operation, number, count),
        )
        for number, (name, row_map) in enumerate(_digits(spec, keys, radices))
    ]
    terms = terms_of(parts, len(spec.features))
    if keys.operation == "mult":
        # in every factor, a weight would count more than once
        parts = [parts[0], *(replace(part, weighted=False) for part in parts[1:])]
    if keys.combine == "rows":
        parts = [replace(part, pooling="none") for part in parts]
    return Expanded(tuple(parts), Composition(spec.name, terms, OPERATIONS[keys.operation]))


def _digits(spec: TableSpec, keys: QrKeys, radices: Sequence[int]) -> list[tuple[str, RowMap]]:
    """Name and map of each part: of two digits by radix, the quotient first."""
    names = [f"digit{number}" for number in range(1, len(radices) + 1)]
    if keys.scheme == "crt":
        return [
            (name, RowMap("digit", spec.rows, modulus=radix)) for name, radix in zip(names, radices)
        ]
    maps = []
    divisor = 1
    for radix in radices:
        # the last digit does not reach its radix where the product is more than the rows
        rows = min(radix, -(-spec.rows // divisor))
        maps.append(RowMap("digit", spec.rows, divisor=divisor, modulus=rows))
        divisor *= radix
    if len(radices) == 2:
        return [("quotient", maps[1]), ("remainder", maps[0])]
    return list(zip(names, maps))


def _radices(spec: TableSpec, keys: QrKeys) -> tuple[int, ...]:
    """Rows of the parts, the lowest digit first. Raises ConfigError if they cannot tell all."""
    radices = keys.radices
    if keys.partitions:
        radices = balanced(spec.rows, keys.partitions)
    elif not radices:
        radices = pair_of(spec.rows, keys.collisions or COLLISIONS)
        if keys.compression:
            # rows of concat have half the columns
            row_share = 2 if keys.operation == "concat" else 1
            radices = pair_of(spec.rows, compression=keys.compression / row_share)
    if keys.scheme == "crt":
        radices = coprime(radices)
    if math.prod(radices) < spec.rows:
        raise ConfigError(
            f"tables.{spec.name}.radices: {list(radices)} tell {math.prod(radices):,} rows apart, "
            f"but there are {spec.rows:,}"
        )
    return radices


def _start(spec: TableSpec, operation: str, digit: int, count: int) -> Start:
    bound = 1.0 / math.sqrt(spec.rows)
    if operation == "add":
        return Start(0.0, bound / math.sqrt(count))
    if operation == "concat":
        return Start(0.0, bound)
    if digit:
        return Start(FACTOR_MEAN, FACTOR_BOUND)
    square = FACTOR_MEAN**2 + FACTOR_BOUND**2 / 3  # mean of a factor's square
    return Start(0.0, bound / math.sqrt(square ** (count - 1)))


def _check(spec: TableSpec, keys: QrKeys) -> None:
    key = f"tables.{spec.name}"
    check_choice(spec.name, "operation", keys.operation, OPERATIONS)
    check_choice(spec.name, "scheme", keys.scheme, SCHEMES)
    check_choice(spec.name, "combine", keys.combine, COMBINE)
    check_compression(spec.name, keys.compression)
    sizes = ("collisions", "compression", "partitions", "radices")
    present = [name for name in sizes if getattr(keys, name)]
    if len(present) > 1:
        raise ConfigError(
            f"{key}.{present[1]}: {present[0]} says already how many rows the parts have; leave "
            "one of them out, or set it to 0"
        )
    if keys.partitions and not 2 <= keys.partitions <= 16:
        raise ConfigError(f"{key}.partitions: {keys.partitions} should be 2 to 16")
    if keys.radices and (len(keys.radices) < 2 or min(keys.radices) < 2):
        raise ConfigError(
            f"{key}.radices: {list(keys.radices)} should be two or more, each above 1"
        )
