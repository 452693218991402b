"""What does a step do, for a planner? Lookups of each table, the dense layers, and the wires.

Everything is a mean or a shape; nothing depends on where tables are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neocpu.core.types import Ints
from neocpu.parallel.exchange.wire_formats import (
    BLOCK,
    WIRE_FORMATS,
    WireSpec,
    WireSpecs,
    segment_words,
)
from neocpu.parallel.sharding.pins import PinnedRanks
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.sharding.schemes import SCHEMES
from neocpu.plan.cost.row_curves import RowCurve, touched
from neocpu.tables.specs.directions import DirectionWork
from neocpu.tables.specs.specs import TableSpec

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

WIRE_NAMES = ("fp64", *WIRE_FORMATS)

# by number of scheme: rows are cut over ranks, so that partial sums travel; every rank has them
ROW_SPLIT = np.array([name in ("row_wise", "table_row_wise", "grid_shard") for name in SCHEMES])
COPIED = np.array([name == "data_parallel" for name in SCHEMES])


@dataclass(frozen=True)
class Wires:
    """Formats of numbers that travel, names in WIRE_NAMES.

    forward : pooled vectors. backward : their gradients. partial : sums of row-split tables (ours
    are exact fp64 words). dense : gradients of the dense parameters. block : columns that fp8,
    int8 and int4 encode together.
    """

    forward: str = "fp32"
    backward: str = "fp32"
    partial: str = "fp64"
    dense: str = "fp32"
    block: int = BLOCK

    @property
    def specs(self) -> WireSpecs:
        """Those of a run, whose partial sums are exact words."""
        forward, backward, dense = (
            # fp64 is no wire of a run: sums travel as exact words
            WireSpec("fp32" if name == "fp64" else name, self.block)
            for name in (self.forward, self.backward, self.dense)
        )
        return WireSpecs(forward, backward, dense)

    @property
    def column_block(self) -> int:
        """Columns of a table may be cut at multiples of it."""
        specs = self.specs
        # a cut inside a block would split the columns that share one scale
        return self.block if specs.forward.blocks or specs.backward.blocks else 1

    def number_bytes(self, name: str) -> float:
        """Mean bytes of a number, of whole blocks; name : "forward", "backward", "partial" or
        "dense".
        """
        form = getattr(self, name)
        return 8.0 if form == "fp64" else WireSpec(form, self.block).number_bytes

    def sample_bytes(self, name: str, widths: Floats) -> Floats:
        """Bytes of so many columns of a sample: f64[n] of f64[n]."""
        form = getattr(self, name)
        if form == "fp64":
            return 8.0 * widths
        sizes: Ints = WireSpec(form, self.block).bytes(widths.astype(np.int64))
        return sizes.astype(np.float64)


@dataclass(frozen=True)
class DenseWork:
    """The dense part of a model.

    layers : (inputs, outputs) of each, bottom MLP first. vectors : that the dot interaction
    multiplies in pairs (0: they are concatenated). width : of these vectors. precision : of the
    products, one of `machines.machine.PRECISIONS`. directions : of an optimizer that works on
    matrices (None: there is none).
    """

    layers: tuple[tuple[int, int], ...] = ()
    vectors: int = 0
    width: int = 0
    precision: str = "fp32"
    directions: DirectionWork | None = None

    @property
    def parameters(self) -> int:
        """Weights and biases of all layers."""
        return sum((inputs + 1) * outputs for inputs, outputs in self.layers)


@dataclass(frozen=True)
class Workload:
    """What a step does.

    batch : samples of the global batch.
    pooling : mean lookups per bag by table name (default 1).
    state_floats : optimizer floats per element and per row.
    distinct : distinct rows that a step looks up, by table name, where they were measured (default:
        as many as uniform lookups would touch).
    dense, wires : the dense part, and formats of what travels.
    unique_rows : do equal rows travel once, one of `wire_formats.UNIQUE_ROWS`.
    pins : ranks that tables may be on, ascending, by table name (default: any).
    curves : how lookups are spread over rows, by table name, where they were measured (default: all
        rows are alike).
    groups : replica groups of the run, of which this is one group's step.
    """

    batch: int = 2048
    pooling: Mapping[str, float] = field(default_factory=dict)
    state_floats: tuple[int, int] = (0, 1)
    distinct: Mapping[str, float] = field(default_factory=dict)
    dense: DenseWork = field(default_factory=DenseWork)
    wires: Wires = field(default_factory=Wires)
    unique_rows: str = "off"
    pins: PinnedRanks = field(default_factory=dict)
    curves: Mapping[str, RowCurve] = field(default_factory=dict)
    groups: int = 1

    def of_group(self, tables: Sequence[TableSpec], groups: int) -> "Workload":
        """What a step does in one of so many replica groups, each of which has as many samples."""
        if groups == 1:
            return self
        whole = TableArrays.of(tables, self)
        # measured rows of all samples: those of fewer follow from rows that are looked up alike
        alike = alike_rows(whole.lookups, whole.rows, whole.distinct)
        few = touched(whole.lookups / groups, alike).tolist()
        distinct = {t.name: n for t, n in zip(tables, few) if t.name in self.distinct}
        batch = -(-self.batch // groups)
        return replace(self, batch=batch, distinct=distinct, groups=groups)


class TableArrays(NamedTuple):
    """Tables side by side, f64[tables] each.

    lookups : of a step, by all samples and features. bags : of a step. lookup_bytes : of a number
    that a lookup reads. index_bytes : of a lookup that travels, with its weight if it has one.
    state_bytes_of_number, state_bytes_of_row : optimizer state.
    """

    rows: Floats
    dim: Floats
    bags: Floats
    lookups: Floats
    distinct: Floats
    lookup_bytes: Floats
    index_bytes: Floats
    state_bytes_of_number: Floats
    state_bytes_of_row: Floats

    @classmethod
    def of(cls, tables: Sequence[TableSpec], work: Workload, ranks: int = 1) -> "TableArrays":
        """The tables under a workload; ranks : among which lookups travel."""
        rows = np.array([float(table.rows) for table in tables])
        bags = np.array([float(work.batch * len(table.features)) for table in tables])
        lookups = bags * np.array([work.pooling.get(table.name, 1.0) for table in tables])
        # without pooling every lookup is a bag of its own
        bags = np.where([table.pooling == "none" for table in tables], lookups, bags)
        measured = np.array([work.distinct.get(table.name, np.nan) for table in tables])
        # many codes may share few rows, by a hash or as parts of tables of kinds
        measured = np.minimum(measured, rows)
        distinct = np.where(np.isnan(measured), touched(lookups, rows), measured)
        per_number, per_row = work.state_floats
        return cls(
            rows=rows,
            dim=np.array([float(table.dim) for table in tables]),
            bags=bags,
            lookups=lookups,
            distinct=np.minimum(distinct, rows),
            # a lookup may read another format than rows are kept in
            lookup_bytes=np.array([float(table.lookup_bytes) for table in tables]),
            index_bytes=row_index_bytes(tables, work, ranks)
            + np.array([4.0 * table.weighted for table in tables]),
            state_bytes_of_number=np.full(len(tables), 4.0 * per_number),
            state_bytes_of_row=np.full(len(tables), 4.0 * per_row),
        )


def alike_rows(lookups: Floats, rows: Floats, distinct: Floats) -> Floats:
    """How many rows, each looked up alike, have so many distinct ones among so many lookups: at
    most `rows`, which they are where `distinct` is NaN.
    """
    low = np.minimum(np.ones_like(rows), rows)
    high = rows.copy()
    for _ in range(60):
        # halved in logarithms: the answer may lie anywhere between 1 and billions of rows
        middle = np.sqrt(low * high)
        few = touched(lookups, np.maximum(middle, 2.0)) < distinct
        low = np.where(few, middle, low)
        high = np.where(few, high, middle)
    return np.where(np.isnan(distinct), rows, np.minimum(np.maximum(high, 1.0), rows))


def row_index_bytes(tables: Sequence[TableSpec], work: Workload, ranks: int) -> Floats:
    """Bytes in which the row of a lookup travels, of each table: f64[tables].

    8, or fewer where equal rows of the samples of one of so many ranks travel once.
    """
    if work.unique_rows == "off":
        return np.full(len(tables), 8.0)
    rows = np.array([float(table.rows) for table in tables])
    bags = np.array([float(work.batch * len(table.features)) for table in tables])
    lookups = bags * np.array([work.pooling.get(table.name, 1.0) for table in tables])
    measured = np.array([work.distinct.get(table.name, np.nan) for table in tables])
    alike = alike_rows(lookups, rows, measured)
    of_rank = lookups / ranks
    words = segment_words(of_rank, touched(of_rank, alike), work.unique_rows)
    # a table without lookups has no words, and must not divide by 0
    return 8.0 * words / np.maximum(of_rank, 1e-9)


class Rectangles(NamedTuple):
    """Rectangles of tables side by side, [n] each; a data_parallel table has one for each rank.

    table : its number. scheme : its number in the order of `sharding.SCHEMES`. rows, width :
    of the rectangle. rank : that holds it. share : of its rows that the fast memory holds; 1 where
    all are. below : where the others are, 0 for DDR and 1 for SSD. density, distinct_density :
    lookups, and distinct rows of a step, of each of its rows, by the mean of the table's rows.
    """

    table: Ints
    scheme: Ints
    rows: Floats
    width: Floats
    rank: Ints
    share: Floats
    below: Ints
    density: Floats
    distinct_density: Floats

    def lookups_of(self, tables: TableArrays) -> Floats:
        """Part of the lookups of their tables, f64[n]; tables : of each rectangle."""
        return self.rows / tables.rows * self.density

    def distinct_of(self, tables: TableArrays) -> Floats:
        """Part of the distinct rows of their tables, as `lookups_of`."""
        return self.rows / tables.rows * self.distinct_density


def whole_rectangles(
    table: Ints, scheme: Ints, rows: Floats, width: Floats, rank: Ints | None = None
) -> Rectangles:
    """Rectangles whole in fast memory, whose rows are alike; rank : None: rank 0, for prices that
    are those of any.
    """
    none = np.zeros(table.size, np.int64)
    ones = np.ones(table.size)
    return Rectangles(
        table=table,
        scheme=scheme,
        rows=rows,
        width=width,
        rank=none if rank is None else rank,
        share=ones,
        below=none,
        density=ones,
        distinct_density=ones,
    )


def row_parts(r: Rectangles, tables: TableArrays) -> Flags:
    """Which rectangles lack some rows of their table, bool[n]; tables : of each rectangle."""
    return ROW_SPLIT[r.scheme] & (r.rows < tables.rows)


def rectangles_of(plan: Plan, work: Workload | None = None) -> Rectangles:
    """The rectangles of a plan, whole in fast memory, in the order of `plan.shards`.

    work : whose curves say what their rows are asked (None: all rows are alike).
    """
    number = {name: code for code, name in enumerate(SCHEMES)}
    scheme = np.array([number[name] for name in plan.schemes], np.int64)
    table = np.array([shard.table for shard in plan.shards], np.int64)
    edges = np.array([(*shard.rows, *shard.cols) for shard in plan.shards], np.float64)
    edges = edges.reshape(-1, 4)
    rank = np.array([shard.rank for shard in plan.shards], np.int64)
    rows = edges[:, 1] - edges[:, 0]
    width = edges[:, 3] - edges[:, 2]
    rectangles = whole_rectangles(table, scheme[table], rows, width, rank)
    return rectangles if work is None else on_rows(rectangles, plan.tables, work, edges[:, 0])


def on_rows(
    rectangles: Rectangles, tables: Sequence[TableSpec], work: Workload, first_row: Floats | Ints
) -> Rectangles:
    """The rectangles with what their rows are asked, by the curves of their tables.

    first_row : [n], below 0 where rows of a rectangle are not known: they are alike.
    """
    density = rectangles.density.copy()
    distinct_density = rectangles.distinct_density.copy()
    for number in [n for n, table in enumerate(tables) if table.name in work.curves]:
        table = tables[number]
        curve = work.curves[table.name]
        own = np.flatnonzero((rectangles.table == number) & (first_row >= 0))
        first = first_row[own]
        end = first + rectangles.rows[own]
        part = rectangles.rows[own] / table.rows
        lookups = work.batch * len(table.features) * work.pooling.get(table.name, 1.0)
        density[own] = (curve.below(end) - curve.below(first)) / part
        distinct = curve.distinct_below(end, lookups) - curve.distinct_below(first, lookups)
        distinct_density[own] = distinct / part
    return rectangles._replace(density=density, distinct_density=distinct_density)
