"""Which memory for which table? Those placed `auto` go where a step is fastest under the budgets.

**Model.** A step moves `MOVED` row's bytes per lookup: it reads the row, and the update reads and
writes it. Divided by the bytes of the table, this is its *demand per byte*: how much each byte of
fast memory is worth to it (MTrainS, 2023). Seconds are bytes over bandwidth, summed over memories
and ranks. A cache that holds the share s of a table's rows hits s^(1/4) of its lookups; a miss
brings one row up and writes one row down. The fourth root is close to what `lfu` reaches on a real
log (docs/memory.md: 26, 36, 49, 58, 65, 68 % at s = 1, 2, 5, 10, 20, 40 %; the root gives 32, 38,
47, 56, 67, 80 %). Whole tables come first; what they leave of a budget is shared by the caches, as
`tables/tiers/placement.py` does it: the same number of lines for each, but none more than its rows.

**Objective.** The fewest seconds among the placements of which every rank's shards fit
`memory.hbm` and `memory.ddr`. The first cache over an SSD should hold the rows of a batch, or a run
may stop: each part of a batch that it lacks costs `PENALTY` seconds, which makes such placements
the last resort. Without budgets everything is in HBM; with `memory.ddr` alone nothing is; with
`memory.hbm` alone nothing is on SSD.

**Greedy.** Tables are ordered by demand per byte. Three cuts of that order say which tables are
whole in HBM, which have a cache there, and which are whole in DDR; the others are over SSD:

    order        most demanded per byte  ------------------------>  least
    HBM          whole whole whole | cache cache cache cache | -     -     -
    below        -     -     -       DDR   DDR | SSD   SSD     SSD   SSD   SSD

**Improvement.** The best cuts are the starts of a coordinate descent: table by table, the
placement that makes the step fastest, until none changes. The best end then moves two tables at a
time, and descends again. Tables of unequal sizes need this: a large one that just misses a budget
leaves room for smaller ones behind it in the order.

Ties go to the first in the order. Everything depends on the arguments only, so every rank chooses
alike. The search is not exact, but close: for 2,056 of 2,057 drawn cases of 2 to 6 tables it ended
at the best of all placements (tests/test_placement.py compares some).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from neocpu.core.errors import TrainingError
from neocpu.core.types import Ints
from neocpu.parallel.sharding.plan import Plan, shard_bytes
from neocpu.parallel.sharding.schemes import Shard
from neocpu.plan.cost.cost import lookups_of
from neocpu.plan.cost.work import Flags, Floats, Workload
from neocpu.tables.tiers.placement import AUTO, LINE_BYTES, LOAD_FACTOR, PLACEMENTS, SCRATCH, WAYS

# Placement codes [n, tables] of n alternatives: an index into KINDS for each table.
Codes = Ints

# Bytes per second of one GPU: an A100's HBM, its share of a node's 320 GB/s, a fast disk.
SPEEDS = {"hbm": 1555e9, "ddr": 40e9, "ssd": 2e9}
# Rows that are moved by a lookup with its update, and by a cache miss.
MOVED = 3
SWAPPED = 2
# Seconds for a cache over SSD that has no room for any row of a batch.
PENALTY = 1000.0
# Seconds for placements that exceed a budget, more the further they do, so that the search is led
# back to those that fit.
TOO_LARGE = 1e12

# Fastest first, so that equal costs choose the faster memory.
KINDS = ("hbm", "hbm_over_ddr", "ddr", "hbm_over_ddr_over_ssd", "ddr_over_ssd")
CODE = {name: code for code, name in enumerate(KINDS)}
WHOLE_HBM = np.array([PLACEMENTS[name].whole == "hbm" for name in KINDS])
WHOLE_DDR = np.array([PLACEMENTS[name].whole == "ddr" for name in KINDS])
CACHED_HBM = np.array(["hbm" in PLACEMENTS[name].caches for name in KINDS])
OVER_SSD = np.array([PLACEMENTS[name].ssd for name in KINDS])

# Shards times placements that one stage of the search may cost, and of those, at a time: arrays of
# this size stay in the processor's caches.
EVALUATIONS = 10**6
PIECE = 1 << 16
# Sweeps of the descent over all tables, at most.
SWEEPS = 8
# Cuts from which the descent starts, at most.
STARTS = 64
# A change must gain this part of a step, or rounding errors would count as gains.
GAIN = 1e-9


def demands(plan: Plan, work: Workload) -> tuple[float, ...]:
    """Demand per byte of each table: bytes that a step moves, divided by the table's bytes."""
    moved_bytes = np.zeros(len(plan.tables))
    table_bytes = np.zeros(len(plan.tables))
    for shard in plan.shards:
        spec = plan.tables[shard.table]
        lookups = lookups_of(spec, shard, plan.ranks, plan.replicated(shard.table), work)
        row_bytes = spec.row_bytes(shard.shape[1], work.state_floats)
        moved_bytes[shard.table] += MOVED * lookups * row_bytes
        table_bytes[shard.table] += shard_bytes(spec, shard, work.state_floats)
    return tuple((moved_bytes / table_bytes).tolist())


