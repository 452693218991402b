"""What is the same for all tables of a rank? Who holds which rows, how they learn, and how lookups
and vectors travel.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from neocpu.core.trees import rank_samples
from neocpu.core.types import Ints
from neocpu.parallel.exchange.wire_formats import FP32, WireSpecs
from neocpu.parallel.exchange.wires import WireSet
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.embedding.memory_plan import MemoryPlan
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.specs.feature_groups import Groups
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.storage.arena import LastingMemory


@dataclass(frozen=True)
class ShardingEnv:
    """What embeddings and their exchanges are built from, the same on every rank.

    plan, comm : a checked plan for `comm.size` ranks.
    optimizer, seed : update rule of all tables; rows start at their Philox values
        (`docs/arithmetic.md` §9).
    leaves : leaves of the batch tree; rank r's samples are `trees.rank_samples(r, W, B, leaves)`.
    first_column : columns of E in front of the first pooled vector (the bottom MLP's output).
    route : wires of row-split tables' words, a name in `routes.ROUTES`.
    unique_rows : whether equal rows asked of one shard travel once, a name in
        `wire_formats.UNIQUE_ROWS`.
    wires : formats in which pooled vectors and their gradients travel.
    groups : keys whose repeated bags travel and are pooled once, of `feature_groups.key_groups`.
    huge : tables on huge pages. memory : where tables live (None: all in memory).
    cuts : batch size -> i64[W+1], first sample of each rank and the end (None: as the leaves are
        spread over the ranks).
    lasting : memory of this rank's rows that outlives the process (None: they need none).
    """

    plan: Plan
    comm: Comm
    optimizer: SparseOptimizer
    seed: int
    leaves: int
    first_column: int = 0
    route: str = "direct"
    unique_rows: str = "off"
    wires: WireSpecs = FP32
    groups: Groups = ()
    huge: bool = True
    memory: MemoryPlan | None = None
    cuts: Callable[[int], Ints] | None = None
    lasting: LastingMemory | None = None

    @cached_property
    def wire_set(self) -> WireSet:
        """The wires of pooled vectors and of their gradients."""
        return WireSet.of(self.wires)

    def sample_cuts(self, batch: int) -> Ints:
        """First sample of each rank in a global batch, and the end: i64[W+1]."""
        if self.cuts is not None:
            return self.cuts(batch)
        ranks = self.comm.size
        starts = [rank_samples(rank, ranks, batch, self.leaves)[0] for rank in range(ranks)]
        return np.array([*starts, batch], np.int64)

    def rank_tables(self) -> TableBatchedEmbedding:
        """The rows of this rank, shard i those of `plan.local(rank)[i]`, in one memory or in
        several.
        """
        shards = self.plan.local(self.comm.rank)
        # gradients are limited at home, before MEANs divide them and shards see them
        rule = replace(self.optimizer, max_gradient=0.0)
        tables = self.plan.tables
        if self.memory is None or self.memory.plain:
            return TableBatchedEmbedding(
                tables, shards, rule, self.seed, huge=self.huge, lasting=self.lasting
            )
        from neocpu.tables.embedding.tiered import TieredEmbedding

        file = f"rank-{self.comm.rank}.h5"
        return TieredEmbedding(tables, shards, rule, self.seed, self.memory, file, self.huge)
