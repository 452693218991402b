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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neocpu.planner.cuts import ALL, NODE, RANK
from neocpu.planner.drafts import PlanDraft, Spread, spread, spread_on_nodes
from neocpu.planner.partition import TOLERANCE, fits
from neocpu.planner.work import Floats, Ints

# Doublings of the exponent 1 of each level of the norm: q = 32, 128.
LEVELS = (5, 7)
# Loads count as at most so many times the slowest rank's, or their powers would overflow.
HIGHEST = 100.0
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
# Work of a call, whatever it looks at.
CALL = 400.0
# Tables of a rank that are cut otherwise, the dearest ones.
TABLES = 8
# Candidates of a table that are tried when it is cut otherwise, cheapest first.
CUTS = 6


@dataclass
class Budget:
    """Work that is left: pairs of rectangles, and candidates times ranks, yet to be looked at."""

    left: float

    def spend(self, work: float) -> None:
        """Some of it is done."""
        self.left -= work


class Norm:
    """The soft sum of a draft's loads, and what changes would make of it."""

    def __init__(self, draft: PlanDraft, doublings: int) -> None:
        self.draft = draft
        self.doublings = doublings
        self.scale = np.maximum(draft.seconds.max(axis=0), 1e-300)
        self.refresh()

    def refresh(self) -> None:
        """Compute the powers of all loads anew."""
        self.powers = self.power(self.draft.seconds)
        self.sums = self.powers.sum(axis=0)

    def power(self, seconds: Floats) -> Floats:
        """(seconds / scale)^q, any shape [..., phases]."""
        powers = np.clip(seconds / self.scale, 0.0, HIGHEST)
        for _ in range(self.doublings):
            powers = powers * powers
        return powers

    def value(self, sums: Floats) -> Floats:
        """The norm from sums of powers f64[..., phases]."""
        roots = np.maximum(sums, 0.0)
        for _ in range(self.doublings):
            roots = np.sqrt(roots)
        return roots @ self.scale

    @property
    def now(self) -> float:
        """The norm of the draft as it is."""
        return float(self.value(self.sums))

    def heat(self) -> Floats:
        """How much each rank's load adds to the norm, f64[ranks]."""
        sums = np.maximum(self.sums, 1e-300)
        roots = sums
        for _ in range(self.doublings):
            roots = np.sqrt(roots)
        return self.powers @ (self.scale * roots / sums)

    def touch(self, ranks: Ints) -> None:
        """Some ranks have other loads now."""
        self.powers[ranks] = self.power(self.draft.seconds[ranks])
        self.sums = self.powers.sum(axis=0)


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
            before = norm.now
            _trade_all(norm, trades)
            _recut_all(norm, recuts)
            current.recount()
            if current.value < best_value:
                best = current.copy()
                best_value = best.value
            if norm.now > before * (1.0 - ENOUGH):
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
    mine = _some(np.flatnonzero(draft.item_rank == rank), FROM_RANK)
    if not mine.size:
        return False
    heat = norm.heat()
    heat[rank] = np.inf
    count = min(PARTNERS, ranks - 1)
    partners = np.argsort(heat, kind="stable")[:count]
    near = np.zeros(ranks, bool)
    near[partners] = True
    yours = _some(np.flatnonzero(near[draft.item_rank]), FROM_PARTNERS)
    # a move is a swap with nothing: one such item for each partner
    seconds = draft.options.piece_seconds
    size = draft.options.piece_bytes
    phases = seconds.shape[1]
    your_seconds = np.concatenate([seconds[draft.item_piece[yours]], np.zeros((count, phases))])
    your_bytes = np.concatenate([size[draft.item_piece[yours]], np.zeros((count, size.shape[1]))])
    your_rank = np.concatenate([draft.item_rank[yours], partners])
    budget.spend(CALL + mine.size * your_rank.size)

    gain = your_seconds[None] - seconds[draft.item_piece[mine]][:, None]
    sums = norm.sums - norm.powers[rank] - norm.powers[your_rank]
    sums = sums + norm.power(draft.seconds[rank] + gain)
    sums += norm.power(draft.seconds[your_rank] - gain)
    values = norm.value(sums)
    limited = np.isfinite(draft.limits)
    if limited.any():
        limits = draft.limits[limited] * (1.0 + TOLERANCE)
        more = (your_bytes[None] - size[draft.item_piece[mine]][:, None])[..., limited]
        room = (draft.bytes[rank][limited] + more <= limits).all(axis=2)
        room &= (draft.bytes[your_rank][:, limited] - more <= limits).all(axis=2)
        values = np.where(room, values, np.inf)
    place = int(values.argmin())
    i, j = divmod(place, your_rank.size)
    if not values[i, j] < norm.now * (1.0 - GAIN):
        return False
    other = int(your_rank[j])
    draft.item_rank[mine[i]] = other
    if j < yours.size:
        draft.item_rank[yours[j]] = rank
    more_bytes = your_bytes[j] - size[draft.item_piece[mine[i]]]
    draft.seconds[rank] += gain[i, j]
    draft.seconds[other] -= gain[i, j]
    draft.bytes[rank] += more_bytes
    draft.bytes[other] -= more_bytes
    norm.touch(np.array([rank, other]))
    return True


def _some(items: Ints, most: int) -> Ints:
    """At most so many of the items, evenly spread over them."""
    if items.size <= most:
        return items
    return items[np.linspace(0, items.size - 1, most).astype(np.int64)]


# ---- other cuts ----


