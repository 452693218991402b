"""How much do the samples of a step look up? Counted in a batch, or expected from means.

Traffic (`step.py`) needs few numbers of a batch: lookups that each rank's samples send to each
rank, and unique rows, of the whole batch or of one rank's samples. `CountedDemand` counts them in a
given global batch, so that bytes come out exactly. `MeanDemand` expects them: a table of H rows
that is looked up n times, each row alike, has h (1 - (1 - 1/H)^n) unique rows among h of its rows.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np

from neocpu.core.jagged import KJT
from neocpu.core.trees import rank_samples
from neocpu.core.types import Elements, Ints
from neocpu.parallel.exchange.wire_formats import segment_words
from neocpu.parallel.sharding.schemes import owner_cuts
from neocpu.plan.cost.row_curves import RowCurve
from neocpu.plan.cost.traffic.shard_columns import ShardColumns
from neocpu.plan.cost.work import alike_rows
from neocpu.tables.specs.specs import TableSpec, bags

# i64 where they were counted, f64 where they are expected
Numbers: TypeAlias = Elements


def sample_cuts(ranks: int, batch: int, leaves: int) -> Ints:
    """First sample of every rank and the end: i64[ranks + 1]."""
    firsts = [rank_samples(rank, ranks, batch, leaves)[0] for rank in range(ranks + 1)]
    return np.array(firsts, np.int64)


class Demand(Protocol):
    """What the samples of one step look up."""

    def lookups(self, rectangles: ShardColumns) -> Numbers:
        """Lookups that samples of rank s send to rank q's rectangles: [ranks, ranks], [s, q]."""

    def row_words(self, rectangles: ShardColumns, unique_rows: str) -> Numbers:
        """Words of 8 bytes in which rows travel from rank s to rank q: [ranks, ranks], [s, q].

        unique_rows : one of `wire_formats.UNIQUE_ROWS`; with "off" a word for each lookup.
        """

    def of_ranks(self, first: int, end: int) -> "Demand":
        """What the samples of ranks [first, end) look up, who are ranks from 0 on there."""

    def unique(self, table: int, lo: Ints, hi: Ints) -> Numbers:
        """Unique rows of the batch in rows [lo, hi) of a table: [n]."""

    def replica_rows(self, tables: Sequence[int], weights: Ints) -> Numbers:
        """Unique rows of rank s's samples that rank d sums: [ranks, ranks], [s, d].

        Over all of these replicated tables, the rows of table i counted weights[i] times.
        """

    def replica_sums(self, tables: Sequence[int], weights: Ints) -> Numbers:
        """Unique rows of the batch that rank d sums: [ranks], over tables as in `replica_rows`."""


