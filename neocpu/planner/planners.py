"""Which planners are there? `parallel.planner` names one of these.

To add one: write a function with the arguments of `search.plan_tables` and put its place into
`PLANNERS`. A planner is imported when it is asked for: a run loads its own only, its config none.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neocpu.embedding.specs import TableSpec
    from neocpu.parallel.plan import PlanSpec
    from neocpu.planner.answer import Answer
    from neocpu.planner.links import Layout
    from neocpu.planner.placements import Capacity
    from neocpu.planner.seconds import CostModel
    from neocpu.planner.work import Workload

    Planner = Callable[
        [Sequence[TableSpec], PlanSpec, Layout, CostModel, Workload, Capacity | None], Answer
    ]

# name -> module, function
PLANNERS = {
    "greedy": ("neocpu.planner.counted", "greedy"),
    "search": ("neocpu.planner.search", "plan_tables"),
    "neuroshard": ("neocpu.planner.learned.plans", "neuroshard_plan"),
    "autoshard": ("neocpu.planner.learned.plans", "autoshard_plan"),
}


def planner_of(name: str) -> "Planner":
    """The planner of a name in `PLANNERS`."""
    module, function = PLANNERS[name]
    plan_tables: Planner = getattr(import_module(module), function)
    return plan_tables
