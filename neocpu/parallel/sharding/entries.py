"""Which lookups go to which rank, and where do their pooled columns come back to? A plan's
rectangles, key by key.

An entry is one key (feature, table) of the batch meeting one shard of its table. The entries of a
rank fall in classes:

    whole      the shard holds every row: bags can be pooled and rounded there
    row_split  the shard holds some rows: exact fp64 words travel, the bag's home rounds
               (docs/arithmetic.md §3)
    copies     the table is on every rank (data_parallel): nothing travels before the backward pass

and the first two each in two: shards that can finish an update alone, and column shards whose
rule needs a number of the whole row (its mean square), which the shards of the same rows must first
share. They stand in the order of `ByClass`; within a class the shards of `plan.local(rank)`, then
the table's keys. Every rank lists the entries of all ranks from the plan alone, so no message
describes another.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from neocpu.core.types import Ints
from neocpu.parallel.sharding.plan import Plan
from neocpu.tables.specs.specs import TableSpec, bags

T = TypeVar("T")


class ByClass(NamedTuple, Generic[T]):
    """Something of each class of entries that travel."""

    # those with scalars stand side by side, so that they are one run, as whole and row-split
    # entries are
    whole: T
    whole_with_scalars: T
    row_split_with_scalars: T
    row_split: T

    def of(self, whole: bool, with_scalars: bool) -> T:
        """That of one class."""
        if whole:
            return self.whole_with_scalars if with_scalars else self.whole
        return self.row_split_with_scalars if with_scalars else self.row_split


class ShardEntry(NamedTuple):
    """One key of the batch meeting one shard of its table.

    shard : position in `plan.local(rank)`. lo, hi : rows of the shard. width : its columns.
    home : the first of these columns in E.
    """

    key: int
    shard: int
    lo: int
    hi: int
    width: int
    home: int


@dataclass(frozen=True)
class RoutedEntries:
    """K entries in the order in which they travel: an i64[K] for each field of `ShardEntry`."""

    key: Ints
    shard: Ints
    lo: Ints
    hi: Ints
    width: Ints
    home: Ints

    @staticmethod
    def of(entries: Iterable[ShardEntry]) -> "RoutedEntries":
        """These entries, in their order."""
        table = np.array(list(entries), np.int64).reshape(-1, len(ShardEntry._fields))
        # kernels take the fields one by one, as contiguous arrays
        return RoutedEntries(*np.ascontiguousarray(table.T))

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

    def __getitem__(self, chosen: slice | Ints) -> "RoutedEntries":
        return RoutedEntries(*(getattr(self, name)[chosen] for name in ShardEntry._fields))


@dataclass(frozen=True)
class RankEntries:
    """All entries of one rank. spans : where each class stands among those that travel."""

    travel: RoutedEntries
    spans: ByClass[slice]
    copies: RoutedEntries

    def of_keys(self, number: Ints) -> "RankEntries":
        """Entries of some keys: number i64[F], what each key is called then, -1: left out."""
        kept = np.flatnonzero(number[self.travel.key] >= 0)
        copies = self.copies[np.flatnonzero(number[self.copies.key] >= 0)]
        travel = self.travel[kept]
        ends = [0, *(span.stop for span in self.spans)]
        # positions ascend, so each class stays one run
        return RankEntries(
            travel=replace(travel, key=number[travel.key]),
            spans=_spans(np.searchsorted(kept, ends).tolist()),
            copies=replace(copies, key=number[copies.key]),
        )

    @property
    def whole(self) -> RoutedEntries:
        """Entries of shards that hold every row, with scalars or without."""
        return self.travel[: self.spans.whole_with_scalars.stop]

    @property
    def row_split(self) -> RoutedEntries:
        """Entries of shards that hold some rows, with scalars or without."""
        return self.travel[self.spans.row_split_with_scalars.start :]

    @property
    def any_scalars(self) -> bool:
        """Does an update wait for row scalars of other column shards?"""
        return self.spans.row_split_with_scalars.stop > self.spans.whole_with_scalars.start


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
    by_class: ByClass[list[ShardEntry]] = ByClass([], [], [], [])
    copies: list[ShardEntry] = []
    for position, shard in enumerate(plan.local(rank)):
        spec = plan.tables[shard.table]
        if plan.replicated(shard.table):
            same_class = copies
        else:
            cut_columns = shard.cols != (0, spec.dim)
            # a rule that reads no number of the whole row never waits for other columns
            same_class = by_class.of(
                whole=shard.rows == (0, spec.rows), with_scalars=row_scalars > 0 and cut_columns
            )
        lo, hi = shard.rows
        left, right = shard.cols
        for key in keys.get(shard.table, ()):
            same_class.append(ShardEntry(key, position, lo, hi, right - left, columns[key] + left))
    return RankEntries(
        travel=RoutedEntries.of(entry for entries in by_class for entry in entries),
        spans=_spans(np.cumsum([0, *map(len, by_class)]).tolist()),
        copies=RoutedEntries.of(copies),
    )


def _spans(ends: Sequence[int]) -> ByClass[slice]:
    """Where each class stands; ends : where the first begins, and where each ends."""
    return ByClass(*(slice(lo, hi) for lo, hi in pairwise(ends)))
