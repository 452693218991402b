"""Which rectangles does a plan have? All of them at once, as columns of numbers.

The exchange lists entries rank by rank (`parallel/sharding/entries.py`); whoever weighs a plan of a
thousand tables on a hundred ranks wants sums over them instead. A rectangle is of one of the kinds
that `parallel/sharding/entries.py` describes: a copy (data_parallel), whole, or a part of a
row-split table; and it shares row scalars with the rectangles of other columns, or not.
"""

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from neocpu.core.types import Ints
from neocpu.parallel.exchange.wire_formats import WireSpec
from neocpu.parallel.sharding.plan import Plan
from neocpu.plan.cost.work import Flags


@dataclass(frozen=True)
class ShardColumns:
    """S rectangles of a plan, sorted as `Plan.shards`: i64[S] each, flags bool[S].

    table : number of the table. lo, hi : its rows [lo, hi). left, right : its columns.
    rank : who holds it. keys : features that look the table up.
    copies : of a data_parallel table. parts : some rows of a table, so that exact words travel.
    narrow : some columns of a table, so that row scalars come from other rectangles.
    """

    ranks: int
    table: Ints
    lo: Ints
    hi: Ints
    left: Ints
    right: Ints
    rank: Ints
    keys: Ints
    copies: Flags
    parts: Flags
    narrow: Flags

    @classmethod
    def of(cls, plan: Plan) -> "ShardColumns":
        """The rectangles of a plan."""
        # one pass over the shards, of which there may be 100,000
        numbers = (n for s in plan.shards for n in (s.table, *s.rows, *s.cols, s.rank))
        columns = np.fromiter(numbers, np.int64, 6 * len(plan.shards)).reshape(-1, 6).T
        table, lo, hi, left, right, rank = np.ascontiguousarray(columns)
        rows = np.array([spec.rows for spec in plan.tables], np.int64)[table]
        dim = np.array([spec.dim for spec in plan.tables], np.int64)[table]
        features = np.array([len(spec.features) for spec in plan.tables], np.int64)
        replicated = np.array([plan.replicated(t) for t in range(len(plan.tables))], bool)
        copies = replicated[table]
        return cls(
            ranks=plan.ranks,
            table=table,
            lo=lo,
            hi=hi,
            left=left,
            right=right,
            rank=rank,
            keys=features[table],
            copies=copies,
            parts=~copies & (hi - lo < rows),
            narrow=~copies & (right - left < dim),
        )

    @cached_property
    def widths(self) -> Ints:
        """Columns of E that a rectangle's keys take: i64[S]."""
        return self.keys * (self.right - self.left)

    def wire_bytes(self, wire: WireSpec) -> Ints:
        """Bytes of these columns of a sample on a wire: i64[S]."""
        return self.keys * wire.bytes(self.right - self.left)

    def sum_by_rank(self, amounts: Ints, chosen: Flags) -> Ints:
        """Sum of amounts i64[S] over the chosen rectangles of each rank: i64[ranks]."""
        totals = np.bincount(self.rank[chosen], amounts[chosen], self.ranks)
        return totals.astype(np.int64)

    def select(self, chosen: Flags | Ints) -> "ShardColumns":
        """Some of the rectangles."""
        columns = [f.name for f in fields(self) if f.name != "ranks"]
        return ShardColumns(self.ranks, **{name: getattr(self, name)[chosen] for name in columns})
