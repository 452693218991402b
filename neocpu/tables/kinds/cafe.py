"""How can the rows that matter be kept, and all others share a few? By a sketch of hot ids (CAFE).

    row i:  hot, a row of its own       h: C3.hot, row = its place there;  C3.hash has none
            else, a shared row          s: C3.hash, row = i mod its rows;  C3.hot has none
    vector of i:  h + s, of which one is there

Every lookup adds its importance (how much it moves its row) to the score of its id in the sketch.
Every so many steps ids whose score has reached the threshold get a row of their own, which begins
as the shared one that they had, optimizer state included; ids whose score has decayed lose theirs.
Between two such decisions nothing moves. `train/step/dynamic_kinds.py` decides.

Memory: 1 / compression of the rows. hash_share of it are shared rows; the rest are hot rows, each
with a bucket of the sketch.

Source: Zhang et al. 2023, CAFE (SIGMOD 2024), and the code published with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neocpu.core.errors import ConfigError
from neocpu.tables.specs.compositions import (
    Composition,
    DynamicMap,
    Expanded,
    LogicalTable,
    terms_of,
)
from neocpu.tables.specs.specs import RowMap, numbers_bytes

ENTRY = 16  # bytes of the sketch for an id: its number, its score, its hot row


@dataclass(frozen=True)
class CafeKeys:
    """Keys of a table of kind "cafe".

    compression : the rows of the table take this many times the memory of what is kept in their
        place, sketch included.
    hash_share : part of the memory that shared rows take.
    threshold : score at which an id gets a row of its own, in lookups of mean importance.
    decay : what scores are multiplied by whenever so many lookups were seen that buckets have ten
        times the threshold each.
    slots : ids that a bucket of the sketch knows.
    every : steps from one decision to the next.
    """

    compression: float = 10.0
    hash_share: float = 0.5
    threshold: float = 20.0
    decay: float = 0.99
    slots: int = 4
    every: int = 100


def expand(tables: Sequence[LogicalTable]) -> list[Expanded]:
    """The two tables of each. Raises ConfigError for keys out of range."""
    return [_expand(table) for table in tables]


def split(rows: int, row_bytes: int, keys: CafeKeys) -> tuple[int, int]:
    """Hot rows (and buckets of the sketch), and shared rows; at least one of each.

    rows, row_bytes : of the logical table.
    """
    kept = rows / keys.compression
    # each hot row brings a bucket of the sketch, which counts as memory
    share_of_row = row_bytes / (row_bytes + ENTRY * keys.slots)
    hot = int(kept * (1.0 - keys.hash_share) * share_of_row)
    return max(1, hot), max(1, min(rows, int(kept * keys.hash_share)))


def _expand(table: LogicalTable) -> Expanded:
    spec = table.spec
    keys: CafeKeys = table.keys
    if spec.pooling == "none":
        raise ConfigError(
            f'tables.{spec.name}.pooling: "none" is not for tables of kind cafe, whose importances '
            "are those of bags; choose sum or mean"
        )
    _check(spec.name, keys)
    hot, shared = split(spec.rows, numbers_bytes(spec.format, spec.dim), keys)
    row_map = RowMap("row", spec.rows)
    parts = [
        replace(
            spec,
            name=f"{spec.name}.{name}",
            rows=rows,
            maps=(row_map,) * len(spec.features),
            # a row is hot or shared, never a sum of both: each starts as a row of the whole table
            start=spec.initial,
        )
        for name, rows in (("hot", hot), ("hash", shared))
    ]
    terms = terms_of(parts, len(spec.features))
    options = {
        "buckets": hot,
        "slots": keys.slots,
        "threshold": keys.threshold,
        "decay": keys.decay,
        "hash_rows": shared,
    }
    dynamic = DynamicMap(
        rule="hot",
        rows=spec.rows,
        every=keys.every,
        bytes=ENTRY * keys.slots * hot,
        options=tuple(options.items()),
    )
    composition = Composition(spec.name, terms, "add", dynamic=dynamic)
    return Expanded(tuple(parts), composition)


def _check(name: str, keys: CafeKeys) -> None:
    """Raise ConfigError for a key that is out of range."""
    faults = (
        ("compression", keys.compression < 1.0, "at least 1"),
        ("hash_share", not 0.0 < keys.hash_share < 1.0, "between 0 and 1"),
        ("threshold", keys.threshold <= 0.0, "more than 0"),
        ("decay", not 0.0 < keys.decay <= 1.0, "more than 0 and at most 1"),
        ("slots", not 1 <= keys.slots <= 64, "from 1 to 64"),
        ("every", keys.every < 1, "at least 1"),
    )
    for key, wrong, allowed in faults:
        if wrong:
            raise ConfigError(
                f"tables.{name}.{key}: {getattr(keys, key)} is out of range; it must be {allowed}"
            )
