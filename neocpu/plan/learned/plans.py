"""`parallel.planner = "neuroshard"` and `"autoshard"`: from predicted costs to a plan.

    networks   of the machine of the cost model, read from their file                 store.py
    proposal   NeuroShard's beam, or the policy's placement, and what moves make of it
    search     takes the proposals as further starts                          search/search.py

So both planners answer what `search` does, or better. Learned plans keep tables in the fastest
memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from neocpu.core.errors import PlanError
from neocpu.parallel.sharding.plan import AUTO, Plan, PlanSpec, choose_schemes
from neocpu.parallel.sharding.schemes import SCHEMES, RankLayout, Shard
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import CostModel
from neocpu.plan.cost.work import Workload
from neocpu.plan.learned import episodes, neuroshard, store
from neocpu.plan.learned.costs import EVERYWHERE, LearnedCosts, TablePart
from neocpu.plan.learned.greedy_grid import Cutting, PlacedParts
from neocpu.plan.machines.generic import GENERIC
from neocpu.plan.machines.machine_file import THIS_MACHINE
from neocpu.plan.search.answer import Answer
from neocpu.plan.search.free_cuts import Pins
from neocpu.plan.search.options import rank_layout
from neocpu.plan.search.search import plan_tables
from neocpu.plan.tiers.placements import Capacity
from neocpu.tables.specs.specs import TableSpecs

# Schemes that these planners know; tables of others need `search`.
KNOWN = (AUTO, "table_wise", *EVERYWHERE)
# Episodes that are drawn beside the best-scored one, and pieces x ranks that they may look at.
TRIES = 64
TRY_EFFORT = 200_000


@dataclass(frozen=True)
class ShardingTask:
    """What is to be planned, for one planner.

    costs : of its pieces. cutting : before any choice: tables that may be placed, and those whose
    scheme puts them on every rank. locked : tables that may not be cut. room : bytes of a rank.
    """

    costs: LearnedCosts
    cutting: Cutting
    locked: frozenset[int]
    room: float


Propose = Callable[[ShardingTask], PlacedParts]


def learned_plan(
    name: str,
    tables: TableSpecs,
    spec: PlanSpec,
    layout: Layout,
    model: CostModel,
    work: Workload,
    capacity: Capacity | None = None,
    fixed: Pins | None = None,
    networks: store.Networks | None = None,
) -> Answer:
    """The search's plan, started from what a planner of PROPOSALS finds by itself as well.

    networks : None: those of the model's machine, from their file.

    Raises ConfigError where there are no networks, PlanError for other schemes than `KNOWN` and
    for what does not fit.
    """
    capacity = capacity or Capacity()
    task = task_of(name, tables, spec, layout, model, work, capacity, networks)
    costs = task.costs
    own = PROPOSALS[name](task)
    proposed = [
        plan_of(costs, placed)
        for placed in (own, neuroshard.improved(costs, own, task.room))
        if np.isfinite(placed.seconds)
    ]
    answer = plan_tables(tables, spec, layout, model, work, capacity, fixed, proposed)
    note = f"planned with the networks of {costs.networks.machine}"
    return replace(answer, planner=name, notes=(*answer.notes, note))


neuroshard_plan = partial(learned_plan, "neuroshard")
autoshard_plan = partial(learned_plan, "autoshard")


def beam_search(task: ShardingTask) -> PlacedParts:
    """NeuroShard's beam over splits."""
    return neuroshard.search(task.costs, task.room, start=task.cutting, locked=task.locked)


def play(task: ShardingTask) -> PlacedParts:
    """The policy's placement; it cuts no tables."""
    policy = task.costs.networks.policy
    if policy is None:
        raise PlanError("these networks have no policy; train them anew")
    size = len(task.cutting.free) * task.costs.layout.ranks
    tries = min(TRIES, TRY_EFFORT // max(size, 1))
    return episodes.place(policy, task.costs, task.room, task.cutting, tries)


# what each planner finds by itself
PROPOSALS: dict[str, Propose] = {
    "neuroshard": beam_search,
    "autoshard": play,
}


def task_of(
    name: str,
    tables: TableSpecs,
    spec: PlanSpec,
    layout: Layout,
    model: CostModel,
    work: Workload,
    capacity: Capacity,
    networks: store.Networks | None = None,
) -> ShardingTask:
    """The task of one planner; arguments and errors as of `learned_plan`."""
    schemes = choose_schemes(tables, spec)
    for table, scheme in zip(tables, schemes):
        if scheme not in KNOWN:
            raise PlanError(
                f"table {table.name!r} is to be {scheme}, which {name} does not know (it knows "
                f'{", ".join(KNOWN)}): set parallel.planner to "search"'
            )
    if networks is None:
        machine = getattr(getattr(model, "machine", None), "name", "") or THIS_MACHINE
        # A run that names no machine is planned for the generic one, and runs here.
        machine = THIS_MACHINE if machine == GENERIC.name else machine
        networks = store.load(store.networks_path(machine), machine)
    costs = LearnedCosts(networks, tables, work, layout, model)
    everywhere = [
        TablePart(t, scheme, tables[t].dim)
        for t, scheme in enumerate(schemes)
        if scheme in EVERYWHERE
    ]
    cutting = Cutting(
        tuple(t for t, scheme in enumerate(schemes) if scheme not in EVERYWHERE),
        tuple(costs.numbers(everywhere)),
    )
    locked = frozenset(t for t, scheme in enumerate(schemes) if scheme != AUTO)
    limits = capacity.limits
    fastest = limits[0 if "hbm" in capacity.memories else 1]
    return ShardingTask(costs, cutting, locked, float(min(fastest, limits[3])))


def plan_of(costs: LearnedCosts, placed: PlacedParts) -> Plan:
    """The plan of a placement; blocks of a table's columns on one rank become one."""
    layout = rank_layout(costs.layout)
    schemes = ["table_wise"] * len(costs.tables)
    by_table: list[list[tuple[int, int]]] = [[] for _ in costs.tables]
    shards: list[Shard] = []
    for number in placed.cutting.everywhere:
        piece = costs.pieces[number]
        schemes[piece.table] = piece.scheme
        shards += _everywhere(costs.tables, piece, layout)
    for number, rank in zip(placed.cutting.free, placed.ranks.tolist()):
        piece = costs.pieces[number]
        # halves of halves on one rank lie side by side again, as one rectangle
        by_table[piece.table].append((rank, piece.width))
    for number, blocks in enumerate(by_table):
        rows = costs.tables[number].rows
        widths: dict[int, int] = {}
        for rank, width in sorted(blocks):
            widths[rank] = widths.get(rank, 0) + width
        left = 0
        for rank, width in widths.items():
            shards.append(Shard(number, (0, rows), (left, left + width), rank))
            left += width
        if len(widths) > 1:
            schemes[number] = "column_wise"
    return Plan(
        tables=costs.tables,
        schemes=tuple(schemes),
        shards=tuple(sorted(shards)),
        ranks=layout.ranks,
        ranks_per_node=layout.ranks_per_node,
    ).check()


def _everywhere(tables: TableSpecs, piece: TablePart, layout: RankLayout) -> list[Shard]:
    table = tables[piece.table]
    return SCHEMES[piece.scheme].cut(piece.table, table.rows, table.dim, layout, 0)
