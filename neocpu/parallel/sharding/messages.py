"""How do all ranks come by one plan? Rank 0 makes it and sends all of it but its tables."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.sharding.schemes import Shard
from neocpu.tables.specs.specs import TableSpecs

if TYPE_CHECKING:
    from neocpu.parallel.transport.comm import Comm


def plan_on_first_rank(comm: "Comm", tables: TableSpecs, make: Callable[[], Plan]) -> Plan:
    """The plan that `make` returns on rank 0, on every rank. Collective.

    A planner weighs every way to cut every table: for hundreds of tables on 128 ranks that takes
    seconds and more than 100 MB, which the ranks of a host should not all take at once.

    tables : those of the plan, which all ranks know. Raises what `make` raises, on every rank.
    """
    if comm.size == 1:
        return make()
    return from_text(comm.on_first_rank(lambda: to_text(make())), tables)


def to_text(plan: Plan) -> str:
    """All of a plan but its tables."""
    # tables come from the config, which every rank has read
    shards = [(shard.table, *shard.rows, *shard.cols, shard.rank) for shard in plan.shards]
    layout = [plan.ranks, plan.ranks_per_node, plan.replica_groups]
    return json.dumps([plan.schemes, shards, layout, plan.placements])


def from_text(message: str, tables: TableSpecs) -> Plan:
    """The plan that `to_text` wrote; it was checked where it was made."""
    # a killed run of an older version noted no groups (`train/checkpoint/keeping.py`)
    schemes, numbers, (ranks, ranks_per_node, *groups), placements = json.loads(message)
    shards = tuple(
        Shard(table, (first_row, last_row), (left, right), rank)
        for table, first_row, last_row, left, right, rank in numbers
    )
    return Plan(
        tables=tuple(tables),
        schemes=tuple(schemes),
        shards=shards,
        ranks=ranks,
        ranks_per_node=ranks_per_node,
        placements=tuple(placements),
        replica_groups=groups[0] if groups else 1,
    )
