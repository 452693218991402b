"""How can a node look up and compress its own features for all samples, before they leave it?

The tower transform of DMT (arXiv 2403.00877, as remembered) around an ordinary sharded embedding:

    start      lookups of node h's keys to its ranks, peer by peer           (peers.py)
    forward    inside node h: rank (h, l) is home of its peers' samples      (sharded.py)
    finish     the node's module, then its vectors home, peer by peer
    backward   the same way back

Without a module the vectors are the pooled ones: the data flow changes, nothing else. All sums on
the way are exact or in the order of the batch tree, so that no bit depends on it
(`docs/arithmetic.md` §2, §3).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from neocpu.core.errors import PlanError
from neocpu.core.jagged import KJT, InverseKJT
from neocpu.core.trees import rank_samples
from neocpu.core.types import Floats, Ints
from neocpu.parallel.embeddings.protocol import Embedding, LookupUnderWay
from neocpu.parallel.embeddings.sharded import ShardedEmbedding, StartedLookup, StartedUpdate
from neocpu.parallel.exchange.input_dist import Input, find_refusal, wide_rows
from neocpu.parallel.exchange.peers import PeerLookups, Peers, PeerVectors
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.started import Started, Steps
from neocpu.tables.embedding.distinct_bags import expand
from neocpu.tables.embedding.lookups import RowTerms
from neocpu.tables.specs.specs import bags


class NodeModule(Protocol):
    """What a node makes of its pooled vectors."""

    def forward(self, E: Floats) -> Floats:
        """Vectors f32[P, C] of pooled vectors f32[P, columns]."""

    def backward(self, gradient: Floats) -> Floats:
        """Gradient of the pooled vectors from that of the last vectors."""


def node_of_tables(plan: Plan) -> list[int]:
    """Node that holds each table.

    Raises PlanError for a table that lies on several nodes, and nodes without tables.
    """
    nodes = []
    for number, spec in enumerate(plan.tables):
        ranks = {shard.rank for shard in plan.of_table(number)}
        table_nodes = sorted({rank // plan.ranks_per_node for rank in ranks})
        if plan.replicated(number) or len(table_nodes) > 1:
            raise PlanError(
                f"parallel.towers: table {spec.name!r} ({plan.schemes[number]}) lies on the nodes "
                f"{table_nodes}, but each table must lie on one; choose table_wise, "
                "table_row_wise or table_column_wise"
            )
        nodes.append(table_nodes[0])
    missing_nodes = sorted(set(range(-(-plan.ranks // plan.ranks_per_node))) - set(nodes))
    if missing_nodes:
        raise PlanError(f"parallel.towers: the nodes {missing_nodes} hold no table")
    return nodes


def plan_of_node(plan: Plan, nodes: Sequence[int], node: int) -> Plan:
    """The plan of one node's tables for its ranks, counted from 0."""
    numbers = [table for table, table_node in enumerate(nodes) if table_node == node]
    first_rank = node * plan.ranks_per_node
    shards = [
        replace(shard, table=new, rank=shard.rank - first_rank)
        for new, table in enumerate(numbers)
        for shard in plan.of_table(table)
    ]
    return Plan(
        tables=tuple(plan.tables[table] for table in numbers),
        schemes=tuple(plan.schemes[table] for table in numbers),
        shards=tuple(sorted(shards)),
        ranks=plan.ranks_per_node,
        ranks_per_node=plan.ranks_per_node,
    )


def keys_of_nodes(plan: Plan, nodes: Sequence[int]) -> list[list[int]]:
    """Positions of each node's keys among those of a batch, ascending."""
    keys: list[list[int]] = [[] for _ in range(max(nodes) + 1)]
    for position, key in enumerate(bags(plan.tables)):
        keys[nodes[key.table]].append(position)
    return keys


