"""Which memory does each table live in, and how many of its rows fit there? Placements by name, and
rooms under budgets.

    placement               rows are in                       a rank's budgets
    hbm                     HBM, all of them                  memory.hbm
    ddr                     DDR, all of them                  memory.ddr
    hbm_over_ddr            DDR; a cache in HBM               both
    ddr_over_ssd            an SSD file; a cache in DDR       memory.ddr
    hbm_over_ddr_over_ssd   an SSD file; caches in both       both

    auto                    the planner chooses (`planner/tiers.py`)

Neo's placements (FBGEMM: device, host, managed caching, SSD). Whole tables come first; what they
leave of a budget gives every cache as many lines, small tables no more than their rows: a batch
asks all tables for about as many rows, so a byte of a small one is asked for most. Without a budget
a cache holds FBGEMM's default share of its table's rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neocpu.errors import TrainingError
from neocpu.records import choose

AUTO = "auto"
WAYS = 32
LOAD_FACTOR = 0.2  # FBGEMM's default
LINE_BYTES = 34  # that the cache itself keeps of a line, and a byte of the slot
SCRATCH = 4  # one scratch row for so many lines of the first cache, for rows that find no line
ASIDE = 1 << 16  # scratch rows where no budget limits them; they take memory once they are used
BELOW = 1 << 12  # scratch rows in the memory of narrow rows, at least, where a budget limits it


@dataclass(frozen=True)
class Placement:
    """What a placement's name stands for: the memory that holds whole tables ("" none), the
    memories with caches, nearest first, and whether an SSD file is below.
    """

    whole: str = ""
    caches: tuple[str, ...] = ()
    ssd: bool = False


PLACEMENTS = {
    "hbm": Placement("hbm"),
    "ddr": Placement("ddr"),
    "hbm_over_ddr": Placement("ddr", ("hbm",)),
    "ddr_over_ssd": Placement("", ("ddr",), True),
    "hbm_over_ddr_over_ssd": Placement("", ("hbm", "ddr"), True),
}


@dataclass(frozen=True)
class Rows:
    """A shard, as budgets see it: its table's name, rows, bytes of a row with its state, and
    placement; and its bytes at home, if it is narrower there than in caches (0: it is not).
    """

    table: str
    rows: int
    row_bytes: int
    placement: str
    narrow: int = 0

    @property
    def bytes(self) -> int:
        """Of all rows at home."""
        return self.rows * (self.narrow or self.row_bytes)


@dataclass(frozen=True)
class Room:
    """Slots of a shard: lines of each cache, nearest first, scratch rows beside the first, and rows
    kept whole. Bytes of rows that are kept beside them, because they are narrower.
    """

    lines: tuple[int, ...] = ()
    scratch: int = 0
    whole: int = 0
    narrow: int = 0

    @property
    def slots(self) -> int:
        """All of them."""
        return sum(self.lines) + self.scratch + self.whole


def sets_for(rows: int, load_factor: float = LOAD_FACTOR) -> int:
    """Sets of a cache that holds this share of a table's rows, rounded up to whole sets; FBGEMM's
    rule.
    """
    return max(1, math.ceil(rows * load_factor / WAYS))


def choose_placements(tables: Sequence[str], spec: str | Mapping[str, str]) -> tuple[str, ...]:
    """Placement of every table from the config's `memory.placement`: a name for all, or {shell
    pattern: name}, of which the first that matches counts, but a table's exact name first; `hbm`
    for tables that nothing matches. `auto` stays as it is.

    Raises ConfigError for an unknown placement, or a pattern without a table.
    """
    return choose("memory.placement", "placement", tables, spec, (*PLACEMENTS, AUTO), "hbm")


def make_room(shards: Sequence[Rows], hbm: int = 0, ddr: int = 0) -> list[Room]:
    """Room of every shard of a rank under its budgets, in bytes (0: no limit).

    Raises TrainingError where whole tables do not fit, or a cache could not hold one set: it says
    by how much.
    """
    lines: list[dict[str, int]] = [{} for _ in shards]
    limited = {"hbm": bool(hbm), "ddr": bool(ddr)}
    for memory, budget in (("hbm", hbm), ("ddr", ddr)):
        whole = sum(s.bytes for s in shards if PLACEMENTS[s.placement].whole == memory)
        whole += sum(
            s.row_bytes * _scratch(s, held["hbm"], limited)
            for s, held in zip(shards, lines)
            if "hbm" in held and _staging(s) == memory
        )
        if budget and whole > budget:
            raise TrainingError(_too_much(shards, memory, whole, budget))
        cached = [i for i, s in enumerate(shards) if memory in PLACEMENTS[s.placement].caches]
        least = sum(_bytes(shards[i], memory, WAYS) for i in cached)
        if budget and whole + least > budget:
            raise TrainingError(
                f"memory.{memory} is {budget:,} bytes a rank, but the caches of {len(cached)} "
                f"table(s) take at least {least:,} "
                f"beside {whole:,} of whole tables; raise it by {whole + least - budget:,}, use "
                "more ranks, or place tables "
                "elsewhere (memory.placement)"
            )
        for i, sets in _share(shards, cached, memory, budget and budget - whole):
            lines[i][memory] = WAYS * sets
    return [_room(shard, found, limited) for shard, found in zip(shards, lines)]


def _share(
    shards: Sequence[Rows], cached: Sequence[int], memory: str, room: int
) -> list[tuple[int, int]]:
    """(shard, sets) of the caches in a memory that has `room` bytes for them (0: no limit): as many
    for each as there are, but none more than its rows fill, which leaves more for the others.
    """
    found = []
    left = room
    order = sorted(cached, key=lambda i: (-(-shards[i].rows // WAYS), i))
    for place, i in enumerate(order):
        most = -(-shards[i].rows // WAYS)
        if room:
            sets = left // sum(_bytes(shards[j], memory, WAYS) for j in order[place:])
        else:
            sets = sets_for(shards[i].rows)
        found.append((i, min(sets, most)))
        left -= found[-1][1] * _bytes(shards[i], memory, WAYS)
    return found


def _room(shard: Rows, lines: Mapping[str, int], limited: Mapping[str, bool]) -> Room:
    placement = PLACEMENTS[shard.placement]
    found = tuple(lines[memory] for memory in placement.caches)
    scratch = _scratch(shard, found[0], limited) if found else 0
    whole = shard.rows if placement.whole else 0
    return (
        Room(found, scratch, 0, shard.bytes)
        if whole and shard.narrow
        else Room(found, scratch, whole)
    )


def _staging(shard: Rows) -> str:
    """The memory with scratch for rows that find no line, if they cannot be used where they are at
    home; "" if they can.
    """
    placement = PLACEMENTS[shard.placement]
    return placement.caches[0] if placement.ssd else placement.whole if shard.narrow else ""


def _scratch(shard: Rows, lines: int, limited: Mapping[str, bool]) -> int:
    """Scratch rows for those that find no line in the first cache, of so many."""
    memory = _staging(shard)
    if not memory:
        return 0
    if not limited[memory]:
        return max(min(shard.rows, ASIDE), lines // SCRATCH)
    return max(lines // SCRATCH, 0 if PLACEMENTS[shard.placement].ssd else min(shard.rows, BELOW))


def _bytes(shard: Rows, memory: str, lines: int) -> int:
    """Bytes of so many lines in a memory, with the scratch rows beside those of the first cache."""
    scratch = (
        lines // SCRATCH
        if _staging(shard) == memory and PLACEMENTS[shard.placement].caches[0] == memory
        else 0
    )
    return (lines + scratch) * (shard.row_bytes + LINE_BYTES)


def _too_much(shards: Sequence[Rows], memory: str, whole: int, budget: int) -> str:
    there = [s for s in shards if PLACEMENTS[s.placement].whole == memory]
    largest = max(there, key=lambda s: s.bytes)
    below = "hbm_over_ddr" if memory == "hbm" else "ddr_over_ssd"
    return (
        f"tables in {memory} take {whole:,} bytes on this rank, {whole - budget:,} more than "
        f"memory.{memory} allows; the "
        f"largest, {largest.table}, takes {largest.bytes:,}: place it in {below} "
        "(memory.placement), use "
        "more ranks, or shard it (parallel.plan=row_wise)"
    )
