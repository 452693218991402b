"""What is a byte of each memory worth? Prices under which the tables' cheapest candidates fit.

With a price on bytes, tables give way in the order of what they lose: those whose bytes are
demanded least take slower memories or finer cuts first (MTrainS, 2023). The same prices make the
lower bound hold under memory limits (`bound.py`).

Equal tables give way at the same price, all of them or none. `within` therefore goes on from there
table by table: out of memories that are too full, then back into what is left of the faster ones.
"""

from collections.abc import Iterator

import numpy as np

from neocpu.core.types import Ints
from neocpu.plan.cost.work import Flags, Floats
from neocpu.plan.search.options import Options
from neocpu.plan.search.partition import TOLERANCE
from neocpu.plan.tiers.limits import TOGETHER

# Part of all memory of a kind from which on it is short.
SHORT = 0.5
# Halvings of the interval in which a price is looked for.
HALVINGS = 30
# Factor from one end of that interval to the next while it is too short.
FACTOR = 8.0
# Rounds in which tables leave memories that are too full.
ROUNDS = 20


def cheapest(options: Options, cost: Floats) -> Ints:
    """The first candidate of least cost of each table, i64[tables]; cost f64[candidates]."""
    heads = options.start[:-1]
    least = np.minimum.reduceat(cost, heads)
    # there is no argmin by segment; ties go to the first candidate, as on every other rank
    equal = np.flatnonzero(cost == least[options.table])
    return equal[np.searchsorted(options.table[equal], np.arange(heads.size))]


def is_short(options: Options, budgets: Floats) -> bool:
    """Do the cheapest candidates take much of a memory? budgets : f64[memories], of all ranks."""
    choice = cheapest(options, options.seconds.sum(axis=1))
    return bool((options.bytes[choice].sum(axis=0) > SHORT * budgets).any())


def memory_prices(options: Options, cost: Floats, budgets: Floats) -> Floats:
    """Seconds per byte f64[memories] with which the cheapest candidates keep within budgets.

    cost : f64[candidates] seconds, infinite for those that are left out. budgets : f64[memories],
    bytes of all ranks. Each price is the least that does, given those found before it; where none
    does it stays high.
    """
    prices = np.zeros(budgets.size)

    def taken(memory: int) -> float:
        choice = cheapest(options, cost + options.bytes @ prices)
        return float(options.bytes[choice, memory].sum())

    finite = cost[np.isfinite(cost)]
    scale = max(float(finite.max(initial=0.0)), 1e-12)
    # A price may drive tables into the next memory, so the first one is looked at again at last.
    for memory in (*range(budgets.size), 0):
        budget = float(budgets[memory])
        prices[memory] = 0.0
        if not np.isfinite(budget) or taken(memory) <= budget:
            continue
        low = 0.0
        # at which a full budget costs as much as the dearest candidate
        high = scale / max(budget, 1.0)
        # A byte may cost as much as all seconds: no candidate changes beyond that.
        while high <= scale:
            prices[memory] = high
            if taken(memory) <= budget:
                break
            low = high
            high *= FACTOR
        for _ in range(HALVINGS):
            prices[memory] = (low + high) / 2
            if taken(memory) <= budget:
                high = prices[memory]
            else:
                low = prices[memory]
        # the end of the interval at which all fits, if any did
        prices[memory] = high
    return prices


def within(options: Options, cost: Floats, budgets: Floats) -> Ints:
    """Candidates i64[tables] of little cost whose bytes keep within budgets, if such are found.

    cost : f64[candidates] seconds, infinite for those that are left out. budgets : f64[memories],
    bytes of all ranks.
    """
    prices = memory_prices(options, cost, budgets)
    choice = cheapest(options, cost + options.bytes @ prices)
    if prices.any():
        _relieve(options, cost, budgets, choice)
        refill(options, cost, budgets, choice)
    return choice


def _excess(total: Floats, budgets: Floats) -> Floats:
    """How much too full the memories are, in parts of their budgets: f64[...] of f64[...,
    memories].
    """
    over: Floats = np.maximum(total - budgets, 0.0)
    return (over / np.maximum(budgets, 1.0)).sum(axis=-1)


def _relieve(options: Options, cost: Floats, budgets: Floats, choice: Ints) -> None:
    """Change single tables until no memory is too full, the least seconds for the bytes first."""
    size = options.bytes
    total = size[choice].sum(axis=0)
    now = float(_excess(total, budgets))
    for _ in range(ROUNDS):
        if not now:
            return
        present = choice[options.table]
        relief = now - _excess(total - size[present] + size, budgets)
        useful = np.flatnonzero((relief > 0) & np.isfinite(cost))
        dearer = cost[useful] - np.where(np.isfinite(cost), cost, 0.0)[present[useful]]
        before = now
        for index in useful[np.argsort(dearer / relief[useful], kind="stable")].tolist():
            table = options.table[index]
            changed = total - size[choice[table]] + size[index]
            left = float(_excess(changed, budgets))
            if left < now:
                choice[table] = index
                total = changed
                now = left
            if not now:
                return
        if now == before:
            return


def refill(options: Options, cost: Floats, budgets: Floats, choice: Ints) -> None:
    """Give single tables cheaper candidates where the budgets allow it, most seconds for the bytes
    first.
    """
    size = options.bytes
    total = size[choice].sum(axis=0)
    limits = np.maximum(budgets, total)
    present = choice[options.table]
    gain = np.where(np.isfinite(cost[present]), cost[present], 0.0) - cost
    room = (total - size[present] + size <= limits).all(axis=1)
    useful = np.flatnonzero((gain > 0) & room)
    more = np.maximum(size[useful] - size[present[useful]], 0.0) / np.maximum(limits, 1.0)
    order = np.argsort(-gain[useful] / (more.sum(axis=1) + 1e-12), kind="stable")
    for index in useful[order].tolist():
        table = options.table[index]
        changed = total - size[choice[table]] + size[index]
        if cost[index] < cost[choice[table]] and (changed <= limits).all():
            choice[table] = index
            total = changed


def packed(options: Options, allowed: Flags, size: Floats, budgets: Floats) -> Iterator[Ints]:
    """Choices i64[tables] that keep within budgets, by first fit: each table the first of its
    allowed candidates that has room, tables in their order or the largest first, candidates in
    theirs or the last first.

    size : f64[candidates, memories], bytes to keep within budgets f64[memories].
    """
    limited = np.isfinite(budgets)
    size = size[:, limited]
    largest = np.argsort(
        -np.maximum.reduceat(options.bytes[:, TOGETHER], options.start[:-1]), kind="stable"
    )
    for tables in (np.arange(options.start.size - 1), largest):
        for step in (1, -1):
            left = budgets[limited] * (1.0 + TOLERANCE)
            choice = np.zeros(tables.size, np.int64)
            for table in tables.tolist():
                candidates = np.arange(options.start[table], options.start[table + 1])[::step]
                candidates = candidates[allowed[candidates]]
                candidates = candidates[(size[candidates] <= left).all(axis=1)]
                if not candidates.size:
                    break
                choice[table] = candidates[0]
                left = left - size[choice[table]]
            else:
                yield choice