class CountedDemand:
    """Lookups of a given global batch.

    tables : of the plan. kjt : the global batch, its keys those of `specs.bags(tables)`.
    cuts : first sample of every rank and the end (`sample_cuts`).
    """

    def __init__(self, tables: Sequence[TableSpec], kjt: KJT, cuts: Ints) -> None:
        self._tables = tables
        self._ranks = cuts.size - 1
        samples = kjt.samples
        empty = np.empty(0, np.int64)
        # [key][rank]: its rows, ascending; pruned lookups (-1) go nowhere
        self._rows: list[list[Ints]] = []
        self._keys: list[list[int]] = [[] for _ in tables]
        for key, bag in enumerate(bags(tables)):
            ends = kjt.offsets[key * samples + cuts]
            # sorted once: every later count of rows in a range is two binary searches
            runs = [np.sort(kjt.values[lo:hi]) for lo, hi in pairwise(ends.tolist())]
            self._rows.append([run[np.searchsorted(run, 0) :] for run in runs])
            self._keys[bag.table].append(key)
        self._unique = [
            [
                np.unique(np.concatenate([empty, *(self._rows[key][rank] for key in keys)]))
                for rank in range(self._ranks)
            ]
            for keys in self._keys
        ]
        self._anywhere = [np.unique(np.concatenate([empty, *runs])) for runs in self._unique]

    def of_ranks(self, first: int, end: int) -> "CountedDemand":
        """That of the samples of some ranks."""
        some = copy(self)
        some._ranks = end - first
        some._rows = [runs[first:end] for runs in self._rows]
        some._unique = [runs[first:end] for runs in self._unique]
        some._anywhere = [np.unique(np.concatenate(runs)) for runs in some._unique]
        return some

    def lookups(self, rectangles: ShardColumns) -> Numbers:
        """Lookups that samples of rank s send to rank q's rectangles: i64[ranks, ranks]."""
        counts = np.zeros((self._ranks, self._ranks), np.int64)
        for table, keys in enumerate(self._keys):
            chosen = np.flatnonzero((rectangles.table == table) & ~rectangles.copies)
            receivers = rectangles.rank[chosen]
            for key in keys:
                for source, rows in enumerate(self._rows[key]):
                    inside = _between(rows, rectangles.lo[chosen], rectangles.hi[chosen])
                    np.add.at(counts[source], receivers, inside)
        return counts

    def row_words(self, rectangles: ShardColumns, unique_rows: str) -> Numbers:
        """Words in which rows travel from rank s to rank q: i64[ranks, ranks]."""
        if unique_rows == "off":
            return self.lookups(rectangles)
        words = np.zeros((self._ranks, self._ranks), np.int64)
        for table, keys in enumerate(self._keys):
            chosen = np.flatnonzero((rectangles.table == table) & ~rectangles.copies)
            lo = rectangles.lo[chosen]
            hi = rectangles.hi[chosen]
            for source, unique in enumerate(self._unique[table]):
                lookups = sum(_between(self._rows[key][source], lo, hi) for key in keys)
                sizes = segment_words(np.asarray(lookups), _between(unique, lo, hi), unique_rows)
                np.add.at(words[source], rectangles.rank[chosen], sizes)
        return words

    def unique(self, table: int, lo: Ints, hi: Ints) -> Numbers:
        """Unique rows of the batch in rows [lo, hi) of a table: i64[n]."""
        return _between(self._anywhere[table], lo, hi)

    def replica_rows(self, tables: Sequence[int], weights: Ints) -> Numbers:
        """Unique rows of rank s's samples that rank d sums: i64[ranks, ranks]."""
        counts = np.zeros((self._ranks, self._ranks), np.int64)
        for table, weight in zip(tables, weights.tolist()):
            cuts = owner_cuts(self._tables[table].rows, self._ranks)
            for source, rows in enumerate(self._unique[table]):
                counts[source] += weight * _between(rows, cuts[:-1], cuts[1:])
        return counts

    def replica_sums(self, tables: Sequence[int], weights: Ints) -> Numbers:
        """Unique rows of the batch that rank d sums: i64[ranks]."""
        counts = np.zeros(self._ranks, np.int64)
        for table, weight in zip(tables, weights.tolist()):
            cuts = owner_cuts(self._tables[table].rows, self._ranks)
            counts += weight * _between(self._anywhere[table], cuts[:-1], cuts[1:])
        return counts


def _between(rows: Ints, lo: Ints, hi: Ints) -> Ints:
    """How many of ascending rows are in [lo, hi): i64[n]."""
    return np.searchsorted(rows, hi) - np.searchsorted(rows, lo)


