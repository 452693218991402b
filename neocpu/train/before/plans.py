"""Where do the tables of a run go: to which ranks, and into which memories?

The run's config, put as the questions that `plan/` answers. Every rank gets the same answers.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from neocpu.core.errors import ConfigError
from neocpu.core.policies import POLICIES
from neocpu.core.records import choose
from neocpu.parallel.exchange.wire_formats import refuse_cut_blocks
from neocpu.parallel.sharding.messages import plan_on_first_rank
from neocpu.parallel.sharding.pins import choose_pins
from neocpu.parallel.sharding.plan import (
    Plan,
    PlanSpec,
    choose_schemes,
    is_plan_file,
    ranks_of_group,
)
from neocpu.parallel.transport.comm import Comm
from neocpu.plan.cost.row_curves import RowCurve
from neocpu.plan.cost.work import Wires, Workload
from neocpu.plan.search import auto
from neocpu.tables.embedding.memory_plan import MemoryPlan
from neocpu.tables.tiers.placement import AUTO, PLACEMENTS, choose_placements
from neocpu.train.config.config import Config
from neocpu.train.config.memory import MemoryConfig

if TYPE_CHECKING:
    from neocpu.plan.cost.links import Layout
    from neocpu.plan.files.plan_file import PlanFile
    from neocpu.plan.machines.machine import Machine
    from neocpu.plan.search.free_cuts import Pins
    from neocpu.plan.tiers.placements import Capacity
    from neocpu.train.before.train_facts import TrainFacts


def make_plan(
    config: Config,
    comm: Comm,
    pooling: Mapping[str, float],
    ranks: int | None = None,
    distinct: Mapping[str, float] | None = None,
    curves: Mapping[str, RowCurve] | None = None,
) -> Plan:
    """Which rank holds which rectangle of which table. Collective.

    pooling : mean lookups per sample of each table (1 where a table is missing).
    ranks : of a run that is only planned for; None: those of `comm`.
    distinct : distinct rows that a step looks up in each table, where they were measured.
    curves : how lookups are spread over the rows of tables whose rows are not alike.
    """
    # the nodes of a run are real ones; of one that is only planned, what the config says
    per_node = comm.ranks_per_node if ranks is None else config.parallel.ranks_per_node or None
    work = workload(config, pooling, distinct, curves)
    count = ranks or comm.size
    return plan_on_first_rank(comm, config.tables, lambda: _checked(config, count, per_node, work))


def plan_for_data(
    config: Config, comm: Comm, data: "TrainFacts | None", ranks: int | None = None
) -> Plan:
    """As `make_plan`, with what train data tell (None: there are none yet). Collective."""
    if data is None:
        return make_plan(config, comm, {}, ranks)
    # a planner that counts bytes asks for no distinct rows, and one rank cuts no table
    return make_plan(
        config,
        comm,
        data.pooling_factors(),
        ranks,
        data.distinct_rows() if _plans_in_seconds(config) else None,
        data.row_curves() if (ranks or comm.size) > 1 else None,
    )


def _plans_in_seconds(config: Config) -> bool:
    """Does the run's planner minimise seconds, of which distinct rows decide some, or bytes?"""
    return config.parallel.planner != "greedy"


def _checked(config: Config, ranks: int, per_node: int | None, work: Workload) -> Plan:
    """The plan, which the config's wires and tables allow."""
    plan = _plan(config, ranks, per_node, work)
    # of a file's plan too: a block that is cut has another scale
    refuse_cut_blocks(plan, config.wires.specs)
    _refuse_groups(config, plan)
    return plan


def _refuse_groups(config: Config, plan: Plan) -> None:
    """Raise ConfigError for replica groups where the config asks for what they cannot do."""
    if plan.replica_groups == 1:
        return
    fault = ""
    if unpooled := [table.name for table in config.tables if table.pooling == "none"]:
        fault = f"rows of table {unpooled[0]!r}, which has no pooling, travel between all ranks"
    elif config.parallel.towers:
        fault = "parallel.towers keeps each table on one node"
    elif config.checkpoint.parity:
        fault = "checkpoint.parity knows one copy of each row"
    if fault:
        raise ConfigError(
            f"parallel.replica_groups: the plan has {plan.replica_groups} groups of ranks, but "
            f"{fault}; leave one of both out"
        )


def _plan(config: Config, ranks: int, per_node: int | None, work: Workload) -> Plan:
    """The plan of a file, or one that is made."""
    spec = config.parallel.plan
    if isinstance(spec, str) and is_plan_file(spec):
        from neocpu.plan.files import plan_file

        return plan_of_file(config, plan_file.load(spec), ranks, per_node, work)
    if config.training.sync == "off":
        from neocpu.train.asynchronous.roles import plan_of_servers

        return plan_of_servers(config, ranks, per_node, lambda c, n: _plan(c, n, None, work))
    if config.parallel.towers:
        return _plan_by_nodes(config, ranks, per_node or ranks, work)
    groups = config.parallel.replica_groups
    return _plan_of_groups(config, groups, ranks, per_node, work, spec)


