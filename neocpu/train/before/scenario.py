"""Which scenario does a config make? Its tables, its dense layers, and what `--set` changes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from neocpu.core.errors import ConfigError
from neocpu.parallel.sharding.plan import is_plan_file
from neocpu.plan.cost.row_curves import RowCurve
from neocpu.plan.cost.work import DenseWork, Workload
from neocpu.plan.simulation.collectives import MEASURED
from neocpu.tables.specs.compositions import Tensors
from neocpu.train.before.plans import workload
from neocpu.train.before.train_facts import TrainFacts
from neocpu.train.config.asynchronous import OFF, ON
from neocpu.train.config.config import Config
from neocpu.train.model.layout import ModelLayout

if TYPE_CHECKING:
    from neocpu.plan.machines.machine import Machine
    from neocpu.plan.simulation.scenario import Scenario
    from neocpu.plan.simulation.what_if import WhatIf

# Numbers of a sample of a click log, where the config names no data to look at.
DENSE_FEATURES = {"criteo": 13}


@dataclass(frozen=True)
class Course:
    """How steps go: one of stages.PIPELINES, algorithms as in StageOptions, steps measured."""

    pipeline: str = "full"
    algorithm: str = MEASURED
    sums: str = ""
    steps: int = 4


class LogFacts(NamedTuple):
    """What data that were looked at tell a planner.

    pooling : mean lookups per sample of each table. distinct : distinct rows that a step looks up
    in it. dense_features : of a sample (0: not known). curves : how lookups are spread over rows
    that are not alike.
    """

    pooling: Mapping[str, float]
    distinct: Mapping[str, float]
    dense_features: int
    curves: Mapping[str, RowCurve] = MappingProxyType({})

    @classmethod
    def of(cls, splits: TrainFacts | None) -> "LogFacts":
        """Those of the data of a run, if there are any."""
        if splits is None:
            return NO_FACTS
        return cls(
            splits.pooling_factors(),
            splits.distinct_rows(),
            splits.dense_features,
            splits.row_curves(),
        )


NO_FACTS = LogFacts({}, {}, 0)


def refuse_unmodelled(config: Config) -> None:
    """Raise ConfigError for steps that no model of a step's cost knows: on parameter servers, and
    with towers on their nodes.
    """
    if config.training.sync == OFF:
        raise ConfigError(
            "training.sync: what a step costs on parameter servers is not modelled; "
            f'--set training.sync="{ON}" asks about synchronous training'
        )
    if config.parallel.towers:
        raise ConfigError(
            "parallel.towers: what a step costs with towers on their nodes is not modelled; "
            "--set parallel.towers=false asks about towers at home"
        )


def replica_groups_of(config: Config) -> int:
    """Replica groups of the config, or of its plan file."""
    spec = config.parallel.plan
    if isinstance(spec, str) and is_plan_file(spec):
        from neocpu.plan.files import plan_file

        return plan_file.load(spec).replica_groups
    return config.parallel.replica_groups


def _refuse_budget(config: Config) -> None:
    """Raise ConfigError for a budget of activations."""
    if config.memory.activations:
        raise ConfigError(
            "memory.activations: what a step waits for activations is measured when a run begins, "
            "and not simulated; ask about steps that keep all: --set memory.activations=0"
        )


def _refuse_unequal(machine: "Machine") -> None:
    """Raise ConfigError for a machine whose ranks are unequal."""
    if machine.unequal:
        raise ConfigError(
            f"machine {machine.name}: ranks of a simulation are alike, and [[unequal]] says "
            "otherwise; ask `neocpu plan --machine`, or see jitter.slow_ranks"
        )


def dense_work(config: Config, dense_features: int, precision: str) -> DenseWork:
    """The dense layers of a config's model."""
    layout = config.layout(dense_features)
    layers = [*pairwise(layout.sizes("bottom")), *pairwise(layout.sizes("top"))]
    # what works once for each vector is counted once, as its parameters are
    between = [
        *layout.further_tensors(),
        *(t for tower in layout.towers for t in tower.tensors()),
        *_projections(layout),
    ]
    layers += [(shape[1], shape[0]) for _, shape in between if len(shape) == 2]
    return DenseWork(
        layers=tuple(layers),
        vectors=layout.dot_vectors,
        width=layout.first_column if layout.dot_vectors else 0,
        precision=precision,
        directions=config.optimizer.directions(dict(layout.tensors())),
    )