class MeanDemand:
    """Lookups that are expected when all rows of a table are alike, or follow its curve.

    tables : of the plan. pooling : mean lookups per bag by table name (default 1).
    cuts : first sample of every rank and the end (`sample_cuts`).
    distinct : unique rows of the batch by table name, where they were measured: lookups are then
        spread over as many rows, each alike, as have so many unique ones.
    curves : how lookups are spread over rows, by table name; unique rows are expected as of rows
        that are alike.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        pooling: Mapping[str, float],
        cuts: Ints,
        distinct: Mapping[str, float] | None = None,
        curves: Mapping[str, RowCurve] | None = None,
    ) -> None:
        self._curves = [(curves or {}).get(spec.name) for spec in tables]
        self._samples = np.diff(cuts)
        self._rows = np.array([spec.rows for spec in tables], np.int64)
        per_sample = [len(spec.features) * pooling.get(spec.name, 1.0) for spec in tables]
        self._per_sample = np.array(per_sample, np.float64)
        measured = np.array([(distinct or {}).get(spec.name, np.nan) for spec in tables])
        lookups = self._per_sample * self._samples.sum()
        self._alike = alike_rows(lookups, self._rows.astype(np.float64), measured)

    def of_ranks(self, first: int, end: int) -> "MeanDemand":
        """That of the samples of some ranks; rows are looked up as by all of them."""
        some = copy(self)
        some._samples = self._samples[first:end]
        return some

    def lookups(self, rectangles: ShardColumns) -> Numbers:
        """Lookups that samples of rank s send to rank q's rectangles: f64[ranks, ranks]."""
        per_sample = self._lookups_of_sample(rectangles)
        amounts = np.where(rectangles.copies, 0.0, per_sample)
        return np.outer(self._samples, np.bincount(rectangles.rank, amounts, rectangles.ranks))

    def _lookups_of_sample(self, rectangles: ShardColumns) -> Numbers:
        """Lookups of a sample in each rectangle, f64[n]."""
        table = rectangles.table
        part = (rectangles.hi - rectangles.lo) / self._rows[table]
        for number, curve in enumerate(self._curves):
            if curve is not None:
                own = np.flatnonzero(table == number)
                part[own] = curve.below(rectangles.hi[own]) - curve.below(rectangles.lo[own])
        return part * self._per_sample[table]

    def row_words(self, rectangles: ShardColumns, unique_rows: str) -> Numbers:
        """Words in which rows travel from rank s to rank q: f64[ranks, ranks]."""
        if unique_rows == "off":
            return self.lookups(rectangles)
        moving = rectangles.select(np.flatnonzero(~rectangles.copies))
        height = moving.hi - moving.lo
        per_sample = self._lookups_of_sample(moving)
        # ranks have few different numbers of samples
        samples, inverse = np.unique(self._samples, return_inverse=True)
        words = np.zeros((samples.size, rectangles.ranks))
        # by table, not by rectangle: all rectangles of a table share the law
        touched = self._touched(np.arange(self._rows.size), samples)[moving.table]
        for i, count in enumerate(samples.tolist()):
            sizes = segment_words(per_sample * count, height * touched[:, i], unique_rows)
            words[i] = np.bincount(moving.rank, sizes, rectangles.ranks)
        return words[inverse]

    def unique(self, table: int, lo: Ints, hi: Ints) -> Numbers:
        """Unique rows of the batch in rows [lo, hi) of a table: f64[n]."""
        touched = self._touched(np.array([table]), self._samples.sum().reshape(1))
        return (hi - lo) * touched[0, 0]

    def replica_rows(self, tables: Sequence[int], weights: Ints) -> Numbers:
        """Unique rows of rank s's samples that rank d sums: f64[ranks, ranks]."""
        # ranks have few different numbers of samples
        samples, inverse = np.unique(self._samples, return_inverse=True)
        touched = self._touched(np.asarray(tables, np.int64), samples)
        return (touched.T @ self._heights(tables, weights))[inverse]

    def replica_sums(self, tables: Sequence[int], weights: Ints) -> Numbers:
        """Unique rows of the batch that rank d sums: f64[ranks]."""
        touched = self._touched(np.asarray(tables, np.int64), self._samples.sum().reshape(1))
        return (touched.T @ self._heights(tables, weights))[0]

    def _touched(self, tables: Ints, samples: Ints) -> Numbers:
        """Probability that a row of a table is looked up by so many samples: f64[tables, n]."""
        lookups = self._per_sample[tables, None] * samples
        alike = self._alike[tables, None]
        # a table of one row has log1p(-1) = -inf: all of it is touched, and NaN without lookups
        with np.errstate(divide="ignore", invalid="ignore"):
            touched = -np.expm1(lookups * np.log1p(-1.0 / alike))
        return np.where(lookups > 0, touched, 0.0) * (alike / self._rows[tables, None])

    def _heights(self, tables: Sequence[int], weights: Ints) -> Numbers:
        """Rows that each rank sums of each table, times the table's weight: f64[tables, ranks]."""
        ranks = self._samples.size
        cuts = [owner_cuts(int(self._rows[table]), ranks) for table in tables]
        return np.diff(np.array(cuts), axis=1) * weights[:, None].astype(np.float64)
