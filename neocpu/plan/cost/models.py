"""Which models of cost are there? Ours, and three public ones to compare choices with.

    neo        seconds of a step on a machine, phase by phase                    seconds.py
    legacy     TorchRec's first cost function: no unit, no machine
    first      the wall time of TorchRec's first estimators: forward only
    torchrec   that of its present ones: backward, wires, penalties of narrow rows, prefetch

The public ones know one time for each rank: a step takes as long as the largest sum of a rank, and
the dense part and latencies are left out. They speak of shards of equal size; here a rectangle's
part of the rows and columns stands for that. With P lookups of a rectangle in a step, B F bags, d
columns, s bytes of a number of the table, 8 bytes of an index (TorchRec, BSD-3-Clause, planner/):

    legacy     log10(rows) d P x a constant of the scheme (`SCHEME_POINTS`)
    first      8 P / inter + P d s / device + B F d s / inter
               row-wise in a node: out over intra, and its share L / W over inter
               data_parallel: P d s / device of its own samples, the table / inter
    torchrec   forward: (8 P + P max(d, 32) s + out) x penalty / device, out / inter
               backward: twice the computation, gradients / inter
               row-wise: neither floor nor penalty; a copy of 2.455 gradients / device
"""

from collections.abc import Callable, Sequence

import numpy as np

from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import SCHEME_NAMES, CostModel, StepSeconds, missing_rows
from neocpu.plan.cost.work import (
    COPIED,
    Flags,
    Floats,
    Rectangles,
    TableArrays,
    Workload,
    row_parts,
)
from neocpu.plan.machines.machine import LinkPeak, Machine
from neocpu.tables.specs.specs import TableSpec

INDEX_BYTES = 8.0
# Points of a scheme: column cuts as table_wise, cuts of rows in nodes as table_row_wise.
SCHEME_POINTS = {
    "table_wise": 2.0,
    "column_wise": 2.0,
    "table_column_wise": 2.0,
    "row_wise": 5.0,
    "table_row_wise": 3.0,
    "grid_shard": 3.0,
    "data_parallel": 1.0,
}
# Rows are cut over the ranks of a node.
NODE_SCHEMES = ("table_row_wise", "grid_shard")
# Points of a kernel: all rows in fast memory, some in a cache, none.
FUSED = 1.0
CACHED = 10.0
BELOW = 15.0
# Of a data_parallel table's kernel, which computes dense gradients.
DENSE = 25.0
# A cached table's bandwidth is divided by this in the first estimators.
CACHE_DIVISOR = 100.0
# Present ones: columns of a full block, of half of one, and what fewer columns cost.
FULL_BLOCK = 128
HALF_BLOCK = 64
HALF_PENALTY = 1.15
QUARTER_PENALTY = 1.75
# Least columns that a lookup reads.
LEAST_COLUMNS = 32.0
# Backward computation, by forward.
BACKWARD = 2.0
# Passes over the gradients of row-split tables, and over those of copies.
BATCHED_COPY = 2.455
ELEMENTWISE = 9.22
# The backward pass of weighted lookups beside all else, by forward.
WEIGHTED = 1.1
# A table without a cache is read through the host link, at such a part of its bandwidth.
UNCACHED_DIVISOR = 10.0


