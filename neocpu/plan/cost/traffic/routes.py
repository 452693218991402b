"""How many bytes does a route of row-split tables send? Messages of `parallel/exchange/routes.py`,
counted.

A route carries groups: columns of E that several row shards hold (`parallel/exchange/shipment.py`).
Whoever adds the words of several ranks sends the union of their groups. So a route's bytes follow
from two things: columns that each rank holds, and columns of unions of ranks that stand in a row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neocpu.core.types import Ints
from neocpu.parallel.exchange.wire_formats import WireSpec
from neocpu.plan.cost.traffic.collectives import Collective
from neocpu.plan.cost.traffic.shard_columns import ShardColumns
from neocpu.plan.cost.work import Flags

WORD = 8  # bytes of an fp64 word


@dataclass(frozen=True)
class Groups:
    """Groups of columns of row-split tables; those with the same holders count as one.

    width : i64[G] columns of a group, over all keys of its tables; of gradients, bytes of a sample
        instead. holders : bool[G, ranks].
    held : i64[ranks] columns that each rank holds; a group that it holds twice counts twice.
    samples : i64[ranks]. ranks_per_node : of the plan.
    """

    width: Ints
    holders: Flags
    held: Ints
    samples: Ints
    ranks_per_node: int

    @property
    def ranks(self) -> int:
        """Ranks of the plan."""
        return self.samples.size

    @cached_property
    def node(self) -> Ints:
        """Node of every rank: i64[ranks]."""
        return np.arange(self.ranks, dtype=np.int64) // self.ranks_per_node

    @cached_property
    def ring_columns(self) -> Ints:
        """Columns that the next h ranks after d hold, each once: i64[ranks, ranks + 1], [d, h]."""
        ranks = self.ranks
        # the ring twice in a row, so that the next holder of any rank stands behind it
        positions = np.arange(2 * ranks)
        ring = np.concatenate([self.holders, self.holders], axis=1)
        position = np.where(ring, positions, 2 * ranks)
        following = np.minimum.accumulate(position[:, ::-1], axis=1)[:, ::-1]
        # hops from rank d to the first holder after it, 1 .. ranks
        hops = following[:, 1 : ranks + 1] - positions[:ranks]
        slots = (positions[:ranks] * (ranks + 1) + hops).reshape(-1)
        width = np.repeat(self.width, ranks)
        # a group counts where the ring meets its first holder, so sums over hops count it once
        reached = np.bincount(slots, width, ranks * (ranks + 1)).reshape(ranks, ranks + 1)
        return np.cumsum(reached, axis=1).astype(np.int64)

    @cached_property
    def node_columns(self) -> Ints:
        """Columns that the ranks of each node hold, each once: i64[nodes]."""
        firsts = np.arange(0, self.ranks, self.ranks_per_node)
        anywhere = np.logical_or.reduceat(self.holders, firsts, axis=1)
        return (anywhere * self.width[:, None]).sum(axis=0)

    @cached_property
    def servers(self) -> Ints:
        """The rank of each node that has the place of rank d: i64[nodes, ranks]."""
        ranks = np.arange(self.ranks)
        firsts = np.arange(0, self.ranks, self.ranks_per_node)
        sizes = np.minimum(firsts + self.ranks_per_node, self.ranks) - firsts
        return firsts[:, None] + ranks % self.ranks_per_node % sizes[:, None]

    @cached_property
    def served_samples(self) -> Ints:
        """Samples of the ranks that each rank serves in its node: i64[ranks]."""
        samples = np.broadcast_to(self.samples, self.servers.shape)
        sums = np.bincount(self.servers.reshape(-1), samples.reshape(-1), self.ranks)
        return sums.astype(np.int64)


def groups_of(
    rectangles: ShardColumns, samples: Ints, ranks_per_node: int, wire: WireSpec | None = None
) -> Groups:
    """The groups of all parts; columns are divided at every edge of a table's rectangles.

    wire : of gradients, whose bytes are counted; None: columns are.
    """
    parts = rectangles.select(np.flatnonzero(rectangles.parts))
    order = np.argsort(parts.table, kind="stable")
    ends = np.flatnonzero(np.diff(parts.table[order], append=-1)) + 1
    widths = [np.empty(0, np.int64)]
    holders = [np.empty((0, rectangles.ranks), bool)]
    for members in np.split(order, ends[:-1]):
        if not members.size:
            continue
        left = parts.left[members]
        right = parts.right[members]
        edges = np.unique(np.concatenate([left, right]))
        inside = (left[:, None] <= edges[:-1]) & (right[:, None] >= edges[1:])
        held = np.zeros((edges.size - 1, rectangles.ranks), bool)
        rectangle, span = np.nonzero(inside)
        held[span, parts.rank[members[rectangle]]] = True
        covered = held.any(axis=1)
        holders.append(held[covered])
        columns = np.diff(edges)[covered]
        widths.append(parts.keys[members[0]] * (wire.bytes(columns) if wire else columns))
    width, distinct = _merge_equal(np.concatenate(widths), np.concatenate(holders))
    return Groups(
        width=width,
        holders=distinct,
        held=rectangles.sum_by_rank(
            rectangles.wire_bytes(wire) if wire else rectangles.widths, rectangles.parts
        ),
        samples=samples,
        ranks_per_node=ranks_per_node,
    )


def _merge_equal(width: Ints, holders: Flags) -> tuple[Ints, Flags]:
    """Groups with the same holders as one: many tables are cut over the same ranks."""
    if not width.size:
        return width, holders
    # rows are compared as bytes, eight ranks in each
    packed = np.packbits(holders, axis=1)
    patterns = np.ascontiguousarray(packed).view(np.dtype((np.void, packed.shape[1]))).reshape(-1)
    _, heads, inverse = np.unique(patterns, return_index=True, return_inverse=True)
    return np.bincount(inverse, width).astype(np.int64), holders[heads]


# ---- calls of the routes ----


def _direct_words(groups: Groups) -> list[Collective]:
    size = WORD * groups.held[:, None] * groups.samples
    return [Collective("words", "alltoallv", size)]


def _direct_gradients(groups: Groups) -> list[Collective]:
    size = groups.samples[:, None] * groups.held
    return [Collective("word gradients", "alltoallv", size)]


def _ring_words(groups: Groups) -> list[Collective]:
    ranks = groups.ranks
    home = np.arange(ranks)
    calls = []
    for hop in range(1, ranks):
        size = WORD * groups.samples * groups.ring_columns[:, hop]
        source = (home + hop) % ranks
        calls.append(Collective("words", "alltoallv", size, source, (source + 1) % ranks, hop))
    return calls


def _ring_gradients(groups: Groups) -> list[Collective]:
    ranks = groups.ranks
    home = np.arange(ranks)
    calls = []
    for hop in range(1, ranks):
        # the ring backwards: a rank passes on what those before it hold
        size = groups.samples * groups.ring_columns[:, ranks - hop]
        source = (home - hop + 1) % ranks
        target = (source - 1) % ranks
        calls.append(Collective("word gradients", "alltoallv", size, source, target, hop))
    return calls


def _two_level_words(groups: Groups) -> list[Collective]:
    near = groups.node[:, None] == groups.node
    inside = WORD * groups.held[:, None] * groups.served_samples * near
    across = WORD * groups.node_columns[:, None] * groups.samples
    home = np.arange(groups.ranks)
    return [
        Collective("words", "alltoallv", inside),
        Collective("words", "alltoallv", across, groups.servers, home, hop=2),
    ]


def _two_level_gradients(groups: Groups) -> list[Collective]:
    near = groups.node[:, None] == groups.node
    across = groups.node_columns[:, None] * groups.samples
    inside = groups.served_samples[:, None] * groups.held * near
    home = np.arange(groups.ranks)
    return [
        Collective("word gradients", "alltoallv", across, home, groups.servers),
        Collective("word gradients", "alltoallv", inside, hop=2),
    ]


Calls = Callable[[Groups], list[Collective]]
# (words, their gradients) of each route of `parallel/exchange/routes.py`
ROUTE_CALLS: dict[str, tuple[Calls, Calls]] = {
    "direct": (_direct_words, _direct_gradients),
    "reduce_scatter": (_ring_words, _ring_gradients),
    "two_level": (_two_level_words, _two_level_gradients),
}
