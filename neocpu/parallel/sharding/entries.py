"""Which lookups go to which rank, and where do their pooled columns come back to? A plan's
rectangles, key by key.

An entry is one key (feature, table) of the batch meeting one shard of its table. The entries of a
rank fall in classes:

    whole    the shard holds every row: bags can be pooled and rounded there
    parts    the shard holds some rows: exact fp64 words travel, the bag's home rounds
             (docs/arithmetic.md §3)
    copies   the table is on every rank (data_parallel): nothing travels before the backward pass

and whole and parts each in two: shards that can finish an update alone, and column shards whose
rule needs a number of the whole row (its mean square), which the shards of the same rows must first
share. Order: whole, whole with scalars, parts with scalars, parts; within a class the shards of
`plan.local(rank)`, then the table's keys. Every rank lists the entries of all ranks from the plan
alone, so no message describes another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.sharding.schemes import Shard
from neocpu.tables.specs.specs import TableSpec, bags

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class RoutedEntries:
    """K entries in the order in which they travel; a slice of them is Entries again."""

    key: Ints  # [K] key of the batch
    shard: Ints  # [K] position in plan.local(rank)
    lo: Ints  # [K] rows [lo, hi) of the shard
    hi: Ints
    width: Ints  # [K] columns of the shard
    home: Ints  # [K] first of these columns in E

    @cached_property
    def column(self) -> Ints:
        """First column of each entry in a block of these entries side by side: i64[K]."""
        return np.cumsum(self.width) - self.width

    @cached_property
    def columns(self) -> int:
        """Width of that block."""
        return int(self.width.sum())

    def __len__(self) -> int:
        return self.key.size

    def __getitem__(self, part: slice | Ints) -> "RoutedEntries":
        return RoutedEntries(*(getattr(self, name)[part] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class RankEntries:
    """All entries of one rank: those that travel, with the bounds of their four classes, and the
    copies.
    """

    travel: RoutedEntries
    cuts: tuple[int, int, int, int, int]  # whole | whole with scalars | parts with scalars | parts
    copies: RoutedEntries

    def of_keys(self, number: Ints) -> "RankEntries":
        """Entries of some keys: number i64[F], what each key is called then, -1: left out."""
        parts = [np.flatnonzero(number[entries.key] >= 0) for entries in (self.travel, self.copies)]
        travel, copies = (
            replace(entries[part], key=number[entries.key[part]])
            for entries, part in zip((self.travel, self.copies), parts)
        )
        first, second, third, fourth, last = np.searchsorted(parts[0], self.cuts).tolist()
        return RankEntries(travel, (first, second, third, fourth, last), copies)

    @property
    def whole(self) -> RoutedEntries:
        return self.travel[: self.cuts[2]]

    @property
    def parts(self) -> RoutedEntries:
        return self.travel[self.cuts[2] :]


def key_columns(tables: tuple[TableSpec, ...], first_column: int) -> Ints:
    """First column of every key in E, and the end: i64[F+1]; keys without pooling have none."""
    widths = [tables[bag.table].pooled_dim for bag in bags(tables)]
    return first_column + np.concatenate([np.zeros(1, np.int64), np.cumsum(widths, dtype=np.int64)])


def entries_of_ranks(plan: Plan, first_column: int, row_scalars: int) -> list[RankEntries]:
    """Entries of every rank of the plan.

    first_column : of E before the first pooled vector. row_scalars : numbers per row that the
    optimizer's rule needs of the whole row.
    """
    keys: dict[int, list[int]] = {}
    for key, bag in enumerate(bags(plan.tables)):
        keys.setdefault(bag.table, []).append(key)
    columns = key_columns(plan.tables, first_column).tolist()
    return [_rank_entries(plan, rank, keys, columns, row_scalars) for rank in range(plan.ranks)]


def _rank_entries(
    plan: Plan,
    rank: int,
    keys: Mapping[int, Sequence[int]],
    columns: Sequence[int],
    row_scalars: int,
) -> RankEntries:
    """Entries of one rank. keys : of each table. columns : first column of each key in E."""
    classes: list[list[tuple[int, ...]]] = [[], [], [], [], []]
    for position, shard in enumerate(plan.local(rank)):
        kind = _kind(plan, shard, row_scalars)
        lo, hi = shard.rows
        left, right = shard.cols
        for key in keys.get(shard.table, ()):
            classes[kind].append((key, position, lo, hi, right - left, columns[key] + left))
    first, second, third, last = np.cumsum([len(entries) for entries in classes[:4]]).tolist()
    travel = [entry for entries in classes[:4] for entry in entries]
    return RankEntries(_table(travel), (0, first, second, third, last), _table(classes[4]))


def _kind(plan: Plan, shard: Shard, row_scalars: int) -> int:
    if plan.replicated(shard.table):
        return 4
    spec = plan.tables[shard.table]
    scalars = row_scalars > 0 and shard.cols != (0, spec.dim)
    return scalars if shard.rows == (0, spec.rows) else 3 - scalars


def _table(rows: list[tuple[int, ...]]) -> RoutedEntries:
    return RoutedEntries(*np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, 6).T))