class _Public:
    """What the public models share: shapes and bandwidths; subclasses are `CostModel`s.

    machine : links and memories, by their peaks.
    tables, work, layout : the model, what a step does, and the ranks.
    """

    # ranks wait once a step in all public models: the slowest sum decides, not the slowest of a
    # phase
    phases: tuple[str, ...] = ("input", "lookup", "output")
    synchronised = False
    fixed_seconds = 0.0

    def __init__(
        self, machine: Machine, tables: Sequence[TableSpec], work: Workload, layout: Layout
    ) -> None:
        self.machine = machine
        self.tables = tuple(tables)
        self.work = work
        self.layout = layout
        # public models know nothing of equal rows that travel once
        self.arrays = TableArrays.of(tables, work)
        self.weighted = np.array([table.weighted for table in tables])
        self.intra = _bandwidth(machine.inside_node, machine.between_nodes)
        between = _bandwidth(machine.between_nodes, machine.inside_node)
        # Within one node all goes over its links.
        self.inter = between if layout.nodes > 1 else self.intra
        self.device = machine.fast_bytes_per_s or np.inf
        # on a machine without HBM the DDR is the fast memory, and rows below are on SSD
        slow = machine.ddr if machine.fast == "hbm" else machine.ssd
        self.below = machine.share(slow.bandwidth_bytes_per_s, slow) or self.device

    def _shapes(self, r: Rectangles) -> tuple[TableArrays, Floats, Floats]:
        """(tables, lookups, numbers of the outputs) of rectangles, [n] each.

        A copy has the lookups and outputs of a rank's own samples.
        """
        tables = TableArrays(*(column[r.table] for column in self.arrays))
        samples = np.where(COPIED[r.scheme], 1.0 / self.layout.ranks, 1.0)
        lookups = tables.lookups * r.lookups_of(tables) * samples
        return tables, lookups, tables.bags * samples * r.width

    def _in_node(self, r: Rectangles, tables: TableArrays) -> Flags:
        """Which of them are rows of a table that is cut over the ranks of a node, bool[n].

        Larger ones are no such part; on fewer ranks of an uneven last node none is.
        """
        by_nodes = np.isin(np.array(SCHEME_NAMES), NODE_SCHEMES)[r.scheme]
        per_node = min(self.layout.ranks_per_node, self.layout.ranks)
        return by_nodes & row_parts(r, tables) & (r.rows <= np.ceil(tables.rows / per_node))


def _bandwidth(link: LinkPeak, instead: LinkPeak) -> float:
    """Bytes/s of a link, of another one where there is none, or infinite."""
    return link.bandwidth_bytes_per_s or instead.bandwidth_bytes_per_s or np.inf


class LegacyPoints(_Public):
    """TorchRec's first cost function (planner/cost_functions.py, 2021): points, not seconds.

    Points of a table go to its rectangles by lookups and columns. Sums are not rounded.
    """

    phases = ("points",)

    def seconds(self, rectangles: Rectangles) -> Floats:
        """Points of each rectangle, f64[n, 1]."""
        r = rectangles
        tables, lookups, _ = self._shapes(r)
        scheme = np.array([SCHEME_POINTS[name] for name in SCHEME_NAMES])[r.scheme]
        kernel = np.where(r.share >= 1.0, FUSED, np.where(r.share > 0.0, CACHED, BELOW))
        kernel = np.where(COPIED[r.scheme], DENSE, kernel)
        # of a rectangle, so that row blocks of a table share its points
        pooling = lookups / self.work.batch
        points = np.log10(np.maximum(tables.rows, 2.0)) * r.width * pooling * scheme * kernel
        return points[:, None]


class FirstSeconds(_Public):
    """The wall time of TorchRec's first estimators (planner/new/calculators.py, 2021)."""

    def seconds(self, rectangles: Rectangles) -> Floats:
        """Seconds of each rectangle in each phase, f64[n, 3]."""
        r = rectangles
        tables, lookups, outputs = self._shapes(r)
        copied = COPIED[r.scheme]
        cached = (r.share * self.device + (1.0 - r.share) * self.below) / CACHE_DIVISOR
        device = np.where(r.share >= 1.0, self.device, cached)
        size = outputs * tables.lookup_bytes
        node_share = self.layout.ranks_per_node / self.layout.ranks
        in_node = size / self.intra + size * min(node_share, 1.0) / self.inter
        out = np.where(self._in_node(r, tables), in_node, size / self.inter)
        table_bytes = r.rows * r.width * tables.lookup_bytes
        return np.stack(
            [
                np.where(copied, 0.0, INDEX_BYTES * lookups / self.inter),
                lookups * r.width * tables.lookup_bytes / device,
                np.where(copied, table_bytes / self.inter, out),
            ],
            axis=1,
        )


