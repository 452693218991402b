"""Which rows does a rank hold? Those of its shards, in one memory or in several."""

from dataclasses import replace

from neocpu.parallel.sharding.plan import Plan
from neocpu.tables.embedding.memory_plan import MemoryPlan
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.specs.optimizers import SparseOptimizer


def tables_of_rank(
    plan: Plan,
    rank: int,
    optimizer: SparseOptimizer,
    seed: int,
    huge: bool = True,
    memory: MemoryPlan | None = None,
) -> TableBatchedEmbedding:
    """The rows of one rank, shard i those of `plan.local(rank)[i]`; arguments as for
    `ShardedEmbedding`, which limits gradients itself.
    """
    shards = plan.local(rank)
    rule = replace(optimizer, max_gradient=0.0)
    if memory is None or memory.plain:
        return TableBatchedEmbedding(plan.tables, shards, rule, seed, huge=huge)

    from neocpu.tables.embedding.tiered import TieredEmbedding

    return TieredEmbedding(plan.tables, shards, rule, seed, memory, f"rank-{rank}.h5", huge)