def place_tables(
    plan: Plan,
    named: Sequence[str],
    work: Workload,
    hbm: int = 0,
    ddr: int = 0,
    speeds: Mapping[str, float] = SPEEDS,
) -> tuple[str, ...]:
    """Placement of every table: as named, or a chosen one where the name is `auto`.

    hbm, ddr : budgets of each rank in bytes (0: no limit).
    speeds : bytes per second of hbm, ddr and ssd.

    Raises TrainingError: even the smallest caches do not fit; the message says how many bytes are
    missing.
    """
    free = [t for t, name in enumerate(named) if name == AUTO]
    # without budgets all rows are in the fastest memory, and nothing is to be chosen
    if not free or not (hbm or ddr):
        return tuple("hbm" if name == AUTO else name for name in named)
    model = StepModel(plan, work, hbm, ddr, speeds)
    frugal = _frugal(plan, named, bool(ddr))
    order = _demand_order(plan, free, work)
    codes, seconds = _improve(model, _greedy(model, frugal, order), order)
    # the search compares excesses only; whether the least placement fits is checked exactly
    if seconds >= TOO_LARGE:
        _check_ddr(plan, frugal, work, ddr)
        return frugal
    return tuple(KINDS[code] for code in codes)


class Shards(NamedTuple):
    """All shards, f64[ranks, shards of the fullest rank] each; a rank's shards ascend by rows.

    Ranks with fewer shards are filled up with shards of no bytes and no lookups.
    """

    table: Ints
    rows: Floats
    row_bytes: Floats
    lookups: Floats

    @classmethod
    def of(cls, plan: Plan, work: Workload) -> "Shards":
        """Shards of a plan, with the lookups of a step."""
        width = max(len(plan.local(rank)) for rank in range(plan.ranks))
        records = np.zeros((plan.ranks, width, 4))
        # One row rather than none, because lines are divided by rows.
        records[:, :, 1] = 1
        for rank in range(plan.ranks):
            shards = [_shard_record(plan, shard, work) for shard in plan.local(rank)]
            for column, record in enumerate(sorted(shards, key=lambda record: record[1])):
                records[rank, column] = record
        table, rows, row_bytes, lookups = np.moveaxis(records, -1, 0)
        return cls(table=table.astype(np.int64), rows=rows, row_bytes=row_bytes, lookups=lookups)


