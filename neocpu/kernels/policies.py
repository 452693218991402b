"""Which row leaves a full set of the cache? A policy says it, by two small functions that compose
into the cache's kernels.

    <policy>_touch(line, fresh, amount, use, now, stamp, next_use)
        the row in `line` is used by batch `now`; fresh: it has just come in
    <policy>_victim(s, amount, use, now, locks, stamp, next_use, hand)
        the way of full set s that a missing row takes, or -1: it stays outside

amount: lookups of the row in this batch (`lfu`, on its way in: in all batches); use: the next batch
known to use it, `NEVER` if none is. State: stamp, next_use i64[lines]; hand i64[sets], of size 0
where a policy keeps none; locks i32[lines]. A locked line is never taken. Missing rows come in
ascending order of their numbers; for `lfu` those with the highest count first, for `lookahead`
those used soonest first. `reference/policies.py` has the registry and the sources.
"""

import numpy as np

from neocpu.kernels._jit import inlined
from neocpu.kernels.simd.cache_sets import WAYS

NEVER = np.iinfo(np.int64).max
# above every place in the queue
WRAPPED = 1 << 61
VISITED = 1 << 62
# batches ahead that are told apart; bits of a batch number beside them
FAR = 1 << 20
STAMPS = 36


@inlined
def way_of(least):
    """The way in the low bits of the least key, or -1: all lines are locked."""
    return least % WAYS if least < NEVER else -1


@inlined
def least_stamped(s, locks, stamp):
    """Least stamp * 32 + way of the lines of a set that are not locked. (Keys that hold their way
    need no branches.)
    """
    least = NEVER
    for line in range(s * WAYS, s * WAYS + WAYS):
        least = min(least, stamp[line] * WAYS + line % WAYS if locks[line] == 0 else NEVER)
    return least


@inlined
def lru_touch(line, fresh, amount, use, now, stamp, next_use):
    """Stamped with the batch that used it."""
    stamp[line] = now


@inlined
def lru_victim(s, amount, use, now, locks, stamp, next_use, hand):
    """The least recently used row, of several the one in the lowest way."""
    return way_of(least_stamped(s, locks, stamp))


@inlined
def lfu_touch(line, fresh, amount, use, now, stamp, next_use):
    """Stamped with its lookups in all batches."""
    stamp[line] = amount if fresh else stamp[line] + amount


@inlined
def lfu_victim(s, amount, use, now, locks, stamp, next_use, hand):
    """The least frequently used row, in the lowest way of several, unless it was used more often
    than the missing one.
    """
    least = least_stamped(s, locks, stamp)
    return way_of(least) if least // WAYS <= amount else -1


@inlined
def sieve_touch(line, fresh, amount, use, now, stamp, next_use):
    """Stamped with the batch that brought it, and one bit: was it used again?"""
    stamp[line] = 2 * now + (amount > 1) if fresh else stamp[line] | 1


@inlined
def sieve_victim(s, amount, use, now, locks, stamp, next_use, hand):
    """The first row that was not used again, from the hand on, oldest to newest and round; the hand
    clears the bits it passes.

    Rows stand in the queue by (batch that brought them, way). Locked rows are passed over as they
    are.
    """
    least = NEVER
    for line in range(s * WAYS, s * WAYS + WAYS):
        place = (stamp[line] >> 1) * WAYS + line % WAYS
        key = place + (WRAPPED if place <= hand[s] else 0) + (VISITED if stamp[line] & 1 else 0)
        least = min(least, key if locks[line] == 0 else NEVER)
    if least == NEVER:
        return -1
    for line in range(s * WAYS, s * WAYS + WAYS):
        place = (stamp[line] >> 1) * WAYS + line % WAYS
        # all, if the victim has its bit
        passed = place + (WRAPPED if place <= hand[s] else 0) < least
        stamp[line] -= stamp[line] & (1 if passed and locks[line] == 0 else 0)
    hand[s] = least % WRAPPED
    return least % WAYS


@inlined
def lookahead_touch(line, fresh, amount, use, now, stamp, next_use):
    """Stamped with the batch that used it and the one that will."""
    stamp[line] = now
    next_use[line] = use


@inlined
def lookahead_victim(s, amount, use, now, locks, stamp, next_use, hand):
    """A row with no known use, else the one used last; the least recently used of several, then the
    lowest way. If all others will be used before the missing one, that one stays outside.
    """
    least = NEVER
    for line in range(s * WAYS, s * WAYS + WAYS):
        ahead = next_use[line] - now
        known = now < next_use[line] < NEVER
        key = stamp[line] + ((FAR - min(ahead, FAR - 1)) << STAMPS if known else 0)
        least = min(least, key * WAYS + line % WAYS if locks[line] == 0 else NEVER)
    way = way_of(least)
    return -1 if way >= 0 and now < next_use[s * WAYS + way] < use else way
