"""How many bytes does a model take, by format and optimizer, and in which memory of a rank? How
many does a step hold besides its rows?

Bytes are counted from shapes, whether or not they fit. This is the paper's argument for narrow rows
and row-wise AdaGrad (Neo, 2022): 12 trillion parameters take 96 TB in fp32 with AdaGrad, 48 TB with
row-wise AdaGrad, and 24 TB in fp16, plus one number per row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.parallel.sharding.plan import Plan, shard_bytes
from neocpu.plan.cost.work import COPIED, Floats, Rectangles, TableArrays, row_parts
from neocpu.tables.embedding.memory_plan import MemoryPlan
from neocpu.tables.specs.specs import TableSpec, numbers_bytes
from neocpu.tables.tiers.placement import PLACEMENTS, Room

# The paper's steps from 96 TB to 24 TB: format, optimizer, its floats per element and per row.
LADDER = (
    ("fp32", "AdaGrad", (1, 0)),
    ("fp32", "row-wise AdaGrad", (0, 1)),
    ("fp16", "row-wise AdaGrad", (0, 1)),
)


@dataclass(frozen=True)
class Bytes:
    """Bytes of all rows of a model: weights, and optimizer state per element and per row."""

    numbers: int
    per_element: int
    per_row: int

    @property
    def total(self) -> int:
        """Bytes of weights and state together."""
        return self.numbers + self.per_element + self.per_row


def model_bytes(
    tables: Sequence[TableSpec], state_floats: tuple[int, int], form: str = ""
) -> Bytes:
    """Bytes of all rows of some tables.

    state_floats : optimizer floats per element and per row.
    form : format of all weights; "": each table's own.
    """
    elements = sum(table.rows * table.dim for table in tables)
    rows = sum(table.rows for table in tables)
    return Bytes(
        numbers=sum(
            table.rows * numbers_bytes(form or table.format, table.dim) for table in tables
        ),
        per_element=4 * state_floats[0] * elements,
        per_row=4 * state_floats[1] * rows,
    )


def buffer_bytes(r: Rectangles, tables: TableArrays) -> Floats:
    """Bytes that a step holds on a rank for each rectangle besides its rows, f64[n].

    These are the rows of all samples' lookups, their lengths, the pooled vectors that leave, words
    of 8 bytes where they are partial sums, and the gradients that arrive. Copies see the samples of
    their own rank only, whose vectors every plan has. tables : of the rectangles, [n] each.
    """
    parts = row_parts(r, tables)
    indices = tables.index_bytes * tables.lookups * r.lookups_of(tables) + 4.0 * tables.bags
    vectors = tables.bags * r.width * np.where(parts, 12.0, 8.0)
    return np.where(COPIED[r.scheme], 0.0, indices + vectors)


def rank_bytes(
    plan: Plan,
    rank: int,
    placements: Sequence[str],
    rooms: Sequence[Room],
    state_floats: tuple[int, int],
) -> dict[str, int]:
    """Bytes of a rank's shards in each memory ("hbm", "ddr", "ssd") when all rows exist.

    Caches and scratch count as full.

    placements : by table.
    rooms : of the rank's shards, in the plan's order.
    state_floats : optimizer floats per element and per row.
    """
    size = {"hbm": 0, "ddr": 0, "ssd": 0}
    for shard, room in zip(plan.local(rank), rooms):
        table = plan.tables[shard.table]
        placement = PLACEMENTS[placements[shard.table]]
        rows, width = shard.shape
        home_bytes = table.row_bytes(width, state_floats)
        line_bytes = table.cached.row_bytes(width, state_floats)
        if placement.whole:
            size[placement.whole] += rows * home_bytes
        for memory, lines in zip(placement.caches, room.lines):
            size[memory] += lines * line_bytes
        if room.scratch:
            scratch_memory = placement.caches[0] if placement.ssd else placement.whole
            size[scratch_memory] += room.scratch * line_bytes
        if placement.ssd:
            size["ssd"] += rows * home_bytes
    return size


def placement_lines(plan: Plan, memory: MemoryPlan, state_floats: tuple[int, int]) -> list[str]:
    """Where each table lives and why, as lines of text, most demanded per byte first.

    The columns are bytes that a step moves per byte of the table, bytes of all its rows, and the
    share of the rows that its caches hold.
    """
    table_bytes = [0] * len(plan.tables)
    table_rows = [0] * len(plan.tables)
    cache_lines: dict[tuple[int, str], int] = {}
    for rank in range(plan.ranks):
        shards = plan.local(rank)
        for shard, room in zip(shards, memory.rooms(plan.tables, shards, state_floats)):
            t = shard.table
            table_bytes[t] += shard_bytes(plan.tables[t], shard, state_floats)
            table_rows[t] += shard.shape[0]
            for cache, lines in zip(PLACEMENTS[memory.placements[t]].caches, room.lines):
                earlier_lines = cache_lines.get((t, cache), 0)
                # a cache may have more lines than its shard has rows
                cache_lines[t, cache] = earlier_lines + min(lines, shard.shape[0])

    demands = memory.demands or (0.0,) * len(plan.tables)
    text = [f"{'table':14}{'placement':23}{'bytes a step per byte':>23}{'bytes':>20}  cached"]
    for t in sorted(range(len(plan.tables)), key=lambda t: (-demands[t], t)):
        shares = [
            f"{cache} {100 * cache_lines[t, cache] / table_rows[t]:.3g} %"
            for cache in ("hbm", "ddr")
            if (t, cache) in cache_lines
        ]
        # placements that were named have no demand
        demand = f"{demands[t]:.4g}" if memory.demands else ""
        line = (
            f"{plan.tables[t].name[:13]:14}{memory.placements[t]:23}{demand:>23}"
            f"{table_bytes[t]:>20,}  {', '.join(shares)}"
        )
        text.append(line.rstrip())
    return text
