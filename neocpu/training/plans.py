"""Where do the tables of a run go: to which ranks, and into which memories?

The run's config, put as the questions that `planner/` answers. Every rank gets the same answers.
"""

from collections.abc import Mapping
from pathlib import Path

from neocpu.config import Config
from neocpu.embedding.tiered import MemoryPlan
from neocpu.parallel.comm import Comm
from neocpu.parallel.plan import Plan
from neocpu.parallel.shared_plan import plan_on_first_rank
from neocpu.planner import auto
from neocpu.planner.cost import Workload
from neocpu.planner.tiers import SPEEDS, demands, place_tables
from neocpu.storage.placement import AUTO, choose_placements


def make_plan(
    config: Config, comm: Comm, pooling: Mapping[str, float], ranks: int | None = None
) -> Plan:
    """Which rank holds which rectangle of which table. Collective.

    pooling : mean lookups per sample of each table (1 where a table is missing).
    ranks : of a run that is only planned for; None: those of `comm`.
    """
    per_node = comm.ranks_per_node if ranks is None else config.parallel.ranks_per_node or None
    return plan_on_first_rank(
        comm,
        config.tables,
        lambda: auto.make_plan(
            config.tables,
            config.parallel.plan,
            ranks or comm.size,
            per_node,
            workload(config, pooling),
            config.parallel.memory or None,
        ),
    )


def workload(config: Config, pooling: Mapping[str, float]) -> Workload:
    """What a step does to the tables; `pooling` as for `make_plan`."""
    lookups_per_bag = {
        table.name: pooling[table.name] / len(table.features)
        for table in config.tables
        if table.name in pooling
    }
    return Workload(
        config.training.batch_size, lookups_per_bag, config.optimizer.sparse.state_floats
    )


def memory_plan(
    config: Config, plan: Plan, pooling: Mapping[str, float], folder: Path = Path()
) -> MemoryPlan:
    """Which memory each table lives in, under the config's budgets.

    pooling : as for `make_plan`. folder : for SSD files, unless the config names one.

    Raises TrainingError where placements are to be chosen and none fits.
    """
    memory = config.memory
    work = workload(config, pooling)
    placements = choose_placements([table.name for table in config.tables], memory.placement)
    slower = {"ddr": memory.ddr_bandwidth, "ssd": memory.ssd_bandwidth}
    speeds = SPEEDS | {name: speed for name, speed in slower.items() if speed}
    return MemoryPlan(
        placements=place_tables(plan, placements, work, memory.hbm, memory.ddr, speeds),
        hbm=memory.hbm,
        ddr=memory.ddr,
        ssd=memory.ssd,
        policy=memory.policy,
        folder=Path(memory.folder or folder),
        demands=demands(plan, work) if AUTO in placements else (),
        ddr_bandwidth=memory.ddr_bandwidth,
        ssd_bandwidth=memory.ssd_bandwidth,
        ssd_iops=memory.ssd_iops,
        prefetch=memory.prefetch,
    )
