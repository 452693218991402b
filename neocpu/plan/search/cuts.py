"""In which ways can tables be cut into rectangles? Many tables at once, as arrays.

A way is a scheme with a number of column blocks. Its rectangles are of few kinds, the *pieces*:
equal rows and columns. Where they may go is the way's kind of home:

    RANK   each rectangle on any rank          table_wise, column_wise; row_wise and grid_shard
                                               with some blocks
    NODE   all on the ranks of one node        table_row_wise, table_column_wise
    ALL    as the scheme puts them             row_wise, data_parallel, grid_shard

Column cuts have 2, 4, 8, ... blocks down to `MIN_WIDTH` columns, and as many as there are ranks.
Row-scaled formats are never cut by columns, and narrow rows below wider caches never copied.

Tables are cut into grids of row blocks by column blocks as well, each rectangle on any rank: the
more of a rank's share of work or memory they are, the finer, and all of them into two by rows.

Here rows are alike; `curve_cuts.py` cuts those that are not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neocpu.core.types import Ints
from neocpu.parallel.sharding.plan import allowed_schemes, is_open
from neocpu.parallel.sharding.schemes import COLUMN_STEP, SCHEMES, column_blocks
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.work import Flags, Floats, Workload
from neocpu.plan.tiers.limits import sets_of_ranks
from neocpu.tables.specs.specs import TableSpecs

RANK = 0
NODE = 1
ALL = 2
# Least columns of a block, but where there are as many blocks as ranks. TorchRec stops at 32.
MIN_WIDTH = 8
# A table is cut into at most so many times the rectangles that each are one share, or into two.
FINEST = 8.0


@dataclass
class Cuts:
    """One way to cut several tables: i64[n] each, pieces i64[n, kinds of pieces].

    first : (row, column) at which each piece begins, i64[n, kinds, 2]; None where it follows from
    the cut.
    """

    table: Ints
    scheme: str
    parts: Ints
    home: int
    rows: Ints
    width: Ints
    count: Ints
    nodes: tuple[int, int] = (0, 0)
    first: Ints | None = None

    def select(self, chosen: Flags) -> "Cuts":
        """Those of some tables; chosen : bool[n]."""
        return replace(
            self,
            table=self.table[chosen],
            parts=self.parts[chosen],
            rows=self.rows[chosen],
            width=self.width[chosen],
            count=self.count[chosen],
            first=None if self.first is None else self.first[chosen],
        )


def ways_to_cut(
    tables: TableSpecs, schemes: Sequence[str], layout: Layout, shares: Floats, work: Workload
) -> list[Cuts]:
    """All ways to cut the tables, way after way.

    shares : f64[tables], what each table takes of a rank's share of work or memory, 1 for all of
    it. work : columns of tables whose scheme is free are cut at multiples of its blocks only; its
    pinned tables are cut for the ranks of their pin, each rectangle on any of them.
    """
    block = work.wires.column_block
    sets, number = sets_of_ranks(tables, work)
    if not sets:
        return _ways(tables, schemes, layout, shares, block)
    cuts = []
    for index in range(-1, len(sets)):
        members = np.flatnonzero(number == index)
        own = layout if index < 0 else Layout(len(sets[index]), len(sets[index]))
        # copies are on all ranks, so a pinned table has none
        choices = [schemes[t] for t in members.tolist()]
        choices = choices if index < 0 else [_without_copies(choice) for choice in choices]
        # of the ranks of a pin a table may take more than of all
        share = shares[members] if index < 0 else np.maximum(shares[members], 1.0)
        for cut in _ways([tables[t] for t in members.tolist()], choices, own, share, block):
            cuts.append(replace(cut, table=members[cut.table]))
            if index >= 0:
                cuts[-1].home = RANK
    return cuts


def _without_copies(choice: str) -> str:
    """A choice of schemes but data_parallel."""
    return ",".join(name for name in allowed_schemes(choice) if name != "data_parallel")


def _ways(
    tables: TableSpecs, schemes: Sequence[str], layout: Layout, shares: Floats, block: int
) -> list[Cuts]:
    """As `ways_to_cut`, on all ranks of a layout."""
    cuts = _useful_ways(tables, schemes, layout, shares, block)
    cut_at_all = np.zeros(len(tables), bool)
    for cut in cuts:
        cut_at_all[cut.table] = True
    missing = np.flatnonzero(~cut_at_all)
    if missing.size:
        # no scheme of these lists cuts anything here, so the first stands for all
        named = [allowed_schemes(schemes[t])[0] for t in missing.tolist()]
        left = [tables[t] for t in missing.tolist()]
        more = _useful_ways(left, named, layout, shares[missing], block)
        cuts += [replace(cut, table=missing[cut.table]) for cut in more]
    return cuts


def _useful_ways(
    tables: TableSpecs, schemes: Sequence[str], layout: Layout, shares: Floats, block: int
) -> list[Cuts]:
    """As `_ways`; a table whose schemes are open may have none."""
    shapes = np.array([(table.rows, table.dim) for table in tables], np.int64).reshape(-1, 2)
    rows = shapes[:, 0]
    dim = shapes[:, 1]
    free = np.array([is_open(choice) for choice in schemes], bool)
    allowed = {
        name: np.array([name in allowed_schemes(choice) for choice in schemes], bool)
        for name in SCHEMES
    }
    cuttable = np.array([not table.unfit(cut=True) for table in tables], bool)
    copyable = np.array([not table.unfit(copied=True) for table in tables], bool)
    ranks = layout.ranks
    per_node = min(layout.ranks_per_node, ranks)
    units = -(-dim // COLUMN_STEP)
    many = ranks > 1

    def select(scheme: str, useful: Flags) -> Ints:
        # a scheme that is named alone is kept, useful or not
        return np.flatnonzero(allowed[scheme] & (useful | ~free))

    cuts = [_whole(select("table_wise", np.ones(rows.size, bool)), rows, dim, "table_wise", 1)]
    cuts.append(_whole(select("data_parallel", copyable & many), rows, dim, "data_parallel", ranks))
    cuts.append(_by_rows(select("row_wise", (rows > 1) & many), rows, dim, ranks))
    parts = 2
    while many and parts < ranks and (dim >= parts * MIN_WIDTH).any():
        wide = free & allowed["column_wise"] & cuttable
        at = np.flatnonzero(wide & (dim >= parts * MIN_WIDTH))
        cuts.append(_by_columns(at, rows, dim, parts, "column_wise", RANK))
        parts *= 2
    at = select("column_wise", cuttable & (units > 1) & many)
    cuts.append(_by_columns(at, rows, dim, ranks, "column_wise", RANK))
    for first, last, size in _node_sizes(layout):
        several = (layout.nodes > 1) & (size > 1)
        at = select("table_row_wise", (rows > 1) & several)
        cuts.append(_by_rows(at, rows, dim, size, "table_row_wise", (first, last)))
        at = select("table_column_wise", cuttable & (units > 1) & several)
        cuts.append(_by_columns(at, rows, dim, size, "table_column_wise", NODE, (first, last)))
    grid = cuttable & (units > 1) & (layout.nodes > 1) & (per_node > 1)
    cuts.append(_grid(select("grid_shard", grid), rows, dim, layout))
    divisible = free & many & (rows > 1)
    grids = _free_grids(np.flatnonzero(divisible), rows, dim, shares, cuttable, ranks)
    cuts += [of_tables(cut, allowed[cut.scheme][cut.table]) for cut in grids]
    if block > 1:
        cuts = [_at_blocks(cut, dim, free, block) for cut in cuts]
    return [cut for cut in cuts if cut.table.size]


def _at_blocks(cut: Cuts, dim: Ints, free: Flags, block: int) -> Cuts:
    """A way without the tables that it would cut inside a block of columns."""

    def whole(table: int, parts: int) -> bool:
        return all(left % block == 0 for left, _ in column_blocks(int(dim[table]), parts))

    pairs = zip(cut.table.tolist(), cut.parts.tolist())
    kept = np.array([not free[table] or whole(table, parts) for table, parts in pairs], bool)
    return of_tables(cut, kept)


def of_tables(cut: Cuts, kept: Flags) -> Cuts:
    """A way of some of its tables, bool[n]."""
    columns = {name: getattr(cut, name)[kept] for name in ("table", "parts")}
    pieces = {name: getattr(cut, name)[kept] for name in ("rows", "width", "count")}
    return replace(cut, **columns, **pieces)


def _node_sizes(layout: Layout) -> list[tuple[int, int, int]]:
    """(first node, node behind the last, ranks of each) of nodes of one size."""
    full, rest = divmod(layout.ranks, min(layout.ranks_per_node, layout.ranks))
    sizes = [(0, full, min(layout.ranks_per_node, layout.ranks))]
    if rest:
        sizes.append((full, full + 1, rest))
    return sizes


def _whole(at: Ints, rows: Ints, dim: Ints, scheme: str, copies: int) -> Cuts:
    return Cuts(
        table=at,
        scheme=scheme,
        parts=np.ones(at.size, np.int64),
        home=RANK if scheme == "table_wise" else ALL,
        rows=rows[at, None],
        width=dim[at, None],
        count=np.full((at.size, 1), copies),
    )


def _row_pieces(rows: Ints, blocks: int | Ints) -> tuple[Ints, Ints]:
    """(rows, how many) of the full blocks and of the last one, i64[n, 2] each (`row_blocks`)."""
    step = -(-rows // blocks)
    full = rows // step
    rest = rows - full * step
    return np.stack([step, rest], axis=1), np.stack([full, (rest > 0).astype(np.int64)], axis=1)


def _column_pieces(dim: Ints, blocks: int | Ints) -> tuple[Ints, Ints, Ints]:
    """(blocks i64[n], widths i64[n, 3], how many i64[n, 3]), in the order of `column_blocks`."""
    units = -(-dim // COLUMN_STEP)
    parts = np.minimum(blocks, units)
    small = units // parts
    larger = units % parts
    # the last block, always one of the small ones, ends with the table
    excess = units * COLUMN_STEP - dim
    tail = small * COLUMN_STEP - excess
    widths = np.stack([(small + 1) * COLUMN_STEP, small * COLUMN_STEP, tail], axis=1)
    counts = np.stack([larger, parts - larger - 1, np.ones_like(parts)], axis=1)
    return parts, widths, counts


def _by_rows(
    at: Ints,
    rows: Ints,
    dim: Ints,
    blocks: int,
    scheme: str = "row_wise",
    nodes: tuple[int, int] = (0, 0),
) -> Cuts:
    heights, counts = _row_pieces(rows[at], blocks)
    return Cuts(
        table=at,
        scheme=scheme,
        parts=np.ones(at.size, np.int64),
        home=ALL if scheme == "row_wise" else NODE,
        rows=heights,
        width=np.repeat(dim[at, None], 2, axis=1),
        count=counts,
        nodes=nodes,
    )


def _by_columns(
    at: Ints,
    rows: Ints,
    dim: Ints,
    blocks: int,
    scheme: str,
    home: int,
    nodes: tuple[int, int] = (0, 0),
) -> Cuts:
    parts, widths, counts = _column_pieces(dim[at], blocks)
    return Cuts(
        table=at,
        scheme=scheme,
        parts=parts,
        home=home,
        rows=np.repeat(rows[at, None], 3, axis=1),
        width=widths,
        count=counts,
        nodes=nodes,
    )


def _free_grids(
    at: Ints, rows: Ints, dim: Ints, shares: Floats, cuttable: Flags, ranks: int
) -> list[Cuts]:
    """Tables in 2, 3, 4, 6, ... blocks of rows by 1, 2, 4, ... of columns, on any ranks."""
    steps = [count for count in doubled_and_tripled(ranks) if count > 1]
    widths = [1 << power for power in range(int(dim.max(initial=1)).bit_length())]
    columns = np.array(widths, np.int64)
    blocks = np.array(steps, np.int64)
    table, down, across = (
        grid.ravel() for grid in np.meshgrid(at, blocks, columns, indexing="ij", sparse=False)
    )
    count = down * across
    finest = np.maximum(FINEST * shares[table], 2.0)
    useful = (count <= np.minimum(finest, ranks)) & (down <= rows[table])
    useful &= (across == 1) | (cuttable[table] & (across <= -(-dim[table] // COLUMN_STEP)))
    # rows over all ranks are a way of their own
    useful &= (across > 1) | (down < ranks)
    cuts = []
    for scheme, kind in (("row_wise", across == 1), ("grid_shard", across > 1)):
        chosen = useful & kind
        cuts.append(_blocks(table[chosen], rows, dim, down[chosen], across[chosen], scheme))
    return cuts


def doubled_and_tripled(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ... up to `most`."""
    powers = [1 << power for power in range(most.bit_length())]
    return sorted({count for power in powers for count in (power, 3 * power) if count <= most})


