"""What is simulated? A model, a machine, and how its step goes; and what comes of it.

    Scenario ──► placed: a plan and its loads ──► stage_works ──► engine.run ──► Simulated

The plan is the planner's; scenarios that differ in pipelining or algorithm share one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from neocpu.core.errors import ConfigError
from neocpu.core.stages import DIRECTIONS, PIPELINES, STEP, Stage, pipelined
from neocpu.parallel.sharding.plan import Plan
from neocpu.plan.cost.capacity import buffer_bytes
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.seconds import StepSeconds, loads_of, step_seconds
from neocpu.plan.cost.work import Floats, Rectangles, TableArrays, Workload, rectangles_of
from neocpu.plan.machines.machine import Machine
from neocpu.plan.simulation.breakdown import Breakdown, breakdown
from neocpu.plan.simulation.collectives import ALGORITHMS
from neocpu.plan.simulation.costs import StageOptions, stage_works
from neocpu.plan.simulation.engine import Timeline, run, unrolled
from neocpu.plan.simulation.noise import SEED, Jitter, NodeFaults, RunningCosts
from neocpu.tables.specs.specs import TableSpec

# Batches simulated before those that are measured: until the pipeline is full.
WARM_UP = 3


@dataclass(frozen=True)
class Scenario:
    """A training step to simulate.

    machine, ranks : where; the machine's own number of nodes does not matter. groups : of so many
    replica groups one is simulated, as all do alike. tables, work : the model and its global batch,
    of all groups. route : of partial sums. pipeline : one of `core.stages.PIPELINES`.
    options : how costs are put on stages. steps : that are measured, after a warm-up.
    cache_share : part of all rows that fast memory holds; None: as much as fits. jitter, faults :
    how stages vary from step to step, and how nodes fail. running : what nodes cost.
    """

    machine: Machine
    ranks: int
    tables: tuple[TableSpec, ...]
    work: Workload
    route: str = "direct"
    pipeline: str = "full"
    options: StageOptions = field(default_factory=StageOptions)
    steps: int = 4
    cache_share: float | None = None
    jitter: Jitter = field(default_factory=Jitter)
    faults: NodeFaults = field(default_factory=NodeFaults)
    running: RunningCosts = field(default_factory=RunningCosts)
    groups: int = 1

    def __post_init__(self) -> None:
        if self.pipeline not in PIPELINES:
            known = ", ".join(PIPELINES)
            raise ConfigError(f"pipeline: {self.pipeline!r} is unknown; choose one of {known}")
        for name in (self.options.algorithm, self.options.sums or self.options.algorithm):
            if name not in ALGORITHMS:
                known = ", ".join(ALGORITHMS)
                raise ConfigError(f"algorithm: {name!r} is unknown; choose one of {known}")

    @property
    def layout(self) -> Layout:
        """Ranks of a group on nodes; on one, where they may share cores, if nodes have no link.

        Raises PlanError where groups would not be equal.
        """
        linked = self.machine.between_nodes.bandwidth_bytes_per_s
        # this machine may be asked for more ranks than it has cores; then they share them
        per_node = self.machine.ranks_per_node if linked else self.ranks
        return Layout.of_run(self.ranks, per_node, self.route, self.groups)

    @property
    def group_work(self) -> Workload:
        """What a step does in one group."""
        return self.work.of_group(self.tables, self.groups)

    @property
    def model(self) -> StepSeconds:
        """The planner's cost of this step."""
        return StepSeconds(self.machine, self.tables, self.group_work, self.layout)

    def on(self, ranks: int) -> "Scenario":
        """The same step on other ranks, with as many samples for each (weak scaling)."""
        samples = self.work.batch // self.ranks
        return replace(self, ranks=ranks, work=replace(self.work, batch=samples * ranks))


@dataclass(frozen=True)
class Placed:
    """Tables on the ranks of a scenario.

    rectangles : of the plan, with the shares of rows that fast memory holds. memory : bytes of
    tables and state on the fullest rank. planner : its name. bound : seconds that no plan stays
    below under the planner's model; 0 where that is not known.
    """

    rectangles: Rectangles
    memory: float
    planner: str = ""
    bound: float = 0.0


