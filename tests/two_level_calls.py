"""How many bytes do two-level exchanges send? The calls of `parallel/exchange/two_level.py`,
counted.

An exchange becomes one inside the nodes, from each rank to those of its node that relay, and one
between nodes; before them, unless all ranks know all counts, a small one that tells them. The dense
reduction has calls of its own where nodes are equally long
(`parallel/exchange/dense_reduction.py`).
"""

from collections.abc import Sequence

import numpy as np

from neocpu.core.trees import aligned_nodes, rank_leaves
from neocpu.core.types import Ints
from neocpu.parallel.exchange.two_level import Places
from neocpu.plan.cost.traffic.collectives import Collective
from neocpu.plan.cost.traffic.demand import Numbers
from neocpu.plan.cost.traffic.step import StepShape

COUNT = 8  # bytes of a count
NUMBER = 4  # of an fp32 number

# exchanges whose counts all ranks know of all ranks
KNOWN = {
    "input lengths",
    "pooled output",
    "pooled gradients",
    "further counts",
    "replica counts",
    "gathered counts",
}


def two_level_step(
    calls: Sequence[Collective], step: StepShape, nodes: Ints
) -> tuple[Collective, ...]:
    """The calls that those of a direct step become. nodes : i64[ranks], of each rank."""
    sizes = np.unique(nodes, return_counts=True)[1]
    if sizes.size == 1 or sizes.max() == 1:
        return tuple(calls)
    levels = Levels(nodes)
    if not levels.reduces or not step.wires.dense.exact:
        return tuple(two_level_calls(calls, nodes))
    others = [call for call in calls if not call.name.startswith("dense ")]
    return (*two_level_calls(others, nodes), *levels.dense(step.parameters, step.leaves))


def two_level_calls(calls: Sequence[Collective], nodes: Ints) -> list[Collective]:
    """The calls that direct ones become. nodes : i64[ranks], of each rank.

    Stages of several calls under way at a time may be made in another order.
    """
    levels = Levels(nodes)
    relayed = []
    for call in calls:
        size = call.matrix(nodes.size)
        relayed += levels.exchange(call, size) if call.verb == "alltoallv" else levels.gather(call)
    return relayed


class Levels:
    """Who relays for whom, for all ranks. nodes : i64[ranks], of each rank."""

    def __init__(self, nodes: Ints) -> None:
        self.ranks = nodes.size
        self.near = nodes[:, None] == nodes
        self.places = Places(nodes, 0)
        node = np.unique(nodes, return_inverse=True)[1]
        server = self.places.servers[node]  # [rank, destination]
        # [sender's rank of a node, rank of that node, destination]: does it relay?
        self.relays = server[:, None, :] == np.arange(self.ranks)[:, None]
        self.relays &= self.near[:, :, None]

    def exchange(self, call: Collective, size: Numbers) -> list[Collective]:
        """The calls of an alltoallv of these bytes, [sender, receiver]."""
        calls = []
        if call.name not in KNOWN:
            calls.append(Collective("relay counts", "alltoallv", COUNT * self.relays.sum(axis=2)))
        inside = (self.relays * size[:, None, :]).sum(axis=2)
        # what rank p relays to d: of all ranks s of its node
        between = (self.relays * size[:, None, :]).sum(axis=0)
        calls.append(Collective(call.name, "alltoallv", inside, hop=call.hop))
        calls.append(Collective(call.name, "alltoallv", between, hop=call.hop))
        return calls

    def gather(self, call: Collective) -> list[Collective]:
        """The calls of an allgatherv: to one rank of each node, then inside the nodes."""
        size = call.size[:, 0]
        ranks = np.arange(self.ranks)
        first = np.zeros((self.ranks, self.ranks), size.dtype)
        first[np.broadcast_to(ranks, self.places.servers.shape), self.places.servers] = size
        served = first.sum(axis=0)
        return [
            Collective(call.name, "alltoallv", first, hop=call.hop),
            Collective(call.name, "allgatherv", served[:, None] * self.near, hop=call.hop),
        ]

    @property
    def reduces(self) -> bool:
        """Is the dense reduction in two levels too, where it is on no wire?"""
        return self.places.even and self.places.runs

    def dense(self, parameters: int, leaves: int) -> list[Collective]:
        """The calls of the two-level reduction of so many dense parameters."""
        places = self.places
        hosts = len(places.members)
        per_node = places.peers.size
        spans = [rank_leaves(rank, self.ranks, leaves) for rank in range(self.ranks)]
        trees = np.array([_nodes(lo, hi) for lo, hi in spans], np.int64)
        host_trees = [_nodes(spans[m[0]][0], spans[m[-1]][1]) for m in places.members]
        shares = np.diff(np.arange(per_node + 1) * parameters // per_node)
        width = shares[np.arange(self.ranks) % per_node]
        slices = np.diff(width[:, None] * np.arange(hosts + 1) // hosts, axis=1)  # [rank, host]
        inside = trees[:, None] * width * self.near
        across = np.zeros((self.ranks, self.ranks), np.int64)
        finished = np.zeros_like(across)
        for rank in range(self.ranks):
            peers = places.servers[:, rank]
            across[rank, peers] = slices[rank] * host_trees[rank // per_node]
            finished[rank, peers] = slices[rank, rank // per_node]
        gathered = width[:, None] * self.near
        return [
            Collective("dense slices", "alltoallv", NUMBER * inside),
            Collective("dense slices", "alltoallv", NUMBER * across, hop=2),
            Collective("dense gather", "alltoallv", NUMBER * finished),
            Collective("dense gather", "allgatherv", NUMBER * gathered, hop=2),
        ]


def _nodes(lo: int, hi: int) -> int:
    return sum(1 for _ in aligned_nodes(lo, hi))
