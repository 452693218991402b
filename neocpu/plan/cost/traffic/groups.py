"""What do replica groups send in a step? Each what one group sends, and copies their sums
(`parallel/embeddings/grouped.py`).

    peer refusals        i32, does the sender refuse its samples? To the copies of its rectangles
    replica, gathered    as of data_parallel tables, among the copies of each rectangle
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from neocpu.core.types import Ints
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.sharding.schemes import owner_cuts
from neocpu.plan.cost.traffic.collectives import Collective
from neocpu.plan.cost.traffic.demand import Demand, Numbers

INDEX = 8  # bytes of a row index, and of a count
STATUS = 4
NUMBER = 4
WORD = 8


def side_by_side(groups: Sequence[Sequence[Collective]], ranks: int) -> list[Collective]:
    """The calls of groups of so many ranks each, made by all of them at once."""
    calls = []
    for together in zip(*groups):
        messages = [call.messages() for call in together]
        source, target = (
            np.concatenate([ends[side] + g * ranks for g, ends in enumerate(messages)])
            for side in (0, 1)
        )
        size = np.concatenate([sizes for _, _, sizes in messages])
        calls.append(replace(together[0], source=source, target=target, size=size))
    return calls


def refusals(plan: Plan) -> Collective:
    """The call that tells peers of refused samples."""
    source, target = _peers(plan, np.arange(plan.group_ranks))
    return Collective("peer refusals", "alltoallv", np.full(1, STATUS), source, target)


def copies_traffic(plan: Plan, demand: Demand, counted: bool) -> list[Collective]:
    """The calls that sum touched rows over the copies of each rectangle.

    counted : do words have the lookups of their rows behind them?
    """
    ranks = plan.group_ranks
    groups = plan.replica_groups
    parts = [demand.of_ranks(first, first + ranks) for first in range(0, plan.ranks, ranks)]
    held = [
        [shard for shard in plan.group.local(place) if not plan.replicated(shard.table)]
        for place in range(ranks)
    ]
    places = np.flatnonzero([len(shards) for shards in held])
    if not places.size:
        return []
    # [place, group of the sender, group of the owner], and of the owner alone
    rows, numbers = np.zeros((2, places.size, groups, groups))
    sums, summed = np.zeros((2, places.size, 1, groups))
    for i, place in enumerate(places.tolist()):
        for shard in held[place]:
            cuts = shard.rows[0] + owner_cuts(shard.shape[0], groups)
            width = shard.shape[1] + counted
            touched = np.stack([part.unique(shard.table, cuts[:-1], cuts[1:]) for part in parts])
            anywhere = demand.unique(shard.table, cuts[:-1], cuts[1:])
            rows[i] += touched
            numbers[i] += width * touched
            sums[i] += anywhere
            summed[i] += width * anywhere
    source, target = _peers(plan, places)
    counts = INDEX * np.array([len(held[place]) for place in places])[:, None, None]
    kind = touched.dtype

    def call(name: str, size: Numbers) -> Collective:
        # sums go from their owner to all
        verb = "allgatherv" if name in ("gathered rows", "gathered gradients") else "alltoallv"
        sent = size.swapaxes(1, 2) if verb == "allgatherv" else size
        return Collective(name, verb, sent.astype(kind), source, target)

    return [
        call("replica counts", counts),
        call("replica rows", INDEX * rows),
        call("replica words", WORD * numbers),
        call("gathered counts", counts),
        call("gathered rows", INDEX * sums),
        call("gathered gradients", NUMBER * summed),
    ]


def _peers(plan: Plan, places: Ints) -> tuple[Ints, Ints]:
    """(sender, receiver) of messages among ranks of equal place, [places, groups, 1] and
    [places, 1, groups].
    """
    heads = np.arange(plan.replica_groups) * plan.group_ranks
    ranks = places[:, None] + heads
    return ranks[:, :, None], ranks[:, None, :]
