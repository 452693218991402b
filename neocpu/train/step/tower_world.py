"""Which objects make up a rank whose node looks up and compresses its own features?

What `world.build` needs where `parallel.towers` is set.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from neocpu.core.errors import PlanError
from neocpu.core.types import Ints
from neocpu.parallel.embeddings.disaggregated import (
    DisaggregatedEmbedding,
    keys_of_nodes,
    node_of_tables,
)
from neocpu.parallel.exchange.peers import Peers
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.exchange.wires import Wire
from neocpu.parallel.sharding.entries import key_columns
from neocpu.parallel.sharding.plan import Plan
from neocpu.tables.specs.specs import bags
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.model.layout import ModelLayout
from neocpu.train.model.towers import Towers
from neocpu.train.step.tower_gradients import TowerGradients


def build_apart(
    env: ShardingEnv, model: Dlrm
) -> tuple[DisaggregatedEmbedding, TowerGradients | None]:
    """The tables of this rank, and what trains the towers of its node, if there are any.

    Raises PlanError where tables or towers do not lie on one node each, or nodes are not equal.
    """
    plan = env.plan
    peers = Peers(env.comm, plan.ranks_per_node, env.leaves)
    nodes = node_of_tables(plan)
    node_of = nodes_of_towers(model.layout, plan, nodes)
    towers = _towers_of_node(model, plan, nodes, node_of, peers.node) if node_of else None
    columns = _columns(model.layout, plan, nodes, node_of)
    embedding = DisaggregatedEmbedding(env, peers, columns, towers)
    if towers is None:
        return embedding, None
    wire = Wire.of(env.wires.dense, backward=True)
    return embedding, TowerGradients(model, towers, node_of, peers, wire)


def nodes_of_towers(layout: ModelLayout, plan: Plan, nodes: Sequence[int]) -> list[int]:
    """Node of each tower; nodes : of each table. Raises PlanError for a tower on several nodes."""
    tables = [key.table for key in bags(plan.tables)]
    node_of = []
    for tower in layout.towers:
        tower_nodes = {nodes[tables[key]] for key in tower.keys}
        if len(tower_nodes) > 1:
            raise PlanError(
                f"parallel.towers: the tables of tower {tower.name!r} lie on the nodes "
                f"{sorted(tower_nodes)}, but its module needs them on one"
            )
        node_of.append(tower_nodes.pop())
    return node_of


def _towers_of_node(
    model: Dlrm, plan: Plan, nodes: Sequence[int], node_of: Sequence[int], node: int
) -> Towers:
    """The modules of one node, for its pooled vectors side by side."""
    keys = keys_of_nodes(plan, nodes)[node]
    position = {key: i for i, key in enumerate(keys)}
    layouts = [
        replace(tower, keys=tuple(position[key] for key in tower.keys))
        for tower, tower_node in zip(model.layout.towers, node_of)
        if tower_node == node
    ]
    return Towers(0, [model.layout.dims[key] for key in keys], layouts, model.parameters)


def _columns(
    layout: ModelLayout, plan: Plan, nodes: Sequence[int], node_of: Sequence[int]
) -> list[Ints]:
    """Columns of the matrix that interacts which each node fills."""
    if node_of:
        widths = [tower.columns for tower in layout.towers]
        starts = layout.first_column + np.cumsum([0, *widths])
        members = [
            [t for t, tower_node in enumerate(node_of) if tower_node == node]
            for node in range(max(nodes) + 1)
        ]
    else:
        starts = key_columns(plan.tables, layout.first_column)
        members = keys_of_nodes(plan, nodes)
    return [
        np.concatenate([np.arange(starts[i], starts[i + 1]) for i in numbers])
        for numbers in members
    ]
