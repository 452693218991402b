"""Which cache policies exist, and what do they record? One record each.

What a policy evicts is a pair of functions in `kernels/tiers/policies.py` and its twin; its name
and needs are here, without Numba, for the config. Systems that were published with a cache are
policies too: the eviction that they use, and the keys of `[memory]` that belong to it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

# next use of a row that no known batch uses
NEVER = np.iinfo(np.int64).max
# Lookahead tells the next uses of rows apart up to this many batches ahead.
FAR = 1 << 20


@dataclass(frozen=True)
class Policy:
    """A cache policy.

    name : its name in the config.
    evicts : name of the functions that decide ("": the policy's own).
    counts : it needs the lookups of every row since the start, also of rows outside the cache.
    next_use : it needs, and keeps for each line, the next batch that uses a row (`NEVER`: unknown).
    hand : it keeps a position in the queue of each set.
    expires : a row leaves as soon as no known batch uses it.
    ordered : it needs rows in the order of falling frequency.
    keys : of the config's section `memory`, where it does not name them. None of them may be false
        or 0: what the policy is would be gone.
    """

    name: str
    evicts: str = ""
    counts: bool = False
    next_use: bool = False
    hand: bool = False
    expires: bool = False
    ordered: bool = False
    keys: Mapping[str, object] = field(default_factory=dict)

    @property
    def functions(self) -> str:
        """Name of the functions that decide."""
        return self.evicts or self.name

    def text(self, section: object) -> str:
        """In a line: what it is made of; section : the section `memory` of the config."""
        parts = [f"evicts as {self.functions}"] if self.evicts else []
        parts += ["rows leave after their last known use"] if self.expires else []
        # placements have lines of their own
        parts += [f"{key} {getattr(section, key)}" for key in self.keys if key != "placement"]
        return f"caches: {self.name}" + (f" ({', '.join(parts)})" if parts else "")

    def faults(self, section: object, cached: bool, rows_by: str) -> Iterator[tuple[str, str]]:
        """(key, why) of what is wrong in a section `memory`.

        cached : may any table have a cache? rows_by : how the data number their rows.
        """
        for key in self.keys:
            if not getattr(section, key):
                least = "true" if key == "warm" else "1 or more"
                why = (
                    f"the policy {self.name!r} is nothing without it: set {least}, or leave it out"
                )
                yield key, why
        if self.keys and not cached:
            why = (
                f"the policy {self.name!r} is one of caches, and no table has any: leave it out "
                "for hbm_over_ddr, or name a placement with a cache"
            )
            yield "placement", why
        if self.ordered and rows_by == "hash":
            why = (
                f"{self.name!r} evicts the row of the largest number, and hashed rows are in no "
                'order: set data.rows_by = "vocabulary" (rows by falling frequency), or count '
                'lookups instead: memory.policy = "lfu" with memory.warm = true'
            )
            yield "policy", why


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("lru"),  # FBGEMM's CacheAlgorithm.LRU
        Policy("lfu", counts=True),  # FBGEMM's CacheAlgorithm.LFU; Neo, 2022
        Policy("sieve", hand=True),  # Zhang et al., SIEVE, NSDI 2024
        Policy("lookahead", next_use=True),  # Belady 1966
        # Agarwal et al., SOSP 2023: rows are there from before their first known use to their last
        Policy(
            "bagpipe",
            evicts="lookahead",
            next_use=True,
            expires=True,
            keys={"placement": "hbm_over_ddr", "prefetch": 1, "lookahead": 32},
        ),
        # Kwon and Rhu, ISCA 2022: rows of the next two batches are there, and are held
        Policy("scratchpipe", evicts="lru", keys={"placement": "hbm_over_ddr", "prefetch": 2}),
        # Fang et al. 2022 (Colossal-AI): a row's number is its rank by frequency in the data
        Policy(
            "cachedembedding",
            evicts="largest",
            ordered=True,
            keys={"placement": "hbm_over_ddr", "warm": True, "warm_share": 0.7},
        ),
    )
}
DEFAULT = "lru"
# those that are no more than what they evict
EVICTIONS = tuple(policy.name for policy in POLICIES.values() if not policy.evicts)
# those that are published systems
SYSTEMS = tuple(policy.name for policy in POLICIES.values() if policy.keys)
