"""Does the cache decide as FBGEMM's kernels do? They are played here: ways sorted once a set,
misses dealt to them.

What docs/memory.md says differs is switched on and shown to be all that differs.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neocpu.tables.tiers.cache import Cache
from tests.cache_model import batch_of, murmur


class Fbgemm:
    """State and kernels of `lru_cache_find/populate` and `lfu_cache_find/populate`; equal costs by
    way, lowest first.
    """

    def __init__(self, policy, sets, spare_hits):
        self.policy = policy
        self.sets = sets
        self.spare_hits = spare_hits
        self.time = 0
        self.state = np.full((sets, 32), -1)
        self.last = np.zeros((sets, 32), np.int64)
        self.counts = {}

    def step(self, batch):
        """One prefetch; the hits of the batch that were evicted by it."""
        self.time += 1
        misses = {}
        hits = set()
        for number, count in sorted(batch.items()):
            self.counts[number] = self.counts.get(number, 0) + count
            s = murmur(number) % self.sets
            ways = np.flatnonzero(self.state[s] == number)
            self.last[s, ways] = self.time
            if ways.size:
                hits.add((s, int(ways[0])))
            else:
                misses.setdefault(s, []).append(number)
        evicted = []
        for s, numbers in misses.items():
            evicted += [
                (s, way) for way in getattr(self, self.policy)(s, numbers, hits) if (s, way) in hits
            ]
        return evicted

    def lru(self, s, numbers, hits):
        order = sorted(range(32), key=lambda way: (self.last[s, way], way))
        for way, number in zip(order, numbers):
            if self.last[s, way] == self.time:
                break
            self.state[s, way], self.last[s, way] = number, self.time
        return []

    def lfu(self, s, numbers, hits):
        cost = {
            way: self.counts[row] if row >= 0 else -1
            for way, row in enumerate(self.state[s].tolist())
        }
        order = sorted(
            (way for way in cost if not (self.spare_hits and (s, way) in hits)),
            key=lambda w: (cost[w], w),
        )
        taken = []
        for way, number in zip(order, sorted(numbers, key=lambda n: (-self.counts[n], n))):
            if cost[way] > self.counts[number]:
                break
            self.state[s, way] = number
            taken.append(way)
        return taken


def rows(cache):
    state = np.full((cache.sets, 32), -1)
    lines, ids = cache.rows()
    state.reshape(-1)[lines] = ids
    return state


@pytest.mark.parametrize("policy", ["lru", "lfu"])
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), sets=st.integers(1, 3), lookups=st.integers(1, 150))
def test_decisions_are_fbgemms(policy, seed, sets, lookups):
    """Without a prefetch pipeline: every batch is done before the next; LFU hits are spared."""
    rng = np.random.default_rng(seed)
    cache = Cache(sets, policy)
    peer = Fbgemm(policy, sets, spare_hits=True)
    for _ in range(10):
        batch = batch_of(rng, rng.zipf(1.2, 300) % 200, lookups)
        ids = np.array(list(batch))
        cache.release(cache.prefetch(ids, np.array(list(batch.values()))).lines)
        assert not peer.step(batch)
        np.testing.assert_array_equal(rows(cache), peer.state)


def test_the_difference_lfu_hits_of_the_same_batch():
    """A full set, all of it asked for again, and a hotter row: FBGEMM evicts a hit, here the hotter
    row stays outside.
    """
    peer = Fbgemm("lfu", 1, spare_hits=False)
    cache = Cache(1, "lfu")
    first = dict.fromkeys(range(32), 3)
    second = dict.fromkeys(range(32), 1) | {50: 9}
    moves = []
    for batch in (first, second):
        moves.append(cache.prefetch(np.array(list(batch)), np.array(list(batch.values()))))
        cache.release(moves[-1].lines)
    assert peer.step(first) == [] and peer.step(second) == [(0, 0)]
    assert moves[1].lines.tolist() == [*range(32), -1] and not moves[1].evicted_rows.size
