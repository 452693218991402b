"""The plan that `auto` makes by counting bytes, priced by a cost model."""

from collections.abc import Sequence

from neocpu.embedding.specs import TableSpec
from neocpu.parallel.plan import PlanSpec
from neocpu.planner import auto
from neocpu.planner.answer import Answer
from neocpu.planner.placements import Capacity
from neocpu.planner.pricing import answer_of_plan
from neocpu.planner.seconds import CostModel, Layout
from neocpu.planner.work import Workload


def greedy(
    tables: Sequence[TableSpec],
    spec: PlanSpec,
    layout: Layout,
    model: CostModel,
    work: Workload,
    capacity: Capacity | None = None,
) -> Answer:
    """The plan of `auto.make_plan`, which counts bytes; the model prices it only.

    It knows one limit of a rank, that of all its memories together, and places rows nowhere but in
    fast memory.

    Raises ConfigError and PlanError as `auto.make_plan` does.
    """
    capacity = capacity or Capacity()
    plan = auto.make_plan(
        tables, spec, layout.ranks, layout.ranks_per_node, work, capacity.total or None
    )
    return answer_of_plan(plan, layout, model, work, capacity, spec, "greedy")
