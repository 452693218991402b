"""The plan that `auto` makes by counting bytes, priced by a cost model."""

from collections.abc import Sequence

from neocpu.parallel.sharding.plan import PlanSpec
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import CostModel
from neocpu.plan.cost.work import Workload
from neocpu.plan.search import auto
from neocpu.plan.search.answer import Answer
from neocpu.plan.search.free_cuts import Pins
from neocpu.plan.search.pricing import answer_of_plan
from neocpu.plan.tiers.placements import Capacity
from neocpu.tables.specs.specs import TableSpec


def greedy(
    tables: Sequence[TableSpec],
    spec: PlanSpec,
    layout: Layout,
    model: CostModel,
    work: Workload,
    capacity: Capacity | None = None,
    fixed: Pins | None = None,
) -> Answer:
    """The plan of `auto.make_plan`, which counts bytes; the model prices it only.

    It knows one limit of a rank, that of all its memories together, and places rows nowhere but in
    fast memory.

    Raises ConfigError and PlanError as `auto.make_plan` does.
    """
    capacity = capacity or Capacity()
    plan = auto.make_plan(
        tables, spec, layout.ranks, layout.ranks_per_node, work, capacity.total or None, fixed
    )
    return answer_of_plan(plan, layout, model, work, capacity, spec, "greedy")
