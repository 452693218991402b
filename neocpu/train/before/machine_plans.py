"""What does a config ask of a planner on a machine? Its tables, dense layers, batch and wires."""

from collections.abc import Mapping
from typing import NamedTuple

from neocpu.core.errors import ConfigError
from neocpu.parallel.sharding.plan import AUTO, Plan, is_plan_file
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.models import COST_MODELS
from neocpu.plan.cost.work import Workload
from neocpu.plan.machines.machine import Machine
from neocpu.plan.search.planners import PLANNERS
from neocpu.plan.search.question import PlanQuestion
from neocpu.plan.tiers.placements import Capacity
from neocpu.tables.tiers.placement import choose_placements
from neocpu.train.before.expected_data import TrainFacts
from neocpu.train.before.plans import workload
from neocpu.train.before.scenario import DENSE_FEATURES, dense_work, refuse_towers
from neocpu.train.config.config import Config
from neocpu.train.config.settings import MemoryConfig


class LogFacts(NamedTuple):
    """What data that were looked at tell a planner.

    pooling : mean lookups per sample of each table. distinct : distinct rows that a step looks up
    in it. dense_features : of a sample (0: not known).
    """

    pooling: Mapping[str, float]
    distinct: Mapping[str, float]
    dense_features: int

    @classmethod
    def of(cls, splits: TrainFacts | None) -> "LogFacts":
        """Those of the data of a run, if there are any."""
        if splits is None:
            return NO_FACTS
        return cls(splits.pooling_factors(), splits.distinct_rows(), splits.dense_features)


NO_FACTS = LogFacts({}, {}, 0)


def question_of(
    config: Config,
    machine: Machine,
    ranks: int,
    ranks_per_node: int | None = None,
    facts: LogFacts = NO_FACTS,
    planner: str = "search",
    cost_model: str = "neo",
) -> PlanQuestion:
    """The question of a config.

    ranks_per_node : None: the config's, else the machine's. facts : of the data.

    Raises ConfigError for an unknown planner or cost model, and towers on their nodes.
    """
    for name, known, option in (
        (planner, PLANNERS, "--planner"),
        (cost_model, COST_MODELS, "--cost-model"),
    ):
        if name not in known:
            raise ConfigError(f"{option}: {name!r} is unknown; choose one of {', '.join(known)}")
    refuse_towers(config)
    per_node = ranks_per_node or config.parallel.ranks_per_node or machine.ranks_per_node
    layout = Layout(ranks, min(per_node, ranks), config.parallel.route)
    features = facts.dense_features or DENSE_FEATURES.get(config.data.format, 1)
    lookups = workload(config, facts.pooling, facts.distinct)
    spec = config.parallel.plan
    return PlanQuestion(
        tables=config.tables,
        work=Workload(
            batch=lookups.batch,
            pooling=lookups.pooling,
            state_floats=lookups.state_floats,
            distinct=lookups.distinct,
            dense=dense_work(config, features, "fp32"),
            unique_rows=lookups.unique_rows,
            wires=lookups.wires,
        ),
        layout=layout,
        machine=machine,
        spec=AUTO if is_plan_file(spec) else spec,
        placements=_placements(config),
        planner=planner,
        cost_model=cost_model,
        make_model=COST_MODELS[cost_model],
    )


def placed_as(plan: Plan, capacity: Capacity) -> tuple[str, ...]:
    """Placements under which a given plan is priced: its own, else those of the capacity."""
    placements = capacity.placements
    if len(placements) == 1:
        placements = placements * len(plan.tables)
    planned = plan.placements or ("",) * len(plan.tables)
    return tuple(name or default for name, default in zip(planned, placements))


def _placements(config: Config) -> tuple[str, ...]:
    """Placement of each table; where the config leaves `memory.placement` alone, any."""
    placement = config.memory.placement
    if placement == MemoryConfig().placement:
        # the default says nothing, so the planner may use all memories of the machine
        return (AUTO,)
    return choose_placements([table.name for table in config.tables], placement)
