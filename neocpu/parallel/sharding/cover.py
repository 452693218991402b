"""Is every cell of a table in exactly one rectangle?"""

from collections.abc import Sequence

import numpy as np

from neocpu.core.errors import PlanError
from neocpu.parallel.sharding.schemes import Shard
from neocpu.tables.specs.specs import TableSpec


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
