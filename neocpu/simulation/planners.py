"""Who places the tables of a scenario? The planners, or plain balancing by size.

`size` gives every table its scheme (table_wise where none is named) and balances bytes: a plan that
knows neither lookups nor links, to compare with.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from neocpu.errors import ConfigError
from neocpu.parallel.plan import AUTO, PlanSpec, choose_schemes, place
from neocpu.planner.placements import Capacity
from neocpu.planner.planners import PLANNERS
from neocpu.simulation.scenario import Placed, Scenario, placed_by

SIZE = "size"
NAMES = (*PLANNERS, SIZE)


def placed_with(planner: str, spec: PlanSpec = AUTO) -> Callable[[Scenario], Placed]:
    """What places the tables of a scenario under schemes `spec`; ConfigError for another name.

    It raises PlanError for tables that do not fit the machine.
    """
    if planner not in NAMES:
        raise ConfigError(f"--planner: {planner!r} is unknown; choose one of {', '.join(NAMES)}")
    if planner == SIZE:
        return lambda scenario: _by_size(scenario, spec)
    return lambda scenario: _planned(scenario, spec, planner)


def _planned(scenario: Scenario, spec: PlanSpec, planner: str) -> Placed:
    """A planner's answer; where the share of cached rows is given, memory has no limit for it."""
    given = scenario.cache_share
    capacity = Capacity.of_machine(scenario.machine) if given is None else Capacity()
    answer = PLANNERS[planner](
        scenario.tables, spec, scenario.layout, scenario.model, scenario.work, capacity
    )
    rectangles = answer.rectangles
    if given is not None:
        rectangles = rectangles._replace(share=np.full(rectangles.table.size, given))
    return Placed(
        rectangles=rectangles,
        memory=float(answer.memory.sum(axis=1).max()),
        planner=answer.planner,
        bound=answer.bound,
    )


def _by_size(scenario: Scenario, spec: PlanSpec) -> Placed:
    """Tables spread by their bytes."""
    schemes = choose_schemes(scenario.tables, _without_auto(spec))
    layout = scenario.layout
    plan = place(scenario.tables, schemes, layout.ranks, layout.ranks_per_node)
    return replace(placed_by(scenario, plan), planner=SIZE)


def _without_auto(spec: PlanSpec) -> PlanSpec:
    """The schemes, with whole tables where the planner would choose."""
    if isinstance(spec, Mapping):
        return {name: _whole(scheme) for name, scheme in spec.items()}
    return _whole(spec)


def _whole(scheme: str) -> str:
    return "table_wise" if scheme == AUTO else scheme
