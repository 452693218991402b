"""NeuroShard: which columns to split, by beam search, with the greedy grid inside.

    beam <- {no split}
    10 times: for each of the 3 best cuttings
        candidates = 10 largest and 10 dearest pieces
        split one candidate's columns in halves, if a half is a multiple of 4; place by the grid
    keep the 3 best cuttings, and the best placement ever

(MLSys 2023; its published source. Its cache of predictions by set is not needed: predictions of
growing sets are sums here.) Ours, and not NeuroShard's: a whole candidate may be cut by rows
over all ranks, or copied to all; and the last placement is improved by moves and swaps from the
rank that costs most.
"""

from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Ints
from neocpu.plan.cost.work import Floats
from neocpu.plan.learned.costs import EVERYWHERE, LearnedCosts, Loads, TablePart
from neocpu.plan.learned.greedy_grid import SLACKS, Cutting, PlacedParts, grid

COLUMN_STEP = 4
# Moves and swaps are tried while a round has no more than so many pieces and numbers.
IMPROVEMENTS = 30
ROUND = 1 << 24


@dataclass(frozen=True)
class Beam:
    """Size of the search: NeuroShard's.

    width : cuttings kept. steps : splits of one cutting. candidates : largest, and dearest, pieces
    that may be split. everywhere : whether rows may be cut and copies made (ours). effort : pieces
    x ranks x slacks that all grids together may look at: a bound of the time that no clock sets.
    """

    width: int = 3
    steps: int = 10
    candidates: int = 10
    everywhere: bool = True
    effort: float = 1e7


def search(
    costs: LearnedCosts,
    capacity: float,
    beam: Beam = Beam(),
    slacks: Floats = SLACKS,
    start: Cutting | None = None,
    locked: frozenset[int] = frozenset(),
) -> PlacedParts:
    """The cheapest placement that was found; seconds inf where none fits.

    capacity : bytes of a rank; inf for no limit. start : to begin with, all tables whole by
    default. locked : tables that stay as they are.
    """
    start = start or Cutting(tuple(range(len(costs.tables))))
    # what one grid looks at, in the units of the beam's effort
    price = float(len(costs.tables)) * costs.layout.ranks * slacks.size
    left = max(beam.effort / max(price, 1.0), 1.0)
    kept = grid(costs, [start], capacity, slacks)
    left -= 1
    best = kept[0]
    seen = {start}
    for _ in range(beam.steps):
        fresh = []
        for each in kept:
            for cutting in neighbours(costs, each.cutting, beam, locked):
                if cutting not in seen:
                    seen.add(cutting)
                    fresh.append(cutting)
        fresh = fresh[: max(int(left), 0)]
        if not fresh:
            break
        placed = grid(costs, fresh, capacity, slacks)
        left -= len(fresh)
        kept = sorted(placed, key=lambda each: each.seconds)[: beam.width]
        if kept[0].seconds < best.seconds:
            best = kept[0]
    return best


def neighbours(
    costs: LearnedCosts, cutting: Cutting, beam: Beam, locked: frozenset[int] = frozenset()
) -> list[Cutting]:
    """Variants in which one more candidate is split, cut by rows, or copied.

    locked : tables that stay as they are.
    """
    free = np.array(cutting.free, np.int64)
    if not free.size or costs.layout.ranks == 1:
        return []
    largest = np.argsort(-costs.facts[free, 0], kind="stable")[: beam.candidates]
    dearest = np.argsort(-costs.single[free], kind="stable")[: beam.candidates]
    # the dearest stand first: they are tried where the work does not suffice for all
    candidates = list(dict.fromkeys([*dearest.tolist(), *largest.tolist()]))
    changed: dict[Cutting, None] = {}
    for candidate in candidates:
        piece = costs.pieces[free[candidate]]
        if piece.table in locked:
            continue
        rest = cutting.free[:candidate] + cutting.free[candidate + 1 :]
        table = costs.tables[piece.table]
        half = piece.width // 2
        if piece.width % 2 == 0 and half % COLUMN_STEP == 0 and not table.unfit(cut=True):
            number = costs.numbers([TablePart(piece.table, "table_wise", half)])[0]
            # sorted, so that cuttings reached in another order are seen to be equal
            changed[Cutting(tuple(sorted((*rest, number, number))), cutting.everywhere)] = None
        if not beam.everywhere or piece.width != table.dim:
            continue
        for scheme in EVERYWHERE:
            if scheme == "data_parallel" and table.unfit(copied=True):
                continue
            number = costs.numbers([TablePart(piece.table, scheme, table.dim)])[0]
            changed[Cutting(rest, tuple(sorted((*cutting.everywhere, number))))] = None
    return list(changed)


