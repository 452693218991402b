"""Which small changes make a plan faster? Moves and swaps of rectangles, and other cuts of tables.

The sum of the slowest ranks' seconds says nothing of ranks that are nearly as slow, so a search
guided by it alone soon ends. Instead of the maximum of a phase it lowers a norm of its loads,

    soft = sum over phases p of ( sum over ranks r of load[r, p]^q )^(1/q)

with q = 32 and then 128; the norm tends to the maximum. In each pass every rank, the
most loaded first, gives one rectangle to another rank or swaps two, as long as this lowers the
norm, then tables on it are cut or placed otherwise (split, merged, copied, other memories). The
best draft by the true sum is the result.

Work is counted, not timed, so the result depends on the arguments only.
"""

import numpy as np

from neocpu.core.types import Ints
from neocpu.plan.cost.work import Flags, Floats
from neocpu.plan.search.cuts import ALL, NODE, RANK
from neocpu.plan.search.drafts import PlanDraft
from neocpu.plan.search.insertion import Ground, Insertion, insert, without
from neocpu.plan.search.norms import CALL, Budget, Norm
from neocpu.plan.search.partition import TOLERANCE

# Doublings of the exponent 1 of each level of the norm: q = 32, 128.
LEVELS = (5, 7)
# Ranks with which a rank trades at a time, the least loaded ones.
PARTNERS = 16
# Rectangles of a rank, and of its partners, that are looked at together.
FROM_RANK = 64
FROM_PARTNERS = 768
# A change must lower the norm by this part of it, or rounding would count as progress.
GAIN = 1e-7
# Passes over all ranks at each level, at most, and the part of the norm that one must gain for
# another to follow.
PASSES = 6
ENOUGH = 1e-4
# Part of the work that goes into other cuts.
RECUTS = 0.4
# Tables of a rank that are cut otherwise, the dearest ones.
TABLES = 8
# Candidates of a table that are tried when it is cut otherwise, cheapest first.
CUTS = 16
# Of them, with the same cut in other memories.
PLACEMENTS_OF_CUT = 2


def improve(draft: PlanDraft, work: float) -> PlanDraft:
    """The draft after local search; `work` bounds what it looks at (see `Budget`)."""
    best = draft.copy()
    best_value = best.value
    current = draft.copy()
    for doublings in LEVELS:
        trades = Budget(work / len(LEVELS) * (1.0 - RECUTS))
        recuts = Budget(work / len(LEVELS) * RECUTS)
        for _ in range(PASSES):
            norm = Norm(current, doublings)
            start = norm.now
            _trade_all(norm, trades)
            _recut_all(norm, recuts)
            current.recount()
            if current.value < best_value:
                best = current.copy()
                best_value = best.value
            if norm.now > start * (1.0 - ENOUGH):
                break
    return best


def _trade_all(norm: Norm, budget: Budget) -> None:
    """Trades of every rank, the most loaded first."""
    todo = np.ones(norm.draft.layout.ranks, bool)
    while todo.any() and budget.left > 0:
        rank = int(np.where(todo, norm.heat(), -np.inf).argmax())
        todo[rank] = False
        while budget.left > 0 and _trade(norm, rank, budget):
            pass


def _recut_all(norm: Norm, budget: Budget) -> None:
    """Other cuts of tables of every rank, the most loaded first, and of those on all ranks."""
    draft = norm.draft
    todo = np.ones(draft.layout.ranks, bool)
    seen = np.zeros(draft.choice.size, bool)
    while todo.any() and budget.left > 0:
        rank = int(np.where(todo, norm.heat(), -np.inf).argmax())
        todo[rank] = False
        _recut(norm, rank, seen, budget)
    everywhere = np.flatnonzero(draft.options.home[draft.choice] == ALL)
    # tables on all ranks are on no rank's list, so they have their turn at the end
    dearest_first = np.argsort(-draft.options.peak[draft.choice[everywhere]], kind="stable")
    for table in everywhere[dearest_first].tolist():
        if budget.left <= 0:
            break
        recut_table(norm, table, budget)