class TorchrecSeconds(_Public):
    """The wall time of TorchRec's present estimators (planner/shard_estimators.py, 2025).

    Wires are those of the workload; `partial` is that of row-split tables' outputs.
    """

    phases = ("lookup", "output", "gradient", "update", "prefetch")

    def seconds(self, rectangles: Rectangles) -> Floats:
        """Seconds of each rectangle in each phase, f64[n, 5]."""
        r = rectangles
        tables, lookups, outputs = self._shapes(r)
        wires = self.work.wires
        copied = COPIED[r.scheme]
        # a block of all rows is one of columns, whatever its table's other blocks are
        split = row_parts(r, tables)
        # a table without a cache is read from below; a cache is filled by prefetching
        uncached = self._host_bandwidth() / UNCACHED_DIVISOR
        device = np.where(r.share > 0.0, self.device, uncached)
        indices = INDEX_BYTES * lookups * np.where(self.weighted[r.table], 2.0, 1.0)
        # as in the public code: row-wise tables and copies have no floor
        floor = np.where(split | copied, 0.0, LEAST_COLUMNS)
        rows = lookups * np.maximum(r.width, floor) * tables.lookup_bytes
        wire = np.where(split, wires.number_bytes("partial"), wires.number_bytes("forward"))
        wire = np.where(copied, tables.lookup_bytes, wire)
        sent = outputs * wire
        gradients = outputs * wires.number_bytes("backward")
        narrow = np.where(r.width >= HALF_BLOCK, HALF_PENALTY, QUARTER_PENALTY)
        penalty = np.where(split | copied | (r.width >= FULL_BLOCK), 1.0, narrow)
        forward = (indices + rows + sent) * penalty / device
        backward = forward * (BACKWARD + np.where(self.weighted[r.table], WEIGHTED, 0.0))
        output = sent / self.inter
        back = gradients / self.inter + np.where(split, gradients * BATCHED_COPY / device, 0.0)
        if self.layout.nodes > 1:
            node_share = min(self.layout.ranks_per_node / self.layout.ranks, 1.0)
            over_nodes = outputs * wires.number_bytes("forward") * node_share / self.inter
            in_node = self._in_node(r, tables)
            output = np.where(in_node, sent / self.intra + over_nodes, output)
            back_in_node = gradients / self.intra + gradients * BATCHED_COPY / device
            back = np.where(in_node, back_in_node, back)
        return np.stack(
            [
                forward,
                np.where(copied, 0.0, output),
                np.where(copied, self._replicas(r, tables), back),
                backward,
                self._prefetch(r, tables, lookups),
            ],
            axis=1,
        )

    def _host_bandwidth(self) -> float:
        """Bytes/s between a rank and the memory below."""
        link = self.machine.host_device.bandwidth_bytes_per_s or np.inf
        return min(self.below, link)

    def _replicas(self, r: Rectangles, tables: TableArrays) -> Floats:
        """Seconds to sum a copied table's dense gradient, and to apply it."""
        ranks = self.layout.ranks
        per_node = min(self.layout.ranks_per_node, ranks)
        # as the public code has it: at most two nodes, doubled for more
        nodes = min(ranks / per_node, 2.0)
        size = r.rows * r.width * tables.lookup_bytes
        reduced = size * (2.0 * nodes - 1.0) / nodes / (self.inter * per_node)
        if ranks > 2 * per_node:
            reduced = reduced * 2.0
        return reduced + size * ELEMENTWISE / self.device

    def _prefetch(self, r: Rectangles, tables: TableArrays, lookups: Floats) -> Floats:
        """Seconds to fetch the rows that a cache lacks."""
        cached = (r.share > 0.0) & (r.share < 1.0)
        size = missing_rows(r, tables, lookups) * r.width * tables.lookup_bytes
        return np.where(cached & ~COPIED[r.scheme], size / self._host_bandwidth(), 0.0)


ModelFactory = Callable[[Machine, Sequence[TableSpec], Workload, Layout], CostModel]
COST_MODELS: dict[str, ModelFactory] = {
    "neo": StepSeconds,
    "legacy": LegacyPoints,
    "first": FirstSeconds,
    "torchrec": TorchrecSeconds,
}
