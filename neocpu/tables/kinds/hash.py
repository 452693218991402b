"""How can many rows share few? By a hash that says which.

    row i of H rows -> row mod(i, M) of M rows                 hash = "mod"
                       row salted_k(i) of M rows, k < hashes   hash = "salted"
    vector of i     =  sum over k of sign_k(i) * row of hash k

All hashes look into one table of M rows (as Bloom embeddings and hash embeddings do): two rows of
the logical table are one only where all their hashes agree. With `signed`, a hash of its own gives
each lookup the weight 1 or -1, so that rows that share a physical one disturb each other with a
mean of 0. Pooling commutes with the sum; each hash is pooled by itself and added at home.

Initial values: a full table of H rows starts with variance 1 / (3 H). A sum of k rows that are
uniform in [-b, b) has variance k b^2 / 3, which is that where b = 1 / sqrt(k H).

Parameters: M dim.

Sources: Weinberger et al. 2009 (signed hashing); Serrà and Karatzoglou 2017 (Bloom embeddings);
Svenstrup et al. 2017 (hash embeddings, without their weights of hashes).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from neocpu.core.errors import ConfigError
from neocpu.tables.specs.compositions import (
    COPY,
    Composition,
    Expanded,
    LogicalTable,
    Term,
)
from neocpu.tables.specs.specs import RowMap, Start, TableSpec
from neocpu.tables.specs.table_keys import check_choice, check_compression

MOD = "mod"
SALTED = "salted"
HASHES = (MOD, SALTED)
MOST_HASHES = 16


@dataclass(frozen=True)
class HashKeys:
    """Keys of a table of kind "hash"; either `hash_rows` or `compression` says how small it is.

    hash_rows : M, rows that are kept.
    compression : how many times fewer those are than the rows of the table (0: not set).
    hashes : of each row, whose vectors are added.
    signed : whether a hash gives each of them a sign.
    hash : mod: the number of the row mod M; salted: another hash for every table and every one of
        its hashes.
    """

    hash_rows: int = 0
    compression: float = 0.0
    hashes: int = 1
    signed: bool = False
    hash: str = SALTED


def expand(tables: Sequence[LogicalTable]) -> list[Expanded]:
    """The table of hashed rows of each. Raises ConfigError for keys that do not fit together."""
    return [_expand(table) for table in tables]


def _expand(table: LogicalTable) -> Expanded:
    spec = table.spec
    keys: HashKeys = table.keys
    _check(spec, keys)
    rows = keys.hash_rows or max(1, int(spec.rows / keys.compression))
    rows = min(rows, spec.rows)
    features = len(spec.features)
    part = replace(
        spec,
        name=f"{spec.name}.hashed",
        rows=rows,
        features=spec.features * keys.hashes,
        maps=tuple(
            row_map
            for number in range(keys.hashes)
            for row_map in [_row_map(spec, keys, rows, number)] * features
        ),
        start=Start(0.0, 1.0 / math.sqrt(keys.hashes * spec.rows)),
    )
    terms = tuple(
        tuple(Term(part.name, number * features + place) for number in range(keys.hashes))
        for place in range(features)
    )
    operation = COPY if keys.hashes == 1 else "add"
    return Expanded((part,), Composition(spec.name, terms, operation))


def _row_map(spec: TableSpec, keys: HashKeys, rows: int, hash_number: int) -> RowMap:
    rule = "digit" if keys.hash == MOD else "salted"
    # of the table's name: rows that collide in one table need not in the next
    salt = f"{spec.name}:{hash_number}"
    return RowMap(rule, spec.rows, modulus=rows, salt=salt, signed=keys.signed)


def _check(spec: TableSpec, keys: HashKeys) -> None:
    key = f"tables.{spec.name}"
    check_choice(spec.name, "hash", keys.hash, HASHES)
    check_compression(spec.name, keys.compression)
    if bool(keys.hash_rows) == bool(keys.compression):
        raise ConfigError(
            f"{key}.hash_rows: set either hash_rows, the rows that are kept, or compression, how "
            "many times fewer they are"
        )
    if not 1 <= keys.hashes <= MOST_HASHES:
        raise ConfigError(f"{key}.hashes: {keys.hashes} should be 1 to {MOST_HASHES}")
    if keys.hash == MOD and keys.hashes > 1:
        raise ConfigError(
            f"{key}.hashes: mod is one hash only; for {keys.hashes} set hash to {SALTED}"
        )
