"""Which memory does each table live in, and how many of its rows fit there?

A placement has a name; the rank's budgets limit what it may take:

    placement               rows are in                       budgets
    hbm                     HBM, all of them                  memory.hbm
    ddr                     DDR, all of them                  memory.ddr
    hbm_over_ddr            DDR; a cache in HBM               both
    ddr_over_ssd            an SSD file; a cache in DDR       memory.ddr
    hbm_over_ddr_over_ssd   an SSD file; caches in both       both

    auto                    the planner chooses (`plan/tiers/tiers.py`)

These are Neo's placements (FBGEMM: device, host, managed caching, SSD). Whole tables come first;
what they leave of a budget is shared by the caches: the same number of lines for each, but none
more than its rows. A batch looks up about as many rows in every table, so the bytes of a small
table are used most. Without a budget a cache holds FBGEMM's default share of its table's rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neocpu.core.errors import TrainingError
from neocpu.core.records import choose

AUTO = "auto"
# Lines of a set, as in FBGEMM's cache.
WAYS = 32
# Share of a table's rows that a cache without a budget holds: FBGEMM's default.
LOAD_FACTOR = 0.2
# Bytes of a line beside its row: the cache's bookkeeping and one of the slot.
LINE_BYTES = 34
# Rows that find no line go to scratch rows: one for so many lines of the first cache.
SCRATCH = 4
# Scratch rows where no budget limits them; they take memory once they are used.
ASIDE = 1 << 16
# The least number of scratch rows in the memory of narrow rows, where a budget limits it.
BELOW = 1 << 12


@dataclass(frozen=True)
class Placement:
    """What a placement's name stands for.

    whole : memory that holds all rows ("": none does).
    caches : memories with a cache, nearest first.
    ssd : are the rows in an SSD file?
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
class PlacedShard:
    """A shard of a table, as budgets see it.

    table : the table's name.
    rows : of the shard.
    row_bytes : of a row with its optimizer state, in a cache.
    placement : a name of `PLACEMENTS`.
    narrow : bytes of a row at home, if it is narrower there than in caches (0: it is not).
    """

    table: str
    rows: int
    row_bytes: int
    placement: str
    narrow: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of all rows at home."""
        return self.rows * (self.narrow or self.row_bytes)


@dataclass(frozen=True)
class Room:
    """Slots of a shard.

    lines : of each cache, nearest first.
    scratch : rows beside the first cache.
    whole : rows that are kept in slots, all of them.
    narrow : bytes of all rows that are kept outside of slots, because they are narrower there.
    """

    lines: tuple[int, ...] = ()
    scratch: int = 0
    whole: int = 0
    narrow: int = 0

    @property
    def slots(self) -> int:
        """Number of slots."""
        return sum(self.lines) + self.scratch + self.whole


def sets_for(rows: int, load_factor: float = LOAD_FACTOR) -> int:
    """Sets of a cache that holds this share of a table's rows, rounded up (FBGEMM's rule)."""
    return max(1, math.ceil(rows * load_factor / WAYS))


def choose_placements(tables: Sequence[str], spec: str | Mapping[str, str]) -> tuple[str, ...]:
    """Placement of every table from the config's `memory.placement`; `auto` stays as it is.

    spec : a name for all tables, or {shell pattern: name}. A table's exact name counts first, then
        the first pattern that matches; a table without a match is in `hbm`.

    Raises ConfigError for an unknown placement, or a pattern without a table.
    """
    return choose("memory.placement", "placement", tables, spec, (*PLACEMENTS, AUTO), "hbm")


def make_room(shards: Sequence[PlacedShard], hbm: int = 0, ddr: int = 0) -> list[Room]:
    """Room of every shard of a rank; hbm, ddr : the rank's budgets in bytes (0: no limit).

    Raises TrainingError if whole tables do not fit, or a cache could not hold one set; the message
    says how many bytes are missing.
    """
    lines: list[dict[str, int]] = [{} for _ in shards]
    limited = {"hbm": bool(hbm), "ddr": bool(ddr)}
    for memory, budget in (("hbm", hbm), ("ddr", ddr)):
        whole = sum(s.bytes for s in shards if PLACEMENTS[s.placement].whole == memory)
        # scratch of narrow rows is in ddr, and their lines in hbm say how much: hbm comes first
        whole += sum(
            s.row_bytes * _scratch(s, shard_lines["hbm"], limited)
            for s, shard_lines in zip(shards, lines)
            if "hbm" in shard_lines and _staging(s) == memory
        )
        if budget and whole > budget:
            raise TrainingError(_too_much(shards, memory, whole, budget))
        cached = [i for i, s in enumerate(shards) if memory in PLACEMENTS[s.placement].caches]
        least = sum(_bytes(shards[i], memory, WAYS) for i in cached)
        if budget and whole + least > budget:
            raise TrainingError(
                f"memory.{memory} is {budget:,} bytes a rank, but the caches of {len(cached)} "
                f"table(s) take at least {least:,} beside {whole:,} of whole tables; raise it by "
                f"{whole + least - budget:,}, use more ranks, or place tables elsewhere "
                "(memory.placement)"
            )
        for i, sets in _share(shards, cached, memory, budget and budget - whole):
            lines[i][memory] = WAYS * sets
    return [_room(shard, shard_lines, limited) for shard, shard_lines in zip(shards, lines)]


def _share(
    shards: Sequence[PlacedShard], cached: Sequence[int], memory: str, room: int
) -> list[tuple[int, int]]:
    """(shard, sets) of the caches in a memory that has `room` bytes for them (0: no limit).

    All get the same number of sets, but none more than its rows fill. Caches with the fewest rows
    come first, so what they do not need is left for the others.
    """
    shares = []
    left = room
    order = sorted(cached, key=lambda i: (-(-shards[i].rows // WAYS), i))
    for done, i in enumerate(order):
        if room:
            # what one set in every cache that is still to come takes
            set_of_each = sum(_bytes(shards[j], memory, WAYS) for j in order[done:])
            sets = left // set_of_each
        else:
            sets = sets_for(shards[i].rows)
        sets = min(sets, -(-shards[i].rows // WAYS))
        shares.append((i, sets))
        left -= sets * _bytes(shards[i], memory, WAYS)
    return shares


def _room(shard: PlacedShard, lines: Mapping[str, int], limited: Mapping[str, bool]) -> Room:
    placement = PLACEMENTS[shard.placement]
    cache_lines = tuple(lines[memory] for memory in placement.caches)
    scratch = _scratch(shard, cache_lines[0], limited) if cache_lines else 0
    if placement.whole and shard.narrow:
        return Room(lines=cache_lines, scratch=scratch, narrow=shard.bytes)
    whole = shard.rows if placement.whole else 0
    return Room(lines=cache_lines, scratch=scratch, whole=whole)


def _staging(shard: PlacedShard) -> str:
    """The memory with scratch rows; "" if rows without a line can be used at their home."""
    placement = PLACEMENTS[shard.placement]
    if placement.ssd:
        return placement.caches[0]
    return placement.whole if shard.narrow else ""


def _scratch(shard: PlacedShard, lines: int, limited: Mapping[str, bool]) -> int:
    """Scratch rows beside a first cache of so many lines."""
    memory = _staging(shard)
    if not memory:
        return 0
    if not limited[memory]:
        # no budget to keep to, and pages of rows that are not used take no memory
        return max(min(shard.rows, ASIDE), lines // SCRATCH)
    least = 0 if PLACEMENTS[shard.placement].ssd else min(shard.rows, BELOW)
    return max(lines // SCRATCH, least)


def _bytes(shard: PlacedShard, memory: str, lines: int) -> int:
    """Bytes of so many lines in a memory, with the scratch rows beside those of the first cache."""
    beside_cache = PLACEMENTS[shard.placement].caches[0] == memory
    scratch = lines // SCRATCH if beside_cache and _staging(shard) == memory else 0
    return (lines + scratch) * (shard.row_bytes + LINE_BYTES)


def _too_much(shards: Sequence[PlacedShard], memory: str, whole: int, budget: int) -> str:
    """The message that whole tables exceed a memory's budget."""
    whole_shards = [s for s in shards if PLACEMENTS[s.placement].whole == memory]
    largest = max(whole_shards, key=lambda s: s.bytes)
    below = "hbm_over_ddr" if memory == "hbm" else "ddr_over_ssd"
    return (
        f"tables in {memory} take {whole:,} bytes on this rank, {whole - budget:,} more than "
        f"memory.{memory} allows; the largest, {largest.table}, takes {largest.bytes:,}: place it "
        f"in {below} (memory.placement), use more ranks, or shard it (parallel.plan=row_wise)"
    )
