"""Where do a candidate's rectangles go best, all other tables staying where they are?"""

from dataclasses import dataclass

import numpy as np

from neocpu.core.types import Ints
from neocpu.plan.cost.work import Floats
from neocpu.plan.search.cuts import ALL, NODE
from neocpu.plan.search.drafts import Spread, slowed, spread, spread_on_nodes
from neocpu.plan.search.norms import CALL, Budget, Norm
from neocpu.plan.search.partition import TOLERANCE, fits


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


def without(norm: Norm, table: int) -> Ground:
    """The loads without a table."""
    draft = norm.draft
    options = draft.options
    rectangles = draft.rectangles_of(table)
    seconds = draft.seconds.copy()
    size = draft.bytes.copy()
    np.subtract.at(seconds, rectangles.ranks, options.seconds_on(*rectangles))
    np.subtract.at(size, rectangles.ranks, options.piece_bytes[rectangles.pieces])
    # only the ranks of the table have other powers
    powers = norm.powers.copy()
    ranks = np.unique(rectangles.ranks)
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
    return _insert_items(norm, ground.copy(), candidate, budget)


def _insert_items(norm: Norm, ground: Ground, candidate: int, budget: Budget) -> Insertion | None:
    """The ranks on which a candidate's items go best; None where they do not fit.

    Equal items go to different ranks, so all of them are placed at once. `ground` is changed.
    """
    draft = norm.draft
    options = draft.options
    limits = draft.limits * (1.0 + TOLERANCE)
    chosen = []
    for piece in range(int(options.piece[candidate]), int(options.piece[candidate + 1])):
        # more copies than ranks with room go round again, on what the first round left
        left = int(options.copies[piece])
        while left:
            budget.spend(CALL + draft.layout.ranks)
            seconds = ground.seconds + slowed(options, options.piece_seconds[piece])
            size = ground.bytes + options.piece_bytes[piece]
            powers = norm.power(seconds)
            values = norm.value(ground.sums - ground.powers + powers)
            values = np.where((size <= limits).all(axis=1), values, np.inf)
            ranks = np.argsort(values, kind="stable")[:left]
            ranks = ranks[np.isfinite(values[ranks])]
            if not ranks.size:
                return None
            ground.seconds[ranks] = seconds[ranks]
            ground.bytes[ranks] = size[ranks]
            ground.powers[ranks] = powers[ranks]
            ground.sums = ground.powers.sum(axis=0)
            chosen.append(ranks)
            left -= ranks.size
    return Insertion(candidate, 0, np.concatenate(chosen), float(norm.value(ground.sums)))


def _insert_on_node(norm: Norm, ground: Ground, candidate: int) -> Insertion | None:
    """The node on which a candidate's rectangles go best; None where they fit on none."""
    options = norm.draft.options
    ranks, pieces = spread_on_nodes(options, candidate, norm.draft.layout)
    limits = norm.draft.limits[ranks] * (1.0 + TOLERANCE)
    # every node at once: a candidate on a node has one rectangle for each of its ranks
    room = np.all(ground.bytes[ranks] + options.piece_bytes[pieces] <= limits, axis=(1, 2))
    powers = norm.power(ground.seconds[ranks] + options.seconds_on(ranks, pieces))
    sums = ground.sums - ground.powers[ranks].sum(axis=1) + powers.sum(axis=1)
    values = np.where(room, norm.value(sums), np.inf)
    index = int(values.argmin())
    if not np.isfinite(values[index]):
        return None
    node = int(options.first_node[candidate]) + index
    return Insertion(candidate, node, np.zeros(0, np.int64), float(values[index]))


def _value_with(norm: Norm, ground: Ground, rectangles: Spread) -> float | None:
    """The norm with more rectangles, at most one on a rank; None where they do not fit."""
    options = norm.draft.options
    size = ground.bytes[rectangles.ranks] + options.piece_bytes[rectangles.pieces]
    if not fits(size, norm.draft.limits[rectangles.ranks]):
        return None
    powers = norm.power(ground.seconds[rectangles.ranks] + options.seconds_on(*rectangles))
    sums = ground.sums - ground.powers[rectangles.ranks].sum(axis=0) + powers.sum(axis=0)
    return float(norm.value(sums))
