"""Which objects make up one rank of a run? Its model, its part of the tables, and what trains them.

They are built here from the config, once, for training, evaluation and warm-up alike.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from neocpu.core.errors import ConfigError
from neocpu.core.types import Floats
from neocpu.parallel.embeddings.protocol import Embedding
from neocpu.parallel.embeddings.sharded import ShardedEmbedding
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.exchange.wires import Wire
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer, DenseRule
from neocpu.tables.embedding.memory_plan import MemoryPlan
from neocpu.tables.specs.feature_groups import key_groups
from neocpu.tables.specs.optimizer_groups import dense_runs
from neocpu.tables.storage.arena import LastingMemory
from neocpu.train.config.config import Config
from neocpu.train.config.settings import STOP
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.step.step import StepOptions, TrainStep

if TYPE_CHECKING:
    from neocpu.train.step.dynamic_kinds import DynamicKinds
    from neocpu.train.step.tower_gradients import TowerGradients


@dataclass(frozen=True)
class World:
    """The objects of one rank.

    config, comm, plan : what they were built from. model : the dense part, the same on all ranks.
    embedding : this rank's shards of the tables. dense : the optimizer of the model's parameters.
    step : trains model and embedding on one batch. towers : where the model's towers run on their
    nodes (None: at home). dynamic : the tables whose rows move in training (None: there is none).
    """

    config: Config
    comm: Comm
    plan: Plan
    model: Dlrm
    embedding: Embedding[Any]
    dense: DenseOptimizer
    step: TrainStep
    towers: "TowerGradients | None" = None
    dynamic: "DynamicKinds | None" = None

    def scale_rates(self, factor: float) -> None:
        """Multiply the learning rates of tables and dense parameters."""
        self.embedding.tbe.scale_rates(factor)
        self.dense.scale_rates(factor)

    def close(self) -> None:
        """Close files, and end threads that move rows and activations."""
        self.embedding.tbe.close()
        if self.step.activations is not None:
            self.step.activations.close()

    @contextmanager
    def looked_at(self) -> Iterator[None]:
        """Dense parameters are those that are measured within the block: their moving average, if
        the config has one.
        """
        if not self.config.eval.uses_average:
            yield
            return
        with self.dense.averaged():
            yield


def build(
    config: Config,
    comm: Comm,
    plan: Plan,
    dense_features: int,
    huge: bool = True,
    memory: MemoryPlan | None = None,
    model: Dlrm | None = None,
    lasting: LastingMemory | None = None,
) -> World:
    """Model, tables and optimizers of one rank; no row is looked up, so none takes memory yet.

    huge : tables on huge pages. memory : where tables live (None: in memory, all of them).
    model : the dense part (None: that of the config). lasting : as of `ShardingEnv`.
    """
    training = config.training
    if config.parallel.alltoall == "two_level":
        from neocpu.parallel.exchange.two_level import two_level

        comm = two_level(comm)
    model = model or model_of(config, dense_features)
    env = ShardingEnv(
        plan=plan,
        comm=comm,
        optimizer=config.optimizer.sparse,
        seed=training.seed,
        leaves=training.leaves,
        first_column=model.first_column,
        route=config.parallel.route,
        unique_rows=config.parallel.unique_rows,
        wires=config.wires.specs,
        huge=huge,
        memory=memory,
        lasting=lasting,
    )
    embedding, towers = _embedding(config, env, model)
    dense = dense_optimizer(config, model, comm)
    dense.settle = model.settle
    of_table = config.table_optimizers()
    shards = plan.local(comm.rank)
    embedding.tbe.give_rates([of_table[plan.tables[shard.table].name] for shard in shards])
    embedding.tbe.refuses_overflow = True
    dynamic = _dynamic(config, comm, plan, model, embedding)
    return World(
        config=config,
        comm=comm,
        plan=plan,
        model=model,
        embedding=embedding,
        dense=dense,
        step=TrainStep(model, embedding, dense, _step_options(config), towers, dynamic),
        towers=towers,
        dynamic=dynamic,
    )


def dense_optimizer(config: Config, model: Dlrm, comm: Comm) -> DenseOptimizer:
    """What trains the parameters of the model."""
    rates = config.optimizer
    runs = dense_runs(model.layout.parameter_sizes(), rates.dense, rates.groups)
    rule = DenseRule(rates.dense, model.flat, runs, config.eval.ema)
    if rates.trust_ratio:
        from neocpu.train.step.trust_ratio import TrustRatio

        return TrustRatio(model.layout.parameter_sizes(), rule)
    if not rates.in_blocks:
        return DenseOptimizer(rates.dense, model.flat, runs, config.eval.ema)
    from neocpu.train.step.muon import Muon
    from neocpu.train.step.shampoo import Shampoo

    shapes = dict(model.layout.tensors())
    if rates.muon.steps:
        return Muon(comm, shapes, rates.muon, rule)
    return Shampoo(comm, shapes, rates.shampoo, rule)


def model_of(config: Config, dense_features: int, flat: Floats | None = None) -> Dlrm:
    """The dense part of the model; flat : memory of its parameters (None: its own).

    Raises ConfigError for the config of a search, which holds many models.
    """
    if config.search.supernet:
        raise ConfigError(
            f"{config.source}: search.supernet: it is the config of a search, whose checkpoints "
            "hold many models at once; train its found.toml"
        )
    layout = config.layout(dense_features)
    return Dlrm(layout, config.training.seed, apart=config.parallel.towers, flat=flat)


def _step_options(config: Config) -> StepOptions:
    return StepOptions(
        pipeline=config.training.pipeline,
        bucket_bytes=config.training.bucket_bytes,
        wire=Wire.of(config.wires.specs.dense, backward=True),
        clip_norm=config.optimizer.clip_norm,
        skips=config.training.on_nonfinite != STOP,
    )


def _dynamic(
    config: Config,
    comm: Comm,
    plan: Plan,
    model: Dlrm,
    embedding: Embedding[Any],
) -> "DynamicKinds | None":
    """The tables whose rows move in training."""
    if all(composition.dynamic is None for composition in config.compositions):
        return None
    from neocpu.train.step.dynamic_kinds import DynamicKinds
    from neocpu.train.step.table_rows import TableRows

    assert model.composition is not None
    seed = config.training.seed
    rows = TableRows(comm, plan, embedding.tbe, config.optimizer.sparse, seed)
    parts = model.composition.layout.parts
    return DynamicKinds(config, comm, parts, model.first_column, rows)


def _embedding(
    config: Config, env: ShardingEnv, model: Dlrm
) -> "tuple[Embedding[Any], TowerGradients | None]":
    """The tables of this rank, and what trains towers that run on their nodes."""
    if config.parallel.towers:
        from neocpu.train.step.tower_world import build_apart

        return build_apart(env, model)
    composition = model.layout.composition
    if composition is not None and composition.unpooled:
        from neocpu.parallel.embeddings.mixed import MixedEmbedding

        return MixedEmbedding(env, composition.once), None
    if env.plan.replica_groups > 1:
        from neocpu.parallel.embeddings.grouped import GroupedEmbedding

        return GroupedEmbedding(env), None
    groups = key_groups(config.tables, config.data.deduplicate)
    return ShardedEmbedding(replace(env, groups=groups)), None
