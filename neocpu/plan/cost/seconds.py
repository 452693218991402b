"""How many seconds does a step take on a machine? Phase by phase and rank by rank.

The ranks wait for each other in every exchange, so a step takes, beside what is the same for all
plans, the sum over the phases of the time of the slowest rank:

    step = fixed + sum over phases p of max over ranks r of load[r, p]

A load is a sum over the rank's rectangles. With n lookups of a rectangle of h rows by d columns in
a step, B samples, f features, p bytes per number of the table (`docs/zionex.md`):

    input      n indices and the lengths of B f bags arrive
    lookup     n p d bytes are read, at the machine's lookup rate for h rows of p d bytes
    output     B f d numbers leave: pooled, or partial sums of row-split tables by their route
    gradient   B f d numbers arrive
    update     n p d bytes, at the machine's update rate
    prefetch   rows that the fast memory lacks come up, and others go down
    replicas   data_parallel: sums of touched rows are exchanged, every copy is updated; of several
               replica groups, all copies of each rectangle alike

Exchanges take bytes times seconds per byte; a call's latency is in the fixed part. Seconds per byte
are those at the size of message that the tables together cause, so loads add up.

Where our own step was measured on the machine (`plan/cost/measured.py`), phases take what was
measured for each entry, bag, lookup, number and row instead.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from neocpu.parallel.sharding.schemes import SCHEMES
from neocpu.plan.cost.directions import direction_seconds
from neocpu.plan.cost.links import Layout, LinkSeconds
from neocpu.plan.cost.measured import MEASURED, Kinds, MeasuredPhases
from neocpu.plan.cost.row_curves import touched
from neocpu.plan.cost.work import (
    COPIED,
    Flags,
    Floats,
    Rectangles,
    TableArrays,
    Workload,
    alike_rows,
    row_parts,
)
from neocpu.plan.machines.unequal import of_ranks
from neocpu.tables.specs.specs import TableSpec

if TYPE_CHECKING:
    from neocpu.plan.machines.machine import Machine

PHASES = ("input", "lookup", "output", "gradient", "update", "prefetch", "replicas")
MEASURED_COLUMNS = [PHASES.index(phase) for phase in MEASURED]
SCHEME_NAMES = tuple(SCHEMES)
# A cache that holds the share s of the rows hits s^HIT_POWER of the lookups
# (`plan/tiers/tiers.py`).
HIT_POWER = 0.25
# Exchanges of a step: inputs take three (splits, lengths, indices), pooled vectors one each way.
INPUT_CALLS = 3
CALLS = 5
# Those among the copies of replica groups: counts, words, counts, sums.
COPY_CALLS = 4
BELOW = ("ddr", "ssd")


class CostModel(Protocol):
    """What the search asks of a model of costs.

    phases : names of the columns of loads. synchronised : whether ranks wait for each other after
    every phase (the step is the sum of the phases' maxima), or once (the maximum of the sums).
    fixed_seconds : of every plan.
    """

    @property
    def phases(self) -> tuple[str, ...]:
        """See above."""

    @property
    def synchronised(self) -> bool:
        """See above."""

    @property
    def fixed_seconds(self) -> float:
        """See above."""

    def seconds(self, rectangles: Rectangles) -> Floats:
        """Seconds of each rectangle on its rank in each phase, f64[n, phases]."""


def loads_of(model: CostModel, rectangles: Rectangles, ranks: int) -> Floats:
    """Seconds of each rank in each phase, f64[ranks, phases]."""
    loads = np.zeros((ranks, len(model.phases)))
    np.add.at(loads, rectangles.rank, model.seconds(rectangles))
    if isinstance(model, StepSeconds):
        loads += model.more_calls(rectangles, ranks)
    slowness = slowness_of(model)
    return loads if slowness is None else loads * slowness[:, None]


def slowness_of(model: CostModel) -> Floats | None:
    """How many times longer each rank takes than its model says, f64[ranks]; None: all the same.

    Public models know no unequal ranks.
    """
    return getattr(model, "slowness", None)


def step_seconds(model: CostModel, loads: Floats) -> float:
    """Seconds of a step: what is fixed, and the slowest ranks of the phases."""
    if not model.synchronised:
        return model.fixed_seconds + float(loads.sum(axis=1).max())
    occasional = getattr(model, "occasional_seconds", np.zeros(len(model.phases)))
    # a call that no rank has work for is not made
    present = occasional * loads.any(axis=0)
    slowest = slowest_seconds(loads, getattr(model, "crowding", 1.0))
    return model.fixed_seconds + float((slowest + present).sum())


def slowest_seconds(loads: Floats, crowding: float = 1.0) -> Floats:
    """Seconds of the slowest rank in each phase, f64[phases]; crowding : ranks for each core.

    Loads are those of ranks that all work; one that works alone on its core is faster.
    """
    slowest: Floats = loads.max(axis=0)
    return np.maximum(slowest / crowding, loads.mean(axis=0)) if crowding > 1 else slowest


def missing_rows(r: Rectangles, tables: TableArrays, lookups: Floats) -> Floats:
    """Distinct rows that a step looks up and the fast memory lacks, f64[n]."""
    distinct = np.minimum(tables.distinct * r.distinct_of(tables), lookups)
    # a row that is missing comes up once a step, however often it is looked up
    return distinct * (1.0 - np.maximum(r.share, 0.0) ** HIT_POWER)


class StepSeconds:
    """The cost of steps of one model on one machine; a `CostModel`.

    machine : links and rates; its own numbers of nodes and ranks do not matter here.
    tables, work, layout : the model, what a step does, and the ranks.
    """

    phases = PHASES
    synchronised = True

    def __init__(
        self, machine: "Machine", tables: Sequence[TableSpec], work: Workload, layout: Layout
    ) -> None:
        self.machine = machine
        self.tables = tuple(tables)
        self.work = work
        self.layout = layout
        self.arrays = TableArrays.of(tables, work, layout.ranks)
        everybody = layout.everybody
        per_node = min(everybody.ranks, everybody.ranks_per_node)
        # with rates and shares of as many ranks as a node has here
        self._node = replace(machine, ranks_per_node=per_node)
        # one size for all exchanges of a step: with a size by rectangle, loads would not add up
        message = float((4 * self.arrays.bags * self.arrays.dim).sum()) / layout.ranks
        self.links = LinkSeconds(machine, layout, message)
        self._all_links = LinkSeconds(machine, everybody, message)
        self._distinct_anywhere = self._of_all_groups()
        groups = layout.replica_groups
        self._measured = MeasuredPhases(machine, per_node, layout.ranks, groups)
        self.crowding = self._measured.crowding
        _, speed = of_ranks(machine.unequal, layout.ranks)
        self.slowness = 1.0 / speed if machine.unequal else None

    def _of_all_groups(self) -> Floats:
        """Distinct rows of each table that the samples of all groups look up, f64[tables]."""
        arrays = self.arrays
        groups = self.layout.replica_groups
        if groups == 1:
            return arrays.distinct
        alike = alike_rows(arrays.lookups, arrays.rows, arrays.distinct)
        return np.maximum(touched(groups * arrays.lookups, alike), arrays.distinct)

    # ---- rectangles ----

    def seconds(self, rectangles: Rectangles) -> Floats:
        """Seconds of each rectangle on its rank in each phase, f64[n, PHASES]."""
        r = rectangles
        tables = TableArrays(*(column[r.table] for column in self.arrays))
        wires = self.work.wires
        copied = COPIED[r.scheme]
        row_split = row_parts(r, tables)
        # a copy sees the samples of its own rank, a rectangle those of all ranks
        samples = np.where(copied, 1.0 / self.layout.ranks, 1.0)
        lookups = tables.lookups * r.lookups_of(tables) * samples
        row_bytes = tables.lookup_bytes * r.width
        # pooled vectors of copies are where their samples are
        bags = np.where(copied, 0.0, tables.bags)
        travel = np.where(
            row_split, self.links.partial_byte_seconds(), self.links.byte_seconds["all"]
        )
        sent = np.where(
            row_split, *(wires.sample_bytes(n, r.width) for n in ("partial", "forward"))
        )
        arriving = tables.index_bytes * lookups + 4.0 * tables.bags

        out = np.zeros((r.table.size, len(PHASES)))
        out[:, 0] = np.where(copied, 0.0, arriving) * self.links.byte_seconds["all"]
        out[:, 1] = lookups * row_bytes / self._rates("lookup", r.rows, row_bytes)
        out[:, 2] = bags * sent * travel
        out[:, 3] = bags * wires.sample_bytes("backward", r.width) * travel
        out[:, 4] = lookups * row_bytes / self._rates("update", r.rows, row_bytes)
        out[:, 5] = self._prefetch(r, tables, lookups)
        anywhere = self._distinct_anywhere[r.table] * r.distinct_of(tables)
        out[:, 6] = self._replicas(r, tables, lookups, anywhere, copied)
        if self._measured.any:
            curves = out[:, [1, 4]]
            out[:, MEASURED_COLUMNS] = self._measured.phases(
                self._kinds(r, tables), r, tables, lookups, anywhere, curves, self.work
            )
        return out

    def _kinds(self, r: Rectangles, tables: TableArrays) -> Kinds:
        """What rectangles are; tables : of each."""
        copies = COPIED[r.scheme]
        parts = row_parts(r, tables)
        return Kinds(copies, parts, ~copies & (r.width < tables.dim))

    def more_calls(self, rectangles: Rectangles, ranks: int) -> Floats:
        """Measured seconds of each rank's calls beside those of `call_seconds`, f64[ranks, PHASES].

        They are no rectangle's, so the search does not count them.
        """
        seconds = np.zeros((ranks, len(PHASES)))
        if self._measured.any and ranks > 1:
            tables = TableArrays(*(column[rectangles.table] for column in self.arrays))
            kinds = self._kinds(rectangles, tables)
            seconds[:, MEASURED_COLUMNS] = self._measured.more_calls(kinds, rectangles.rank, ranks)
        return seconds

    @cached_property
    def call_seconds(self) -> dict[str, float]:
        """Measured seconds of each phase that has nothing to do, of those that every step has."""
        names = MEASURED[:-1] if self.layout.ranks > 1 else ("input", "lookup", "update")
        return {name: self._measured.call_seconds(name) for name in names}

    @cached_property
    def occasional_seconds(self) -> Floats:
        """Measured seconds of calls that only some plans make, f64[PHASES]."""
        together = np.array(PHASES) == "replicas" if self.layout.everybody.ranks > 1 else False
        return np.where(together, self._measured.call_seconds("replicas"), np.zeros(len(PHASES)))

    def phase_seconds(self, loads: Floats) -> dict[str, float]:
        """Seconds of a step by phase, dense parts among them; loads as `loads_of` gives them."""
        slowest = slowest_seconds(loads, self.crowding) + self.occasional_seconds * loads.any(
            axis=0
        )
        seconds = dict(zip(PHASES, slowest.tolist()))
        seconds |= {name: fixed for name, fixed in self.fixed.items() if name != "calls"}
        for name, fixed in self.call_seconds.items():
            seconds[name] += fixed
        return seconds

    def _rates(self, work: str, rows: Floats, row_bytes: Floats) -> Floats:
        """Bytes a second of lookups or updates, f64[n]; each size of a row is asked once."""
        rates = np.empty(rows.size)
        sizes, inverse = np.unique(row_bytes, return_inverse=True)
        by_size = np.argsort(inverse, kind="stable")
        ends = np.searchsorted(inverse[by_size], np.arange(sizes.size + 1))
        # rates follow straight lines in a log-log plot, as everywhere between measured points
        log_rows = np.log(np.maximum(np.floor(rows), 1.0))
        for number, size in enumerate(sizes.tolist()):
            curve = self._node.embedding_curve(work, size)
            same = by_size[ends[number] : ends[number + 1]]
            log_rates = np.interp(log_rows[same], np.log(curve.sizes), np.log(curve.rates))
            rates[same] = np.exp(log_rates)
        return rates

    def _prefetch(self, r: Rectangles, tables: TableArrays, lookups: Floats) -> Floats:
        """Seconds to bring missing rows up, and others down."""
        seconds = np.zeros(r.table.size)
        missing = r.share < 1.0
        if not missing.any():
            return seconds
        misses = missing_rows(r, tables, lookups)
        record = (
            tables.lookup_bytes + tables.state_bytes_of_number
        ) * r.width + tables.state_bytes_of_row
        for code, memory in enumerate(BELOW):
            moved = np.flatnonzero(missing & (r.below == code))
            # no whole number: seconds grow evenly with rows, as the bound of all cuts needs
            count = np.maximum(misses[moved], 1.0)
            for operation in ("read", "write"):
                seconds[moved] += self._node.move_seconds(memory, operation, count, record[moved])
        return seconds

    def _replicas(
        self, r: Rectangles, tables: TableArrays, lookups: Floats, anywhere: Floats, copied: Flags
    ) -> Floats:
        """Seconds to sum the touched rows of copies on their owners, share and apply the sums.

        anywhere : rows of each rectangle that any rank touches. copied : those of data_parallel
        tables, which are on all ranks; others have a copy in each replica group.
        """
        groups = self.layout.replica_groups
        if self.layout.everybody.ranks == 1 or (groups == 1 and not copied.any()):
            return np.zeros(r.table.size)
        here = np.minimum(touched(lookups, tables.rows), lookups)
        byte_seconds: Floats | float = self._all_links.byte_seconds["all"]
        if groups > 1:
            # the samples of a group touch of a rectangle as many rows as of the whole table
            here = np.where(copied, here, tables.distinct * r.distinct_of(tables))
            byte_seconds = np.where(copied, byte_seconds, self.links.between_copies[1])
        # a measured number may be below the one reckoned for one rank
        anywhere = np.maximum(anywhere, here)
        words = 8.0 * (r.width + 1.0) * here
        sums = (4.0 * r.width + 8.0) * anywhere
        row_bytes = tables.lookup_bytes * r.width
        # rows touched here are in the update phase; those of other ranks come on top
        applied = (anywhere - here) * row_bytes
        rates = self._rates("update", r.rows, row_bytes)
        seconds = (words + sums) * byte_seconds + applied / rates
        return np.where(copied | (groups > 1), seconds, 0.0)

    # ---- what is the same for all plans ----

    @cached_property
    def fixed(self) -> dict[str, float]:
        """Seconds of a rank beside its rectangles, by name."""
        # where calls were measured, they hold the latency themselves
        exchanges = CALLS if self.layout.ranks > 1 and not self._measured.any else 0
        forward, backward = self._products
        bandwidth = self._node.fast_bytes_per_s
        parameters = self.work.dense.parameters
        fixed = {
            "latency": exchanges * self.links.latency_seconds + self.copies_latency,
            "calls": sum(self.call_seconds.values()),
            "dense_forward": forward,
            "dense_backward": backward,
            "dense_exchange": self.dense_exchange_seconds,
            # weights and one state are read and written, gradients read
            "dense_update": 20.0 * parameters / bandwidth if bandwidth else 0.0,
        }
        fixed |= self._measured.dense(self._node, self.work, self.layout.ranks)
        fixed |= direction_seconds(self.machine, self._node, self.work.dense, self.layout.everybody)
        # each rank has as many samples as the others, so the slowest decides
        slowest = 1.0 if self.slowness is None else float(self.slowness.max())
        return {name: seconds * slowest for name, seconds in fixed.items()}

    @property
    def copies_latency(self) -> float:
        """Seconds of latency of exchanges between replica groups."""
        if self.layout.replica_groups == 1 or self._measured.any:
            return 0.0
        return COPY_CALLS * self.links.between_copies[0]

    @cached_property
    def fixed_seconds(self) -> float:
        """All of `fixed`."""
        return sum(self.fixed.values())

    @cached_property
    def _products(self) -> tuple[float, float]:
        """Seconds of a rank's dense products: (forward, backward)."""
        dense = self.work.dense
        # the rank with most samples decides, and all others wait for it
        samples = -(-self.work.batch // self.layout.ranks)
        machine = self._node
        forward = 0.0
        backward = 0.0
        for inputs, outputs in dense.layers:
            forward += machine.product_seconds(samples, outputs, inputs, dense.precision)
            backward += machine.product_seconds(
                samples, inputs, outputs, dense.precision, "input_gradient"
            )
            backward += machine.product_seconds(
                outputs, inputs, samples, dense.precision, "weight_gradient"
            )
        if dense.vectors:
            # Each sample's pairs are a small product, which moves more than it computes.
            bandwidth = machine.fast_bytes_per_s
            moved = 4.0 * samples * dense.vectors * (dense.width + dense.vectors / 2)
            forward += moved / bandwidth
            backward += 2.0 * moved / bandwidth
        return forward, backward

    @cached_property
    def dense_exchange_seconds(self) -> float:
        """Seconds to sum the dense gradients over all ranks."""
        ranks = self.layout.everybody.ranks
        size = self.work.wires.number_bytes("dense") * self.work.dense.parameters
        if ranks == 1 or not size:
            return 0.0
        link = "between_nodes" if self.layout.everybody.nodes > 1 else "inside_node"
        machine = self.machine
        # a machine that has an allreduce uses it; the others do as neocpu does
        if any(rates.operation == "allreduce" for rates in machine.transfers):
            return machine.transfer_seconds("allreduce", link, ranks, size)
        # ours: slices to their owners, sums to all
        half = size * (ranks - 1) / ranks
        slices = machine.transfer_seconds("alltoallv", link, ranks, half)
        return slices + machine.transfer_seconds("allgatherv", link, ranks, half)
