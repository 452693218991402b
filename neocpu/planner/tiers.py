"""Which memory for which table? For placements marked `auto`: what is asked for most per byte lies
fastest (MTrainS, 2023).

    demand of a table     bytes a step moves: 3 per byte of a row and lookup (read, and read and written by the update)
    demand per byte       demand / bytes of the table: so much faster memory each byte of it deserves
    budgets               memory.hbm and memory.ddr; every rank's shards must fit, so the fullest rank decides
                          none: all in hbm; ddr alone: no hbm is used; hbm alone: nothing lies on
                          SSD

Tables are ordered by demand per byte. Cuts of that order say which lie whole in HBM, which have a
cache in HBM, and which are kept whole below it; the rest is over SSD. Tables larger than a size,
also tried, are never whole. All of these plans are costed, and the cheapest that fits wins. What is
tried does not depend on the budgets and a larger budget makes no plan dearer, so more memory never
costs time in the model:

    seconds of a step     bytes over bandwidth, of all memories and ranks; of a cache's lookups, a share of 1 - s^(1/4) goes
                          below, one row up and one down, where s is the share of the rows that the
                          cache holds

The first cache over an SSD must hold the rows of a batch, or a run stops: plans where it cannot,
reckoning with as many rows as lookups, are chosen only where there are no others. The fourth root
is close to what `lfu` finds in a real log (docs/memory.md: 26, 36, 49, 58, 65, 68 % at s = 1, 2, 5,
10, 20, 40 %; the root says 32, 38, 47, 56, 67, 80 %). Choices depend on the arguments only, so
every rank makes the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from neocpu.errors import TrainingError
from neocpu.parallel.plan import Plan, shard_bytes
from neocpu.planner.cost import Workload, lookups_of
from neocpu.storage.placement import AUTO, LINE_BYTES, LOAD_FACTOR, PLACEMENTS, SCRATCH, WAYS

Floats = NDArray[np.float64]
Masks = NDArray[np.bool_]
# of each plan: seconds; of its tables: part of a batch's rows that finds no room
Costs = tuple[Floats, Floats]
SPEEDS = {
    "hbm": 1555e9,
    "ddr": 40e9,
    "ssd": 2e9,
}  # bytes/s of a GPU: A100's; its share of a node's 320 GB/s; a fast disk
# rows that a lookup moves, and a miss
MOVED = 3
SWAPPED = 2
# seconds for a cache that has no room for a batch: such a plan is the last resort
TOO_SMALL = 1000.0
EVALUATIONS = 5 * 10**6  # shards times plans that are costed at most
PIECE = 1 << 20  # of those at a time


def demands(plan: Plan, work: Workload) -> tuple[float, ...]:
    """Bytes that a step asks of a byte of each table."""
    asked = np.zeros(len(plan.tables))
    size = np.zeros(len(plan.tables))
    for shard in plan.shards:
        spec = plan.tables[shard.table]
        rows = lookups_of(spec, shard, plan.ranks, plan.replicated(shard.table), work)
        asked[shard.table] += MOVED * rows * spec.row_bytes(shard.shape[1], work.state_floats)
        size[shard.table] += shard_bytes(spec, shard, work.state_floats)
    return tuple((asked / size).tolist())


def place_tables(
    plan: Plan,
    named: Sequence[str],
    work: Workload,
    hbm: int = 0,
    ddr: int = 0,
    speeds: Mapping[str, float] = SPEEDS,
) -> tuple[str, ...]:
    """Placement of every table; those named `auto` get one here. hbm, ddr : bytes of each rank (0:
    no limit).

    Raises TrainingError where even caches of one set each do not fit.
    """
    auto = [t for t, name in enumerate(named) if name == AUTO]
    if not auto or not (hbm or ddr):
        return tuple("hbm" if name == AUTO else name for name in named)
    model = Model(plan, work, hbm, ddr, speeds)
    found = _cheapest(model, named, _order(plan, auto, work))
    if found is None:
        found = _frugal(model, named)
        _check(plan, found, work, ddr)
    return found


class Model:
    """Seconds of a step for placements of the tables of a plan; infinite where they do not fit.

    Rows that caches keep beside their lines are counted wherever there can be an SSD below, so what
    fits here fits.
    """

    def __init__(
        self, plan: Plan, work: Workload, hbm: int, ddr: int, speeds: Mapping[str, float] = SPEEDS
    ) -> None:
        self.tables = len(plan.tables)
        self.hbm = hbm
        self.ddr = ddr
        self.speeds = speeds
        self.shards = len(plan.shards)
        self.largest = np.zeros(self.tables)  # bytes of a table on the rank that has most of it
        self.tallest = np.zeros(self.tables, np.int64)
        # (rows, table, bytes of a row, bytes a step) of the shards of each, in the order of their
        # rows
        self._ranks = []
        for rank in range(plan.ranks):
            held = np.zeros(self.tables)
            found = []
            for shard in plan.local(rank):
                t = shard.table
                spec = plan.tables[shard.table]
                size = spec.row_bytes(shard.shape[1], work.state_floats)
                asked = lookups_of(spec, shard, plan.ranks, plan.replicated(t), work)
                found.append((shard.shape[0], t, size, MOVED * asked * size))
                held[t] += shard.shape[0] * size
                self.tallest[t] = max(self.tallest[t], shard.shape[0])
            self.largest = np.maximum(self.largest, held)
            if found:
                mine = np.array(sorted(found), np.float64).T
                self._ranks.append((mine[0], mine[1].astype(np.int64), mine[2], mine[3]))

    def near(self, whole: Masks, cached: Masks) -> Costs:
        """Seconds in HBM and DDR of plans that keep some tables whole in HBM, and others cached
        there.
        """
        total = np.zeros(len(whole))
        short = np.zeros(whole.shape)
        hbm = self.speeds["hbm"]
        ddr = self.speeds["ddr"]
        for rows, table, size, asked in self._ranks:
            here = whole[:, table]
            lines = cached[:, table]
            share, fits = _shares(rows, size, here, lines, self.hbm, bool(self.ddr))
            missed = lines * (1 - np.sqrt(np.sqrt(share))) * SWAPPED / MOVED
            times = asked * ((here | lines) / hbm + (missed + ~(here | lines)) / ddr)
            total += np.where(fits, times.sum(axis=1), np.inf)
            if self.hbm:
                short[:, table] = np.maximum(
                    short[:, table], lines * _short(rows, size, asked, share)
                )
        return total, short

    def far(self, whole: Masks, stored: Masks) -> Costs:
        """Seconds at the SSD of plans that store some tables there, and keep others whole in DDR."""
        total = np.zeros(len(whole))
        short = np.zeros(whole.shape)
        for rows, table, size, asked in self._ranks:
            lines = stored[:, table]
            share, fits = _shares(rows, size, whole[:, table], lines, self.ddr, True)
            missed = lines * (1 - np.sqrt(np.sqrt(share))) * SWAPPED / MOVED
            total += np.where(fits, (asked * missed).sum(axis=1) / self.speeds["ssd"], np.inf)
            if self.ddr:
                short[:, table] = np.maximum(
                    short[:, table], lines * _short(rows, size, asked, share)
                )
        return total, short

    def seconds(self, places: Sequence[str]) -> float:
        """Of one plan, given by name."""
        kinds = [PLACEMENTS[name] for name in places]
        whole = {
            memory: np.array([[kind.whole == memory for kind in kinds]])
            for memory in ("hbm", "ddr")
        }
        cached = np.array([["hbm" in kind.caches for kind in kinds]])
        stored = np.array([[kind.ssd for kind in kinds]])
        near = self.near(whole["hbm"], cached)
        far = self.far(whole["ddr"], stored)
        return float(together(near, far, cached, stored)[0, 0])


def together(near: Costs, far: Costs, cached: Masks, stored: Masks) -> Floats:
    """Seconds of every pair of an upper and a lower half of a plan. The first cache over an SSD
    must hold a batch.
    """
    first = near[1] @ stored.T.astype(float) + (~cached).astype(float) @ far[1].T
    return near[0][:, None] + far[0] + TOO_SMALL * first


def _short(rows: Floats, size: Floats, asked: Floats, share: Floats) -> Floats:
    """The part of a batch's rows for which a cache, with the rows beside it, has no room."""
    need = np.maximum(np.minimum(asked / (MOVED * size), rows), 1)
    lines = np.where(share < 1, share * rows // WAYS * WAYS, rows)  # whole sets
    missing = np.maximum(1 - lines * (1 + 1 / SCRATCH) / need, 0)
    return np.ceil(missing * 2**20) / 2**20  # sums of such numbers are exact, in any order


def _shares(
    rows: Floats, size: Floats, whole: Masks, cached: Masks, budget: int, scratch: bool
) -> tuple[Floats, Masks]:
    """(share of its rows that each cache holds, does all fit?): what whole tables leave of a budget
    gives every cache as many lines, but none more than its rows; shards are in the order of their
    rows.
    """
    if not budget:
        return cached * np.full(rows.size, LOAD_FACTOR), np.ones(len(whole), bool)
    line = (size + LINE_BYTES) * (1 + scratch / SCRATCH)
    room = budget - (whole * (rows * size)).sum(axis=1, keepdims=True)
    fits: Masks = ((cached * (WAYS * line)).sum(axis=1, keepdims=True) <= room)[:, 0]
    some = cached * line
    filled = np.cumsum(some * rows, axis=1)
    open_ = some[:, ::-1].cumsum(axis=1)[:, ::-1]
    before = filled - some * rows  # bytes of the caches that are smaller, and all their rows
    level = np.where(
        open_ > 0, (room - before) / np.maximum(open_, 1), np.inf
    )  # lines, if this cache is the first to be cut
    first = np.argmax(level < rows, axis=1)[:, None]
    cut = np.where(
        (level < rows).any(axis=1, keepdims=True), np.take_along_axis(level, first, axis=1), np.inf
    )
    share: Floats = np.clip(np.minimum(cut, rows) / rows, 0, 1)
    return cached * share, fits


def _order(plan: Plan, auto: Sequence[int], work: Workload) -> list[int]:
    asked = demands(plan, work)
    return sorted(auto, key=lambda t: (-asked[t], plan.tables[t].rows * plan.tables[t].dim, t))


def _cheapest(model: Model, named: Sequence[str], order: Sequence[int]) -> tuple[str, ...] | None:
    """The best of all cuts of the order; None where none fits."""
    kinds = [PLACEMENTS.get(name) for name in named]
    free = np.array([kind is None for kind in kinds])
    given = {
        memory: np.array([bool(kind and kind.whole == memory) for kind in kinds])
        for memory in ("hbm", "ddr")
    }
    cached = np.array([bool(kind and "hbm" in kind.caches) for kind in kinds])
    stored = np.array([bool(kind and kind.ssd) for kind in kinds])
    heads, sets = _tried(model, order)
    tops = sets if model.hbm else sets[:1]
    heads = heads if model.hbm else heads[:1]
    kept = sets if model.ddr else free[None]
    above = [np.unique(heads & ~top, axis=0) for top in tops]
    below = [kept[(kept >= top).all(axis=1)] for top in tops]
    near = _costs(
        model.near, [(given["hbm"] | top, caches | cached) for top, caches in zip(tops, above)]
    )
    far = _costs(
        model.far,
        [(given["ddr"] | (own & ~top), stored | (free & ~own)) for top, own in zip(tops, below)],
    )
    best: tuple[float, tuple[str, ...] | None] = (np.inf, None)
    for top, caches, own, upper, lower in zip(tops, above, below, near, far):
        seconds = together(upper, lower, caches | cached, stored | (free & ~own))
        i, j = np.unravel_index(seconds.argmin(), seconds.shape)
        if seconds[i, j] < best[0]:
            best = float(seconds[i, j]), _names(named, top, caches[i], own[j])
    return best[1]


def _costs(
    cost: Callable[[Masks, Masks], Costs], cases: Sequence[tuple[Masks, Masks]]
) -> list[Costs]:
    """What plans cost, by case; many at a time."""
    sizes = [
        max(len(one), len(other)) if one.ndim == other.ndim else len(other) for one, other in cases
    ]
    one = np.concatenate(
        [np.broadcast_to(masks, (n, masks.shape[-1])) for n, (masks, _) in zip(sizes, cases)]
    )
    other = np.concatenate([masks for _, masks in cases])
    step = max(PIECE // one.shape[1], 1)
    ends = np.cumsum(sizes)[:-1]
    parts = [cost(one[at : at + step], other[at : at + step]) for at in range(0, len(one), step)]
    return list(zip(*(np.split(np.concatenate(column), ends) for column in zip(*parts))))


def _tried(model: Model, order: Sequence[int]) -> tuple[Masks, Masks]:
    """(heads of the order, and sets of tables that may be whole), none first: all, or fewer where
    there are many shards.
    """
    sizes = np.unique(model.largest[list(order)])
    many = len(order) + 1
    few = len(sizes)
    while (many * few) ** 2 * model.shards > 4 * EVALUATIONS and many > 4:
        many = many - max(many // 12, 1)
        few = few - max(few // 8, few > 1)
    cuts = np.unique(np.linspace(0, len(order), many).round().astype(int))
    heads = np.array([_head(model.tables, order, cut) for cut in cuts.tolist()])
    limits = np.unique(sizes[np.linspace(0, len(sizes) - 1, few + 1).round().astype(int)[1:]])
    sets = [heads & (model.largest <= limit) for limit in limits]
    return heads, np.unique(np.concatenate([*sets, heads[-1:] & (model.tallest <= WAYS)]), axis=0)


def _head(tables: int, order: Sequence[int], count: int) -> NDArray[np.bool_]:
    found = np.zeros(tables, bool)
    found[list(order[:count])] = True
    return found


def _names(named: Sequence[str], top: Masks, cached: Masks, below: Masks) -> tuple[str, ...]:
    def name(t: int) -> str:
        if top[t]:
            return "hbm"
        lower = "ddr" if below[t] else "ddr_over_ssd"
        return f"hbm_over_{lower}" if cached[t] else lower

    return tuple(name(t) if given == AUTO else given for t, given in enumerate(named))


def _frugal(model: Model, named: Sequence[str]) -> tuple[str, ...]:
    """The plan that takes least: nothing in HBM, and over SSD whatever is larger than a cache of
    one set.
    """
    small = "ddr" if not model.ddr else "ddr_over_ssd"
    return tuple(
        given if given != AUTO else "ddr" if model.tallest[t] <= WAYS else small
        for t, given in enumerate(named)
    )


def _needs(plan: Plan, places: Sequence[str], work: Workload) -> Iterator[tuple[int, int, int]]:
    """(bytes of DDR that a rank needs at least, caches among them, rank)."""
    for rank in range(plan.ranks):
        need = caches = 0
        for shard in plan.local(rank):
            kind = PLACEMENTS[places[shard.table]]
            spec = plan.tables[shard.table]
            size = spec.row_bytes(shard.shape[1], work.state_floats)
            if kind.whole == "ddr":
                need += shard.shape[0] * size
            elif "ddr" in kind.caches:
                need += (WAYS + (WAYS // SCRATCH) * (kind.caches[0] == "ddr")) * (size + LINE_BYTES)
                caches += 1
        yield need, caches, rank


def _check(plan: Plan, places: Sequence[str], work: Workload, ddr: int) -> None:
    need, caches, rank = max(_needs(plan, places, work))
    if ddr and need > ddr:
        raise TrainingError(
            f"memory.ddr is {ddr:,} bytes a rank, but rank {rank} takes at least {need:,} with "
            f"{caches} table(s) cached over "
            f"SSD, 32 rows of each, and all small ones whole: raise it by {need - ddr:,}, use "
            "more ranks, or split the tables "
            "less (parallel.plan=table_wise)"
        )