class StepModel:
    """Seconds of a step by placement of the tables of a plan; TOO_LARGE where a budget is exceeded.

    A larger budget makes no placement slower. Scratch rows are counted beside every cache that may
    have an SSD below it, so what fits here fits in a run.
    """

    def __init__(
        self,
        plan: Plan,
        work: Workload,
        hbm: int,
        ddr: int,
        speeds: Mapping[str, float] = SPEEDS,
    ) -> None:
        self.hbm = hbm
        self.ddr = ddr
        self.speeds = speeds
        self.shards = Shards.of(plan, work)

    def seconds(self, codes: Codes) -> Floats:
        """Seconds f64[n] of a step for each of n placements, codes i64[n, tables]."""
        # so many placements at a time that their arrays stay in the caches
        step = max(PIECE // self.shards.rows.size, 1)
        pieces = [self._seconds(codes[at : at + step]) for at in range(0, len(codes), step)]
        return np.concatenate(pieces)

    def _seconds(self, codes: Codes) -> Floats:
        shards = self.shards
        kinds = codes[:, shards.table]
        whole_hbm = WHOLE_HBM[kinds]
        cached_hbm = CACHED_HBM[kinds]
        over_ssd = OVER_SSD[kinds]
        in_hbm = whole_hbm | cached_hbm

        hbm_lines, hbm_excess = self._cache_lines(whole_hbm, cached_hbm, self.hbm, bool(self.ddr))
        ddr_lines, ddr_excess = self._cache_lines(WHOLE_DDR[kinds], over_ssd, self.ddr, True)
        below_hbm = np.where(in_hbm, cached_hbm * self._swaps(hbm_lines), 1)
        below_ddr = over_ssd * self._swaps(ddr_lines)
        seconds_per_byte = (
            in_hbm / self.speeds["hbm"]
            + below_hbm / self.speeds["ddr"]
            + below_ddr / self.speeds["ssd"]
        )
        seconds = MOVED * shards.lookups * shards.row_bytes * seconds_per_byte
        if self.hbm:
            seconds += PENALTY * self._lack(hbm_lines) * (cached_hbm & over_ssd)
        if self.ddr:
            seconds += PENALTY * self._lack(ddr_lines) * (over_ssd & ~cached_hbm)
        excess = hbm_excess + ddr_excess
        return seconds.sum(axis=(1, 2)) + np.where(excess > 0, TOO_LARGE * (1 + excess), 0)

    def _cache_lines(
        self, whole: Flags, cached: Flags, budget: int, scratch: bool
    ) -> tuple[Floats, Floats]:
        """(lines f64[n, ranks, shards] of each cache in one memory, excess f64[n]).

        The excess is what the smallest caches and the whole tables take beyond the budget, as a
        part of it, summed over ranks.

        whole, cached : which shards lie or have a cache in the memory, bool[n, ranks, shards].
        scratch : are there scratch rows beside the lines?
        """
        rows = self.shards.rows
        if not budget:
            return cached * rows * LOAD_FACTOR, np.zeros(len(whole))
        row_bytes = self.shards.row_bytes
        # shards that only fill up a rank's row have no lines
        line_bytes = (row_bytes + LINE_BYTES) * (row_bytes > 0) * (1 + scratch / SCRATCH)
        room = budget - (whole * (rows * row_bytes)).sum(axis=-1)
        cost = cached * line_bytes
        excess = np.maximum(WAYS * cost.sum(axis=-1) - room, 0).sum(axis=-1) / budget

        # If all caches before a shard are full, those from it on share the rest: `level` lines
        # each. The largest level is the right one: just the caches with fewer rows are full then.
        full = cost * rows
        before = full.cumsum(axis=-1) - full
        following = cost[..., ::-1].cumsum(axis=-1)[..., ::-1]
        level = np.where(following > 0, (room[..., None] - before) / np.maximum(following, 1), 0)
        lines: Floats = np.minimum(np.maximum(level.max(axis=-1, keepdims=True), 0), rows)
        return cached * lines, excess

    def _swaps(self, lines: Floats) -> Floats:
        """Bytes that misses move to and from below a cache, per byte that lookups move."""
        # the fourth root of docs/memory.md, by square roots
        hits = np.sqrt(np.sqrt(lines / self.shards.rows))
        return (1 - hits) * SWAPPED / MOVED

    def _lack(self, lines: Floats) -> Floats:
        """The part of a batch's rows for which a cache and its scratch rows have no room.

        A batch is taken to look up as many rows as it has lookups.
        """
        rows = self.shards.rows
        batch_rows = np.maximum(np.minimum(self.shards.lookups, rows), 1)
        # a cache has whole sets; one with a line for every row is none
        whole_sets = np.where(lines < rows, lines // WAYS * WAYS, rows)
        lack: Floats = np.maximum(1 - whole_sets * (1 + 1 / SCRATCH) / batch_rows, 0)
        return lack * (self.shards.row_bytes > 0)


def _shard_record(plan: Plan, shard: Shard, work: Workload) -> tuple[float, ...]:
    """(table, rows, bytes of a row with its state, lookups of a step) of a shard."""
    spec = plan.tables[shard.table]
    rows, width = shard.shape
    lookups = lookups_of(spec, shard, plan.ranks, plan.replicated(shard.table), work)
    return shard.table, rows, spec.row_bytes(width, work.state_floats), lookups


def _codes(names: Sequence[str]) -> Codes:
    """The placements as one row of codes i64[1, tables]."""
    return np.array([[CODE[name] for name in names]], np.int64)


def _demand_order(plan: Plan, free: Sequence[int], work: Workload) -> Ints:
    """The tables to place, most demanded per byte first; small ones first among equals."""
    demand = demands(plan, work)
    numbers = [table.rows * table.dim for table in plan.tables]
    return np.array(sorted(free, key=lambda t: (-demand[t], numbers[t], t)), np.int64)


def _greedy(model: StepModel, frugal: Sequence[str], order: Ints) -> Codes:
    """The cuts of the demand order, codes i64[n, tables], cheapest first.

    frugal : placements of all tables; the first of the cuts, which leaves them as they are.

    All cuts of few tables are costed; of many, a grid of them.
    """
    points = len(order)
    # three cuts of an order of n are about n^3 / 3 placements
    while points**3 // 3 * model.shards.rows.size > EVALUATIONS and points > 4:
        points -= 1
    grid = np.linspace(0, len(order), points + 1).round().astype(np.int64)
    whole = grid if model.hbm else grid[:1]
    stored = grid if model.ddr else grid[-1:]
    cuts = [(i, j, k) for i in whole for j in whole for k in stored if i <= min(j, k)]
    in_hbm, cached, in_ddr = np.array(cuts).T[:, :, None]

    position = np.arange(len(order))
    below = np.where(position < in_ddr, CODE["ddr"], _codes(frugal)[:, order])
    with_cache = np.where(position < in_ddr, CODE["hbm_over_ddr"], CODE["hbm_over_ddr_over_ssd"])
    upper = np.where(position < cached, with_cache, below)
    codes = np.repeat(_codes(frugal), len(cuts), axis=0)
    codes[:, order] = np.where(position < in_hbm, CODE["hbm"], upper)
    cheapest_first = np.argsort(model.seconds(codes), kind="stable")
    return codes[cheapest_first]


def _improve(model: StepModel, starts: Codes, order: Ints) -> tuple[Codes, float]:
    """(codes i64[tables], seconds) of the best placement that the moves reach from some starts.

    starts : codes i64[n, tables], best first. A sweep from all STARTS of a large model would take
        long: then fewer of them are used, and neighbours in the order move together.
    """
    kinds = _kinds(model)
    sweep = len(order) * len(kinds) * model.shards.rows.size
    size = -(-sweep // EVALUATIONS)
    blocks = [order[at : at + size] for at in range(0, len(order), size)]
    count = min(max(EVALUATIONS // sweep, 1), STARTS)
    codes, seconds = _descend(model, starts[:count], blocks, kinds)
    for _ in range(SWEEPS):
        neighbours = _pair_moves(model, codes, order, kinds)
        if not len(neighbours):
            break
        costs = model.seconds(neighbours)
        best = costs.argmin()
        if not costs[best] < seconds * (1 - GAIN):
            break
        codes, seconds = _descend(model, neighbours[best : best + 1], blocks, kinds)
    return codes, seconds


def _descend(
    model: StepModel, starts: Codes, blocks: Sequence[Ints], kinds: Ints
) -> tuple[Codes, float]:
    """Coordinate descent from all starts at once; (codes i64[tables], seconds) of the best end.

    starts : codes i64[n, tables].
    blocks : tables that move together.
    """
    codes = starts.copy()
    seconds = model.seconds(codes)
    for _ in range(SWEEPS):
        before = seconds.copy()
        for tables in blocks:
            options = np.repeat(codes[:, None], len(kinds), axis=1)
            options[:, :, tables] = kinds[:, None]
            costs = model.seconds(options.reshape(-1, codes.shape[1])).reshape(len(codes), -1)
            choice = costs.argmin(axis=1)
            least = costs.min(axis=1)
            # every start goes its own way; one that has no gain keeps its placement
            better = least < seconds * (1 - GAIN)
            codes[np.ix_(better, tables)] = kinds[choice[better]][:, None]
            seconds[better] = least[better]
        if not (seconds < before).any():
            break
        # starts that met go on as one
        codes, kept = np.unique(codes, axis=0, return_index=True)
        seconds = seconds[kept]
    best = seconds.argmin()
    return codes[best], float(seconds[best])


def _pair_moves(model: StepModel, codes: Codes, order: Ints, kinds: Ints) -> Codes:
    """Codes i64[n, tables] with other placements of two tables.

    All pairs of few tables; of many, those that are close in the order.
    """
    both = np.array(list(product(kinds, repeat=2)))
    # tables close in the order are the ones that compete for what is left of a budget
    reach = EVALUATIONS // (len(order) * len(both) * model.shards.rows.size)
    first, second = np.triu_indices(len(order), 1)
    near = second - first <= reach
    pairs = np.stack([order[first[near]], order[second[near]]], axis=1)
    moved = np.repeat(codes[None], len(pairs) * len(both), axis=0)
    move = np.arange(len(moved))[:, None]
    moved[move, np.repeat(pairs, len(both), axis=0)] = np.tile(both, (len(pairs), 1))
    return moved


def _kinds(model: StepModel) -> Ints:
    """Codes that the budgets allow."""
    names = [
        name
        for name in KINDS
        if (model.hbm or "hbm" not in name) and (model.ddr or not PLACEMENTS[name].ssd)
    ]
    return np.array([CODE[name] for name in names], np.int64)


def _frugal(plan: Plan, named: Sequence[str], ssd: bool) -> tuple[str, ...]:
    """The placement that takes the least memory: nothing in HBM, and whatever is larger than a
    cache of one set over SSD, if there may be one.
    """
    shard_rows = [0] * len(plan.tables)
    for shard in plan.shards:
        shard_rows[shard.table] = max(shard_rows[shard.table], shard.shape[0])
    # a cache has one set at least, so a smaller table would take less room whole
    chosen = ["ddr_over_ssd" if ssd and rows > WAYS else "ddr" for rows in shard_rows]
    return tuple(choice if name == AUTO else name for name, choice in zip(named, chosen))


def _needs(plan: Plan, placements: Sequence[str], work: Workload) -> Iterator[tuple[int, int, int]]:
    """(bytes of DDR that a rank needs at least, its number of caches there, rank)."""
    for rank in range(plan.ranks):
        need = 0
        caches = 0
        for shard in plan.local(rank):
            kind = PLACEMENTS[placements[shard.table]]
            spec = plan.tables[shard.table]
            row_bytes = spec.row_bytes(shard.shape[1], work.state_floats)
            if kind.whole == "ddr":
                need += shard.shape[0] * row_bytes
            elif "ddr" in kind.caches:
                scratch = WAYS // SCRATCH if kind.caches[0] == "ddr" else 0
                need += (WAYS + scratch) * (row_bytes + LINE_BYTES)
                caches += 1
        yield need, caches, rank


def _check_ddr(plan: Plan, placements: Sequence[str], work: Workload, ddr: int) -> None:
    """Raise TrainingError if even these placements do not fit memory.ddr."""
    need, caches, rank = max(_needs(plan, placements, work))
    if ddr and need > ddr:
        raise TrainingError(
            f"memory.ddr is {ddr:,} bytes a rank, but rank {rank} takes at least {need:,} with "
            f"{caches} table(s) cached over SSD, {WAYS} rows of each, and all small ones whole: "
            f"raise it by {need - ddr:,}, use more ranks, or split the tables less "
            "(parallel.plan=table_wise)"
        )
