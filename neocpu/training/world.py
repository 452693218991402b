"""Which objects make up one rank of a run? Built here from the config, once, for training,
evaluation and warm-up alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from neocpu.config import Config
from neocpu.embedding.optimizers import DenseOptimizer
from neocpu.embedding.specs import bags
from neocpu.embedding.tiered import MemoryPlan
from neocpu.model.dlrm import Dlrm
from neocpu.parallel.comm import Comm
from neocpu.parallel.plan import Plan
from neocpu.parallel.sharded import ShardedEmbedding
from neocpu.planner import auto
from neocpu.planner.cost import Workload
from neocpu.planner.tiers import SPEEDS, demands, place_tables
from neocpu.storage.placement import AUTO, choose_placements
from neocpu.training.step import TrainStep


@dataclass(frozen=True)
class World:
    """One rank's share of a run."""

    config: Config
    comm: Comm
    plan: Plan
    model: Dlrm
    embedding: ShardedEmbedding
    dense: DenseOptimizer
    step: TrainStep


def make_plan(
    config: Config, comm: Comm, pooling: Mapping[str, float], ranks: int | None = None
) -> Plan:
    """The run's plan, the same on every rank; `pooling`: mean lookups per sample and table (default
    1); `ranks`: of a coming run, if not those of `comm`.
    """
    work = workload(config, pooling)
    per_node = comm.ranks_per_node if ranks is None else config.parallel.ranks_per_node or None
    memory = config.parallel.memory or None
    return auto.make_plan(
        config.tables, config.parallel.plan, ranks or comm.size, per_node, work, memory
    )


def workload(config: Config, pooling: Mapping[str, float]) -> Workload:
    """What a step does to the tables; `pooling`: as above."""
    bags = {
        table.name: pooling[table.name] / len(table.features)
        for table in config.tables
        if table.name in pooling
    }
    return Workload(config.training.batch_size, bags, config.optimizer.sparse.state_floats)


def memory_plan(
    config: Config, plan: Plan, pooling: Mapping[str, float], folder: Path = Path()
) -> MemoryPlan:
    """Where the tables live, the same on every rank; `folder`: for SSD files, unless the config
    names one.

    Raises TrainingError where placements are to be chosen and none fits.
    """
    memory = config.memory
    work = workload(config, pooling)
    named = choose_placements([table.name for table in config.tables], memory.placement)
    speeds = {"ddr": memory.ddr_bandwidth, "ssd": memory.ssd_bandwidth}
    places = place_tables(
        plan, named, work, memory.hbm, memory.ddr, SPEEDS | {m: s for m, s in speeds.items() if s}
    )
    return MemoryPlan(
        placements=places,
        hbm=memory.hbm,
        ddr=memory.ddr,
        ssd=memory.ssd,
        policy=memory.policy,
        folder=Path(memory.folder or folder),
        demands=demands(plan, work) if AUTO in named else (),
        ddr_bandwidth=memory.ddr_bandwidth,
        ssd_bandwidth=memory.ssd_bandwidth,
        ssd_iops=memory.ssd_iops,
        prefetch=memory.prefetch,
    )


def build(
    config: Config,
    comm: Comm,
    plan: Plan,
    dense_features: int,
    huge: bool = True,
    memory: MemoryPlan | None = None,
) -> World:
    """Model, tables and optimizers of one rank; nothing is looked up yet, and no table row exists.
    `huge`: tables on huge pages; `memory`: where tables live (None: in memory, all of them).
    """
    training = config.training
    optimizer = config.optimizer
    model = Dlrm(
        dense_features=dense_features,
        dims=[plan.tables[bag.table].dim for bag in bags(plan.tables)],
        bottom=config.model.bottom,
        top=config.model.top,
        interaction=config.model.interaction,
        diagonal=config.model.diagonal,
        loss=config.model.loss,
        seed=training.seed,
    )
    embedding = ShardedEmbedding(
        plan,
        comm,
        optimizer.sparse,
        training.seed,
        training.leaves,
        model.first_column,
        config.parallel.route,
        huge,
        memory,
    )
    dense = DenseOptimizer(optimizer.dense, model.flat)
    return World(
        config,
        comm,
        plan,
        model,
        embedding,
        dense,
        TrainStep(model, embedding, dense, comm, training.leaves),
    )
