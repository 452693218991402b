"""How can a row be a product of small matrices? As an entry of a tensor train.

    row i of H = p1 p2 p3 or fewer:  i = (i1 p2 + i2) p3 + i3       D = q1 q2 q3
    vector of i:  G1[i1] G2[i2] G3[i3]    (q1 x R) (R x q2 R) (R x q3), R the rank

    C3.core1  p1 rows of q1 R numbers       C3.core2  p2 of R q2 R       C3.core3  p3 of q3 R

Rows of the logical table that share (i1, i2) share a product, which is made once for all of a batch
(EL-Rec's reuse), and the gradients of a row are merged before they go into the cores. Bags are
pooled after rows are made, at the home of the sample. Rows of core 3 are kept transposed, q3 x R.

    C3.cache  the first `cache_rows` rows, as a full table has them

are the most frequent ones where rows come from a vocabulary, which is in the order of counts. Their
lookups and gradients go there and not to the cores (TT-Rec's cache, filled before the first step:
its rows start as those of a full table do).

A table has R (p1 q1 + R p2 q2 + p3 q3) + cache_rows D parameters in place of H D.

Initial values: a number of the table is a sum of R^2 products of three numbers, so with the cores
uniform in [-b, b) its variance is R^2 (b^2/3)^3. A full table starts in [-1/sqrt(H), 1/sqrt(H)),
whose variance is 1/(3 H). The two are equal for b^2 = 3 (3 H R^2)^(-1/3).

Source: Oseledets 2011; Yin et al. 2021, arXiv 2101.11714 (TT-Rec), whose initial values are other
ones; Wang et al. 2022 (EL-Rec). The row factors of `cube_factors` give TT-Rec's size of the seven
largest Kaggle tables.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from neocpu.core.errors import ConfigError
from neocpu.tables.specs.compositions import Composition, Expanded, LogicalTable, terms_of
from neocpu.tables.specs.specs import RowMap, Start, TableSpec
from neocpu.tables.specs.table_keys import check_compression

OPERATION = "tensor_train"
CORES = ("core1", "core2", "core3")
CACHE = "cache"
MOST_COLUMNS = 2**31 - 1  # as of any table


@dataclass(frozen=True)
class TtKeys:
    """Keys of a table of kind "tt".

    rank : R of the products.
    row_factors : p1, p2, p3, whose product is the number of rows or more; none: about the cube root
        of it each.
    dim_factors : q1, q2, q3, whose product is dim; none: as near to one another as they can be.
    compression : with it, the largest rank for which the table has dim * rows / compression
        parameters or fewer; 0: rank as it is.
    cache_rows : of the first rows so many are kept as they are.
    """

    rank: int = 16
    row_factors: tuple[int, ...] = ()
    dim_factors: tuple[int, ...] = ()
    compression: float = 0.0
    cache_rows: int = 0


@dataclass(frozen=True)
class TrainShape:
    """Shape of a tensor train: p1, p2, p3; q1, q2, q3; its rank."""

    rows: tuple[int, int, int]
    dims: tuple[int, int, int]
    rank: int

    @property
    def widths(self) -> tuple[int, int, int]:
        """Numbers in a row of each core."""
        q1, q2, q3 = self.dims
        return q1 * self.rank, self.rank * q2 * self.rank, q3 * self.rank

    @property
    def parameters(self) -> int:
        """Numbers in all cores: R (p1 q1 + R p2 q2 + p3 q3)."""
        return sum(rows * width for rows, width in zip(self.rows, self.widths))


def expand(tables: Sequence[LogicalTable]) -> list[Expanded]:
    """The cores of each table. Raises ConfigError for factors that do not fit it."""
    return [_expand(table) for table in tables]


def _expand(table: LogicalTable) -> Expanded:
    spec = table.spec
    shape = shape_of(spec, table.keys)
    _, p2, p3 = shape.rows
    features = len(spec.features)
    cores = tuple(
        replace(
            spec,
            name=f"{spec.name}.{name}",
            rows=rows,
            dim=width,
            pooling="none",
            maps=(RowMap("digit", spec.rows, divisor=divisor, modulus=rows),) * features,
            start=Start(0.0, start_bound(spec.rows, shape.rank)),
        )
        for name, rows, width, divisor in zip(CORES, shape.rows, shape.widths, (p2 * p3, p3, 1))
    )
    parts = (*cores, *_cache(spec, table.keys.cache_rows))
    return Expanded(
        physical=parts,
        composition=Composition(
            table=spec.name,
            terms=terms_of(parts, features),
            operation=OPERATION,
            options=(("rows", shape.rows), ("dims", shape.dims), ("rank", shape.rank)),
        ),
    )


def _cache(spec: TableSpec, rows: int) -> list[TableSpec]:
    """The table of the first rows, if there are any."""
    if not rows:
        return []
    row_map = RowMap("range", spec.rows, modulus=rows)
    return [
        replace(
            spec,
            name=f"{spec.name}.{CACHE}",
            rows=rows,
            pooling="none",
            maps=(row_map,) * len(spec.features),
            start=spec.initial,
        )
    ]


def cube_factors(rows: int) -> tuple[int, int, int]:
    """Factors of `rows` or a little more: twice its cube root to the nearest whole number, and what
    is left.
    """
    root = max(1, round(rows ** (1 / 3)))
    # the float root may be one off: the nearest whole number is found in whole numbers
    while (2 * root - 1) ** 3 > 8 * rows and root > 1:
        root -= 1
    while (2 * root + 1) ** 3 <= 8 * rows:
        root += 1
    return root, root, -(-rows // (root * root))


def even_factors(dim: int) -> tuple[int, int, int]:
    """q1 q2 q3 = dim of the least sum; of several the one with the least q2, which core 2 pays R
    times, and then the least q1.
    """
    triples = [(q1, q2, dim // (q1 * q2)) for q1 in _divisors(dim) for q2 in _divisors(dim // q1)]
    return min(triples, key=lambda triple: (sum(triple), triple[1], triple[0]))


def _divisors(number: int) -> list[int]:
    low = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*low, *(number // divisor for divisor in low)})


def shape_of(spec: TableSpec, keys: TtKeys) -> TrainShape:
    """The tensor train of a table. Raises ConfigError for keys that do not fit it."""
    key = f"tables.{spec.name}"
    rows = _three(keys.row_factors, f"{key}.row_factors") or cube_factors(spec.rows)
    if math.prod(rows) < spec.rows:
        raise ConfigError(
            f"{key}.row_factors: {' * '.join(map(str, rows))} is {math.prod(rows)}, but the "
            f"table has {spec.rows} rows"
        )
    dims = _three(keys.dim_factors, f"{key}.dim_factors") or even_factors(spec.dim)
    if math.prod(dims) != spec.dim:
        raise ConfigError(
            f"{key}.dim_factors: {' * '.join(map(str, dims))} is {math.prod(dims)}, but the "
            f"table has {spec.dim} columns"
        )
    if not 0 <= keys.cache_rows <= spec.rows:
        raise ConfigError(f"{key}.cache_rows: {keys.cache_rows} is not in 0 ... {spec.rows}")
    if keys.rank < 1:
        raise ConfigError(f"{key}.rank: {keys.rank} is too small; it is 1 at least")
    check_compression(spec.name, keys.compression)
    shape = TrainShape(rows, dims, keys.rank)
    if max(shape.widths) > MOST_COLUMNS:
        raise ConfigError(
            f"{key}.rank: with {keys.rank} a row of a core has {max(shape.widths):,} numbers; at "
            f"most {MOST_COLUMNS:,} are possible"
        )
    if keys.compression:
        budget = spec.rows * spec.dim / keys.compression - keys.cache_rows * spec.dim
        return _compressed(f"{key}.compression", shape, budget)
    return shape


def _three(factors: Sequence[int], key: str) -> tuple[int, int, int] | None:
    if not factors:
        return None
    if len(factors) != 3 or min(factors) < 1:
        raise ConfigError(f"{key}: {list(factors)} is not three whole numbers from 1")
    first, second, third = factors
    return first, second, third


def _compressed(key: str, shape: TrainShape, budget: float) -> TrainShape:
    """The shape with the largest rank whose cores have `budget` parameters or fewer."""
    if replace(shape, rank=1).parameters > budget:
        raise ConfigError(
            f"{key}: it leaves {max(budget, 0):.0f} parameters for the cores, but with rank 1 "
            f"they have {replace(shape, rank=1).parameters}"
        )
    low = 1
    high = 2
    # parameters grow with the rank, so halving finds the largest that fits
    while replace(shape, rank=high).parameters <= budget:
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if replace(shape, rank=middle).parameters <= budget:
            low = middle
        else:
            high = middle
    return replace(shape, rank=low)


def start_bound(rows: int, rank: int) -> float:
    """Bound of the cores' uniform initial values, as derived above."""
    return math.sqrt(3.0) * (3.0 * rows * rank**2) ** (-1.0 / 6.0)
