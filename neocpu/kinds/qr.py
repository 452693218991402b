"""How can a row be told by two small tables? By quotient and remainder (QR trick).

    row i of H rows, m collisions:  quotient i // m  in ceil(H/m) rows      q: C3.quotient
                                    remainder i mod m in m rows             r: C3.remainder
    vector of i:  q ∘ r, where ∘ is concat, add or mult

Every row has another pair, so that no two rows share all their numbers. Bags are pooled in each
table before they are combined, as the published code does: for bags of more than one row and
"mult" that is not the sum of the rows' products.

Source: Shi et al. 2020, arXiv 1909.02107.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neocpu.embedding.compositions import (
    Composition,
    Expanded,
    LogicalTable,
    Term,
    physical_tables,
)
from neocpu.embedding.row_maps import RowMap
from neocpu.errors import ConfigError

OPERATIONS = {"concat": "copy", "add": "add", "mult": "multiply"}


@dataclass(frozen=True)
class QrKeys:
    """Keys of a table of kind "qr".

    collisions : m, rows that share a quotient. operation : concat: side by side; add; mult:
    number by number.
    """

    collisions: int = 4
    operation: str = "mult"


def expand(tables: Sequence[LogicalTable]) -> list[Expanded]:
    """The two tables of each. Raises ConfigError for an odd dim with concat, or an operation that
    is not known.
    """
    return [_expand(table) for table in tables]


def _expand(table: LogicalTable) -> Expanded:
    spec = table.spec
    keys: QrKeys = table.keys
    if keys.operation not in OPERATIONS:
        raise ConfigError(
            f"tables.{spec.name}.operation: {keys.operation!r} is unknown; choose one of "
            f"{', '.join(OPERATIONS)}"
        )
    if keys.operation == "concat" and spec.dim % 2:
        raise ConfigError(
            f"tables.{spec.name}.dim: {spec.dim} cannot be halved; with operation concat the two "
            "tables have half of the columns each"
        )
    dim = spec.dim // 2 if keys.operation == "concat" else spec.dim
    m = max(1, min(keys.collisions, spec.rows))
    quotients = -(-spec.rows // m)
    parts = [
        replace(
            spec,
            name=f"{spec.name}.{name}",
            rows=rows,
            dim=dim,
            maps=(RowMap("digit", spec.rows, divisor=divisor, modulus=rows),) * len(spec.features),
        )
        for name, rows, divisor in (("quotient", quotients, m), ("remainder", m, 1))
    ]
    terms = tuple(
        tuple(Term(part.name, place) for part in parts) for place in range(len(spec.features))
    )
    operation = OPERATIONS[keys.operation]
    return Expanded(physical_tables(spec, parts), Composition(spec.name, terms, operation))
