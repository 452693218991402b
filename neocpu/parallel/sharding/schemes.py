"""How can one table be spread over ranks? Every scheme is one function that returns rectangles.

    table_wise          one rank holds the table
    row_wise            rows cut over all ranks
    column_wise         columns cut over all ranks
    data_parallel       every rank holds all of it
    table_row_wise      rows cut over the ranks of one node
    table_column_wise   columns cut over the ranks of one node
    grid_shard          columns cut over the nodes, each block's rows over the ranks of its node

                        ┌─────┐             ┌─────┐ 0               ┌─┬─┬─┬─┐
          table_wise    │  r  │   row_wise  ├─────┤ 1  column_wise  │0│1│2│3│
                        └─────┘             ├─────┤ 2               └─┴─┴─┴─┘
                                            └─────┘ 3

To add a scheme: write a function and register it with `@sharding(name, homes)`. The exchange never
sees names. Source: Neo, "4D parallelism".
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from neocpu.core.errors import PlanError
from neocpu.core.types import Ints
from neocpu.tables.specs.specs import TableSpec

COLUMN_STEP = 4  # a Philox block is four columns, and a quarter of the shortest vector


@dataclass(frozen=True, order=True)
class Shard:
    """Rows [rows[0], rows[1]) by columns [cols[0], cols[1]) of table number `table`, held by
    `rank`.
    """

    table: int
    rows: tuple[int, int]
    cols: tuple[int, int]
    rank: int

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns) of the rectangle."""
        return self.rows[1] - self.rows[0], self.cols[1] - self.cols[0]


@dataclass(frozen=True)
class RankLayout:
    """Where ranks sit: node n has ranks [n * ranks_per_node, (n+1) * ranks_per_node); the last node
    may be smaller.
    """

    ranks: int
    ranks_per_node: int

    @cached_property
    def nodes(self) -> tuple[range, ...]:
        """Ranks of every node."""
        step = self.ranks_per_node
        return tuple(
            range(first, min(first + step, self.ranks)) for first in range(0, self.ranks, step)
        )


Homes = Literal["rank", "node", "all"]
# (table number, rows, columns, layout, home) -> rectangles; home is the chosen rank or node, 0
# where there is no choice
SchemeFunction = Callable[[int, int, int, RankLayout, int], list[Shard]]


@dataclass(frozen=True)
class Scheme:
    """A registered scheme. homes : where a table's rectangles go: to one "rank", to one "node", or
    to "all".
    """

    name: str
    homes: Homes
    cut: SchemeFunction

    def choices(self, layout: RankLayout) -> range:
        """Possible homes of a table."""
        return range({"rank": layout.ranks, "node": len(layout.nodes), "all": 1}[self.homes])


SCHEMES: dict[str, Scheme] = {}


def sharding(name: str, homes: Homes) -> Callable[[SchemeFunction], SchemeFunction]:
    """Register a scheme under `name`."""

    def register(function: SchemeFunction) -> SchemeFunction:
        SCHEMES[name] = Scheme(name, homes, function)
        return function

    return register


