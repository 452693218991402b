"""What is a plan while it is being made? A candidate for each table, and where its rectangles are.

A draft keeps the loads of all ranks up to date, so that a change costs as much as what it touches.
Rectangles that may be on any rank are its *items*, one by one; the others follow from the candidate
and its node.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Ints
from neocpu.parallel.sharding.schemes import SCHEMES
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.work import Floats
from neocpu.plan.search.cuts import ALL, NODE, RANK
from neocpu.plan.search.options import CODES, Options, rank_layout
from neocpu.plan.search.partition import TOLERANCE, Packing, Partitioner, fits


class Spread(NamedTuple):
    """Rectangles that follow from a candidate and its node: their ranks and pieces, i64[n] each."""

    ranks: Ints
    pieces: Ints


def spread(options: Options, candidate: int, node: int, layout: Layout) -> Spread:
    """The rectangles of a NODE or ALL candidate, in the order of their ranks."""
    if options.is_pinned(candidate):
        pieces = options.repeated(candidate)
        return Spread(options.rank[pieces], pieces)
    if options.scheme[candidate] == CODES["grid_shard"]:
        return _grid(options, candidate, layout)
    pieces = options.repeated(candidate)
    return Spread(node * layout.ranks_per_node + np.arange(pieces.size), pieces)


def spread_on_nodes(options: Options, candidate: int, layout: Layout) -> Spread:
    """A NODE candidate's rectangles on each of its nodes: ranks i64[nodes, n], pieces i64[n]."""
    pieces = options.repeated(candidate)
    nodes = np.arange(options.first_node[candidate], options.last_node[candidate])
    ranks = nodes[:, None] * layout.ranks_per_node + np.arange(pieces.size)
    return Spread(ranks, pieces)


def _grid(options: Options, candidate: int, layout: Layout) -> Spread:
    """A grid's rectangles; equal ones are of one piece, but where each stands alone."""
    pieces = options.pieces(candidate)
    table = int(options.table[candidate])
    rows = int(options.table_rows[table])
    dim = int(options.table_dim[table])
    cut = SCHEMES["grid_shard"].cut(table, rows, dim, rank_layout(layout), 0)
    ranks = np.array([shard.rank for shard in cut], np.int64)
    if options.first_row[pieces.start] >= 0:
        return Spread(ranks, np.arange(pieces.start, pieces.stop))
    sizes = zip(options.rows[pieces].tolist(), options.width[pieces].tolist())
    number = {size: pieces.start + index for index, size in enumerate(sizes)}
    return Spread(
        ranks, np.array([number[float(s.shape[0]), float(s.shape[1])] for s in cut], np.int64)
    )


