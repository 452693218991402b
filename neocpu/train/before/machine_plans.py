"""What does a config ask of a planner on a machine? Its tables, dense layers, batch and wires."""

from neocpu.core.errors import ConfigError
from neocpu.parallel.sharding.plan import AUTO, is_plan_file
from neocpu.plan.cost.links import Layout
from neocpu.plan.cost.models import COST_MODELS
from neocpu.plan.machines.machine import Machine
from neocpu.plan.search.planners import PLANNERS
from neocpu.plan.search.question import PlanQuestion
from neocpu.plan.simulation.what_if import NO_CHANGES, ONLY_SIMULATED, WhatIf
from neocpu.tables.tiers.placement import choose_placements
from neocpu.train.before.scenario import (
    NO_FACTS,
    LogFacts,
    refuse_unmodelled,
    replica_groups_of,
    work_of,
)
from neocpu.train.config.config import Config
from neocpu.train.config.memory import MemoryConfig


def question_of(
    config: Config,
    machine: Machine,
    ranks: int,
    ranks_per_node: int | None = None,
    facts: LogFacts = NO_FACTS,
    planner: str = "search",
    cost_model: str = "neo",
    changes: WhatIf = NO_CHANGES,
) -> PlanQuestion:
    """The question of a config.

    ranks_per_node : None: the config's, else the machine's. facts : of the data. changes : what
    `--set` says beside the config.

    Of several replica groups it asks about one. Raises ConfigError for an unknown planner or cost
    model, units that a machine lacks, parameter servers, towers on their nodes, groups that a cost
    model or a machine of unequal ranks does not know, and changes of what is no part of a plan's
    step; PlanError for groups that are not equal.
    """
    for name, known, option in (
        (planner, PLANNERS, "--planner"),
        (cost_model, COST_MODELS, "--cost-model"),
    ):
        if name not in known:
            raise ConfigError(f"{option}: {name!r} is unknown; choose one of {', '.join(known)}")
    refuse_unmodelled(config)
    for key in ONLY_SIMULATED:
        if getattr(changes, key) != getattr(NO_CHANGES, key):
            name = key.replace("_", ".", 1)
            raise ConfigError(f"--set {name}: a plan is priced without it; ask `neocpu simulate`")
    machine = changes.of_machine(machine)
    per_node = ranks_per_node or config.parallel.ranks_per_node or machine.ranks_per_node
    groups = _groups(config, machine, cost_model)
    layout = Layout.of_run(ranks, per_node, config.parallel.route, groups)
    spec = config.parallel.plan
    return PlanQuestion(
        tables=config.tables,
        work=work_of(config, machine, ranks, changes, facts).of_group(config.tables, groups),
        layout=layout,
        machine=machine,
        spec=AUTO if is_plan_file(spec) else spec,
        placements=_placements(config),
        planner=planner,
        cost_model=cost_model,
        make_model=COST_MODELS[cost_model],
    )


def _groups(config: Config, machine: Machine, cost_model: str) -> int:
    """Replica groups that the machine and the cost model know."""
    groups = replica_groups_of(config)
    if groups > 1 and (machine.unequal or cost_model != "neo"):
        who = f"machine {machine.name} has unequal ranks" if machine.unequal else ""
        raise ConfigError(
            f"parallel.replica_groups: {who or f'cost model {cost_model} knows one group'}; "
            "set it to 1, or ask another one"
        )
    return groups


def _placements(config: Config) -> tuple[str, ...]:
    """Placement of each table; where the config leaves `memory.placement` alone, any."""
    placement = config.memory.placement
    if placement == MemoryConfig().placement:
        # the default says nothing, so the planner may use all memories of the machine
        return (AUTO,)
    return choose_placements([table.name for table in config.tables], placement)