def _trade(norm: Norm, rank: int, budget: Budget) -> bool:
    """Make the best move or swap of one of the rank's items; False if none lowers the norm."""
    draft = norm.draft
    ranks = draft.layout.ranks
    if ranks == 1:
        return False
    rank_items = _sample(np.flatnonzero(draft.item_rank == rank), FROM_RANK)
    if not rank_items.size:
        return False
    heat = norm.heat()
    # no rank trades with itself
    heat[rank] = np.inf
    near = _partners(draft, heat)
    partners = np.flatnonzero(near)
    partner_items = _sample(np.flatnonzero(near[draft.item_rank]), FROM_PARTNERS)
    # a move is a swap with nothing: one such item for each partner
    seconds = draft.options.piece_seconds
    size = draft.options.piece_bytes
    phases = seconds.shape[1]
    partner_seconds = np.concatenate(
        [seconds[draft.item_piece[partner_items]], np.zeros((partners.size, phases))]
    )
    partner_bytes = np.concatenate(
        [size[draft.item_piece[partner_items]], np.zeros((partners.size, size.shape[1]))]
    )
    partner_rank = np.concatenate([draft.item_rank[partner_items], partners])
    budget.spend(CALL + rank_items.size * partner_rank.size)

    gain = partner_seconds[None] - seconds[draft.item_piece[rank_items]][:, None]
    loss = gain
    if draft.options.slowness is not None:
        loss = gain * draft.options.slowness[partner_rank][:, None]
        gain = gain * draft.options.slowness[rank]
    sums = norm.sums - norm.powers[rank] - norm.powers[partner_rank]
    sums = sums + norm.power(draft.seconds[rank] + gain)
    sums += norm.power(draft.seconds[partner_rank] - loss)
    values = norm.value(sums)
    # only memories with a limit: this is an array of all pairs by memories
    limited = np.isfinite(draft.limits).any(axis=0)
    if limited.any():
        limits = draft.limits[:, limited] * (1.0 + TOLERANCE)
        more = (partner_bytes[None] - size[draft.item_piece[rank_items]][:, None])[..., limited]
        room = (draft.bytes[rank][limited] + more <= limits[rank]).all(axis=2)
        room &= (draft.bytes[partner_rank][:, limited] - more <= limits[partner_rank]).all(axis=2)
        values = np.where(room, values, np.inf)
    best = int(values.argmin())
    i, j = divmod(best, partner_rank.size)
    if not values[i, j] < norm.now * (1.0 - GAIN):
        return False
    other = int(partner_rank[j])
    draft.item_rank[rank_items[i]] = other
    if j < partner_items.size:
        draft.item_rank[partner_items[j]] = rank
    more_bytes = partner_bytes[j] - size[draft.item_piece[rank_items[i]]]
    draft.seconds[rank] += gain[i, j]
    draft.seconds[other] -= loss[i, j]
    draft.bytes[rank] += more_bytes
    draft.bytes[other] -= more_bytes
    norm.touch(np.array([rank, other]))
    return True


