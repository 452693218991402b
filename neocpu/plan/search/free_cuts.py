"""Candidates whose rectangles have any size: of a plan that somebody wrote, or that fill ranks.

A pinned table has one such cut, whose rectangles stay on their ranks.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Ints
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.sharding.schemes import Shard
from neocpu.plan.cost.seconds import SCHEME_NAMES
from neocpu.plan.cost.work import on_rows, whole_rectangles
from neocpu.plan.search.cuts import ALL, RANK
from neocpu.plan.search.options import CODES, Options, PricedCuts, SearchTask, joined
from neocpu.plan.tiers.limits import bytes_of, with_variants
from neocpu.plan.tiers.placements import Variant
from neocpu.tables.specs.specs import TableSpec

# rectangles of tables that stay where they are, by number of the table
Pins = Mapping[int, Sequence[Shard]]


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
    task: SearchTask,
    cuts: Sequence[FreeCut],
    variants: Sequence[Variant],
    pinned: bool = False,
) -> PricedCuts:
    """The cuts as candidates in their order, each rectangle a piece of its own.

    pinned : on the rank that it has, else on any.
    """
    count = len(cuts)
    owner = np.repeat(np.arange(count), _column([len(cut.shards) for cut in cuts]))
    shards = [shard for cut in cuts for shard in cut.shards]
    edges = np.array([(*s.rows, *s.cols) for s in shards], np.int64).reshape(-1, 4)
    columns = {
        "table": _column([cut.table for cut in cuts]),
        "scheme": _column([CODES[cut.scheme] for cut in cuts]),
        "parts": _column([len({shard.cols for shard in cut.shards}) for cut in cuts]),
        "home": np.full(count, ALL if pinned else RANK),
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
    rectangles = on_rows(rectangles, task.tables, task.work, edges[:, 0])
    variant = columns["variant"][owner]
    rectangles = with_variants(rectangles, variants, variant)
    pieces = {
        "owner": owner,
        "rows": height,
        "width": width,
        "first_row": edges[:, 0],
        "first_column": edges[:, 2],
        "rank": _column([s.rank if pinned else -1 for s in shards]),
        "copies": np.ones(owner.size, np.int64),
        "phases": task.model.seconds(rectangles),
        "bytes": bytes_of(task.tables, rectangles, variants, variant, task.work),
    }
    return PricedCuts(columns, pieces)


def _column(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)


@dataclass(frozen=True)
class FreeCuts:
    """Free cuts among the candidates of a search."""

    task: SearchTask
    variants: Sequence[Variant]

    def proposed(self, candidates: PricedCuts, plans: Sequence[Plan]) -> PricedCuts:
        """The candidates, and the cuts of some plans on any ranks, placed as each table may be."""
        cuts = []
        for plan in plans:
            for number, scheme in enumerate(plan.schemes):
                shards = plan.of_table(number)
                if len(shards) > 1 and not plan.replicated(number):
                    variant = self._variants(candidates, number)[0]
                    cuts.append(FreeCut(scheme, shards, variant))
        return self._with(candidates, cuts, pinned=False)

    def pinned(self, candidates: PricedCuts, pins: Pins) -> PricedCuts:
        """The candidates, those of pinned tables instead of all others that these have."""
        cuts = [cut for number in pins for cut in self._pins(candidates, number, pins[number])]
        kept = ~np.isin(candidates.columns["table"], list(pins))
        of_kept = kept[candidates.pieces["owner"]]
        pieces = {name: values[of_kept] for name, values in candidates.pieces.items()}
        pieces["owner"] = (kept.cumsum() - 1)[pieces["owner"]]
        columns = {name: values[kept] for name, values in candidates.columns.items()}
        return self._with(PricedCuts(columns, pieces), cuts, pinned=True)

    def _pins(
        self, candidates: PricedCuts, number: int, shards: Sequence[Shard]
    ) -> Iterator[FreeCut]:
        own = candidates.columns["table"] == number
        scheme = SCHEME_NAMES[int(candidates.columns["scheme"][own][0])]
        for variant in self._variants(candidates, number):
            yield FreeCut(scheme, tuple(sorted(shards)), variant)

    def _variants(self, candidates: PricedCuts, number: int) -> list[int]:
        own = candidates.columns["table"] == number
        return np.unique(candidates.columns["variant"][own]).tolist()

    def _with(self, candidates: PricedCuts, cuts: Sequence[FreeCut], pinned: bool) -> PricedCuts:
        if not cuts:
            return candidates
        added = free_candidates(self.task, cuts, self.variants, pinned)
        return joined(candidates, added)


def cut_of(shapes: Iterable[tuple[int, int]]) -> tuple[tuple[int, int, int], ...]:
    """(rows, columns, how many) of rectangles, largest first."""
    kinds = sorted(Counter(shapes).items(), reverse=True)
    return tuple((rows, width, count) for (rows, width), count in kinds)


def cut_of_candidate(options: Options, candidate: int) -> tuple[tuple[int, int, int], ...]:
    """As `cut_of`, of a candidate's rectangles."""
    pieces = options.pieces(candidate)
    rows = options.rows[pieces].astype(np.int64).tolist()
    width = options.width[pieces].astype(np.int64).tolist()
    kinds = zip(rows, width, options.copies[pieces].tolist())
    return cut_of((rows, width) for rows, width, copies in kinds for _ in range(copies))
