"""`parallel.planner = "neuroshard"` and `"autoshard"`: from predicted costs to a plan.

    networks   of the machine of the cost model, read from their file                 store.py
    proposal   NeuroShard's beam, or the policy's placement, improved by moves
    rivals     the placements of every heuristic and partitioner

The proposal is the cheapest of all these under the networks, so never worse than a heuristic
there; and what is answered is the cheapest under the shared cost model among the proposal, what
the planner found by itself, the heuristics' and the plan of `search`, whose notes then say so.
Learned plans keep tables in the fastest memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neocpu.core.errors import PlanError
from neocpu.core.types import Ints
from neocpu.parallel.sharding.plan import AUTO, Plan, PlanSpec, choose_schemes
from neocpu.parallel.sharding.schemes import SCHEMES, RankLayout, Shard
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import CostModel, loads_of, step_seconds
from neocpu.plan.cost.work import Floats, Workload, rectangles_of
from neocpu.plan.learned import episodes, heuristics, neuroshard, store
from neocpu.plan.learned.costs import EVERYWHERE, LearnedCosts, TablePart
from neocpu.plan.learned.greedy_grid import Cutting, PlacedParts
from neocpu.plan.machines.generic import GENERIC
from neocpu.plan.machines.machine_file import THIS_MACHINE
from neocpu.plan.search.answer import Answer
from neocpu.plan.search.drafts import rank_layout
from neocpu.plan.search.options import bytes_of, with_variants
from neocpu.plan.search.partition import PARTITIONERS, Packing, fits
from neocpu.plan.search.pricing import answer_of_plan
from neocpu.plan.search.search import plan_tables
from neocpu.plan.tiers.placements import Capacity
from neocpu.tables.specs.specs import TableSpec

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


def neuroshard_plan(
    tables: Sequence[TableSpec],
    spec: PlanSpec,
    layout: Layout,
    model: CostModel,
    work: Workload,
    capacity: Capacity | None = None,
    networks: store.Networks | None = None,
) -> Answer:
    """NeuroShard's plan, or another's where that is cheaper under the model.

    networks : None: those of the model's machine, from their file.

    Raises ConfigError where there are no networks, PlanError for other schemes than `KNOWN` and
    for what does not fit.
    """
    return _plan("neuroshard", tables, spec, layout, model, work, capacity, networks)


def autoshard_plan(
    tables: Sequence[TableSpec],
    spec: PlanSpec,
    layout: Layout,
    model: CostModel,
    work: Workload,
    capacity: Capacity | None = None,
    networks: store.Networks | None = None,
) -> Answer:
    """The plan of AutoShard's policy, or another's; as `neuroshard_plan` otherwise."""
    return _plan("autoshard", tables, spec, layout, model, work, capacity, networks)


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
PROPOSALS: dict[str, Callable[[ShardingTask], PlacedParts]] = {
    "neuroshard": beam_search,
    "autoshard": play,
}


def _plan(
    name: str,
    tables: Sequence[TableSpec],
    spec: PlanSpec,
    layout: Layout,
    model: CostModel,
    work: Workload,
    capacity: Capacity | None,
    networks: store.Networks | None,
) -> Answer:
    capacity = capacity or Capacity()
    task = task_of(name, tables, spec, layout, model, work, capacity, networks)
    # proposals are compared under the model that prices every planner's plan
    shared = SharedPrice(model, work, layout, capacity)
    rivals = rival_placements(task)
    own = PROPOSALS[name](task)
    # a heuristic that is cheaper under the networks is as good a start as the planner's own
    proposal = min([own, *rivals], key=lambda placed: placed.seconds)
    proposal = neuroshard.improved(task.costs, proposal, task.room)
    plans = [
        plan_of(task.costs, placed)
        for placed in (proposal, own, *rivals)
        if np.isfinite(placed.seconds)
    ]
    prices = [shared(plan) for plan in plans]
    searched = plan_tables(tables, spec, layout, model, work, capacity)
    best = int(np.argmin(prices)) if prices else -1
    if best < 0 or prices[best] >= searched.seconds:
        own_price = shared(plan_of(task.costs, own)) if np.isfinite(own.seconds) else np.inf
        verdict = (
            f"{own_price:.3g} s a step" if np.isfinite(own_price) else "it found none that fits"
        )
        note = f"this is the plan of search; {name}'s own: {verdict}"
        return replace(searched, planner=name, notes=(*searched.notes, note))
    answer = answer_of_plan(plans[best], layout, model, work, capacity, spec, name)
    note = f"planned with the networks of {task.costs.networks.machine}"
    return replace(answer, notes=(note,))


def task_of(
    name: str,
    tables: Sequence[TableSpec],
    spec: PlanSpec,
    layout: Layout,
    model: CostModel,
    work: Workload,
    capacity: Capacity,
    networks: store.Networks | None = None,
) -> ShardingTask:
    """The task of one planner; arguments and errors as of `neuroshard_plan`."""
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


def rival_placements(task: ShardingTask) -> list[PlacedParts]:
    """Whole tables by each heuristic and partitioner that finds room for all."""
    return [placed for placed in whole_tables(task) if placed is not None]


def whole_tables(task: ShardingTask) -> list[PlacedParts | None]:
    """Whole tables by HEURISTICS and PARTITIONERS, in their order; None where one finds no room."""
    costs = task.costs
    free = np.array(task.cutting.free, np.int64)
    everywhere = list(task.cutting.everywhere)
    ranks = costs.layout.ranks
    sizes = costs.facts[free, 0]
    # every rank holds its part of these before any table is placed
    room = task.room - float(costs.facts[everywhere, 0].sum())
    arrays = type(costs.arrays)(*(column[free] for column in costs.arrays))
    placements: list[Ints | None] = [
        heuristics.place(name, arrays, sizes, ranks, room) for name in heuristics.HEURISTICS
    ]
    packing = Packing(
        seconds=costs.phases_of_tables()[free],
        bytes=sizes[:, None],
        rank_seconds=np.zeros((ranks, len(costs.model.phases))),
        rank_bytes=np.zeros((ranks, 1)),
        limits=np.array([room]),
    )
    placements += [partitioner(packing) for partitioner in PARTITIONERS.values()]
    answers: list[PlacedParts | None] = []
    for placed in placements:
        if placed is None:
            answers.append(None)
            continue
        seconds = costs.seconds(costs.loads(free, placed, everywhere))
        answers.append(PlacedParts(task.cutting, placed, float(seconds)))
    return answers


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


def _everywhere(tables: Sequence[TableSpec], piece: TablePart, layout: RankLayout) -> list[Shard]:
    table = tables[piece.table]
    return SCHEMES[piece.scheme].cut(piece.table, table.rows, table.dim, layout, 0)


@dataclass(frozen=True)
class SharedPrice:
    """Seconds of a step of any plan under the shared cost model; inf where it does not fit."""

    model: CostModel
    work: Workload
    layout: Layout
    capacity: Capacity

    def __call__(self, plan: Plan) -> float:
        """Rows are placed as `pricing.answer_of_plan` places them."""
        variants, allowed = self.capacity.variants([table.name for table in plan.tables])
        rectangles = rectangles_of(plan)
        variant = allowed.argmax(axis=1)[rectangles.table]
        rectangles = with_variants(rectangles, variants, variant)
        each = bytes_of(plan.tables, rectangles, variants, variant, self.work)
        size: Floats = np.zeros((self.layout.ranks, each.shape[1]))
        np.add.at(size, rectangles.rank, each)
        if not fits(size, self.capacity.limits):
            return float("inf")
        return step_seconds(self.model, loads_of(self.model, rectangles, self.layout.ranks))
