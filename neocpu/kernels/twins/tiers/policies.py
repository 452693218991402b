"""Which cache policies exist, what do they record, and which row do they evict?

The registry, and the twin of `kernels/tiers/policies.py`: it touches whole arrays of lines and
chooses a victim among the lines of one set. This file imports NumPy only, so the config and
`--help` can list the policies without Numba.
"""

from dataclasses import dataclass

import numpy as np

# next use of a row that no known batch uses
NEVER = np.iinfo(np.int64).max
# Lookahead tells the next uses of rows apart up to this many batches ahead.
FAR = 1 << 20


@dataclass(frozen=True)
class Policy:
    """A cache policy.

    name     : its name in the config
    about    : what it evicts, one clause for `--help`
    source   : where it is described
    counts   : it needs the lookups of every row since the start, also of rows outside the cache
    next_use : it needs, and keeps for each line, the next batch that uses a row (`NEVER`: unknown)
    hand     : it keeps a position in the queue of each set
    """

    name: str
    about: str
    source: str
    counts: bool = False
    next_use: bool = False
    hand: bool = False


POLICIES = {
    policy.name: policy
    for policy in (
        Policy(
            "lru", "evicts the row that was not used for longest", "FBGEMM's CacheAlgorithm.LRU"
        ),
        Policy(
            "lfu",
            (
                "evicts the row looked up least often; a row looked up less often than all others "
                "stays outside"
            ),
            "FBGEMM's CacheAlgorithm.LFU; Neo, 2022",
            counts=True,
        ),
        Policy(
            "sieve",
            "evicts the oldest row that was not used again since a hand last passed it",
            "Zhang et al., SIEVE, NSDI 2024",
            hand=True,
        ),
        Policy(
            "lookahead",
            "evicts the row whose next use, in the batches known already, is farthest",
            "Belady 1966; BagPipe, SOSP 2023",
            next_use=True,
        ),
    )
}
DEFAULT = "lru"


def _first_least(keys, unlocked):
    """The lowest unlocked way with the least key, or -1."""
    ways = np.flatnonzero(unlocked)
    return int(ways[np.argmin(keys[ways])]) if ways.size else -1


def lru_touch(line, fresh, amount, use, now, state):
    """Stamp lines with the batch that used them; see `kernels.policies.lru_touch`."""
    state.stamp[line] = now


def lru_victim(s, amount, use, now, state):
    """The least recently used row; see `kernels.policies.lru_victim`."""
    return _first_least(state.stamp[32 * s : 32 * s + 32], state.locks[32 * s : 32 * s + 32] == 0)


def lfu_touch(line, fresh, amount, use, now, state):
    """Stamp lines with lookups in all batches; see `kernels.policies.lfu_touch`."""
    state.stamp[line] = np.where(fresh, 0, state.stamp[line]) + amount


def lfu_victim(s, amount, use, now, state):
    """The least frequently used row, or -1; see `kernels.policies.lfu_victim`."""
    way = lru_victim(s, amount, use, now, state)
    return -1 if way >= 0 and state.stamp[32 * s + way] > amount else way


def sieve_touch(line, fresh, amount, use, now, state):
    """Stamp lines with their batch and used-again bit; see `kernels.policies.sieve_touch`."""
    state.stamp[line] = np.where(
        fresh, 2 * now + (np.asarray(amount) > 1), state.stamp[line] // 2 * 2 + 1
    )


def sieve_victim(s, amount, use, now, state):
    """The first row from the hand on, not used again; see `kernels.policies.sieve_victim`."""
    stamps = state.stamp[32 * s : 32 * s + 32]
    unlocked = state.locks[32 * s : 32 * s + 32] == 0
    position = stamps // 2 * np.int64(32) + np.arange(32)
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
    """Stamp lines with their last batch, keep the next; see `kernels.policies.lookahead_touch`."""
    state.stamp[line] = now
    state.next_use[line] = use


def lookahead_victim(s, amount, use, now, state):
    """The row used farthest ahead, or -1; see `kernels.policies.lookahead_victim`."""
    next_use = state.next_use[32 * s : 32 * s + 32]
    known = (next_use > now) & (next_use < NEVER)
    distance = np.where(known, np.minimum(np.where(known, next_use, now) - now, FAR - 1), FAR)
    order = np.lexsort((np.arange(32), state.stamp[32 * s : 32 * s + 32], -distance))
    candidates = [int(way) for way in order if state.locks[32 * s + way] == 0]
    if not candidates:
        return -1
    way = candidates[0]
    return -1 if known[way] and next_use[way] < use else way
