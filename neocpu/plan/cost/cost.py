"""What does a shard cost? Bytes that a rank reads, writes, sends and keeps, estimated from shapes.

Compute is counted in bytes of memory traffic, communication in bytes sent or received times `LINK`,
so both add up. The numbers order plans; they predict no seconds. Per step, with B samples, L
lookups per bag, f features of the table, a rectangle of h of H rows by d columns, p bytes per
weight (4 in fp32), s floats of optimizer state per row:

    lookups of the rectangle   n = B L f h / H; they touch at most min(n, h) unique rows
    lookup                     p d n: rows are read
    update                     4 d n: gradients are read
                               (2 p d + 8 s) min(n, h): weights and state are read and written
    input exchange             8 n: a row index for each lookup (fewer bytes where equal rows of
                               a rank travel once, `parallel.unique_rows`)
    output exchange            4 B f d out, 4 B f d back
                               row-split tables send 8 B f d out, as exact words
                               (fewer bytes on compressed wires,
                               `parallel/exchange/wire_formats.py`)
    data_parallel              rows touched on any rank: exact words go to the row's owner,
                               merged gradients come back to all ranks
    replica groups             every rectangle likewise, among its copies in all groups
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neocpu.parallel.sharding.plan import shard_bytes
from neocpu.parallel.sharding.schemes import Shard
from neocpu.plan.cost.work import Workload, row_index_bytes
from neocpu.tables.specs.specs import TableSpec

# Cost of a byte between ranks, in bytes of memory traffic: it is written, moved and read.
LINK = 2.0


@dataclass(frozen=True)
class Cost:
    """Bytes of one shard on its rank: memory traffic and link traffic per step, and bytes kept."""

    compute: float
    communication: float
    memory: int

    @property
    def total(self) -> float:
        """Compute and communication in one number."""
        return self.compute + LINK * self.communication


def lookups_of(
    spec: TableSpec, shard: Shard, ranks: int, replicated: bool, work: Workload
) -> float:
    """Lookups of a rectangle of a table in a step, on the rank that holds it."""
    samples = work.batch / ranks if replicated else work.batch
    part = shard.shape[0] / spec.rows
    if spec.name in work.curves:
        first, end = work.curves[spec.name].below(np.array(shard.rows)).tolist()
        part = end - first
    return samples * len(spec.features) * work.pooling.get(spec.name, 1.0) * part


def shard_cost(spec: TableSpec, shard: Shard, ranks: int, replicated: bool, work: Workload) -> Cost:
    """Cost of one rectangle of a table on its rank; replicated : is the table data_parallel?"""
    rows, width = shard.shape
    samples = work.batch / ranks if replicated else work.batch
    bags = samples * len(spec.features)
    if spec.pooling == "none":  # every lookup is a bag of its own
        # without pooling the vectors of all lookups travel, one by one
        bags *= work.pooling.get(spec.name, 1.0)
    lookups = lookups_of(spec, shard, ranks, replicated, work)
    # no law of repetition: the numbers order plans, and predict nothing
    touched = min(lookups, rows)
    state = work.state_floats[0] * width + work.state_floats[1]
    # each touched row and its state are read and written once, however many lookups merge into it
    update_bytes = 2 * spec.number_bytes * width + 8 * state
    compute = spec.lookup_bytes * width * lookups + 4 * width * lookups + update_bytes * touched
    memory = shard_bytes(spec, shard, work.state_floats)
    copies = work.groups * ranks if replicated else work.groups
    communication = 0.0
    if copies > 1:
        # every copy updates the rows that any of them touched
        touched_anywhere = min(lookups * copies, rows)
        compute += update_bytes * (touched_anywhere - touched)
        communication = 8 * (width + 1) * touched + 4 * (width + 2) * touched_anywhere
    if ranks == 1 or replicated:
        return Cost(compute, communication, memory)
    # Partial sums of a row-split table travel as exact words of 8 bytes.
    index_bytes = 8.0
    if work.unique_rows != "off":
        # equal rows of a rank's samples travel once, so a lookup costs fewer bytes on average
        index_bytes = float(row_index_bytes((spec,), work, ranks)[0])
    wires = work.wires.specs
    out_bytes = wires.forward.bytes(width) if rows == spec.rows else 8 * width
    back_bytes = wires.backward.bytes(width)
    communication += index_bytes * lookups + bags * (out_bytes + back_bytes)
    return Cost(compute, communication, memory)


def table_costs(
    spec: TableSpec, shards: Sequence[Shard], ranks: int, replicated: bool, work: Workload
) -> dict[int, Cost]:
    """Cost of all rectangles of one table by rank."""
    costs: dict[int, Cost] = {}
    for shard in shards:
        cost = shard_cost(spec, shard, ranks, replicated, work)
        total = costs.get(shard.rank, Cost(0.0, 0.0, 0))
        costs[shard.rank] = Cost(
            total.compute + cost.compute,
            total.communication + cost.communication,
            total.memory + cost.memory,
        )
    return costs
