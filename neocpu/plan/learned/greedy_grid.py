"""Where do pieces go, table by table? NeuroShard's greedy grid, for many cuttings at once.

Pieces by their own cost, dearest first; each goes to the rank whose set with it costs least, by
the cost network (ties: fewer bytes, then the lower rank), among ranks with room for its bytes
and whose dim sum stays at or below slack x mean. Eleven slacks are tried, and the cheapest
complete placement counts.

A cutting is one choice of pieces. Cuttings and slacks go through the loop over pieces together,
as arrays [cuttings x slacks, ranks, 64]: this is what makes a beam affordable in NumPy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Ints
from neocpu.plan.cost.work import Floats
from neocpu.plan.learned.cost_nets import HIDDEN
from neocpu.plan.learned.costs import LearnedCosts, Loads

SLACKS = np.linspace(1.0, 1.5, 11)
# Numbers that the hidden sums of a block of cuttings may take.
BLOCK = 1 << 19


@dataclass(frozen=True)
class Cutting:
    """Pieces that are placed freely, and pieces of which every rank has a part; their numbers."""

    free: tuple[int, ...]
    everywhere: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlacedParts:
    """A cutting with a rank for each of its free pieces; seconds inf where none was found."""

    cutting: Cutting
    ranks: Ints
    seconds: float


def grid(
    costs: LearnedCosts,
    cuttings: Sequence[Cutting],
    capacity: float,
    slacks: Floats = SLACKS,
) -> list[PlacedParts]:
    """The cheapest placement of each cutting over all slacks.

    capacity : bytes of a rank; inf for no limit.
    """
    per_cutting = slacks.size * costs.layout.ranks * HIDDEN
    block = max(1, BLOCK // per_cutting)
    placed: list[PlacedParts] = []
    for start in range(0, len(cuttings), block):
        placed += _block(costs, cuttings[start : start + block], capacity, slacks)
    return placed


def _block(
    costs: LearnedCosts, cuttings: Sequence[Cutting], capacity: float, slacks: Floats
) -> list[PlacedParts]:
    ranks = costs.layout.ranks
    count = max(len(cutting.free) for cutting in cuttings)
    # A number behind all pieces stands for none: it adds nothing wherever it goes.
    none = len(costs.pieces)
    hidden = np.concatenate([costs.hidden, np.zeros((1, HIDDEN), np.float32)])
    facts = np.concatenate([costs.facts, np.zeros((1, 4))])
    # cuttings of fewer pieces are filled up, so that all go through one loop
    order = np.full((len(cuttings), count), none)
    for v, cutting in enumerate(cuttings):
        free = np.array(cutting.free, np.int64)
        by_cost = np.argsort(-costs.single[free], kind="stable")
        order[v, : free.size] = free[by_cost]
    sequence = np.repeat(order, slacks.size, axis=0)
    lanes = sequence.shape[0]
    limits = _dim_limits(costs, cuttings, slacks)

    sums = np.zeros((lanes, ranks, HIDDEN), np.float32)
    totals = np.zeros((lanes, ranks, 4))
    for v, cutting in enumerate(cuttings):
        shared = np.array(cutting.everywhere, np.int64)
        lane = slice(v * slacks.size, (v + 1) * slacks.size)
        sums[lane] += hidden[shared].sum(axis=0)
        totals[lane] += facts[shared].sum(axis=0)
    placed = np.zeros((lanes, count), np.int64)
    complete = np.ones(lanes, bool)
    lane_numbers = np.arange(lanes)
    scratch = np.empty_like(sums)
    for i in range(count):
        piece = sequence[:, i]
        seconds = costs.outputs(sums, hidden[piece], scratch)
        size = totals[:, :, 0] + facts[piece, 0][:, None]
        dim = totals[:, :, 1] + facts[piece, 1][:, None]
        # a slack limits the columns of a rank, so that exchanges stay balanced whatever lookups
        # cost
        illegal = (size > capacity) | (dim > limits[:, None])
        seconds[illegal] = np.inf
        least = seconds.min(axis=1, keepdims=True)
        # equal costs are common while ranks are empty: fewer bytes decide, then the lower rank
        rank = np.where(seconds == least, size, np.inf).argmin(axis=1)
        # a lane without room goes on with the rest, and counts for nothing at the end
        complete &= np.isfinite(least[:, 0]) | (piece == none)
        placed[:, i] = rank
        sums[lane_numbers, rank] += hidden[piece]
        totals[lane_numbers, rank] += facts[piece]

    seconds = costs.seconds(Loads(sums, *np.moveaxis(totals, -1, 0)))
    seconds = np.where(complete, seconds, np.inf).reshape(len(cuttings), slacks.size)
    best = seconds.argmin(axis=1)
    result = []
    for v, cutting in enumerate(cuttings):
        row = v * slacks.size + int(best[v])
        chosen = _in_order(cutting, sequence[row], placed[row])
        result.append(PlacedParts(cutting, chosen, float(seconds[v, best[v]])))
    return result


def _in_order(cutting: Cutting, sequence: Ints, placed: Ints) -> Ints:
    """Ranks in the order of the cutting's free pieces; equal pieces take theirs one by one."""
    by_piece: dict[int, list[int]] = {}
    for piece, rank in zip(sequence.tolist(), placed.tolist()):
        by_piece.setdefault(piece, []).append(rank)
    return np.array([by_piece[piece].pop(0) for piece in cutting.free], np.int64)


def _dim_limits(costs: LearnedCosts, cuttings: Sequence[Cutting], slacks: Floats) -> Floats:
    """Largest dim sum of a rank, f64[cuttings x slacks]."""
    limits = []
    for cutting in cuttings:
        free = costs.facts[np.array(cutting.free, np.int64), 1].sum()
        shared = costs.facts[np.array(cutting.everywhere, np.int64), 1].sum()
        limits.append(slacks * (free / costs.layout.ranks + shared))
    # sums of floats in another order may exceed a slack of 1 by rounding
    return np.concatenate(limits) * (1 + 1e-12)