@dataclass
class PlanDraft:
    """A plan under construction.

    options : all candidates. choice : i64[tables], each table's candidate. node : i64[tables], home
    of those on one node. item_table, item_piece, item_rank : i64[items]. seconds f64[ranks,
    phases], bytes f64[ranks, memories] : of the ranks. limits : f64[ranks, memories].
    """

    options: Options
    layout: Layout
    limits: Floats
    choice: Ints
    node: Ints
    item_table: Ints
    item_piece: Ints
    item_rank: Ints
    seconds: Floats
    bytes: Floats

    @classmethod
    def of_items(
        cls,
        options: Options,
        layout: Layout,
        limits: Floats,
        choice: Ints,
        node: Ints,
        items: Sequence[tuple[int, Ints, Ints]],
    ) -> "PlanDraft":
        """The draft with these items, counted; items : a table, its pieces and their ranks."""
        empty = np.zeros(0, np.int64)
        tables = (np.full(ranks.size, table) for table, _, ranks in items)
        draft = cls(
            options=options,
            layout=layout,
            limits=limits,
            choice=choice,
            node=node,
            item_table=np.concatenate([empty, *tables]),
            item_piece=np.concatenate([empty, *(pieces for _, pieces, _ in items)]),
            item_rank=np.concatenate([empty, *(ranks for *_, ranks in items)]),
            seconds=np.zeros((layout.ranks, options.piece_seconds.shape[1])),
            bytes=np.zeros((layout.ranks, options.piece_bytes.shape[1])),
        )
        draft.recount()
        return draft

    @property
    def value(self) -> float:
        """Seconds of a step beside what is fixed."""
        return self.options.objective(self.seconds)

    @property
    def fits(self) -> bool:
        """Is there memory for it on all ranks?"""
        return fits(self.bytes, self.limits)

    def copy(self) -> "PlanDraft":
        """A draft of its own, for changes."""
        return replace(
            self,
            choice=self.choice.copy(),
            node=self.node.copy(),
            item_table=self.item_table.copy(),
            item_piece=self.item_piece.copy(),
            item_rank=self.item_rank.copy(),
            seconds=self.seconds.copy(),
            bytes=self.bytes.copy(),
        )

    def rectangles_of(self, table: int) -> Spread:
        """Ranks and pieces of a table's rectangles."""
        candidate = int(self.choice[table])
        if self.options.home[candidate] == RANK:
            items = np.flatnonzero(self.item_table == table)
            return Spread(self.item_rank[items], self.item_piece[items])
        return spread(self.options, candidate, int(self.node[table]), self.layout)

    def all_rectangles(self) -> tuple[Ints, Spread]:
        """(table, ranks and pieces) of all rectangles, table by table."""
        spreads = [Spread(self.item_rank, self.item_piece)]
        tables = [self.item_table]
        for table in np.flatnonzero(self.options.home[self.choice] != RANK).tolist():
            rectangles = spread(
                self.options, int(self.choice[table]), int(self.node[table]), self.layout
            )
            spreads.append(rectangles)
            tables.append(np.full(rectangles.ranks.size, table))
        table_of = np.concatenate(tables)
        order = np.argsort(table_of, kind="stable")
        ranks = np.concatenate([rectangles.ranks for rectangles in spreads])[order]
        pieces = np.concatenate([rectangles.pieces for rectangles in spreads])[order]
        return table_of[order], Spread(ranks, pieces)

    def recount(self) -> None:
        """Compute the loads anew, free of the rounding of many changes."""
        _, (ranks, pieces) = self.all_rectangles()
        count = self.layout.ranks
        self.seconds = slowed(
            self.options, sums_by_rank(self.options.piece_seconds, pieces, ranks, count)
        )
        self.bytes = sums_by_rank(self.options.piece_bytes, pieces, ranks, count)


def slowed(options: Options, seconds: Floats) -> Floats:
    """Seconds f64[ranks, k], or f64[k] of each rank, of ranks as fast as pieces are priced for, as
    those of the real ones.
    """
    return seconds if options.slowness is None else seconds * options.slowness[:, None]


def sums_by_rank(columns: Floats, pieces: Ints, ranks: Ints, count: int) -> Floats:
    """f64[count, k]: sums of columns f64[n, k] of pieces on ranks."""
    sums = [np.bincount(ranks, columns[pieces, k], count) for k in range(columns.shape[1])]
    # of no pieces at all NumPy counts in whole numbers
    return np.stack(sums, axis=1).astype(np.float64)


class Laid(NamedTuple):
    """What a choice puts on the ranks before items are placed.

    choice, node : i64[tables]. seconds f64[ranks, phases], bytes f64[ranks, memories] : of
    rectangles that have no choice, and of those on nodes.
    """

    choice: Ints
    node: Ints
    seconds: Floats
    bytes: Floats