@dataclass(frozen=True)
class Simulated:
    """What a simulation gives; times in seconds."""

    scenario: Scenario
    placed: Placed
    loads: Floats
    timeline: Timeline
    breakdown: Breakdown

    @property
    def step(self) -> float:
        """Seconds of a step in the steady state."""
        return self.breakdown.step

    @property
    def samples_per_s(self) -> float:
        """QPS: samples of all ranks a second."""
        return self.scenario.work.batch / self.step if self.step else float("inf")

    @property
    def goodput(self) -> float:
        """Samples a second of all time, faults, checkpoints and restarts included."""
        return self.samples_per_s * self.scenario.faults.progress(
            self.scenario.layout.everybody.nodes
        )

    @property
    def million(self) -> dict[str, float]:
        """Price and kWh of a million samples, of what was asked, by unit."""
        scenario = self.scenario
        return scenario.running.of_million(scenario.layout.everybody.nodes, self.goodput)

    @property
    def step_seconds(self) -> Floats:
        """Seconds of each step after the warm-up, from end to end, f64[steps]."""
        last = WARM_UP + self.scenario.steps
        return np.diff([self.timeline.batch_end(batch) for batch in range(WARM_UP - 1, last)])

    @property
    def planned_step(self) -> float:
        """Seconds of a step by the planner's model, in which nothing overlaps."""
        return step_seconds(self.scenario.model, self.loads)

    @property
    def imbalance(self) -> float:
        """Loads of the fullest rank over their mean, all phases together."""
        sums = self.loads.sum(axis=1)
        return float(sums.max() / sums.mean()) if sums.any() else 1.0


def simulate(
    scenario: Scenario, placed: Placed, schedule: Sequence[Stage] | None = None
) -> Simulated:
    """Run the steps of a scenario; schedule : instead of that of its pipeline.

    Raises ConfigError where the machine lacks what the step needs.
    """
    model = scenario.model
    loads = loads_of(model, placed.rectangles, model.layout.ranks)
    works = stage_works(model, loads, scenario.options)
    behind = DIRECTIONS if model.work.dense.directions is not None else ()
    stages = pipelined(scenario.pipeline, (*STEP, *behind)) if schedule is None else schedule
    for name, work in works.items():
        if not np.isfinite(work.seconds).all():
            raise ConfigError(
                f"{scenario.machine.name}: {name} would never end; the machine lacks a link, a "
                "memory or a precision that the step needs"
            )
    tasks = unrolled(stages, works, WARM_UP + scenario.steps)
    if scenario.jitter.any:
        rng = np.random.default_rng(SEED)
        draw = scenario.jitter.drawn
        tasks = tuple(replace(t, work=draw(t.work, not t.exchange, rng)) for t in tasks)
    line = run(tasks, model.layout.ranks)
    # from the end of the last batch of the warm-up, when the pipeline is full
    measured = breakdown(line, WARM_UP - 1, WARM_UP + scenario.steps - 1)
    return Simulated(scenario, placed, loads, line, measured)


def placed_by(scenario: Scenario, plan: Plan, planner: str = "") -> Placed:
    """A plan of the scenario's tables in one group, with the rows that fit in fast memory.

    What is above the capacity of a rank's HBM lies in its DDR, of all its rectangles alike; what a
    step holds besides rows stays in HBM.
    """
    work = scenario.group_work
    ranks = scenario.layout.ranks
    rectangles = rectangles_of(plan, work)
    sizes = _bytes(scenario, rectangles)
    used = np.bincount(rectangles.rank, weights=sizes, minlength=ranks)
    arrays = TableArrays.of(scenario.tables, work)
    held = buffer_bytes(rectangles, TableArrays(*(column[rectangles.table] for column in arrays)))
    buffers = np.bincount(rectangles.rank, weights=held, minlength=ranks)
    share = np.ones(rectangles.table.size)
    if scenario.cache_share is not None:
        share = np.full(rectangles.table.size, scenario.cache_share)
    elif capacity := scenario.machine.hbm.capacity_bytes:
        share = np.clip((capacity - buffers) / np.maximum(used, 1.0), 0.0, 1.0)[rectangles.rank]
    fullest = float((used + buffers).max(initial=0.0))
    return Placed(rectangles._replace(share=share), fullest, planner)


def _bytes(scenario: Scenario, rectangles: Rectangles) -> Floats:
    """Bytes of each rectangle's rows and their state, f64[n]."""
    row_bytes: dict[tuple[int, float], float] = {}
    sizes = np.zeros(rectangles.table.size)
    for i, key in enumerate(zip(rectangles.table.tolist(), rectangles.width.tolist())):
        if key not in row_bytes:
            table, width = key
            state = scenario.work.state_floats
            row_bytes[key] = float(scenario.tables[table].row_bytes(int(width), state))
        sizes[i] = row_bytes[key]
    return sizes * rectangles.rows