@dataclass
class Ground:
    """Loads of the ranks without one table: as in the draft, their powers and the sums of these."""

    seconds: Floats
    bytes: Floats
    powers: Floats
    sums: Floats

    def copy(self) -> "Ground":
        """One to build on."""
        return Ground(self.seconds.copy(), self.bytes.copy(), self.powers.copy(), self.sums.copy())


@dataclass
class Insertion:
    """Where a candidate's rectangles go best: its node, ranks of its items; the norm then."""

    candidate: int
    node: int
    ranks: Ints
    value: float


def _recut(norm: Norm, rank: int, seen: NDArray[np.bool_], budget: Budget) -> None:
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
    totals = options.seconds[options.start[table] : options.start[table + 1]].sum(axis=1)
    cheapest_first = options.start[table] + np.argsort(totals, kind="stable")
    best = None
    least = norm.now * (1.0 - GAIN)
    # The slowest ranks take at least the mean: what adds more than the gap cannot gain.
    gap = draft.value * draft.layout.ranks - float(draft.seconds.sum())
    dearest = float(options.seconds[present].sum()) + gap
    for candidate in [c for c in cheapest_first.tolist() if c != present][:CUTS]:
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


def without(norm: Norm, table: int) -> Ground:
    """The loads without a table."""
    draft = norm.draft
    options = draft.options
    part = draft.rectangles_of(table)
    seconds = draft.seconds.copy()
    size = draft.bytes.copy()
    np.subtract.at(seconds, part.ranks, options.piece_seconds[part.pieces])
    np.subtract.at(size, part.ranks, options.piece_bytes[part.pieces])
    powers = norm.powers.copy()
    ranks = np.unique(part.ranks)
    powers[ranks] = norm.power(seconds[ranks])
    return Ground(seconds, size, powers, powers.sum(axis=0))


def insert(norm: Norm, ground: Ground, candidate: int, budget: Budget) -> Insertion | None:
    """The best homes of a candidate's rectangles on some ground, None where they do not fit.

    Items are placed one by one, each where the norm is least.
    """
    draft = norm.draft
    options = draft.options
    none = np.zeros(0, np.int64)
    home = int(options.home[candidate])
    if home == ALL:
        budget.spend(CALL + draft.layout.ranks)
        value = _value_with(norm, ground, spread(options, candidate, 0, draft.layout))
        return None if value is None else Insertion(candidate, 0, none, value)
    if home == NODE:
        budget.spend(CALL + draft.layout.ranks)
        return _insert_on_node(norm, ground, candidate)
    ground = ground.copy()
    limits = draft.limits * (1.0 + TOLERANCE)
    ranks = []
    value = np.inf
    for piece in options.repeated(candidate).tolist():
        budget.spend(CALL + draft.layout.ranks)
        seconds = ground.seconds + options.piece_seconds[piece]
        size = ground.bytes + options.piece_bytes[piece]
        powers = norm.power(seconds)
        values = norm.value(ground.sums - ground.powers + powers)
        values = np.where((size <= limits).all(axis=1), values, np.inf)
        rank = int(values.argmin())
        value = float(values[rank])
        if not np.isfinite(value):
            return None
        ranks.append(rank)
        ground.sums = ground.sums - ground.powers[rank] + powers[rank]
        ground.seconds[rank] = seconds[rank]
        ground.bytes[rank] = size[rank]
        ground.powers[rank] = powers[rank]
    return Insertion(candidate, 0, np.array(ranks, np.int64), value)


def _insert_on_node(norm: Norm, ground: Ground, candidate: int) -> Insertion | None:
    """The node on which a candidate's rectangles go best; None where they fit on none."""
    options = norm.draft.options
    ranks, pieces = spread_on_nodes(options, candidate, norm.draft.layout)
    limits = norm.draft.limits * (1.0 + TOLERANCE)
    room = np.all(ground.bytes[ranks] + options.piece_bytes[pieces] <= limits, axis=(1, 2))
    powers = norm.power(ground.seconds[ranks] + options.piece_seconds[pieces])
    sums = ground.sums - ground.powers[ranks].sum(axis=1) + powers.sum(axis=1)
    values = np.where(room, norm.value(sums), np.inf)
    place = int(values.argmin())
    if not np.isfinite(values[place]):
        return None
    node = int(options.first_node[candidate]) + place
    return Insertion(candidate, node, np.zeros(0, np.int64), float(values[place]))


def _value_with(norm: Norm, ground: Ground, part: Spread) -> float | None:
    """The norm with more rectangles, at most one on a rank; None where they do not fit."""
    options = norm.draft.options
    size = ground.bytes[part.ranks] + options.piece_bytes[part.pieces]
    if not fits(size, norm.draft.limits):
        return None
    powers = norm.power(ground.seconds[part.ranks] + options.piece_seconds[part.pieces])
    sums = ground.sums - ground.powers[part.ranks].sum(axis=0) + powers.sum(axis=0)
    return float(norm.value(sums))


def apply(norm: Norm, table: int, insertion: Insertion) -> None:
    """Give a table another candidate in the draft."""
    draft = norm.draft
    options = draft.options
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
    for part, sign in ((before, -1.0), (after, 1.0)):
        np.add.at(draft.seconds, part.ranks, sign * options.piece_seconds[part.pieces])
        np.add.at(draft.bytes, part.ranks, sign * options.piece_bytes[part.pieces])
    norm.touch(np.unique(np.concatenate([before.ranks, after.ranks])))
