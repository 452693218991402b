"""Which cache policies exist, and what do they record? One record each.

What a policy does is a pair of functions in `kernels/tiers/policies.py` and its twin; its name and
needs are here, without Numba, for the config.
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

    name : its name in the config.
    counts : it needs the lookups of every row since the start, also of rows outside the cache.
    next_use : it needs, and keeps for each line, the next batch that uses a row (`NEVER`: unknown).
    hand : it keeps a position in the queue of each set.
    """

    name: str
    counts: bool = False
    next_use: bool = False
    hand: bool = False


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("lru"),  # FBGEMM's CacheAlgorithm.LRU
        Policy("lfu", counts=True),  # FBGEMM's CacheAlgorithm.LFU; Neo, 2022
        Policy("sieve", hand=True),  # Zhang et al., SIEVE, NSDI 2024
        Policy("lookahead", next_use=True),  # Belady 1966; BagPipe, SOSP 2023
    )
}
DEFAULT = "lru"