def improved(costs: LearnedCosts, placed: PlacedParts, capacity: float) -> PlacedParts:
    """The placement after moves of pieces from the dearest rank, and swaps with others.

    The best of all moves and swaps is made while it lowers the predicted cost.
    """
    free = np.array(placed.cutting.free, np.int64)
    ranks = placed.ranks.copy()
    seconds = placed.seconds
    if not np.isfinite(seconds) or costs.layout.ranks == 1:
        return placed
    for _ in range(IMPROVEMENTS):
        loads = costs.loads(free, ranks, placed.cutting.everywhere)
        from_rank = int((costs.compute(loads.hidden) + loads.extra + loads.comm).argmax())
        moves = _moves(ranks, from_rank, costs.layout.ranks)
        # all moves are priced at once, so their hidden sums must fit memory
        if moves.size * costs.layout.ranks * 64 > ROUND:
            break
        after = _after(costs, loads, free, ranks, moves)
        trial = costs.seconds(after)
        trial[(after.size > capacity).any(axis=1)] = np.inf
        best = int(trial.argmin()) if trial.size else 0
        if not trial.size or trial[best] >= seconds * (1 - 1e-9):
            break
        seconds = float(trial[best])
        moved, rank, swapped = moves[best].tolist()
        ranks[moved] = rank
        if swapped >= 0:
            ranks[swapped] = from_rank
    return PlacedParts(placed.cutting, ranks, seconds)


def _moves(ranks: Ints, from_rank: int, count: int) -> Ints:
    """(piece, its new rank, piece that comes back or -1) of all moves from a rank, i64[n, 3]."""
    leaving = np.flatnonzero(ranks == from_rank)
    staying = np.flatnonzero(ranks != from_rank)
    targets = np.delete(np.arange(count), from_rank)
    moves = np.stack(np.meshgrid(leaving, targets, indexing="ij"), axis=-1).reshape(-1, 2)
    swaps = np.stack(np.meshgrid(leaving, staying, indexing="ij"), axis=-1).reshape(-1, 2)
    return np.concatenate(
        [
            np.column_stack([moves, np.full(len(moves), -1)]),
            np.column_stack([swaps[:, 0], ranks[swaps[:, 1]], swaps[:, 1]]),
        ]
    ).astype(np.int64)


def _after(costs: LearnedCosts, loads: Loads, free: Ints, ranks: Ints, moves: Ints) -> Loads:
    """Loads after each move, [moves, ranks, ...]."""
    moved, target, swapped = moves.T
    from_rank = int(ranks[moved[0]]) if moved.size else 0
    lane = np.arange(len(moves))
    # -1 would pick the last piece, whose numbers are replaced by zeros
    back = (swapped >= 0)[:, None]
    hidden = np.repeat(loads.hidden[None], len(moves), axis=0)
    facts = np.repeat(np.stack(loads[1:], axis=-1)[None], len(moves), axis=0)
    for total, of_piece in ((hidden, costs.hidden), (facts, costs.facts)):
        change = of_piece[free[moved]] - np.where(back, of_piece[free[swapped]], 0)
        total[lane, from_rank] -= change
        total[lane, target] += change
    return Loads(hidden, *np.moveaxis(facts, -1, 0))