def lay(options: Options, layout: Layout, limits: Floats, choice: Ints) -> Laid | None:
    """Everything of a choice but its items, or None where that does not fit.

    NODE candidates go one by one, the dearest first, where their dearest rank ends lowest.
    """
    ranks = layout.ranks
    seconds = np.zeros((ranks, options.piece_seconds.shape[1]))
    size = np.zeros((ranks, options.piece_bytes.shape[1]))
    homes = options.home[choice]
    copied = options.scheme[choice] == CODES["data_parallel"]
    pieces = options.piece[choice[copied]]
    # copies are the same on every rank: one broadcast instead of a rectangle for each
    seconds += slowed(options, options.piece_seconds[pieces].sum(axis=0))
    size += options.piece_bytes[pieces].sum(axis=0)
    for table in np.flatnonzero((homes == ALL) & ~copied).tolist():
        rectangles = spread(options, int(choice[table]), 0, layout)
        # a pinned table may have several rectangles on one rank
        np.add.at(seconds, rectangles.ranks, options.seconds_on(*rectangles))
        np.add.at(size, rectangles.ranks, options.piece_bytes[rectangles.pieces])
    if not fits(size, limits):
        return None
    node = np.zeros(choice.size, np.int64)
    on_nodes = np.flatnonzero(homes == NODE)
    # as in LPT: small ones fill what large ones leave
    dearest_first = np.argsort(-options.seconds[choice[on_nodes]].sum(axis=1), kind="stable")
    for table in on_nodes[dearest_first].tolist():
        home = best_node(options, layout, limits, int(choice[table]), seconds, size)
        if home is None:
            return None
        node[table] = home
        rectangles = spread(options, int(choice[table]), home, layout)
        seconds[rectangles.ranks] += options.seconds_on(*rectangles)
        size[rectangles.ranks] += options.piece_bytes[rectangles.pieces]
    return Laid(choice.copy(), node, seconds, size)


def build(
    options: Options, layout: Layout, limits: Floats, laid: Laid, partitioner: Partitioner
) -> PlanDraft | None:
    """A draft whose items a partitioner places, or None where they do not fit."""
    on_ranks = np.flatnonzero(options.home[laid.choice] == RANK)
    item_piece, item_table = items_of(options, laid.choice, on_ranks)
    packing = Packing(
        seconds=options.piece_seconds[item_piece],
        bytes=options.piece_bytes[item_piece],
        rank_seconds=laid.seconds,
        rank_bytes=laid.bytes,
        limits=limits,
        slowness=np.ones(layout.ranks) if options.slowness is None else options.slowness,
    )
    item_rank = partitioner(packing)
    if item_rank is None:
        return None
    count = layout.ranks
    draft = PlanDraft(
        options=options,
        layout=layout,
        limits=limits,
        choice=laid.choice.copy(),
        node=laid.node.copy(),
        item_table=item_table,
        item_piece=item_piece,
        item_rank=item_rank,
        seconds=laid.seconds
        + slowed(options, sums_by_rank(options.piece_seconds, item_piece, item_rank, count)),
        bytes=laid.bytes + sums_by_rank(options.piece_bytes, item_piece, item_rank, count),
    )
    return draft if draft.fits else None


def items_of(options: Options, choice: Ints, tables: Ints) -> tuple[Ints, Ints]:
    """(piece, table) of the items of some tables, i64[n] each."""
    chosen = choice[tables]
    kinds = options.piece[chosen + 1] - options.piece[chosen]
    # pieces of all tables at once, without a loop over thousands of tables
    owner = np.repeat(np.arange(tables.size), kinds)
    ends = kinds.cumsum()
    within = np.arange(owner.size) - np.repeat(ends - kinds, kinds)
    pieces = options.piece[chosen][owner] + within
    copies = options.copies[pieces]
    return np.repeat(pieces, copies), np.repeat(tables[owner], copies)


def best_node(
    options: Options,
    layout: Layout,
    limits: Floats,
    candidate: int,
    seconds: Floats,
    size: Floats,
) -> int | None:
    """The node where a candidate's dearest rank ends lowest; None where no node has room."""
    ranks, pieces = spread_on_nodes(options, candidate, layout)
    most = limits[ranks] * (1.0 + TOLERANCE)
    room = (size[ranks] + options.piece_bytes[pieces] <= most).all(axis=(1, 2))
    heights = (seconds[ranks] + options.seconds_on(ranks, pieces)).sum(axis=2).max(axis=1)
    heights = np.where(room, heights, np.inf)
    index = int(heights.argmin())
    return int(options.first_node[candidate]) + index if np.isfinite(heights[index]) else None