def _plan_of_groups(
    config: Config,
    groups: int,
    ranks: int,
    per_node: int | None,
    work: Workload,
    spec: PlanSpec,
    fixed: "Pins | None" = None,
) -> Plan:
    """A plan for the ranks and samples of one replica group, and all groups as that one.

    fixed : as of `_planned`.
    """
    node_ranks = min(per_node or ranks, ranks)
    of_group = work.of_group(config.tables, groups)
    if _plans_in_seconds(config):
        from neocpu.plan.cost.links import Layout

        layout = Layout.of_run(ranks, node_ranks, config.parallel.route, groups)
        plan = _planned(config, layout, of_group, spec, fixed)
    else:
        group_ranks = ranks_of_group(ranks, node_ranks, groups)
        group_node = min(node_ranks, group_ranks)
        budget = config.parallel.memory or None
        plan = auto.make_plan(config.tables, spec, group_ranks, group_node, of_group, budget, fixed)
    return plan if groups == 1 else plan.in_groups(groups, node_ranks)


def _plan_by_nodes(config: Config, ranks: int, per_node: int, work: Workload) -> Plan:
    """The plan in which each tower's tables lie on one node, whose ranks are planned as a run of
    their own.
    """
    from neocpu.plan.towers.tower_plan import plan_by_nodes

    tables = config.tables
    layout = config.layout(1)
    names = [table.name for table in tables]
    placements = dict(zip(names, choose_placements(names, config.memory.placement)))

    def plan_node(numbers: Sequence[int], schemes: Sequence[str]) -> Plan:
        node_tables = tuple(tables[number] for number in numbers)
        by_name = dict(zip((table.name for table in node_tables), schemes))
        # as in `plan_of_file`: by exact names, which win over patterns
        parallel = replace(config.parallel, plan=by_name, towers=False)
        memory = replace(config.memory, placement={t.name: placements[t.name] for t in node_tables})
        node_config = replace(config, tables=node_tables, parallel=parallel, memory=memory)
        return _plan(node_config, per_node, per_node, work)

    schemes = choose_schemes(tables, config.parallel.plan)
    towers = [tower.keys for tower in layout.towers]
    return plan_by_nodes(tables, schemes, towers, ranks, min(per_node, ranks), plan_node)


def plan_of_file(
    config: Config, file: "PlanFile", ranks: int, per_node: int | None, work: Workload
) -> Plan:
    """The plan of a file for a run; the planner completes what the file leaves open.

    Raises ConfigError and PlanError as `bind` does, ConfigError where the config says another
    number of replica groups, and PlanError for what does not fit.
    """
    from neocpu.plan.files.bound_plan import bind

    planned = bind(file, config.tables, ranks)
    groups = config.parallel.replica_groups
    if groups not in (1, file.replica_groups):
        raise ConfigError(
            f"parallel.replica_groups: the config has {groups}, and {file.source} has "
            f"{file.replica_groups}; leave it out, or plan anew"
        )
    # every table by its own name: no name is a pattern for others
    schemes = dict(zip((table.name for table in config.tables), planned.schemes))
    plan = _plan_of_groups(
        config, file.replica_groups, ranks, per_node, work, schemes, planned.fixed
    )
    return replace(plan, placements=planned.placements)


def _planned(
    config: Config,
    layout: "Layout",
    work: Workload,
    spec: PlanSpec,
    fixed: "Pins | None" = None,
) -> Plan:
    """The plan of the planner that the config names; rows are placed by `memory_plan`, under it.

    fixed : rectangles of tables that stay where they are, by number.
    """
    from neocpu.plan.cost.seconds import StepSeconds
    from neocpu.plan.search.planners import planner_of

    machine = _with_all_memories(planning_machine(config))
    model = StepSeconds(machine, config.tables, work, layout)
    propose = planner_of(config.parallel.planner)
    return propose(config.tables, spec, layout, model, work, capacity(config), fixed).plan


def wires_of(config: Config) -> Wires:
    """The formats in which a config's numbers travel."""
    wires = config.wires
    return Wires(wires.forward, wires.backward, dense=wires.dense, block=wires.block)


def planning_machine(config: Config) -> "Machine":
    """The machine of `parallel.machine`; without a name a generic one.

    Raises ConfigError where its file cannot be read.
    """
    name = config.parallel.machine
    if not name:
        from neocpu.plan.machines.generic import GENERIC

        return GENERIC
    from neocpu.plan.machines import machine_file

    return machine_file.load(name)


def _with_all_memories(machine: "Machine") -> "Machine":
    """The machine with the generic DDR and SSD where it has none: the config may use them here."""
    from neocpu.plan.machines.generic import GENERIC

    return replace(
        machine,
        ddr=machine.ddr if machine.ddr.capacity_bytes else GENERIC.ddr,
        ssd=machine.ssd if machine.ssd.capacity_bytes else GENERIC.ssd,
    )


