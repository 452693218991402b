"""What may each rank hold, and what does a rectangle take of it? Bytes of memories, and pins.

Tables that may be on some ranks only are told by the same numbers as memories: of each set of ranks
that tables are pinned to, a rectangle takes one unit, for which ranks outside the set have no room.
So whatever minds the memory minds the pins.
"""

from collections.abc import Sequence

import numpy as np

from neocpu.core.types import Ints
from neocpu.plan.cost.capacity import buffer_bytes
from neocpu.plan.cost.work import Floats, Rectangles, TableArrays, Workload
from neocpu.plan.machines.unequal import of_ranks
from neocpu.plan.tiers.placements import Capacity, Variant
from neocpu.tables.specs.specs import TableSpecs
from neocpu.tables.tiers.placement import LINE_BYTES

# Column of the bytes in all memories together.
TOGETHER = 3
# Less than the unit of a pinned rectangle, and above 0, by which shares are divided.
NO_UNIT = 0.5


def sets_of_ranks(tables: TableSpecs, work: Workload) -> tuple[list[tuple[int, ...]], Ints]:
    """(sets of ranks that tables are pinned to, the set of each table i64[tables], -1 for none)."""
    pinned = [work.pins.get(table.name, ()) for table in tables]
    sets = sorted(set(pinned) - {()})
    number = {ranks: index for index, ranks in enumerate(sets)}
    return sets, np.array([number.get(ranks, -1) for ranks in pinned], np.int64)


def units(tables: TableSpecs, work: Workload, table: Ints) -> Floats:
    """Units of rectangles of some tables i64[n], f64[n, sets]."""
    sets, number = sets_of_ranks(tables, work)
    return (number[table][:, None] == np.arange(len(sets))).astype(np.float64)


def rank_limits(capacity: Capacity, tables: TableSpecs, work: Workload, ranks: int) -> Floats:
    """f64[ranks, 4 + sets]: bytes in hbm, ddr, ssd and together; room for pinned rectangles.

    Infinite without a limit.
    """
    sets, _ = sets_of_ranks(tables, work)
    allowed = np.array([np.isin(np.arange(ranks), allowed) for allowed in sets], bool)
    room = np.where(allowed.reshape(-1, ranks).T, np.inf, NO_UNIT)
    memory, _ = of_ranks(capacity.unequal, ranks)
    limits = capacity.limits * memory[:, None]
    # remedies ask about more ranks than other jobs have
    for rank, taken in enumerate(capacity.taken[:ranks]):
        limits[rank] -= np.array([*taken, sum(taken)], np.float64)
    # what is full has no room, but shares of it can be told
    return np.concatenate([np.maximum(limits, NO_UNIT), room], axis=1)


def with_variants(rectangles: Rectangles, variants: Sequence[Variant], variant: Ints) -> Rectangles:
    """The rectangles with their rows placed by variants, of number `variant` i64[n]."""
    return rectangles._replace(
        share=np.array([v.share for v in variants])[variant],
        below=np.array([v.below for v in variants])[variant],
    )


def bytes_of(
    tables: TableSpecs,
    rectangles: Rectangles,
    variants: Sequence[Variant],
    variant: Ints,
    work: Workload,
) -> Floats:
    """Bytes of each rectangle in hbm, ddr and ssd, and all its rows, and its units (`units`),
    f64[n, 4 + sets].

    What a step holds besides rows is among the former where the variants count it.
    """
    # sizes are asked once for each width of a table: rectangles of one cut are alike
    widths, inverse = np.unique(
        np.stack([rectangles.table, rectangles.width.astype(np.int64)], axis=1),
        axis=0,
        return_inverse=True,
    )
    home = [tables[t].row_bytes(width, work.state_floats) for t, width in widths.tolist()]
    line = [tables[t].cached.row_bytes(width, work.state_floats) for t, width in widths.tolist()]
    # NumPy 2.0 gives the inverse of unique rows another shape than the versions around it
    inverse = inverse.reshape(-1)
    home_bytes = np.array(home, np.float64)[inverse] * rectangles.rows
    # a cache keeps books beside its rows, line by line
    line_bytes = (np.array(line, np.float64)[inverse] + LINE_BYTES) * rectangles.rows
    whole = np.array([v.whole for v in variants])[variant]
    cached = np.array([v.cached for v in variants])[variant]
    size = home_bytes[:, None] * whole + np.ceil(line_bytes[:, None] * cached)
    buffers = np.array([v.buffers for v in variants])[variant]
    if buffers.any():
        arrays = TableArrays.of(tables, work)
        of_rectangle = TableArrays(*(column[rectangles.table] for column in arrays))
        size += buffer_bytes(rectangles, of_rectangle)[:, None] * buffers
    pinned = units(tables, work, rectangles.table)
    return np.concatenate([size, home_bytes[:, None], pinned], axis=1)
