"""Which cache policies exist, what do they remember, and whom do they evict? The registry, and the
twin of `kernels/policies.py`: touches of whole arrays of lines, victims among the lines of one set.

This file imports NumPy only, so the config and `--help` can list the policies without Numba.
"""

from dataclasses import dataclass

import numpy as np

NEVER = np.iinfo(np.int64).max
FAR = 1 << 20


@dataclass(frozen=True)
class Policy:
    """A cache policy.

    counts: it decides by how often a row was looked up since the start, so counts of rows outside
    the cache are kept too. next_use: it reads the batch that will use each row next (`NEVER`: none
    known), and keeps it for each line. hand: it keeps a place for each set. source: who described
    it.
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


def _first_least(keys, free):
    """The lowest way of least key among the free ones, or -1."""
    ways = np.flatnonzero(free)
    return int(ways[np.argmin(keys[ways])]) if ways.size else -1


def lru_touch(line, fresh, amount, use, now, state):
    """Stamped with the batch that used it; see `kernels.policies.lru_touch`."""
    state.stamp[line] = now


def lru_victim(s, amount, use, now, state):
    """The least recently used row; see `kernels.policies.lru_victim`."""
    return _first_least(state.stamp[32 * s : 32 * s + 32], state.locks[32 * s : 32 * s + 32] == 0)


def lfu_touch(line, fresh, amount, use, now, state):
    """Stamped with its lookups in all batches; see `kernels.policies.lfu_touch`."""
    state.stamp[line] = np.where(fresh, 0, state.stamp[line]) + amount


def lfu_victim(s, amount, use, now, state):
    """The least frequently used row, or nobody; see `kernels.policies.lfu_victim`."""
    way = lru_victim(s, amount, use, now, state)
    return -1 if way >= 0 and state.stamp[32 * s + way] > amount else way


def sieve_touch(line, fresh, amount, use, now, state):
    """Stamped with its birth and whether it was used again; see `kernels.policies.sieve_touch`."""
    state.stamp[line] = np.where(
        fresh, 2 * now + (np.asarray(amount) > 1), state.stamp[line] // 2 * 2 + 1
    )


def sieve_victim(s, amount, use, now, state):
    """The first row from the hand on, not used again; see `kernels.policies.sieve_victim`."""
    stamps = state.stamp[32 * s : 32 * s + 32]
    free = state.locks[32 * s : 32 * s + 32] == 0
    place = stamps // 2 * np.int64(32) + np.arange(32)
    by_age = [int(way) for way in np.argsort(place, kind="stable") if free[way]]
    ahead = [way for way in by_age if place[way] > state.hand[s]]
    behind = [way for way in by_age if place[way] <= state.hand[s]]
    queue = ahead + behind
    for way in queue + queue:  # after a whole round nobody has the bit
        if stamps[way] % 2 == 0:
            state.hand[s] = place[way]
            return way
        stamps[way] -= 1
    return -1


def lookahead_touch(line, fresh, amount, use, now, state):
    """Stamped with the batch that used it and the one that will; see
    `kernels.policies.lookahead_touch`.
    """
    state.stamp[line] = now
    state.next_use[line] = use


def lookahead_victim(s, amount, use, now, state):
    """The row used last, or nobody; see `kernels.policies.lookahead_victim`."""
    next_use = state.next_use[32 * s : 32 * s + 32]
    known = (next_use > now) & (next_use < NEVER)
    ahead = np.where(known, np.minimum(np.where(known, next_use, now) - now, FAR - 1), FAR)
    order = np.lexsort((np.arange(32), state.stamp[32 * s : 32 * s + 32], -ahead))
    free = [int(way) for way in order if state.locks[32 * s + way] == 0]
    return -1 if not free or (known[free[0]] and next_use[free[0]] < use) else free[0]