class DisaggregatedEmbedding(Embedding[Input]):
    """The tables of a model, each on one node, looked up for the peers of its ranks.

    Inside the node unique rows travel once, and pooled vectors on wires.

    env : whose plan gives each table a node (`node_of_tables`).
    peers : the ranks as nodes and places.
    columns : where the vectors of each node stand in the matrix that interacts, i64 each.
    module : of this node's pooled vectors side by side (None: they travel as they are).

    Attributes: columns counts those of the matrix that interacts.
    """

    def __init__(
        self, env: ShardingEnv, peers: Peers, columns: Sequence[Ints], module: NodeModule | None
    ) -> None:
        nodes = node_of_tables(env.plan)
        keys = keys_of_nodes(env.plan, nodes)
        self.env = env
        self.bags = bags(env.plan.tables)
        self.keys = tuple(bag.key for bag in self.bags)
        self.columns = env.first_column + sum(vectors.size for vectors in columns)
        self.tbe = env.rank_tables()
        self._peers = peers
        self._module = module
        inside = replace(
            env,
            plan=plan_of_node(env.plan, nodes, peers.node),
            comm=peers.inside,
            first_column=0,
            # repeated bags are expanded before they travel to peers
            groups=(),
            # a rank is home of the samples of all its peers
            cuts=peers.cuts,
        )
        self._inside = ShardedEmbedding(inside, self.tbe)
        weighted = any(table.weighted for table in env.plan.tables)
        self._lookups = PeerLookups(peers, keys, self._inside.keys, weighted)
        self._vectors = PeerVectors(peers, columns)
        self._agreement = peers.comm.queue("input")
        self._batch = 0
        self._E = np.empty((0, self._inside.columns), np.float32)

    def start(self, kjt: KJT | InverseKJT, batch: int) -> Started[Input]:
        """Repeated bags travel as often as they are looked up."""
        kjt = wide_rows(expand(kjt) if isinstance(kjt, InverseKJT) else kjt)
        return Started(self._input(kjt, batch))

    def _input(self, kjt: KJT, batch: int) -> Steps[Input]:
        peers = self._peers
        lo, hi = rank_samples(peers.comm.rank, peers.comm.size, batch, peers.leaves)
        error = find_refusal(kjt, self.env.plan.tables, self.bags, hi - lo, lo)
        node_kjt = yield from self._lookups.gather(kjt if error is None else None, batch)
        shape = self._inside.exchange.shape(batch)
        # a rank that refuses tells its peers, and these their nodes: so all ranks come to agree
        agree = partial(self._agreement.agree, error)
        return (yield from self._inside.all_keys.input.steps(node_kjt, shape, agree))

    def know(self, coming: Started[Input]) -> None:
        self._inside.know(coming)

    def prefetch(self, coming: Started[Input]) -> None:
        self._inside.prefetch(coming)

    def lookup(self, coming: Started[Input]) -> "StartedVectors":
        return StartedVectors(self, self._inside.lookup(coming), coming.wait().shape.batch)

    def finish(self, lookup: StartedLookup, batch: int, out: Floats) -> None:
        """Write all nodes' vectors of this rank's samples into `out` f32[b, columns]."""
        if out.shape[1] != self.columns or out.dtype != np.float32:
            raise ValueError(f"expected float32[b, {self.columns}], not {out.dtype}{out.shape}")
        self._batch = batch
        samples = int(self._peers.sizes(batch).sum())
        if len(self._E) < samples:
            self._E = np.empty((samples, self._inside.columns), np.float32)
        pooled = self._E[:samples]
        lookup.finish(pooled)
        vectors = pooled if self._module is None else self._module.forward(pooled)
        self._vectors.home(vectors, batch, out)

    def start_backward(
        self, gradient: Floats, step: int, terms: Sequence[RowTerms] = ()
    ) -> StartedUpdate:
        pooled = self._vectors.back(gradient, self._batch)
        if self._module is not None:
            pooled = self._module.backward(pooled)
        return self._inside.start_backward(pooled, step)


class StartedVectors(LookupUnderWay):
    """Pooled rows on their way inside the node; its vectors travel when they are finished."""

    def __init__(self, owner: DisaggregatedEmbedding, lookup: StartedLookup, batch: int) -> None:
        self._owner = owner
        self._lookup = lookup
        self._batch = batch

    def send(self) -> None:
        self._lookup.send()

    def wait(self) -> None:
        self._lookup.wait()

    def finish(self, out: Floats) -> tuple[()]:
        self._owner.finish(self._lookup, self._batch, out)
        return ()
