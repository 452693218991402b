"""On which rank does each item go? Partitioners: pure functions of items with loads and bytes.

An item is a rectangle that may be on any rank. Its load is a vector, seconds by phase; most
partitioners look at the sum only. All respect the ranks' memory and return None where they find no
way to. To add one: write a function and put it into `PARTITIONERS`.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

import numpy as np

from neocpu.core.types import Ints
from neocpu.plan.cost.work import Floats

# A memory-balanced plan may be slower than the greedy one by this part, as TorchRec's default.
SLOWER = 0.1
# Halvings of the interval in which it looks for the least memory.
HALVINGS = 5
# Bytes are sums of floats in different orders.
TOLERANCE = 1e-9


class Packing(NamedTuple):
    """Items, and ranks on which something lies already.

    seconds : f64[n, phases], bytes : f64[n, memories], of items. rank_seconds f64[ranks, phases],
    rank_bytes f64[ranks, memories] : what is on the ranks. limits : f64[ranks, memories].
    slowness : f64[ranks], by which a rank's seconds of an item are multiplied.
    """

    seconds: Floats
    bytes: Floats
    rank_seconds: Floats
    rank_bytes: Floats
    limits: Floats
    slowness: Floats


Partitioner = Callable[[Packing], Ints | None]


def fits(sizes: Floats, limits: Floats) -> bool:
    """Are all bytes within the limits, f64[ranks, memories] both?"""
    return bool((sizes <= limits * (1.0 + TOLERANCE)).all())


def loads(packing: Packing, ranks: Ints) -> tuple[Floats, Floats]:
    """(seconds f64[ranks, phases], bytes f64[ranks, memories]) with the items on these ranks."""
    seconds = packing.rank_seconds.copy()
    size = packing.rank_bytes.copy()
    np.add.at(seconds, ranks, packing.seconds * packing.slowness[ranks, None])
    np.add.at(size, ranks, packing.bytes)
    return seconds, size


def greedy(packing: Packing) -> Ints | None:
    """Longest processing time first: the dearest item goes to the least loaded rank that has room.

    Source: Graham 1969; TorchRec's GreedyPerfPartitioner.
    """
    weights = packing.seconds.sum(axis=1)
    limited = np.flatnonzero(np.isfinite(packing.limits).any(axis=0))
    limits = (packing.limits[:, limited] * (1.0 + TOLERANCE)).tolist()
    # lists: single numbers of arrays are slow
    size = packing.rank_bytes[:, limited].tolist()
    needs = packing.bytes[:, limited].tolist()
    heap = [(load, rank) for rank, load in enumerate(packing.rank_seconds.sum(axis=1).tolist())]
    heapify(heap)
    ranks = np.zeros(weights.size, np.int64)
    weight_list = weights.tolist()
    slowness = packing.slowness.tolist()
    for item in np.argsort(-weights, kind="stable").tolist():
        need = needs[item]
        # ranks that lack room for this item may have it for smaller ones, so they return to the
        # heap
        full = []
        while heap:
            load, rank = heap[0]
            room = zip(size[rank], need, limits[rank])
            if all(held + more <= most for held, more, most in room):
                break
            full.append(heappop(heap))
        else:
            return None
        heapreplace(heap, (load + weight_list[item] * slowness[rank], rank))
        size[rank] = [held + more for held, more in zip(size[rank], need)]
        ranks[item] = rank
        for entry in full:
            heappush(heap, entry)
    return ranks


def greedy_phases(packing: Packing) -> Ints | None:
    """As `greedy`, but ranks are balanced in every phase: an item goes where the sum over phases of
    its load times the rank's, each by the mean of the phase, is least.

    This is the growth of the sum of squares, in seconds, which the vector form of greedy lowers
    (vector scheduling: Chekuri and Khanna 1999).
    """
    limits = packing.limits * (1.0 + TOLERANCE)
    seconds = packing.rank_seconds.copy()
    size = packing.rank_bytes.copy()
    mean = (seconds.sum(axis=0) + packing.seconds.sum(axis=0)) / len(seconds)
    # a phase in which nothing takes time weighs nothing
    scaled = packing.seconds / np.where(mean > 0, mean, 1.0)
    unlimited = bool(np.isinf(limits).all())
    ranks = np.zeros(len(packing.seconds), np.int64)
    # an item is as large as in the phase where it weighs most
    for item in np.argsort(-scaled.max(axis=1, initial=0.0), kind="stable").tolist():
        growth = (seconds @ scaled[item]) * packing.slowness
        if not unlimited:
            room = (size + packing.bytes[item] <= limits).all(axis=1)
            if not room.any():
                return None
            growth[~room] = np.inf
        rank = int(growth.argmin())
        ranks[item] = rank
        seconds[rank] += packing.seconds[item] * packing.slowness[rank]
        size[rank] += packing.bytes[item]
    return ranks


def linear(packing: Packing) -> Ints | None:
    """Items in their order, in runs of about equal load: each rank takes what lies in its part of
    the sum. A rank without room passes the item on.

    Source: contiguous partition, TorchRec's "Linear".
    """
    count = len(packing.rank_seconds)
    limits = packing.limits * (1.0 + TOLERANCE)
    weights = packing.seconds.sum(axis=1)
    total = weights.sum() or 1.0
    # an item belongs where its middle lies, or a large one would always fall to the rank behind
    middle = weights.cumsum() - weights / 2
    ranks = np.minimum((middle / total * count).astype(np.int64), count - 1)
    size = packing.rank_bytes.copy()
    for item in range(weights.size):
        rank = int(ranks[item])
        tried = 0
        while not (size[rank] + packing.bytes[item] <= limits[rank]).all():
            rank = (rank + 1) % count
            tried += 1
            if tried == count:
                return None
        ranks[item] = rank
        size[rank] += packing.bytes[item]
    return ranks


def karmarkar_karp(packing: Packing) -> Ints | None:
    """Largest differencing: the two partial partitions with the largest spreads are merged, the
    fullest group of one with the emptiest of the other, until one is left.

    Source: Karmarkar and Karp 1982, k-way as Michiels, Korst and Aarts 2003. Memory is looked at
    afterwards: items of ranks that are too full move to others, greedily.
    """
    weights = packing.seconds.sum(axis=1)
    count = len(packing.rank_seconds)
    groups = _differencing(weights, count)
    loads_of_groups = np.bincount(groups, weights, minlength=count)
    # The fullest group goes to the rank on which least lies already.
    by_load = np.argsort(-loads_of_groups, kind="stable")
    by_rank = np.argsort(packing.rank_seconds.sum(axis=1), kind="stable")
    rank_of_group = np.empty(count, np.int64)
    rank_of_group[by_load] = by_rank
    return _repaired(packing, rank_of_group[groups])


def _differencing(weights: Floats, count: int) -> Ints:
    """Group i64[n] of each weight, `count` groups, by largest differencing."""
    size = weights.size
    if count == 1 or not size:
        return np.zeros(size, np.int64)
    # Groups are binary trees over items: joins[i] are the children of number size + i.
    joins = np.zeros((max(size - 1, 1), 2), np.int64)
    joined = 0
    partials: dict[int, tuple[Floats, Ints]] = {}
    heap = [(-weight, item) for item, weight in enumerate(weights.tolist())]
    heapify(heap)
    number = size

    def partial(name: int) -> tuple[Floats, Ints]:
        # a single item is written out when it is merged: all at once would be items x ranks numbers
        if name in partials:
            return partials.pop(name)
        sums = np.zeros(count)
        trees = np.full(count, -1)
        sums[-1] = weights[name]
        trees[-1] = name
        return sums, trees

    while len(heap) > 1:
        first_sums, first = partial(heappop(heap)[1])
        second_sums, second = partial(heappop(heap)[1])
        # both ascend, so the second turned round puts the fullest with the emptiest
        sums = first_sums + second_sums[::-1]
        second = second[::-1]
        # -1 is an empty group, which the other's tree replaces
        trees = np.maximum(first, second)
        both = np.flatnonzero((first >= 0) & (second >= 0))
        joins[joined : joined + both.size, 0] = first[both]
        joins[joined : joined + both.size, 1] = second[both]
        trees[both] = size + joined + np.arange(both.size)
        joined += both.size
        order = np.argsort(sums, kind="stable")
        sums = sums[order]
        partials[number] = (sums, trees[order])
        heappush(heap, (-float(sums[-1] - sums[0]), number))
        number += 1

    _, trees = partial(heap[0][1])
    group = np.zeros(size + joined, np.int64)
    held = trees >= 0
    group[trees[held]] = np.flatnonzero(held)
    # a tree's number is above those of its children, so its group is known before theirs
    for join in range(joined - 1, -1, -1):
        group[joins[join]] = group[size + join]
    return group[:size]


def _repaired(packing: Packing, ranks: Ints) -> Ints | None:
    """The partition with items of too full ranks moved to the least loaded ones with room."""
    seconds, size = loads(packing, ranks)
    if fits(size, packing.limits):
        return ranks
    limits = packing.limits * (1.0 + TOLERANCE)
    weights = packing.seconds.sum(axis=1)
    fill = (packing.bytes / np.maximum(packing.limits.max(axis=0), 1.0)).max(axis=1)
    moving = []
    for rank in np.flatnonzero((size > limits).any(axis=1)).tolist():
        items = np.flatnonzero(ranks == rank)
        # those that cost the least seconds for their bytes leave first
        for item in items[
            np.argsort(weights[items] / np.maximum(fill[items], 1e-30), kind="stable")
        ].tolist():
            if (size[rank] <= limits[rank]).all():
                break
            size[rank] -= packing.bytes[item]
            seconds[rank] -= packing.seconds[item] * packing.slowness[rank]
            moving.append(item)
    load = seconds.sum(axis=1)
    repaired = ranks.copy()
    # the largest first, while there is most room
    for item in sorted(moving, key=lambda item: (-fill[item], item)):
        room = (size + packing.bytes[item] <= limits).all(axis=1)
        if not room.any():
            # too full for repairs: greedy minds the memory from its first item on
            return greedy(packing)
        rank = int(np.where(room, load, np.inf).argmin())
        repaired[item] = rank
        size[rank] += packing.bytes[item]
        load[rank] += weights[item] * packing.slowness[rank]
    return repaired


def memory_balanced(packing: Packing) -> Ints | None:
    """The greedy partition with the least memory on the fullest rank, among those that are at most
    `SLOWER` slower than the first.

    Source: TorchRec's MemoryBalancedPartitioner, which halves an interval of limits likewise.
    """
    best = greedy(packing)
    if best is None or not len(best):
        return best
    seconds, size = loads(packing, best)
    longest = seconds.sum(axis=1).max() * (1.0 + SLOWER)
    sums = packing.bytes.sum(axis=0) + packing.rank_bytes.sum(axis=0)
    low = sums / len(packing.rank_bytes)
    high = size.max(axis=0)
    for _ in range(HALVINGS):
        limits = np.minimum((low + high) / 2, packing.limits)
        tighter = greedy(packing._replace(limits=limits))
        if tighter is None:
            low = limits
            continue
        seconds, size = loads(packing, tighter)
        if seconds.sum(axis=1).max() > longest:
            low = limits
            continue
        best = tighter
        high = size.max(axis=0)
    return best


PARTITIONERS: dict[str, Partitioner] = {
    "greedy": greedy,
    "greedy_phases": greedy_phases,
    "karmarkar_karp": karmarkar_karp,
    "linear": linear,
    "memory_balanced": memory_balanced,
}