def _projections(layout: ModelLayout) -> Tensors:
    """Matrices that project pooled vectors (kind md), once for each key."""
    parts = layout.composition.parts if layout.composition else ()
    projected = [vectors for vectors in parts if vectors.operation == "project"]
    return tuple(tensor for vectors in projected for tensor in vectors.tensors)


def work_of(
    config: Config, machine: "Machine", ranks: int, changes: "WhatIf", facts: LogFacts
) -> Workload:
    """What a step of a config does on so many ranks; `changes` holds what `--set` says.

    Raises ConfigError for units that the machine lacks.
    """
    precision = changes.precision or "fp32"
    if not getattr(machine.compute, f"{precision}_flops_per_s"):
        raise ConfigError(f"work.precision: {machine.name} has no units for {precision}")
    work = workload(config, facts.pooling, facts.distinct, facts.curves)
    said = changes.pooling or changes.pooling_of
    return replace(
        work,
        batch=changes.samples_per_rank * ranks or work.batch,
        pooling=changes.of_pooling([table.name for table in config.tables], work.pooling),
        # other lookups than the data's look up other numbers of rows
        distinct={} if said or changes.samples_per_rank else work.distinct,
        dense=dense_work(config, _dense_features(config, changes, facts), precision),
        wires=changes.of_wires(work.wires),
    )


def _dense_features(config: Config, changes: "WhatIf", facts: LogFacts) -> int:
    known = changes.dense_features or facts.dense_features
    return known or DENSE_FEATURES.get(config.data.format, 1)


def scenario_of(
    config: Config,
    machine: "Machine",
    ranks: int,
    changes: "WhatIf",
    course: Course,
    facts: LogFacts = NO_FACTS,
) -> "Scenario":
    """The scenario of a config on so many ranks of a machine; `changes` holds what `--set` says.

    facts : of the data.

    Raises ConfigError for a batch that has no sample for some rank, and units that a machine lacks.
    """
    from neocpu.plan.simulation.costs import StageOptions
    from neocpu.plan.simulation.noise import Jitter, NodeFaults, RunningCosts
    from neocpu.plan.simulation.scenario import Scenario

    refuse_unmodelled(config)
    _refuse_budget(config)
    machine = changes.of_machine(machine)
    _refuse_unequal(machine)
    work = work_of(config, machine, ranks, changes, facts)
    batch = work.batch
    if batch < ranks:
        raise ConfigError(
            f"training.batch_size: {batch} samples are too few for {ranks} ranks; set it, or "
            "work.samples_per_rank"
        )
    readers = changes.readers_per_rank
    if changes.readers_per_node:
        share = changes.readers_per_node / min(machine.ranks_per_node, ranks)
        # both limit it
        readers = min(readers, share) if readers else share
    return Scenario(
        machine=machine,
        ranks=ranks,
        groups=replica_groups_of(config),
        tables=config.tables,
        work=work,
        route=config.parallel.route,
        pipeline=course.pipeline,
        options=StageOptions(
            algorithm=course.algorithm,
            sums=course.sums,
            bottom_layers=len(config.model.bottom),
            dense_features=_dense_features(config, changes, facts),
            readers=readers,
        ),
        steps=course.steps,
        cache_share=changes.cache_share,
        jitter=Jitter(changes.jitter_variation, changes.jitter_slow_ranks, changes.jitter_slow_by),
        faults=NodeFaults(
            node=3600 * changes.faults_node_hours,
            save=changes.faults_save_s,
            restart=changes.faults_restart_s,
            every=config.checkpoint.every_seconds,
        ),
        running=RunningCosts(changes.cost_node_hour, changes.cost_node_watts),
    )
