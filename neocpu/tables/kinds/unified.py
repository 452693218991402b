"""Can all features share one table? Each looks it up by hashes of its own.

    row i of table f, chunk j of c:  row mix(salt "f:j", i) mod M of the shared table
    vector of i:                     its c rows of dim / c columns, side by side

The shared table has M rows, however many rows the tables have that live in it. Salts differ, so
rows that meet in one chunk, of two tables or of one, are apart in the next.

Its rows start as those of one full table would, of all rows of these tables.

Several shared tables: a config names them by `table`, or has `shared_tables` of one name, among
which the lookups go round: chunk by chunk, table by table.

Source: Coleman et al. 2023, arXiv 2305.12102 (Unified Embedding, feature multiplexing).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from neocpu.core.errors import ConfigError
from neocpu.tables.specs.compositions import (
    Composition,
    Expanded,
    LogicalTable,
    Term,
)
from neocpu.tables.specs.specs import RowMap, Start
from neocpu.tables.specs.table_keys import check_compression


@dataclass(frozen=True)
class UnifiedKeys:
    """Keys of a table of kind "unified"; all but `chunks` are those of the shared table, the same
    for all that live in it.

    table : name of the shared table.
    shared_rows : M, its rows (0: by `compression`).
    shared_tables : how many of them the lookups go round; of several, the first is called shared.0.
    chunks : c, lookups of each row, dim / c columns each.
    compression : memory of the tables that live there, if they were full, over that of the shared
        ones (0: not set).
    """

    table: str = "shared"
    shared_rows: int = 0
    shared_tables: int = 1
    chunks: int = 1
    compression: float = 0.0


def expand(tables: Sequence[LogicalTable]) -> list[Expanded]:
    """Shared tables, which stand in the place of the first table that lives in them, and how the
    vectors of all are composed of theirs.

    Raises ConfigError for a dim that has not so many chunks, and tables that do not agree.
    """
    groups: dict[str, list[LogicalTable]] = {}
    for table in tables:
        groups.setdefault(table.keys.table, []).append(table)
    expanded: dict[str, Expanded] = {}
    for members in groups.values():
        expanded |= _share(members)
    return [expanded[table.spec.name] for table in tables]


def _share(tables: Sequence[LogicalTable]) -> Mapping[str, Expanded]:
    """The tables of one name of shared tables, by their names."""
    _check(tables)
    keys: UnifiedKeys = tables[0].keys
    spec = tables[0].spec
    columns = spec.dim // keys.chunks
    rows = _shared_rows(tables, columns)
    lookups = sum(table.keys.chunks for table in tables)
    if keys.shared_tables > lookups:
        raise ConfigError(
            f"tables.{spec.name}.shared_tables: {keys.shared_tables} is more than the {lookups} "
            "chunks of all tables that live there, so some would have no lookups"
        )
    names = [keys.table]
    if keys.shared_tables > 1:
        names = [f"{keys.table}.{number}" for number in range(keys.shared_tables)]
    features: dict[str, list[str]] = {name: [] for name in names}
    maps: dict[str, list[RowMap]] = {name: [] for name in names}
    compositions = []
    turn = 0
    for table in tables:
        terms: list[list[Term]] = [[] for _ in table.spec.features]
        for chunk in range(table.keys.chunks):
            # in turn, so that lookups are spread evenly over the shared tables
            name = names[turn % len(names)]
            turn += 1
            salt = f"{table.spec.name}:{chunk}"
            for place, feature in enumerate(table.spec.features):
                terms[place].append(Term(name, len(features[name])))
                features[name].append(feature)
                maps[name].append(RowMap("salted", table.spec.rows, modulus=rows, salt=salt))
        compositions.append(Composition(table.spec.name, tuple(map(tuple, terms))))
    shared = [
        replace(
            spec,
            name=name,
            rows=rows,
            dim=columns,
            features=tuple(features[name]),
            maps=tuple(maps[name]),
            start=Start(0.0, 1.0 / math.sqrt(sum(table.spec.rows for table in tables))),
        )
        for name in names
        if features[name]
    ]
    physical = tuple(shared)
    return {
        composition.table: Expanded(() if number else physical, composition)
        for number, composition in enumerate(compositions)
    }


def _shared_rows(tables: Sequence[LogicalTable], columns: int) -> int:
    """Rows of each shared table. Raises ConfigError where neither key says them."""
    keys: UnifiedKeys = tables[0].keys
    key = f"tables.{tables[0].spec.name}"
    if bool(keys.shared_rows) == bool(keys.compression):
        raise ConfigError(
            f"{key}.shared_rows: say how many rows the shared table {keys.table!r} has, for "
            f"example tables.default.shared_rows = 100_000, or tables.default.compression = 10, "
            "not both"
        )
    if keys.shared_rows:
        return keys.shared_rows
    numbers = sum(table.spec.rows * table.spec.dim for table in tables)
    return max(1, math.floor(numbers / keys.compression / columns / keys.shared_tables))


def _check(tables: Sequence[LogicalTable]) -> None:
    """Raise ConfigError unless the tables can live in one shared table."""
    for table in tables:
        spec = table.spec
        chunks = table.keys.chunks
        check_compression(spec.name, table.keys.compression)
        if not 0 < chunks <= spec.dim or spec.dim % chunks:
            raise ConfigError(
                f"tables.{spec.name}.chunks: {chunks} chunks of one width do not make "
                f"{spec.dim} columns"
            )
        if table.keys.shared_tables < 1 or not table.keys.table:
            key = "table" if table.keys.shared_tables else "shared_tables"
            raise ConfigError(f"tables.{spec.name}.{key}: there must be a shared table")
    first = tables[0]
    for table in tables[1:]:
        for name, value, expected in _shared_facts(table, first):
            if value != expected:
                raise ConfigError(
                    f"tables.{table.spec.name}.{name}: {value}, but that of table "
                    f"{first.spec.name!r} is {expected}; both live in the shared table "
                    f"{first.keys.table!r}: write tables.default.{name}, or another name of a "
                    "shared table"
                )


def _shared_facts(table: LogicalTable, first: LogicalTable) -> list[tuple[str, object, object]]:
    """(name, of a table, of the first) of all that must agree."""
    facts = [
        (name, getattr(table.spec, name), getattr(first.spec, name))
        for name in ("pooling", "weighted", "format", "rounding")
    ]
    facts += [
        (name, getattr(table.keys, name), getattr(first.keys, name))
        for name in ("shared_rows", "shared_tables", "compression")
    ]
    widths = [member.spec.dim // member.keys.chunks for member in (table, first)]
    return [*facts, ("chunks", _columns_text(widths[0]), _columns_text(widths[1]))]


def _columns_text(columns: int) -> str:
    return f"dim / chunks = {columns}"