def _partners(draft: PlanDraft, heat: Floats) -> Flags:
    """The ranks to trade with, bool[ranks]: the least loaded, and those with most memory left.

    heat : f64[ranks], infinite for the rank that trades.
    """
    near = np.zeros(heat.size, bool)
    near[np.argsort(heat, kind="stable")[:PARTNERS]] = True
    if np.isfinite(draft.limits).any():
        full = (draft.bytes / np.maximum(draft.limits, 1.0)).max(axis=1)
        near[np.argsort(full, kind="stable")[: PARTNERS // 2]] = True
    near[np.isinf(heat)] = False
    return near


def _sample(items: Ints, most: int) -> Ints:
    """At most so many of the items, evenly spread over them."""
    if items.size <= most:
        return items
    return items[np.linspace(0, items.size - 1, most).astype(np.int64)]


# ---- other cuts ----


def _recut(norm: Norm, rank: int, seen: Flags, budget: Budget) -> None:
    """Cut or place tables of a rank otherwise where that lowers the norm; `seen` ones are left."""
    draft = norm.draft
    options = draft.options
    on_rank = np.unique(draft.item_table[draft.item_rank == rank])
    on_node = np.flatnonzero(
        (options.home[draft.choice] == NODE) & (draft.node == rank // draft.layout.ranks_per_node)
    )
    tables = np.concatenate([on_rank, on_node])
    tables = tables[~seen[tables]]
    dearest_first = np.argsort(-options.peak[draft.choice[tables]], kind="stable")
    for table in tables[dearest_first][:TABLES].tolist():
        if budget.left <= 0:
            break
        seen[table] = True
        recut_table(norm, table, budget)


def recut_table(norm: Norm, table: int, budget: Budget) -> bool:
    """Give a table the candidate with which the norm is least; False if it has it already."""
    draft = norm.draft
    options = draft.options
    ground = without(norm, table)
    present = int(draft.choice[table])
    best = None
    least = norm.now * (1.0 - GAIN)
    # The slowest ranks take at least the mean: what adds more than the gap cannot gain.
    gap = draft.value * draft.layout.ranks - float(draft.seconds.sum())
    dearest = float(options.seconds[present].sum()) + gap
    for candidate in _others(draft, ground, table)[:CUTS]:
        if budget.left <= 0 or float(options.seconds[candidate].sum()) >= dearest:
            break
        inserted = insert(norm, ground, candidate, budget)
        if inserted is not None and inserted.value < least:
            best = inserted
            least = inserted.value
    if best is None:
        return False
    apply(norm, table, best)
    return True


def _others(draft: PlanDraft, ground: Ground, table: int) -> list[int]:
    """Candidates of a table but the present one, cheapest first, few placements of each cut.

    ground : without the table; what has no room on it is left out.
    """
    options = draft.options
    start = int(options.start[table])
    end = int(options.start[table + 1])
    free = np.maximum(draft.limits * (1.0 + TOLERANCE) - ground.bytes, 0.0)
    room = (options.bytes[start:end] <= free.sum(axis=0)).all(axis=1)
    room &= (options.peak_bytes[start:end] <= free.max(axis=0)).all(axis=1)
    totals = np.where(room, options.seconds[start:end].sum(axis=1), np.inf)
    seen: dict[tuple[int, ...], int] = {}
    candidates = []
    for candidate in (start + np.argsort(totals, kind="stable")[: room.sum()]).tolist():
        columns = (options.scheme, options.parts, options.rectangles)
        cut = tuple(int(column[candidate]) for column in columns)
        # otherwise placements of one cut would fill the list, and other cuts would never be tried
        if candidate != draft.choice[table] and seen.get(cut, 0) < PLACEMENTS_OF_CUT:
            seen[cut] = seen.get(cut, 0) + 1
            candidates.append(candidate)
    return candidates


def apply(norm: Norm, table: int, insertion: Insertion) -> None:
    """Give a table another candidate in the draft."""
    draft = norm.draft
    options = draft.options
    # items stand in no order, so those of the new candidate may go behind all others
    keep = draft.item_table != table
    before = draft.rectangles_of(table)
    pieces = np.zeros(0, np.int64)
    if options.home[insertion.candidate] == RANK:
        pieces = options.repeated(insertion.candidate)
    draft.choice[table] = insertion.candidate
    draft.node[table] = insertion.node
    draft.item_table = np.concatenate([draft.item_table[keep], np.full(pieces.size, table)])
    draft.item_piece = np.concatenate([draft.item_piece[keep], pieces])
    draft.item_rank = np.concatenate([draft.item_rank[keep], insertion.ranks])
    after = draft.rectangles_of(table)
    for rectangles, sign in ((before, -1.0), (after, 1.0)):
        np.add.at(draft.seconds, rectangles.ranks, sign * options.seconds_on(*rectangles))
        np.add.at(draft.bytes, rectangles.ranks, sign * options.piece_bytes[rectangles.pieces])
    # ranks that the table leaves are touched as well
    norm.touch(np.unique(np.concatenate([before.ranks, after.ranks])))
