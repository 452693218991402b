"""Which row does each cache policy evict? The twin of `kernels/tiers/policies.py`.

It touches whole arrays of lines and chooses a victim among the lines of one set.
"""

import numpy as np

from neocpu.core.policies import FAR, NEVER


def _first_least(keys, unlocked):
    """The lowest unlocked way with the least key, or -1."""
    ways = np.flatnonzero(unlocked)
    return int(ways[np.argmin(keys[ways])]) if ways.size else -1


def lru_touch(line, fresh, amount, use, now, state):
    """Stamp lines with the batch that used them; see `kernels.tiers.policies.lru_touch`."""
    state.stamp[line] = now


def lru_victim(s, amount, use, now, state):
    """The least recently used row; see `kernels.tiers.policies.lru_victim`."""
    return _first_least(state.stamp[32 * s : 32 * s + 32], state.locks[32 * s : 32 * s + 32] == 0)


def lfu_touch(line, fresh, amount, use, now, state):
    """Stamp lines with lookups in all batches; see `kernels.tiers.policies.lfu_touch`."""
    state.stamp[line] = np.where(fresh, 0, state.stamp[line]) + amount


def lfu_victim(s, amount, use, now, state):
    """The least frequently used row, or -1; see `kernels.tiers.policies.lfu_victim`."""
    way = lru_victim(s, amount, use, now, state)
    return -1 if way >= 0 and state.stamp[32 * s + way] > amount else way


def sieve_touch(line, fresh, amount, use, now, state):
    """Stamp lines with their batch and used-again bit; see `kernels.tiers.policies.sieve_touch`."""
    state.stamp[line] = np.where(
        fresh, 2 * now + (np.asarray(amount) > 1), state.stamp[line] // 2 * 2 + 1
    )


def sieve_victim(s, amount, use, now, state):
    """The first row from the hand on, not used again; see `kernels.tiers.policies.sieve_victim`."""
    stamps = state.stamp[32 * s : 32 * s + 32]
    unlocked = state.locks[32 * s : 32 * s + 32] == 0
    position = stamps // 2 * np.int64(32) + np.arange(32)
    # the hand stands behind the position that it evicted last; locked rows are passed over
    by_age = [int(way) for way in np.argsort(position, kind="stable") if unlocked[way]]
    ahead = [way for way in by_age if position[way] > state.hand[s]]
    behind = [way for way in by_age if position[way] <= state.hand[s]]
    queue = ahead + behind
    # The first round clears the bits, so the second round finds a victim if the first did not.
    for way in queue + queue:
        if stamps[way] % 2 == 0:
            state.hand[s] = position[way]
            return way
        stamps[way] -= 1
    return -1


def lookahead_touch(line, fresh, amount, use, now, state):
    """Stamp lines with their last batch, keep the next; see
    `kernels.tiers.policies.lookahead_touch`.
    """
    state.stamp[line] = now
    state.next_use[line] = use


def lookahead_victim(s, amount, use, now, state):
    """The row used farthest ahead, or -1; see `kernels.tiers.policies.lookahead_victim`."""
    next_use = state.next_use[32 * s : 32 * s + 32]
    known = (next_use > now) & (next_use < NEVER)
    distance = np.where(known, np.minimum(np.where(known, next_use, now) - now, FAR - 1), FAR)
    # the last key counts most: distance, then age, then way
    order = np.lexsort((np.arange(32), state.stamp[32 * s : 32 * s + 32], -distance))
    candidates = [int(way) for way in order if state.locks[32 * s + way] == 0]
    if not candidates:
        return -1
    way = candidates[0]
    return -1 if known[way] and next_use[way] < use else way


def largest_touch(line, fresh, amount, use, now, state):
    """Stamp lines with the batch that used them; see `kernels.tiers.policies.largest_touch`."""
    state.stamp[line] = now


def largest_victim(s, amount, use, now, state):
    """The row with the largest number; see `kernels.tiers.policies.largest_victim`."""
    return _first_least(-state.tags[32 * s : 32 * s + 32], state.locks[32 * s : 32 * s + 32] == 0)
