"""What do phases of our own step cost on a machine where they were measured?

`neocpu calibrate` measures what a call, an entry, a bag, a lookup, a number and a row cost in each
phase (`zionex/measure_phases.py`), on 1, 2, 4 ranks of this host. Where a machine has these costs,
they take the place of what bandwidths alone would say.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.planner.work import Floats
from neocpu.zionex.machine import COUNTED, Machine, PhaseCosts

# phases of a step that are measured, in the order of `MeasuredPhases.phases`
MEASURED = ("input", "lookup", "output", "gradient", "update", "replicas")
Flags = NDArray[np.bool_]


class Kinds(NamedTuple):
    """What rectangles are, bool[n] each: copies, some rows of a table, some columns of one.

    together : whether there are other ranks.
    """

    copies: Flags
    parts: Flags
    narrow: Flags
    together: bool


class Amounts(NamedTuple):
    """What rectangles count in a phase, f64[n] each; see `zionex.machine.PhaseCosts`.

    curve : seconds by the machine's rates of lookups or updates.
    """

    entries: Floats
    bags: Floats
    lookups: Floats
    numbers: Floats
    rows: Floats
    row_numbers: Floats
    curve: Floats


class MeasuredPhases:
    """Costs of phases on so many ranks of a node.

    Attributes: any, whether the machine has them for this number of ranks or fewer; crowding, ranks
    for each rank that has a core of its own.
    """

    def __init__(self, machine: Machine, ranks: int) -> None:
        self._machine = machine
        self._ranks = ranks
        self.any = bool(machine.phases)
        self.crowding = max(1.0, ranks / machine.ranks_per_node) if self.any else 1.0

    def costs(self, phase: str) -> PhaseCosts:
        """Costs of a phase; none where it was not measured."""
        return self._machine.phase_costs(phase, self._ranks) or PhaseCosts(phase)

    def call_seconds(self, phase: str) -> float:
        """Seconds of a phase that has nothing to do."""
        return self.costs(phase).call_s

    def seconds(self, phase: str, amounts: Amounts) -> Floats:
        """Seconds of rectangles in a phase, without those of its calls: f64[n]."""
        costs = self.costs(phase)
        return (
            costs.entry_s * amounts.entries
            + costs.bag_s * amounts.bags
            + costs.lookup_s * amounts.lookups
            + costs.number_s * amounts.numbers
            + costs.row_s * amounts.rows
            + costs.row_number_s * amounts.row_numbers
            + costs.curve * amounts.curve
        )

    def dense_seconds(self, phase: str, amounts: tuple[float, ...]) -> float:
        """Seconds of "dense_forward" or "dense_backward"; amounts as `dense_amounts` gives them."""
        costs = self.costs(phase)
        return sum(getattr(costs, name) * amount for name, amount in zip(COUNTED, amounts))

    def phases(
        self, kinds: Kinds, amounts: Amounts, update_curve: Floats, distinct: Floats
    ) -> Floats:
        """Seconds of rectangles in the phases MEASURED, f64[n, 6].

        update_curve : seconds by the rates of updates. distinct : rows of the tables that any rank
        looks up.
        """
        copies = kinds.copies
        none = np.zeros(copies.size)
        updates = amounts._replace(curve=update_curve)
        lookup = self._either("lookup", "lookup_words", amounts, kinds.parts)
        update = self._either("update", "update_columns", updates, kinds.narrow)
        if not kinds.together:
            phases = [self.seconds("input", amounts), lookup, none, none, update, none]
            return np.stack(phases, axis=1)
        # Each rank sums some of the rows of all ranks, and updates every row that any looked up.
        width = amounts.numbers / np.maximum(amounts.bags, 1.0)
        rows = amounts.rows + distinct
        sums = updates._replace(rows=rows, row_numbers=rows * width)
        travelling = [
            self.seconds("input", amounts),
            lookup,
            self._either("output", "output_words", amounts, kinds.parts),
            self._either("gradient", "gradient_words", amounts, kinds.parts),
            update,
            none,
        ]
        copied = [none, lookup, none, none, none, self.seconds("replicas", sums)]
        return np.where(copies[:, None], np.stack(copied, axis=1), np.stack(travelling, axis=1))

    def _either(self, phase: str, other: str, amounts: Amounts, where: Flags) -> Floats:
        """Seconds of rectangles in a phase, or in another where they are of that kind."""
        return np.where(where, self.seconds(other, amounts), self.seconds(phase, amounts))
