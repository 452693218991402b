"""Who serves, who trains, and who is to give what to whom?"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from neocpu.core.errors import ConfigError
from neocpu.core.trees import Node, aligned_nodes, rank_leaves
from neocpu.core.types import Ints
from neocpu.parallel.sharding.entries import key_columns
from neocpu.parallel.sharding.plan import Plan
from neocpu.tables.specs.specs import bags
from neocpu.train.config.asynchronous import ON, AsynchronousKeys
from neocpu.train.config.config import Config


@dataclass(frozen=True)
class RankRoles:
    """The ranks of a run: `keys.servers` of them serve only, the last ones; 0: all do both.

    workers : threads that train, on all ranks together; worker w's samples of a batch are those of
    rank w of so many.
    """

    ranks: int
    keys: AsynchronousKeys

    def __post_init__(self) -> None:
        if self.keys.servers >= self.ranks:
            raise ConfigError(
                f"training.asynchronous.servers: {self.keys.servers} of {self.ranks} rank(s) "
                "leave none that trains; use more ranks, or 0, with which all serve and train"
            )

    @property
    def trainers(self) -> int:
        """Ranks that train, the first ones."""
        return self.ranks - self.keys.servers

    @property
    def servers(self) -> range:
        """Ranks that serve."""
        return range(self.trainers if self.keys.servers else 0, self.ranks)

    @property
    def workers(self) -> int:
        """Threads of all trainers."""
        return self.trainers * self.keys.threads

    def workers_of(self, rank: int) -> range:
        """The workers on a rank."""
        count = self.keys.threads if rank < self.trainers else 0
        return range(rank * self.keys.threads, rank * self.keys.threads + count)

    def nodes_of(self, worker: int, leaves: int) -> list[Node]:
        """Aligned nodes of a worker's leaves."""
        return list(aligned_nodes(*rank_leaves(worker, self.workers, leaves)))

    def cuts(self, parameters: int) -> Ints:
        """i64[ranks + 1]: rank r serves the dense parameters [cuts[r], cuts[r+1])."""
        first = self.servers.start
        share = np.maximum(np.arange(self.ranks + 1) - first, 0)
        return (parameters * share // len(self.servers)).astype(np.int64)


@dataclass(frozen=True)
class Keys:
    """The keys of the tables on one server: their numbers in a batch, and columns i64[C] of E."""

    rank: int
    numbers: tuple[int, ...]
    columns: Ints

    @cached_property
    def span(self) -> slice | None:
        """The columns, where they are one run."""
        columns = self.columns
        if columns.size and columns[-1] - columns[0] + 1 == columns.size:
            return slice(int(columns[0]), int(columns[-1]) + 1)
        return None


def keys_of_servers(plan: Plan, first_column: int, servers: range) -> list[Keys]:
    """The keys of each server that has any; first_column : of E before the first vector."""
    ends = list(pairwise(key_columns(plan.tables, first_column).tolist()))
    keys = []
    for rank in servers:
        own = {shard.table for shard in plan.local(rank)}
        numbers = tuple(i for i, bag in enumerate(bags(plan.tables)) if bag.table in own)
        columns = [np.arange(*ends[number]) for number in numbers]
        if numbers:
            keys.append(Keys(rank, numbers, np.concatenate(columns).astype(np.int64)))
    return keys


def plan_of_servers(
    config: Config, ranks: int, per_node: int | None, planned: Callable[[Config, int], Plan]
) -> Plan:
    """A plan of whole tables on the ranks that serve.

    planned(config, servers) : a plan of a synchronous run for so many ranks.
    """
    servers = RankRoles(ranks, config.training.asynchronous).servers
    training = replace(config.training, sync=ON)
    parallel = replace(config.parallel, plan="table_wise")
    plan = planned(replace(config, training=training, parallel=parallel), len(servers))
    shards = tuple(replace(shard, rank=servers[shard.rank]) for shard in plan.shards)
    node = min(per_node or ranks, ranks)
    return replace(plan, shards=shards, ranks=ranks, ranks_per_node=node).check()
