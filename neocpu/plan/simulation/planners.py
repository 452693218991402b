"""Who places the tables of a scenario? The planners, or plain balancing by size.

`size` is the search with bytes for costs: plans that know neither lookups nor links, to compare
with.
"""

from collections.abc import Callable

import numpy as np

from neocpu.core.errors import ConfigError
from neocpu.parallel.sharding.plan import AUTO, PlanSpec, is_plan_file
from neocpu.plan.cost.work import Floats, Rectangles
from neocpu.plan.files import plan_file
from neocpu.plan.files.bound_plan import bind
from neocpu.plan.search import auto
from neocpu.plan.search.free_cuts import Pins
from neocpu.plan.search.planners import PLANNERS, planner_of
from neocpu.plan.simulation.scenario import Placed, Scenario, placed_by
from neocpu.plan.tiers.placements import Capacity

SIZE = "size"
NAMES = (*PLANNERS, SIZE)


def placed_with(planner: str, spec: PlanSpec = AUTO) -> Callable[[Scenario], Placed]:
    """What places the tables of a scenario under schemes `spec`, or as a plan file `spec` says.

    It raises PlanError for tables that do not fit the machine. Raises ConfigError for a planner
    that there is not.
    """
    if planner not in NAMES:
        raise ConfigError(f"--planner: {planner!r} is unknown; choose one of {', '.join(NAMES)}")
    if isinstance(spec, str) and is_plan_file(spec):
        # each number of ranks of a sweep is planned when it is simulated
        return lambda scenario: _from_file(scenario, spec, planner)
    return lambda scenario: _planned(scenario, spec, planner)


def _planned(scenario: Scenario, spec: PlanSpec, planner: str, fixed: Pins | None = None) -> Placed:
    """A planner's answer.

    Where the share of rows in fast memory is given, only all memories of a rank together limit it:
    rows that the fast memory holds are not below it as well.
    """
    share = scenario.cache_share
    capacity = Capacity.of_machine(scenario.machine)
    if share is not None:
        capacity = Capacity(total=capacity.hbm + capacity.ddr + capacity.ssd)
    # balancing by size is the search's, with other costs
    search = planner_of("search" if planner == SIZE else planner)
    model = Sizes(scenario) if planner == SIZE else scenario.model
    answer = search(
        scenario.tables, spec, scenario.layout, model, scenario.group_work, capacity, fixed
    )
    rectangles = answer.rectangles
    if share is not None:
        rectangles = rectangles._replace(share=np.full(rectangles.table.size, share))
    return Placed(
        rectangles=rectangles,
        memory=float(answer.memory.sum(axis=1).max()),
        planner=planner,
        bound=0.0 if planner == SIZE else answer.bound,
    )


def _from_file(scenario: Scenario, path: str, planner: str) -> Placed:
    """What a plan file says; the planner completes what it leaves open.

    Raises ConfigError for a file that is damaged or of another run, as a training with it does.
    """
    planned = bind(plan_file.load(path), scenario.tables, scenario.ranks)
    schemes = dict(zip((table.name for table in scenario.tables), planned.schemes))
    if not planned.is_whole:
        return _planned(scenario, schemes, planner, planned.fixed)
    plan = auto.make_plan(
        scenario.tables,
        schemes,
        scenario.layout.ranks,
        scenario.layout.ranks_per_node,
        scenario.group_work,
        fixed=planned.fixed,
    )
    return placed_by(scenario, plan, path)


# Weight of columns beside bytes: enough that no table is cut without a need.
COLUMNS = 0.01


class Sizes:
    """A cost model that knows sizes alone: parts of all bytes, and of all columns a little."""

    phases = ("size",)
    synchronised = False
    fixed_seconds = 0.0

    def __init__(self, scenario: Scenario) -> None:
        per_number, per_row = scenario.work.state_floats
        tables = scenario.tables
        numbers = np.array([table.row_bytes(table.dim, (0, 0)) / table.dim for table in tables])
        self.number_bytes = numbers + 4.0 * per_number
        self.row_bytes = 4.0 * per_row
        self.columns = float(sum(table.dim for table in tables))
        rows = np.array([float(table.rows) for table in tables])
        dims = np.array([float(table.dim) for table in tables])
        self.bytes = float((rows * (dims * self.number_bytes + self.row_bytes)).sum())

    def seconds(self, rectangles: Rectangles) -> Floats:
        """Cost of each rectangle, f64[n, 1]; that of whole tables is 1 + COLUMNS in all."""
        row_bytes = rectangles.width * self.number_bytes[rectangles.table] + self.row_bytes
        share = rectangles.rows * row_bytes / self.bytes
        return (share + COLUMNS * rectangles.width / self.columns)[:, None]
