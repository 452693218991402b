"""In which ways can each table be cut and kept? Its candidates, as arrays, with their cost.

A candidate is a scheme with a number of column blocks and a placement of the rows in memory. Its
rectangles are of few kinds, the *pieces*: equal rows, columns, seconds and bytes. Where they may go
is the candidate's kind of home:

    RANK   each rectangle on any rank          table_wise, column_wise
    NODE   all on the ranks of one node        table_row_wise, table_column_wise
    ALL    as the scheme puts them             row_wise, data_parallel, grid_shard

Column cuts have 2, 4, 8, ... blocks down to `MIN_WIDTH` columns, and as many as there are ranks.
Row-scaled formats are never cut by columns, and narrow rows below wider caches never copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.embedding.specs import TableSpec
from neocpu.parallel.plan import AUTO
from neocpu.parallel.sharding import COLUMN_STEP
from neocpu.planner.placements import Capacity, Variant
from neocpu.planner.seconds import SCHEME_NAMES, CostModel, Layout
from neocpu.planner.work import Floats, Ints, Rectangles, Workload
from neocpu.storage.placement import LINE_BYTES

RANK = 0
NODE = 1
ALL = 2
# TorchRec's least width of a column block in its first planner.
MIN_WIDTH = 32
CODES = {name: code for code, name in enumerate(SCHEME_NAMES)}


class Candidates(NamedTuple):
    """Candidates of all tables, those of a table side by side; [n] each.

    table_rows, table_dim : i64[tables]. start : i64[tables + 1], first candidate of each table.
    table, scheme, parts, home : of a
    candidate; parts counts column blocks. first_node, last_node : homes that a NODE candidate may
    have, the last one excluded. variant : its placement, an index into `variants`.
    piece : i64[n + 1], its first piece. rows, width, copies : of pieces, so many rectangles each.
    piece_phases : f64[pieces, phases], seconds by the model's phases. piece_seconds : those that
    ranks wait for: the same, or their sum f64[pieces, 1] where the model is not synchronised.
    piece_bytes : f64[pieces, memories]. seconds, bytes : of
    all rectangles together. peak, peak_bytes : of the largest: seconds of all phases f64[n], bytes
    f64[n, memories].
    """

    table_rows: Ints
    table_dim: Ints
    start: Ints
    table: Ints
    scheme: Ints
    parts: Ints
    home: Ints
    first_node: Ints
    last_node: Ints
    variant: Ints
    variants: tuple[Variant, ...]
    piece: Ints
    rows: Floats
    width: Floats
    copies: Ints
    piece_phases: Floats
    piece_seconds: Floats
    piece_bytes: Floats
    seconds: Floats
    bytes: Floats
    peak: Floats
    peak_bytes: Floats

    def pieces(self, candidate: int) -> slice:
        """The pieces of a candidate."""
        return slice(int(self.piece[candidate]), int(self.piece[candidate + 1]))

    def repeated(self, candidate: int) -> Ints:
        """The piece of each rectangle of a RANK candidate, or of the others from rank to rank."""
        pieces = np.arange(self.piece[candidate], self.piece[candidate + 1])
        return np.repeat(pieces, self.copies[pieces])

    def of_table(self, table: int) -> range:
        """The candidates of a table."""
        return range(int(self.start[table]), int(self.start[table + 1]))

    def placement(self, candidate: int) -> str:
        """Name of its placement, as `memory.placement` has it."""
        return self.variants[int(self.variant[candidate])].name


@dataclass
class _Cuts:
    """One way to cut several tables: i64[n] each, pieces i64[n, kinds of pieces]."""

    table: Ints
    scheme: str
    parts: Ints
    home: int
    rows: Ints
    width: Ints
    count: Ints
    nodes: tuple[int, int] = (0, 0)


def candidates_of(
    tables: Sequence[TableSpec],
    schemes: Sequence[str],
    layout: Layout,
    model: CostModel,
    work: Workload,
    capacity: Capacity,
) -> Candidates:
    """All candidates of some tables.

    schemes : of each table, or `auto` for any.
    """
    cuts = list(_cuts(tables, schemes, layout))
    variants, allowed = capacity.variants([table.name for table in tables])
    return _priced(tables, cuts, variants, allowed, model, work, layout)


# ---- cuts ----


def _cuts(tables: Sequence[TableSpec], schemes: Sequence[str], layout: Layout) -> list[_Cuts]:
    """All ways to cut the tables, way after way."""
    shapes = np.array([(table.rows, table.dim) for table in tables], np.int64).reshape(-1, 2)
    rows = shapes[:, 0]
    dim = shapes[:, 1]
    free = np.array([name == AUTO for name in schemes], bool)
    named = np.array(schemes, object)
    cuttable = np.array([not table.unfit(cut=True) for table in tables], bool)
    copyable = np.array([not table.unfit(copied=True) for table in tables], bool)
    ranks = layout.ranks
    per_node = min(layout.ranks_per_node, ranks)
    units = -(-dim // COLUMN_STEP)
    many = ranks > 1

    def select(scheme: str, useful: NDArray[np.bool_]) -> Ints:
        return np.flatnonzero((free & useful) | (named == scheme))

    cuts = [_whole(select("table_wise", np.ones(rows.size, bool)), rows, dim, "table_wise", 1)]
    cuts.append(_whole(select("data_parallel", copyable & many), rows, dim, "data_parallel", ranks))
    cuts.append(_by_rows(select("row_wise", (rows > 1) & many), rows, dim, ranks))
    parts = 2
    while many and parts < ranks and (dim >= parts * MIN_WIDTH).any():
        at = np.flatnonzero(free & cuttable & (dim >= parts * MIN_WIDTH))
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
    return [cut for cut in cuts if cut.table.size]


def _node_sizes(layout: Layout) -> list[tuple[int, int, int]]:
    """(first node, node behind the last, ranks of each) of nodes of one size."""
    full, rest = divmod(layout.ranks, min(layout.ranks_per_node, layout.ranks))
    sizes = [(0, full, min(layout.ranks_per_node, layout.ranks))]
    if rest:
        sizes.append((full, full + 1, rest))
    return sizes


def _whole(at: Ints, rows: Ints, dim: Ints, scheme: str, copies: int) -> _Cuts:
    return _Cuts(
        table=at,
        scheme=scheme,
        parts=np.ones(at.size, np.int64),
        home=RANK if scheme == "table_wise" else ALL,
        rows=rows[at, None],
        width=dim[at, None],
        count=np.full((at.size, 1), copies),
    )


def _row_pieces(rows: Ints, blocks: int) -> tuple[Ints, Ints]:
    """(rows, how many) of the full blocks and of the last one, i64[n, 2] each (`row_blocks`)."""
    step = -(-rows // blocks)
    full = rows // step
    rest = rows - full * step
    return np.stack([step, rest], axis=1), np.stack([full, (rest > 0).astype(np.int64)], axis=1)


def _column_pieces(dim: Ints, blocks: int) -> tuple[Ints, Ints, Ints]:
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
) -> _Cuts:
    heights, counts = _row_pieces(rows[at], blocks)
    return _Cuts(
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
) -> _Cuts:
    parts, widths, counts = _column_pieces(dim[at], blocks)
    return _Cuts(
        table=at,
        scheme=scheme,
        parts=parts,
        home=home,
        rows=np.repeat(rows[at, None], 3, axis=1),
        width=widths,
        count=counts,
        nodes=nodes,
    )


def _grid(at: Ints, rows: Ints, dim: Ints, layout: Layout) -> _Cuts:
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
    return _Cuts(
        table=at,
        scheme="grid_shard",
        parts=parts,
        home=ALL,
        rows=np.concatenate(heights, axis=1),
        width=np.concatenate(columns, axis=1),
        count=np.concatenate(counts, axis=1),
    )


# ---- prices ----


def _priced(
    tables: Sequence[TableSpec],
    cuts: Sequence[_Cuts],
    variants: tuple[Variant, ...],
    allowed: NDArray[np.bool_],
    model: CostModel,
    work: Workload,
    layout: Layout,
) -> Candidates:
    """Candidates from cuts and placements: allowed bool[tables, variants]."""
    columns: dict[str, list[Ints]] = {}
    piece_columns: dict[str, list[Ints]] = {}
    candidate_count = 0
    for order, cut in enumerate(cuts):
        place, variant = np.nonzero(allowed[cut.table])
        size = place.size
        number = candidate_count + np.arange(size)
        candidate_count += size
        for name, values in (
            ("table", cut.table[place]),
            ("scheme", np.full(size, CODES[cut.scheme])),
            ("parts", cut.parts[place]),
            ("home", np.full(size, cut.home)),
            ("first_node", np.full(size, cut.nodes[0])),
            ("last_node", np.full(size, cut.nodes[1])),
            ("variant", variant),
            ("order", np.full(size, order)),
        ):
            columns.setdefault(name, []).append(values)
        used, kind = np.nonzero(cut.count[place] > 0)
        for name, values in (
            ("owner", number[used]),
            ("rows", cut.rows[place[used], kind]),
            ("width", cut.width[place[used], kind]),
            ("count", cut.count[place[used], kind]),
        ):
            piece_columns.setdefault(name, []).append(values)
    flat = {name: np.concatenate(parts) for name, parts in columns.items()}
    pieces = {name: np.concatenate(parts) for name, parts in piece_columns.items()}

    by_table = np.lexsort((flat["variant"], flat["order"], flat["table"]))
    flat = {name: values[by_table] for name, values in flat.items()}
    new_number = np.empty(by_table.size, np.int64)
    new_number[by_table] = np.arange(by_table.size)
    owner = new_number[pieces["owner"]]
    by_owner = np.argsort(owner, kind="stable")
    pieces = {name: values[by_owner] for name, values in pieces.items()}
    owner = owner[by_owner]

    rectangles = Rectangles(
        table=flat["table"][owner],
        scheme=flat["scheme"][owner],
        rows=pieces["rows"].astype(np.float64),
        width=pieces["width"].astype(np.float64),
        rank=np.zeros(owner.size, np.int64),
        share=np.ones(owner.size),
        below=np.zeros(owner.size, np.int64),
    )
    rectangles = with_variants(rectangles, variants, flat["variant"][owner])
    phases = model.seconds(rectangles)
    seconds = phases if model.synchronised else phases.sum(axis=1, keepdims=True)
    size_bytes = bytes_of(tables, rectangles, variants, flat["variant"][owner], work)
    first = np.searchsorted(owner, np.arange(by_table.size + 1))
    heads = first[:-1]
    count = pieces["count"]
    return Candidates(
        table_rows=np.array([table.rows for table in tables], np.int64),
        table_dim=np.array([table.dim for table in tables], np.int64),
        start=np.searchsorted(flat["table"], np.arange(len(tables) + 1)),
        table=flat["table"],
        scheme=flat["scheme"],
        parts=flat["parts"],
        home=flat["home"],
        first_node=flat["first_node"],
        last_node=flat["last_node"],
        variant=flat["variant"],
        variants=variants,
        piece=first,
        rows=rectangles.rows,
        width=rectangles.width,
        copies=count,
        piece_phases=phases,
        piece_seconds=seconds,
        piece_bytes=size_bytes,
        seconds=np.add.reduceat(seconds * count[:, None], heads),
        bytes=np.add.reduceat(size_bytes * count[:, None], heads),
        peak=np.maximum.reduceat(seconds.sum(axis=1), heads),
        peak_bytes=np.maximum.reduceat(size_bytes, heads),
    )


def with_variants(rectangles: Rectangles, variants: Sequence[Variant], variant: Ints) -> Rectangles:
    """The rectangles with their rows placed by variants, of number `variant` i64[n]."""
    return rectangles._replace(
        share=np.array([v.share for v in variants])[variant],
        below=np.array([v.below for v in variants])[variant],
    )


def bytes_of(
    tables: Sequence[TableSpec],
    rectangles: Rectangles,
    variants: Sequence[Variant],
    variant: Ints,
    work: Workload,
) -> Floats:
    """Bytes of each rectangle in hbm, ddr and ssd, and all its rows, f64[n, 4]."""
    widths, place = np.unique(
        np.stack([rectangles.table, rectangles.width.astype(np.int64)], axis=1),
        axis=0,
        return_inverse=True,
    )
    home = [tables[t].row_bytes(width, work.state_floats) for t, width in widths.tolist()]
    line = [tables[t].cached.row_bytes(width, work.state_floats) for t, width in widths.tolist()]
    place = place.reshape(-1)
    home_bytes = np.array(home, np.float64)[place] * rectangles.rows
    line_bytes = (np.array(line, np.float64)[place] + LINE_BYTES) * rectangles.rows
    whole = np.array([v.whole for v in variants])[variant]
    cached = np.array([v.cached for v in variants])[variant]
    size = home_bytes[:, None] * whole + np.ceil(line_bytes[:, None] * cached)
    return np.concatenate([size, home_bytes[:, None]], axis=1)
