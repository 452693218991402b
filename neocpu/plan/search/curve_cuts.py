"""In which ways may rows be cut where some are looked up more than others?

Equal rows are unequal work there (`plan/cost/row_curves.py`), so every rectangle has a price of its
own. Beside the blocks of the schemes such tables are cut into blocks of equal lookups, which
balance work, of equal rows, which balance memory, and of equal means of both, on any ranks.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product

import numpy as np

from neocpu.parallel.sharding.plan import allowed_schemes, is_open
from neocpu.parallel.sharding.schemes import COLUMN_STEP, SCHEMES, RankLayout, column_blocks
from neocpu.plan.cost.work import ROW_SPLIT, Floats, Workload
from neocpu.plan.search.cuts import FINEST, RANK, Cuts, doubled_and_tripled, of_tables
from neocpu.tables.specs.specs import TableSpec, TableSpecs

# Of blocks of rows: equal lookups, equal means of the parts of lookups and of rows, equal rows.
EVENNESS = (1.0, 0.5, 0.0)
BY_ROWS = {name for name, split in zip(SCHEMES, ROW_SPLIT.tolist()) if split}

# (rows, columns) of a rectangle, first and end of each
Edges = tuple[tuple[int, int], tuple[int, int]]


def along_curves(
    cuts: Sequence[Cuts],
    tables: TableSpecs,
    schemes: Sequence[str],
    layout: RankLayout,
    shares: Floats,
    work: Workload,
) -> list[Cuts]:
    """The ways `cuts`, those by rows of tables with curves rectangle by rectangle, and further ways
    to cut such tables.

    schemes, shares : as for `cuts.ways_to_cut`.
    """
    curved = np.array([table.name in work.curves for table in tables], bool)
    ways: list[Cuts] = []
    for cut in cuts:
        if cut.scheme not in BY_ROWS or not curved[cut.table].any():
            ways.append(cut)
            continue
        ways.append(of_tables(cut, ~curved[cut.table]))
        if cut.home != RANK:
            for number in cut.table[curved[cut.table]].tolist():
                ways.append(_of_scheme(number, tables[number], cut, layout))
    for number in np.flatnonzero(curved).tolist():
        table = tables[number]
        ranks = len(work.pins.get(table.name, ())) or layout.ranks
        share = float(shares[number])
        ways += _on_any_ranks(number, table, schemes[number], ranks, share, work)
    return [cut for cut in ways if cut.table.size]


def _of_scheme(number: int, table: TableSpec, cut: Cuts, layout: RankLayout) -> Cuts:
    """One table of a way whose rectangles are where its scheme puts them."""
    scheme = SCHEMES[cut.scheme]
    shards = scheme.cut(number, table.rows, table.dim, layout, cut.nodes[0])
    across = len({shard.cols for shard in shards})
    way = _way(number, [(shard.rows, shard.cols) for shard in shards], across)
    return replace(way, scheme=cut.scheme, home=cut.home, nodes=cut.nodes)


def _on_any_ranks(
    number: int, table: TableSpec, choice: str, ranks: int, share: float, work: Workload
) -> list[Cuts]:
    """Ways to cut one table along its curve, each rectangle on any rank: into as many as there are
    ranks, or as its share of a rank's work or memory is worth.
    """
    if "row_wise" not in allowed_schemes(choice):
        return []
    widths = [1]
    if "grid_shard" in allowed_schemes(choice) and not table.unfit(cut=True):
        most = -(-table.dim // COLUMN_STEP)
        widths = [1 << power for power in range(most.bit_length())]
    open_choice = is_open(choice)
    finest = max(FINEST * share, 2.0) if open_choice else 0.0
    curve = work.curves[table.name]
    ways: dict[tuple[int, ...], Cuts] = {}
    for across, down in product(widths, {*doubled_and_tripled(ranks), ranks} - {1}):
        columns = list(column_blocks(table.dim, across))
        whole_blocks = all(left % work.wires.column_block == 0 for left, _ in columns)
        over_all = across == 1 and down == ranks
        if not whole_blocks or (down * across > min(finest, ranks) and not over_all):
            continue
        # row_wise that is named alone means equal rows, here too
        for evenness in EVENNESS if open_choice else EVENNESS[-1:]:
            edges = curve.edges(down, evenness)
            # hot rows may leave fewer blocks than were asked for
            if len(edges) > 2:
                ways[across, *edges] = _way(number, list(product(pairwise(edges), columns)), across)
    return list(ways.values())


def _way(number: int, rectangles: Sequence[Edges], across: int) -> Cuts:
    """One table in these rectangles, of so many blocks of columns."""
    edges = np.array(rectangles, np.int64)
    size = edges[:, :, 1] - edges[:, :, 0]
    return Cuts(
        table=np.array([number]),
        scheme="row_wise" if across == 1 else "grid_shard",
        parts=np.array([across]),
        home=RANK,
        rows=size[None, :, 0],
        width=size[None, :, 1],
        count=np.ones((1, len(edges)), np.int64),
        first=edges[None, :, :, 0],
    )
