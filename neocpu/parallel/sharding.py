"""Which rank holds which part of a table? A sharding scheme is a function that returns rectangles.

    table_wise          one rectangle on one rank
    row_wise            bands of rows, one per rank                    block = ceil(H / W), as FBGEMM cuts
    column_wise         bands of columns, at multiples of 4, one per rank
    data_parallel       the whole table on every rank
    table_row_wise      row_wise over the ranks of one node
    table_column_wise   column_wise over the ranks of one node
    grid_shard          columns over nodes, each band row_wise over its node's ranks

Nothing else in the program knows these names: exchange, checkpoint and pictures see rectangles only. (Neo's 4D parallelism;
names from TorchRec; grid_shard came after the paper.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from neocpu.embedding.specs import TableSpec

COLUMN_UNIT = 4  # columns are cut at multiples of this: one block of random words, and aligned subtrees

Range = tuple[int, int]


class Shard(NamedTuple):
    """Rows [rows[0], rows[1]) by columns [cols[0], cols[1]) of table number `table`, on `rank`."""

    table: int
    rows: Range
    cols: Range
    rank: int


@dataclass(frozen=True)
class Placement:
    """Where a scheme may put a table: all ranks by node, and the home that balancing chose for it.

    `nodes[n]` are the ranks of node n; `home` is a rank, its node the one that node-bound schemes use.
    """

    nodes: tuple[tuple[int, ...], ...]
    home: int

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks, node after node."""
        return tuple(rank for node in self.nodes for rank in node)

    @property
    def node(self) -> tuple[int, ...]:
        """Ranks of the home's node, the home first."""
        node = next(node for node in self.nodes if self.home in node)
        at = node.index(self.home)
        return node[at:] + node[:at]

    @property
    def ranks_from_home(self) -> tuple[int, ...]:
        """All ranks, beginning with the home: small tables do not pile up on rank 0."""
        at = self.ranks.index(self.home)
        return self.ranks[at:] + self.ranks[:at]


Scheme = Callable[[int, TableSpec, Placement], list[Shard]]
SCHEMES: dict[str, Scheme] = {}


def scheme(function: Scheme) -> Scheme:
    """Register a scheme under its function's name."""
    SCHEMES[function.__name__] = function
    return function


def row_bands(rows: int, parts: int) -> list[Range]:
    """Bands of ceil(rows / parts) rows; the last may be short, and there may be fewer than `parts`."""
    block = -(-rows // parts)
    return [(lo, min(lo + block, rows)) for lo in range(0, rows, block)]


def column_bands(columns: int, parts: int) -> list[Range]:
    """At most `parts` bands of whole units of 4 columns, as even as possible; the last takes the rest that is no unit."""
    units = max(1, columns // COLUMN_UNIT)
    parts = min(parts, units)
    cuts = [COLUMN_UNIT * (units * part // parts) for part in range(parts)] + [columns]
    return list(zip(cuts, cuts[1:]))


def _rows_over(table: int, spec: TableSpec, cols: Range, ranks: Sequence[int]) -> list[Shard]:
    return [Shard(table, rows, cols, rank) for rows, rank in zip(row_bands(spec.rows, len(ranks)), ranks)]


def _columns_over(table: int, spec: TableSpec, ranks: Sequence[int]) -> list[Shard]:
    return [Shard(table, (0, spec.rows), cols, rank) for cols, rank in zip(column_bands(spec.dim, len(ranks)), ranks)]


@scheme
def table_wise(table: int, spec: TableSpec, place: Placement) -> list[Shard]:
    """The whole table on its home."""
    return [Shard(table, (0, spec.rows), (0, spec.dim), place.home)]


@scheme
def row_wise(table: int, spec: TableSpec, place: Placement) -> list[Shard]:
    """Bands of rows over all ranks."""
    return _rows_over(table, spec, (0, spec.dim), place.ranks)


@scheme
def column_wise(table: int, spec: TableSpec, place: Placement) -> list[Shard]:
    """Bands of columns over all ranks, from the home on."""
    return _columns_over(table, spec, place.ranks_from_home)


@scheme
def data_parallel(table: int, spec: TableSpec, place: Placement) -> list[Shard]:
    """A replica on every rank."""
    return [Shard(table, (0, spec.rows), (0, spec.dim), rank) for rank in place.ranks]


@scheme
def table_row_wise(table: int, spec: TableSpec, place: Placement) -> list[Shard]:
    """Bands of rows over the ranks of the home's node."""
    return _rows_over(table, spec, (0, spec.dim), place.node)


@scheme
def table_column_wise(table: int, spec: TableSpec, place: Placement) -> list[Shard]:
    """Bands of columns over the ranks of the home's node."""
    return _columns_over(table, spec, place.node)


@scheme
def grid_shard(table: int, spec: TableSpec, place: Placement) -> list[Shard]:
    """Bands of columns over nodes, each a row_wise table over the ranks of its node."""
    bands = column_bands(spec.dim, len(place.nodes))
    return [shard for cols, node in zip(bands, place.nodes) for shard in _rows_over(table, spec, cols, node)]


def replicated(name: str) -> bool:
    """Whether a scheme keeps the whole table on every rank, so that its rectangles overlap on purpose."""
    return name == "data_parallel"


def node_ranks(ranks: int, ranks_per_node: int) -> tuple[tuple[int, ...], ...]:
    """Ranks of each node: consecutive groups; the last may be smaller."""
    starts = range(0, ranks, ranks_per_node)
    return tuple(tuple(range(lo, min(lo + ranks_per_node, ranks))) for lo in starts)
