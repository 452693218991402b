"""Which planners are there? `parallel.planner` names one of these.

To add one: write a function with the arguments of `search.plan_tables` and put its place into
`PLANNERS`. A planner is imported when it is asked for: a run loads its own only, its config none.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from neocpu.tables.specs.specs import TableSpecs

if TYPE_CHECKING:
    from neocpu.parallel.sharding.plan import PlanSpec
    from neocpu.plan.cost.links import Layout
    from neocpu.plan.cost.seconds import CostModel
    from neocpu.plan.cost.work import Workload
    from neocpu.plan.search.answer import Answer
    from neocpu.plan.search.free_cuts import Pins
    from neocpu.plan.tiers.placements import Capacity

    class Planner(Protocol):
        """As `search.plan_tables`."""

        def __call__(
            self,
            tables: TableSpecs,
            spec: PlanSpec,
            layout: Layout,
            model: CostModel,
            work: Workload,
            capacity: Capacity | None = None,
            fixed: Pins | None = None,
        ) -> Answer: ...


# name -> module, function
PLANNERS = {
    "greedy": ("neocpu.plan.search.search", "greedy"),
    "search": ("neocpu.plan.search.search", "plan_tables"),
    "neuroshard": ("neocpu.plan.learned.plans", "neuroshard_plan"),
    "autoshard": ("neocpu.plan.learned.plans", "autoshard_plan"),
}


def planner_of(name: str) -> "Planner":
    """The planner of a name in `PLANNERS`."""
    module, function = PLANNERS[name]
    return getattr(import_module(module), function)