def _blocks(at: Ints, rows: Ints, dim: Ints, down: Ints, across: Ints, scheme: str) -> Cuts:
    """Tables in grids of row blocks by column blocks, i64[n] each, on any ranks."""
    heights, high = _row_pieces(rows[at], down)
    parts, widths, wide = _column_pieces(dim[at], across)
    shape = (at.size, heights.shape[1] * widths.shape[1])
    return Cuts(
        table=at,
        scheme=scheme,
        parts=parts,
        home=RANK,
        rows=np.repeat(heights, widths.shape[1], axis=1),
        width=np.tile(widths, (1, heights.shape[1])),
        count=(high[:, :, None] * wide[:, None, :]).reshape(shape),
    )


def _grid(at: Ints, rows: Ints, dim: Ints, layout: Layout) -> Cuts:
    """Column blocks over the nodes, each block's rows over the ranks of its node."""
    parts, widths, nodes = _column_pieces(dim[at], layout.nodes)
    sizes = _node_sizes(layout)
    # the smaller last node gets the last block where there are as many blocks as nodes
    ragged = (parts == layout.nodes) & (len(sizes) > 1)
    heights = []
    counts = []
    columns = []
    for kind in range(3):
        block_rows, blocks = _row_pieces(rows[at], sizes[0][2])
        tail_rows, tail_blocks = _row_pieces(rows[at], sizes[-1][2])
        shorter = ragged & (kind == 2)
        heights.append(np.where(shorter[:, None], tail_rows, block_rows))
        counts.append(np.where(shorter[:, None], tail_blocks, blocks) * nodes[:, kind, None])
        columns.append(np.repeat(widths[:, kind, None], 2, axis=1))
    return Cuts(
        table=at,
        scheme="grid_shard",
        parts=parts,
        home=ALL,
        rows=np.concatenate(heights, axis=1),
        width=np.concatenate(columns, axis=1),
        count=np.concatenate(counts, axis=1),
    )
