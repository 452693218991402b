"""How many bytes does a model take, by format and optimizer, and in which memory of a rank?
Counted, whether or not it fits.

The paper's argument for narrow rows and row-wise AdaGrad (Neo, 2022): 12 trillion parameters are 96
TB in fp32 with AdaGrad, 48 TB with its row-wise kind, 24 TB in fp16, and a number per row beside.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neocpu.embedding.specs import TableSpec, numbers_bytes
from neocpu.embedding.tiered import MemoryPlan
from neocpu.parallel.plan import Plan, shard_bytes
from neocpu.storage.placement import PLACEMENTS, Room

LADDER = (
    ("fp32", "AdaGrad", (1, 0)),
    ("fp32", "row-wise AdaGrad", (0, 1)),
    ("fp16", "row-wise AdaGrad", (0, 1)),
)


@dataclass(frozen=True)
class Bytes:
    """Bytes of all rows of a model: numbers, optimizer state per element, optimizer state per row."""

    numbers: int
    per_element: int
    per_row: int

    @property
    def total(self) -> int:
        """Together."""
        return self.numbers + self.per_element + self.per_row


def model_bytes(
    tables: Sequence[TableSpec], state_floats: tuple[int, int], form: str = ""
) -> Bytes:
    """Bytes of all rows of some tables, in their own formats or all in `form`; state_floats: per
    element and per row.
    """
    cells = [t.rows * t.dim for t in tables]
    numbers = sum(t.rows * numbers_bytes(form or t.format, t.dim) for t in tables)
    return Bytes(
        numbers, 4 * state_floats[0] * sum(cells), 4 * state_floats[1] * sum(t.rows for t in tables)
    )


def rank_bytes(
    plan: Plan,
    rank: int,
    placements: Sequence[str],
    rooms: Sequence[Room],
    state_floats: tuple[int, int],
) -> dict[str, int]:
    """Bytes that a rank's shards take in each memory: caches and scratch full, and every row of a
    file written.
    """
    found = {"hbm": 0, "ddr": 0, "ssd": 0}
    for shard, room in zip(plan.local(rank), rooms):
        table, name = plan.tables[shard.table], placements[shard.table]
        place = PLACEMENTS[name]
        rows, width = shard.shape
        row, used = (spec.row_bytes(width, state_floats) for spec in (table, table.cached))
        if place.whole:
            found[place.whole] += rows * row
        for memory, lines in zip(place.caches, room.lines):
            found[memory] += lines * used
        if room.scratch:
            found[place.caches[0] if place.ssd else place.whole] += room.scratch * used
        if place.ssd:
            found["ssd"] += rows * row
    return found


def placed(plan: Plan, memory: MemoryPlan | None) -> list[dict[str, Any]]:
    """Where each table lives, and, if that was chosen, the bytes that a step asks of a byte of it."""
    if memory is None:
        return []
    found: list[dict[str, Any]] = [
        {"table": table.name, "placement": name}
        for table, name in zip(plan.tables, memory.placements)
    ]
    for entry, asked in zip(found, memory.demands):
        entry["demand"] = asked
    return found


def placement_lines(plan: Plan, memory: MemoryPlan, state_floats: tuple[int, int]) -> list[str]:
    """Where each table lives and why, as a small table, most demanded first: bytes that a step asks
    of a byte of it, bytes of all its rows, and the share of them that its caches hold.
    """
    size = [0] * len(plan.tables)
    rows = [0] * len(plan.tables)
    lines: dict[tuple[int, str], int] = {}
    for rank in range(plan.ranks):
        for shard, room in zip(
            plan.local(rank), memory.rooms(plan.tables, plan.local(rank), state_floats)
        ):
            size[shard.table] += shard_bytes(plan.tables[shard.table], shard, state_floats)
            rows[shard.table] += shard.shape[0]
            for name, count in zip(PLACEMENTS[memory.placements[shard.table]].caches, room.lines):
                key = shard.table, name
                lines[key] = lines.get(key, 0) + min(count, shard.shape[0])
    told = [f"{'table':14}{'placement':23}{'bytes a step per byte':>23}{'bytes':>20}  cached"]
    for t in sorted(
        range(len(size)), key=lambda t: (-memory.demands[t] if memory.demands else 0, t)
    ):
        shares = [
            f"{name} {100 * lines[t, name] / rows[t]:.3g} %"
            for name in ("hbm", "ddr")
            if (t, name) in lines
        ]
        asked = f"{memory.demands[t]:.4g}" if memory.demands else ""
        told.append(
            (
                f"{plan.tables[t].name[:13]:14}{memory.placements[t]:23}{asked:>23}{size[t]:>20,}  "
                f"{', '.join(shares)}"
            ).rstrip()
        )
    return told