def row_blocks(rows: int, parts: int) -> Iterator[tuple[int, int]]:
    """Blocks of ceil(rows / parts) rows (FBGEMM's block size): the last may be short; empty ones
    are left out.
    """
    step = -(-rows // parts)
    return ((lo, min(lo + step, rows)) for lo in range(0, rows, step))


def owner_cuts(rows: int, ranks: int) -> Ints:
    """First row of a replicated table that each rank sums, and the end: i64[ranks + 1].

    Row i of H belongs to rank i*W//H, so rank d's begin at the ceiling of d*H/W.
    """
    return -(-np.arange(ranks + 1, dtype=np.int64) * rows // ranks)


def column_blocks(dim: int, parts: int) -> Iterator[tuple[int, int]]:
    """Blocks of columns cut at multiples of 4, as even as that allows, larger ones first; surplus
    parts get none.
    """
    units = -(-dim // COLUMN_STEP)
    # a table of few columns goes to fewer ranks: none may hold less than a step of columns
    parts = min(parts, units)
    small, larger = divmod(units, parts)
    lo = 0
    for block in range(parts):
        hi = min(lo + COLUMN_STEP * (small + (block < larger)), dim)
        yield lo, hi
        lo = hi


def _cut_rows(table: int, rows: int, cols: tuple[int, int], ranks: Sequence[int]) -> list[Shard]:
    return [
        Shard(table, block, cols, rank) for block, rank in zip(row_blocks(rows, len(ranks)), ranks)
    ]


def _cut_columns(table: int, rows: int, dim: int, ranks: Sequence[int]) -> list[Shard]:
    return [
        Shard(table, (0, rows), block, rank)
        for block, rank in zip(column_blocks(dim, len(ranks)), ranks)
    ]


@sharding("table_wise", homes="rank")
def table_wise(table: int, rows: int, dim: int, layout: RankLayout, home: int) -> list[Shard]:
    """The whole table on rank `home`."""
    return [Shard(table, (0, rows), (0, dim), home)]


@sharding("row_wise", homes="all")
def row_wise(table: int, rows: int, dim: int, layout: RankLayout, home: int) -> list[Shard]:
    """Rows cut over all ranks."""
    return _cut_rows(table, rows, (0, dim), range(layout.ranks))


@sharding("column_wise", homes="all")
def column_wise(table: int, rows: int, dim: int, layout: RankLayout, home: int) -> list[Shard]:
    """Columns cut over all ranks."""
    return _cut_columns(table, rows, dim, range(layout.ranks))


@sharding("data_parallel", homes="all")
def data_parallel(table: int, rows: int, dim: int, layout: RankLayout, home: int) -> list[Shard]:
    """A full copy on every rank; the only scheme whose rectangles overlap."""
    return [Shard(table, (0, rows), (0, dim), rank) for rank in range(layout.ranks)]


@sharding("table_row_wise", homes="node")
def table_row_wise(table: int, rows: int, dim: int, layout: RankLayout, home: int) -> list[Shard]:
    """Rows cut over the ranks of node `home`."""
    return _cut_rows(table, rows, (0, dim), layout.nodes[home])


@sharding("table_column_wise", homes="node")
def table_column_wise(
    table: int, rows: int, dim: int, layout: RankLayout, home: int
) -> list[Shard]:
    """Columns cut over the ranks of node `home`."""
    return _cut_columns(table, rows, dim, layout.nodes[home])


@sharding("grid_shard", homes="all")
def grid_shard(table: int, rows: int, dim: int, layout: RankLayout, home: int) -> list[Shard]:
    """Columns cut over the nodes; the rows of each column block cut over the ranks of its node."""
    blocks = zip(column_blocks(dim, len(layout.nodes)), layout.nodes)
    return [shard for cols, node in blocks for shard in _cut_rows(table, rows, cols, node)]


def check_cover(spec: TableSpec, shards: Sequence[Shard]) -> None:
    """Raise PlanError naming cells that are in no rectangle, or in several."""
    # cells between neighbouring cuts are one
    cuts = [
        sorted({0, end, *(edge for s in shards for edge in getattr(s, axis))})
        for axis, end in (("rows", spec.rows), ("cols", spec.dim))
    ]
    count = np.zeros([len(c) - 1 for c in cuts], np.int64)
    for shard in shards:
        box = tuple(
            slice(*np.searchsorted(c, edges)) for c, edges in zip(cuts, (shard.rows, shard.cols))
        )
        count[box] += 1
    wrong = np.argwhere(count != 1)
    if not wrong.size:
        return
    i, j = wrong[0]
    rows = (cuts[0][i], cuts[0][i + 1])
    cols = (cuts[1][j], cuts[1][j + 1])
    where = f"table {spec.name!r}: rows [{rows[0]}, {rows[1]}), columns [{cols[0]}, {cols[1]})"
    ranks = [
        s.rank
        for s in shards
        if s.rows[0] <= rows[0] < s.rows[1] and s.cols[0] <= cols[0] < s.cols[1]
    ]
    raise PlanError(
        f"{where} are on no rank"
        if not ranks
        else f"{where} are held more than once, by ranks {ranks}"
    )
