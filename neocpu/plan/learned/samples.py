"""What do the networks learn from? Random sets of tables and exchanges, priced for a machine.

A machine that is here is measured (`measure.py`). One that is only described is asked for its
rates: then the networks learn what `StepSeconds` says of it, and no more.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from neocpu.core.types import Ints
from neocpu.parallel.sharding.schemes import SCHEMES
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import PHASES, StepSeconds
from neocpu.plan.cost.work import Floats, Workload, whole_rectangles
from neocpu.plan.learned.features import describe, whole
from neocpu.plan.learned.training import CommSamples, ComputeSamples
from neocpu.plan.machines.machine import Machine
from neocpu.tables.specs.specs import TableSpec

TABLE_WISE = list(SCHEMES).index("table_wise")
POOL_TABLES = 4_000  # of which sets are drawn
LARGEST_SET = 15  # tables (NeuroShard)
COMM_TABLES = (10, 60)  # of an exchange, from and to (NeuroShard)
LONGEST_OFFSET = 0.018  # s between the ranks' starts (NeuroShard)


@dataclass(frozen=True)
class Ranges:
    """Tables that are drawn: log-uniform rows and pooling within bounds, dims of a list."""

    rows: tuple[float, float] = (10.0, 1e9)
    pooling: tuple[float, float] = (1.0, 300.0)
    dims: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Pool:
    """Drawn tables under a workload."""

    tables: tuple[TableSpec, ...]
    work: Workload


def draw_pool(count: int, batch: int, rng: Generator, ranges: Ranges) -> Pool:
    """Random tables; every second one has one lookup per sample, as categories have."""
    rows = _log_uniform(rng, ranges.rows, count).astype(np.int64)
    many = _log_uniform(rng, ranges.pooling, count)
    pooling = np.where(rng.random(count) < 0.5, 1.0, np.maximum(np.round(many), 1.0))
    dims = rng.choice(ranges.dims, count)
    tables = tuple(TableSpec(f"t{i}", int(rows[i]), int(dims[i]), (f"f{i}",)) for i in range(count))
    lookups = {table.name: float(pooling[i]) for i, table in enumerate(tables)}
    return Pool(tables, Workload(batch, lookups))


def _log_uniform(rng: Generator, bounds: tuple[float, float], count: int) -> Floats:
    return np.exp(rng.uniform(np.log(bounds[0]), np.log(bounds[1]), count))


def draw_sets(tables: int, count: int, rng: Generator) -> tuple[Ints, Ints]:
    """`count` sets of 1 to LARGEST_SET of so many tables: (tables, set after set; their starts)."""
    most = min(LARGEST_SET, tables)
    lengths = rng.integers(1, most + 1, count)
    # no table twice in a set, as on a rank
    chosen = [rng.choice(tables, length, replace=False) for length in lengths]
    return np.concatenate(chosen), np.cumsum(lengths) - lengths


def simulated_compute(machine: Machine, batch: int, sets: int) -> ComputeSamples:
    """Sets priced by the machine's rates of lookups and updates; they add up exactly."""
    rng = np.random.default_rng(0)
    # one pool for all sets, whose tables are priced once
    pool = draw_pool(POOL_TABLES, batch, rng, Ranges())
    model = StepSeconds(machine, pool.tables, pool.work, Layout(1, 1))
    pieces = whole(model.arrays)
    count = pieces.table.size
    scheme = np.full(count, TABLE_WISE)
    phases = model.seconds(whole_rectangles(pieces.table, scheme, pieces.rows, pieces.width))
    single = phases[:, PHASES.index("lookup")] + phases[:, PHASES.index("update")]
    chosen, starts = draw_sets(count, sets, rng)
    features = describe(pieces, model.arrays, batch)
    return ComputeSamples(features[chosen], starts, np.add.reduceat(single[chosen], starts))


def draw_dim_sums(
    ranks: int, count: int, rng: Generator, dims: tuple[int, ...] = Ranges().dims
) -> Floats:
    """Dim sums f64[count, ranks] of random placements: each table goes to a random rank with
    probability p, else to the rank of the least sum; p is uniform for each placement (NeuroShard).
    """
    sums = np.zeros((count, ranks))
    for sample in sums:
        disorder = rng.random()
        for dim in rng.choice(dims, rng.integers(COMM_TABLES[0], COMM_TABLES[1] + 1)):
            random = rng.random() < disorder
            sample[rng.integers(ranks) if random else sample.argmin()] += dim
    return sums


def draw_offsets(ranks: int, count: int, rng: Generator, longest: float) -> Floats:
    """Start offsets of the ranks in s, f64[count, ranks]; the first rank of each starts at 0."""
    offsets = rng.uniform(0, longest, (count, ranks))
    return offsets - offsets.min(axis=1, keepdims=True)


def simulated_comm(
    machine: Machine, batch: int, layout: Layout, count: int
) -> tuple[CommSamples, CommSamples]:
    """Exchanges forward, with start offsets, and backward, by the machine's seconds per byte.

    An exchange begins when the last rank starts, and ends for all when the fullest has sent.
    """
    rng = np.random.default_rng(1)
    sums = draw_dim_sums(layout.ranks, count, rng)
    # Messages of a mean exchange decide where on the machine's curves bytes are priced.
    table = TableSpec("t", 1, int(sums.mean() * layout.ranks), ("f",))
    model = StepSeconds(machine, (table,), Workload(batch), layout)
    sent = 4.0 * batch * sums.max(axis=1, keepdims=True) * model.links.byte_seconds["all"]
    sent = np.broadcast_to(sent + model.links.latency_seconds, sums.shape)
    # offsets far above the exchange itself would teach waiting only
    longest = min(LONGEST_OFFSET, 2 * float(sent.mean()))
    offsets = draw_offsets(layout.ranks, count, rng, longest)
    waited = offsets.max(axis=1, keepdims=True) - offsets
    forward = CommSamples(np.concatenate([sums, offsets], axis=1), sent + waited)
    return forward, CommSamples(sums, sent)
