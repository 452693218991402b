"""Which row leaves a full set of the cache? A policy says it, by two small functions that compose
into the cache's kernels.

    <policy>_touch(line, fresh, amount, use, now, state)
        the row in `line` is used by batch `now`; fresh: it has just come in
    <policy>_victim(s, amount, use, now, state)
        the way of full set s that a missing row takes, or -1: it stays outside

amount: lookups of the row in this batch (`lfu`, on its way in: in all batches); use: the next batch
known to use it, `NEVER` if none is; state: `operands.CacheState`. A locked line is never taken.
Missing rows come in ascending order of their numbers; for `lfu` those with the highest count first,
for `lookahead` those used soonest first. `reference/policies.py` has the registry and the sources.
"""

import numpy as np

from neocpu.kernels._jit import inlined
from neocpu.kernels.simd.cache_sets import WAYS

NEVER = np.iinfo(np.int64).max
WRAPPED = 1 << 61  # above every place in the queue
VISITED = 1 << 62  # above that: a row that was used again
FAR = 1 << 20  # batches ahead that are told apart
STAMPS = 36  # bits of a batch number beside them


@inlined
def way_of(least):
    """The way in the low bits of the least key, or -1: all lines are locked."""
    return least % WAYS if least < NEVER else -1


@inlined
def least_stamped(s, state):
    """Least stamp * 32 + way of the lines of a set that are not locked. (Keys that hold their way
    need no branches.)
    """
    stamp = state.stamp
    locks = state.locks
    least = NEVER
    for line in range(s * WAYS, s * WAYS + WAYS):
        least = min(least, stamp[line] * WAYS + line % WAYS if locks[line] == 0 else NEVER)
    return least


@inlined
def lru_touch(line, fresh, amount, use, now, state):
    """Stamped with the batch that used it."""
    state.stamp[line] = now


@inlined
def lru_victim(s, amount, use, now, state):
    """The least recently used row, of several the one in the lowest way."""
    return way_of(least_stamped(s, state))


@inlined
def lfu_touch(line, fresh, amount, use, now, state):
    """Stamped with its lookups in all batches."""
    state.stamp[line] = amount if fresh else state.stamp[line] + amount


@inlined
def lfu_victim(s, amount, use, now, state):
    """The least frequently used row, in the lowest way of several, unless it was used more often
    than the missing one.
    """
    least = least_stamped(s, state)
    return way_of(least) if least // WAYS <= amount else -1


@inlined
def sieve_touch(line, fresh, amount, use, now, state):
    """Stamped with the batch that brought it, and one bit: was it used again?"""
    state.stamp[line] = 2 * now + (amount > 1) if fresh else state.stamp[line] | 1


@inlined
def sieve_victim(s, amount, use, now, state):
    """The first row that was not used again, from the hand on, oldest to newest and round; the hand
    clears the bits it passes.

    Rows stand in the queue by (batch that brought them, way). Locked rows are passed over as they
    are.
    """
    stamp = state.stamp
    locks = state.locks
    hand = state.hand[s]
    least = NEVER
    for line in range(s * WAYS, s * WAYS + WAYS):
        place = (stamp[line] >> 1) * WAYS + line % WAYS
        key = place + (WRAPPED if place <= hand else 0) + (VISITED if stamp[line] & 1 else 0)
        least = min(least, key if locks[line] == 0 else NEVER)
    if least == NEVER:
        return -1
    for line in range(s * WAYS, s * WAYS + WAYS):
        place = (stamp[line] >> 1) * WAYS + line % WAYS
        # all, if the victim has its bit
        passed = place + (WRAPPED if place <= hand else 0) < least
        stamp[line] -= stamp[line] & (1 if passed and locks[line] == 0 else 0)
    state.hand[s] = least % WRAPPED
    return least % WAYS


@inlined
def lookahead_touch(line, fresh, amount, use, now, state):
    """Stamped with the batch that used it and the one that will."""
    state.stamp[line] = now
    state.next_use[line] = use


@inlined
def lookahead_victim(s, amount, use, now, state):
    """A row with no known use, else the one used last; the least recently used of several, then the
    lowest way. If all others will be used before the missing one, that one stays outside.
    """
    least = NEVER
    for line in range(s * WAYS, s * WAYS + WAYS):
        ahead = state.next_use[line] - now
        known = now < state.next_use[line] < NEVER
        key = state.stamp[line] + ((FAR - min(ahead, FAR - 1)) << STAMPS if known else 0)
        least = min(least, key * WAYS + line % WAYS if state.locks[line] == 0 else NEVER)
    way = way_of(least)
    return -1 if way >= 0 and now < state.next_use[s * WAYS + way] < use else way
