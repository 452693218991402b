"""Which objects make up one rank of a run? Its model, its part of the tables, and what trains them.

They are built here from the config, once, for training, evaluation and warm-up alike.
"""

from dataclasses import dataclass

from neocpu.config import Config
from neocpu.embedding.optimizers import DenseOptimizer
from neocpu.embedding.specs import bags
from neocpu.embedding.tiered import MemoryPlan
from neocpu.model.dlrm import Dlrm
from neocpu.parallel.comm import Comm
from neocpu.parallel.plan import Plan
from neocpu.parallel.sharded import ShardedEmbedding
from neocpu.training.step import TrainStep


@dataclass(frozen=True)
class World:
    """The objects of one rank.

    config, comm, plan : what they were built from. model : the dense part, the same on all ranks.
    embedding : this rank's shards of the tables. dense : the optimizer of the model's parameters.
    step : trains model and embedding on one batch.
    """

    config: Config
    comm: Comm
    plan: Plan
    model: Dlrm
    embedding: ShardedEmbedding
    dense: DenseOptimizer
    step: TrainStep


def build(
    config: Config,
    comm: Comm,
    plan: Plan,
    dense_features: int,
    huge: bool = True,
    memory: MemoryPlan | None = None,
) -> World:
    """Model, tables and optimizers of one rank; no row is looked up, so none takes memory yet.

    huge : tables on huge pages. memory : where tables live (None: in memory, all of them).
    """
    training = config.training
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
        config.optimizer.sparse,
        training.seed,
        training.leaves,
        first_column=model.first_column,
        route=config.parallel.route,
        huge=huge,
        memory=memory,
    )
    dense = DenseOptimizer(config.optimizer.dense, model.flat)
    return World(
        config=config,
        comm=comm,
        plan=plan,
        model=model,
        embedding=embedding,
        dense=dense,
        step=TrainStep(
            model,
            embedding,
            dense,
            comm,
            training.leaves,
            training.pipeline,
            training.bucket_bytes,
        ),
    )