def capacity(config: Config) -> "Capacity":
    """The config's budgets of a rank; without any there is no limit.

    As in `plan/tiers/tiers.py`: with memory.ddr alone nothing is in HBM, with memory.hbm alone
    nothing on SSD.
    """
    from neocpu.plan.tiers.placements import Capacity

    memory = config.memory
    present = {"hbm": not memory.ddr or memory.hbm, "ddr": True, "ssd": memory.ddr}
    return Capacity(
        hbm=memory.hbm,
        ddr=memory.ddr,
        ssd=memory.ssd,
        total=config.parallel.memory,
        memories=tuple(name for name, is_present in present.items() if is_present),
        placements=choose_placements([t.name for t in config.tables], memory.placement),
    )


def placements_of(config: Config, plan: Plan) -> tuple[str, ...]:
    """Placement of each table, which may be `auto`: what the config names, else what the plan does.

    The config names one for all tables if `memory.placement` is another than its default, or for
    those that its patterns match.

    Raises ConfigError where a plan file would decide what is in caches of another format.
    """
    names = [table.name for table in config.tables]
    spec = config.memory.placement
    configured = choose_placements(names, spec)
    if not any(plan.placements):
        return configured
    if isinstance(spec, str):
        chosen = ("" if spec == MemoryConfig().placement else spec,) * len(names)
    else:
        chosen = choose("memory.placement", "placement", names, spec, (*PLACEMENTS, AUTO), "")
    placements = tuple(
        name or planned or default
        for name, planned, default in zip(chosen, plan.placements, configured)
    )
    for table, placement, default in zip(names, placements, configured):
        # the digest covers memory.placement, not what a plan file says
        if config.memory.cache_format and placement != default:
            raise ConfigError(
                f"{config.parallel.plan}: table {table!r} is placed in {placement}, but with "
                "memory.cache_format the placement decides bits; say so in memory.placement"
            )
    return placements


def workload(
    config: Config,
    pooling: Mapping[str, float],
    distinct: Mapping[str, float] | None = None,
    curves: Mapping[str, RowCurve] | None = None,
) -> Workload:
    """What a step does to the tables; `pooling`, `distinct` and `curves` as for `make_plan`."""
    lookups_per_bag = {
        table.name: pooling[table.name] / len(table.features)
        for table in config.tables
        if table.name in pooling
    }
    return Workload(
        batch=config.training.batch_size,
        pooling=lookups_per_bag,
        state_floats=config.optimizer.sparse.state_floats,
        distinct=distinct or {},
        curves=curves or {},
        unique_rows=config.parallel.unique_rows,
        wires=wires_of(config),
        pins=choose_pins(config.tables, config.parallel.pins),
    )


def memory_plan(
    config: Config, plan: Plan, pooling: Mapping[str, float], folder: Path = Path()
) -> MemoryPlan:
    """Which memory each table lives in, under the config's budgets.

    pooling : as for `make_plan`. folder : for SSD files, unless the config names one.

    Raises TrainingError where placements are to be chosen and none fits.
    """
    memory = config.memory
    placements = placements_of(config, plan)
    demands: tuple[float, ...] = ()
    if AUTO in placements:
        placements, demands = _chosen_placements(config, plan, placements, pooling)
    return MemoryPlan(
        placements=placements,
        hbm=memory.hbm,
        ddr=memory.ddr,
        ssd=memory.ssd,
        policy=memory.policy,
        folder=Path(memory.folder or folder),
        # ranks of a job have its weight together; its name is that of its results
        share=memory.share / plan.ranks,
        job=f"{folder.parent.name}-{zlib.crc32(str(folder.absolute()).encode()):08x}",
        demands=demands,
        ddr_bandwidth=memory.ddr_bandwidth,
        ssd_bandwidth=memory.ssd_bandwidth,
        ssd_iops=memory.ssd_iops,
        prefetch=memory.prefetch,
    )


def _chosen_placements(
    config: Config, plan: Plan, named: Sequence[str], pooling: Mapping[str, float]
) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Placement of every table, chosen where the name is `auto`; and the tables' demands, for the
    lines that explain it.
    """
    from neocpu.plan.tiers.tiers import SPEEDS, demands, place_tables

    memory = config.memory
    # each group is placed alike
    work = workload(config, pooling).of_group(plan.tables, plan.replica_groups)
    plan = plan.group
    slower = {"ddr": memory.ddr_bandwidth, "ssd": memory.ssd_bandwidth}
    # a set bandwidth stands for a slower device, which the placement should know
    speeds = SPEEDS | {name: speed for name, speed in slower.items() if speed}
    placements = place_tables(plan, named, work, memory.hbm, memory.ddr, speeds)
    return placements, demands(plan, work)


def table_lines(config: Config, plan: Plan, memory: MemoryPlan) -> Iterator[str]:
    """What there is to say of the tables beside the plan: their kinds, and chosen memories."""
    if config.kinds:
        from neocpu.train.advice.kinds import kind_lines

        yield from kind_lines(config)
    if memory.demands:
        from neocpu.plan.cost.capacity import placement_lines

        yield from placement_lines(plan, memory, config.optimizer.sparse.state_floats)
    if not memory.plain:
        yield POLICIES[memory.policy].text(config.memory)
