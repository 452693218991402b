"""Which row is evicted from a full set of the cache?

A policy decides it by two functions, which are inlined into the cache's kernels:

    <policy>_touch(line, fresh, amount, use, now, state)
        batch `now` uses the row in `line`; fresh: the row has just been inserted
    <policy>_victim(s, amount, use, now, state)
        the way of full set s to evict for a missing row, or -1 to leave that row uncached

amount is the number of lookups of the row in this batch (for `lfu`, when a row is inserted, in all
batches); use is the next batch known to use it, or `NEVER`; state is an `operands.CacheState`. A
locked line is never evicted. Missing rows are inserted in ascending order; by `lfu` those with the
highest count first, by `lookahead` those used soonest first. `core/policies.py` has the registry,
the sources, and policies that are made of these.
"""

from neocpu.core.policies import FAR, NEVER
from neocpu.kernels.compile.jit import inlined
from neocpu.kernels.simd.cache_sets import WAYS

# SIEVE adds it to the key of a row behind the hand; it exceeds every position in the queue.
WRAPPED = 1 << 61
# SIEVE adds it to the key of a row that was used again; it exceeds `WRAPPED` and a position.
VISITED = 1 << 62
# bits of a batch number, below the distance to the next use in a key of lookahead
STAMPS = 36


@inlined
def way_of(least):
    """The way in the low bits of the least key, or -1 if all lines are locked."""
    return least % WAYS if least < NEVER else -1


@inlined
def least_stamped(s, state):
    """Least stamp * 32 + way among the lines of a set that are not locked.

    Keys that contain the way need no branch to find the least one and its way.
    """
    stamp = state.stamp
    locks = state.locks
    least = NEVER
    for line in range(s * WAYS, s * WAYS + WAYS):
        least = min(least, stamp[line] * WAYS + line % WAYS if locks[line] == 0 else NEVER)
    return least


@inlined
def lru_touch(line, fresh, amount, use, now, state):
    """Stamp the line with the batch that used it."""
    state.stamp[line] = now


@inlined
def lru_victim(s, amount, use, now, state):
    """The least recently used row; of several the one in the lowest way."""
    return way_of(least_stamped(s, state))


@inlined
def lfu_touch(line, fresh, amount, use, now, state):
    """Stamp the line with the row's lookups in all batches."""
    state.stamp[line] = amount if fresh else state.stamp[line] + amount


@inlined
def lfu_victim(s, amount, use, now, state):
    """The least frequently used row, or -1 if the missing one was used less often.

    Of several rows it is the one in the lowest way.
    """
    least = least_stamped(s, state)
    return way_of(least) if least // WAYS <= amount else -1


@inlined
def sieve_touch(line, fresh, amount, use, now, state):
    """Stamp the line with 2 * the batch that inserted the row, + 1 once it was used again."""
    state.stamp[line] = 2 * now + (amount > 1) if fresh else state.stamp[line] | 1


@inlined
def sieve_victim(s, amount, use, now, state):
    """The first row from the hand on that was not used again, from oldest to newest and cyclically.

    The queue is ordered by (batch that inserted the row, way). The hand clears the used-again bits
    that it passes; locked rows keep theirs.
    """
    stamp = state.stamp
    locks = state.locks
    hand = state.hand[s]
    # selections, no branches: which row is least comes at random
    least = NEVER
    for line in range(s * WAYS, s * WAYS + WAYS):
        position = (stamp[line] >> 1) * WAYS + line % WAYS
        key = position + (WRAPPED if position <= hand else 0) + (VISITED if stamp[line] & 1 else 0)
        least = min(least, key if locks[line] == 0 else NEVER)
    if least == NEVER:
        return -1
    for line in range(s * WAYS, s * WAYS + WAYS):
        position = (stamp[line] >> 1) * WAYS + line % WAYS
        # If the victim has its bit, the hand went round once and cleared all bits.
        passed = position + (WRAPPED if position <= hand else 0) < least
        stamp[line] -= stamp[line] & (1 if passed and locks[line] == 0 else 0)
    state.hand[s] = least % WRAPPED
    return least % WAYS


@inlined
def lookahead_touch(line, fresh, amount, use, now, state):
    """Stamp the line with the batch that used it and keep the batch that will use it next."""
    state.stamp[line] = now
    state.next_use[line] = use


@inlined
def lookahead_victim(s, amount, use, now, state):
    """A row with no known next use, else the row used farthest ahead.

    Of several it is the least recently used one, then the lowest way; -1 if the missing row will be
    used after all of them.
    """
    least = NEVER
    for line in range(s * WAYS, s * WAYS + WAYS):
        distance = state.next_use[line] - now
        known = now < state.next_use[line] < NEVER
        key = state.stamp[line] + ((FAR - min(distance, FAR - 1)) << STAMPS if known else 0)
        least = min(least, key * WAYS + line % WAYS if state.locks[line] == 0 else NEVER)
    way = way_of(least)
    return -1 if way >= 0 and now < state.next_use[s * WAYS + way] < use else way


@inlined
def largest_touch(line, fresh, amount, use, now, state):
    """Stamp the line with the batch that used it; the row's number is all that decides."""
    state.stamp[line] = now


@inlined
def largest_victim(s, amount, use, now, state):
    """The row with the largest number; where rows are by falling frequency, the rarest."""
    largest = -1
    way = -1
    for line in range(s * WAYS, s * WAYS + WAYS):
        row = state.tags[line] if state.locks[line] == 0 else -1
        way = line % WAYS if row > largest else way
        largest = max(largest, row)
    return way
