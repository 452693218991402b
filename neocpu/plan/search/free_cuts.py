"""Candidates whose rectangles have any size: of a plan that somebody wrote, or that fill ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Ints
from neocpu.parallel.sharding.schemes import Shard
from neocpu.plan.cost.seconds import CostModel
from neocpu.plan.cost.work import Workload, whole_rectangles
from neocpu.plan.search.cuts import RANK
from neocpu.plan.search.options import CODES, PricedCuts, bytes_of, with_variants
from neocpu.plan.tiers.placements import Variant
from neocpu.tables.specs.specs import TableSpec


@dataclass(frozen=True)
class FreeCut:
    """A table's rectangles, and the number of its variant."""

    scheme: str
    shards: tuple[Shard, ...]
    variant: int

    @property
    def table(self) -> int:
        """Number of the table."""
        return self.shards[0].table


def scheme_of(table: TableSpec, shards: Sequence[Shard]) -> str:
    """The scheme that has such rectangles on any ranks."""
    by_rows = any(shard.shape[0] < table.rows for shard in shards)
    by_columns = any(shard.shape[1] < table.dim for shard in shards)
    if by_rows:
        return "grid_shard" if by_columns else "row_wise"
    return "column_wise" if by_columns else "table_wise"


def free_candidates(
    tables: Sequence[TableSpec],
    cuts: Sequence[FreeCut],
    variants: Sequence[Variant],
    model: CostModel,
    work: Workload,
) -> PricedCuts:
    """The cuts as candidates in their order, each rectangle a piece of its own on any rank."""
    count = len(cuts)
    owner = np.repeat(np.arange(count), _column([len(cut.shards) for cut in cuts]))
    shards = [shard for cut in cuts for shard in cut.shards]
    edges = np.array([(*s.rows, *s.cols) for s in shards], np.int64).reshape(-1, 4)
    columns = {
        "table": _column([cut.table for cut in cuts]),
        "scheme": _column([CODES[cut.scheme] for cut in cuts]),
        "parts": _column([len({shard.cols for shard in cut.shards}) for cut in cuts]),
        "home": np.full(count, RANK),
        "first_node": np.zeros(count, np.int64),
        "last_node": np.zeros(count, np.int64),
        "variant": _column([cut.variant for cut in cuts]),
    }
    height = edges[:, 1] - edges[:, 0]
    width = edges[:, 3] - edges[:, 2]
    rectangles = whole_rectangles(
        table=columns["table"][owner],
        scheme=columns["scheme"][owner],
        rows=height.astype(np.float64),
        width=width.astype(np.float64),
    )
    variant = columns["variant"][owner]
    rectangles = with_variants(rectangles, variants, variant)
    pieces = {
        "owner": owner,
        "rows": height,
        "width": width,
        "first_row": edges[:, 0],
        "first_column": edges[:, 2],
        "copies": np.ones(owner.size, np.int64),
        "phases": model.seconds(rectangles),
        "bytes": bytes_of(tables, rectangles, variants, variant, work),
    }
    return PricedCuts(columns, pieces)


def _column(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)
