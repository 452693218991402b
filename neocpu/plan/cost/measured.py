"""What do phases of our own step cost on a machine where they were measured?

`neocpu calibrate` measures what a call, an entry, a bag, a lookup, a number and a row cost in each
phase (`plan/machines/measure/phases.py`), on 1, 2, 4 ranks of this host. Where a machine has these
costs, they take the place of what bandwidths alone would say.
"""

from typing import NamedTuple

import numpy as np

from neocpu.core.types import Ints
from neocpu.plan.cost.row_curves import touched
from neocpu.plan.cost.work import Flags, Floats, Rectangles, TableArrays, Workload
from neocpu.plan.machines.machine import COUNTED, Machine, PhaseCosts
from neocpu.plan.machines.measure.dense import dense_amounts, parameter_amounts, product_curves

# phases of a step that are measured, in the order of `MeasuredPhases.phases`
MEASURED = ("input", "lookup", "output", "gradient", "update", "replicas")


class Kinds(NamedTuple):
    """What rectangles are, bool[n] each: copies, some rows of a table, some columns of one."""

    copies: Flags
    parts: Flags
    narrow: Flags


class Amounts(NamedTuple):
    """What rectangles count in a phase, f64[n] each; see `machines.machine.PhaseCosts`.

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
    """Costs of phases on so many ranks of a node, of `all_ranks` of each of `replica_groups`.

    Attributes:
    any : has the machine any costs of phases? crowding : ranks for each core that ranks have.
    """

    def __init__(
        self, machine: Machine, ranks: int, all_ranks: int, replica_groups: int = 1
    ) -> None:
        self._machine = machine
        self._all_ranks = all_ranks
        self._groups = replica_groups
        self._ranks = ranks
        self.any = bool(machine.phases)
        # nothing is known of crowding where nothing was measured
        self.crowding = max(1.0, ranks / machine.ranks_per_node) if self.any else 1.0

    def costs(self, phase: str) -> PhaseCosts:
        """Costs of a phase; none where it was not measured."""
        return self._machine.phase_costs(phase, self._ranks) or PhaseCosts(phase)

    def call_seconds(self, phase: str) -> float:
        """Seconds of a phase that has nothing to do."""
        return self.costs(phase).call_s

    def more_calls(self, kinds: Kinds, rank: Ints, ranks: int) -> Floats:
        """Seconds of calls beyond one in each of the phases MEASURED, f64[ranks, 6].

        A step looks up, sends and updates whole rectangles, parts of rows and parts of columns by a
        call each, and looks up copies by another. kinds, rank : of the rectangles.
        """

        def on(chosen: Flags) -> Flags:
            return np.bincount(rank[chosen], minlength=ranks) > 0

        unsplit = ~kinds.copies & ~kinds.parts
        whole = on(unsplit)
        words = on(kinds.parts)
        calls = {
            "lookup": (("lookup", whole), ("lookup_words", words), ("lookup", on(kinds.copies))),
            "output": (("output", whole), ("output_words", words)),
            "gradient": (("gradient", whole), ("gradient_words", words)),
            "update": (
                ("update", on(unsplit & ~kinds.narrow)),
                ("update", on(kinds.parts & ~kinds.narrow)),
                ("update_columns", on(kinds.narrow)),
            ),
        }
        more = np.zeros((ranks, len(MEASURED)))
        for phase, made in calls.items():
            seconds = sum(self.call_seconds(name) * flags for name, flags in made)
            more[:, MEASURED.index(phase)] = np.maximum(seconds - self.call_seconds(phase), 0.0)
        return more

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

    def dense(self, node: Machine, step: Workload, ranks: int) -> dict[str, float]:
        """Seconds of the dense phases of one of so many ranks, by name.

        node : the machine with as many ranks on a node as there are here. Empty where nothing was
        measured.
        """
        if not self.any:
            return {}
        work = step.dense
        samples = -(-step.batch // ranks)
        vectors = work.vectors
        curves = product_curves(node, work.layers, samples)
        amounts = {
            name: dense_amounts(work.layers, samples, vectors, work.width, curves[name])
            for name in ("dense_forward", "dense_backward")
        }
        for name in ("dense_exchange", "dense_update"):
            amounts[name] = parameter_amounts(work.parameters)
        return {
            name: sum(getattr(self.costs(name), cost) * x for cost, x in zip(COUNTED, each))
            for name, each in amounts.items()
        }

    def phases(
        self,
        kinds: Kinds,
        rectangles: Rectangles,
        tables: TableArrays,
        lookups: Floats,
        anywhere: Floats,
        curves: Floats,
        work: Workload,
    ) -> Floats:
        """Seconds of rectangles in the phases MEASURED, f64[n, 6].

        tables, lookups : of each rectangle. anywhere : its rows that any rank looks up.
        curves : f64[n, 2] seconds by the rates of lookups and of updates. work : of the step.
        """
        copies = kinds.copies
        width = rectangles.width
        bags = np.where(copies, tables.bags / self._all_ranks, tables.bags)
        # a rectangle cannot touch more rows than its table has distinct ones in a step
        rows = np.minimum(touched(lookups, rectangles.rows), tables.distinct)
        amounts = Amounts(
            entries=tables.bags / work.batch,
            bags=bags,
            lookups=lookups,
            numbers=bags * width,
            rows=rows,
            row_numbers=rows * width,
            curve=curves[:, 0],
        )
        none = np.zeros(copies.size)
        updates = amounts._replace(curve=curves[:, 1])
        # parts of a table make exact words, whole rectangles rounded rows
        lookup = self._either("lookup", "lookup_words", amounts, kinds.parts)
        # column shards share row scalars before they update, so their update was measured apart
        update = self._either("update", "update_columns", updates, kinds.narrow)
        # Each rank sums some of the rows of all ranks, and updates every row that any looked up.
        merged = rows + anywhere
        summed = self.seconds("replicas", updates._replace(rows=merged, row_numbers=merged * width))
        of_groups = summed if self._groups > 1 else none
        if self._all_ranks == 1:
            phases = [self.seconds("input", amounts), lookup, none, none, update, of_groups]
            return np.stack(phases, axis=1)
        travelling = [
            self.seconds("input", amounts),
            lookup,
            self._either("output", "output_words", amounts, kinds.parts),
            self._either("gradient", "gradient_words", amounts, kinds.parts),
            update,
            of_groups,
        ]
        copied = [none, lookup, none, none, none, summed]
        # copies send nothing but sums of touched rows
        return np.where(copies[:, None], np.stack(copied, axis=1), np.stack(travelling, axis=1))

    def _either(self, phase: str, other: str, amounts: Amounts, chosen: Flags) -> Floats:
        """Seconds of rectangles in a phase, or in another where they are of that kind."""
        return np.where(chosen, self.seconds(other, amounts), self.seconds(phase, amounts))
