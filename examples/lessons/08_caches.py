"""
8. Caches by policy, with Belady below
======================================

Tables are larger than fast memory, so the rows in use are kept in a software cache: 32-way
set-associative, as Neo's is, so that a warp of a GPU (or a vector of a CPU) searches a set at once.
Which row leaves when a set is full is the policy. Belady's rule, which knows the whole future, is
below any of them.
"""

from lesson import COLORS, np, plt, show

from neocpu.core.policies import EVICTIONS
from neocpu.ingest.synthetic.law import SyntheticCriteo
from neocpu.tables.tiers.cache import WAYS, Cache, batches_ahead, sets_for

# %%
# A log with Criteo's skew in batches of 256 samples: the unique rows of each, and their lookups.

BATCH, WINDOW = 256, 8
block = SyntheticCriteo(seed=1).block(0, 40 * BATCH)
names = ("C3", "C4", "C10", "C15", "C24")
codes = [block.categories[name].codes.astype(np.int64) + (k << 33) for k, name in enumerate(names)]
rows, log = np.unique(np.stack(codes, axis=1), return_inverse=True)
batches = [np.unique(part, return_counts=True) for part in np.split(log.reshape(-1, 5), 40)]
unique_rows = sum(ids.size for ids, _ in batches)

# %%
# Every batch through the cache: ``prefetch`` brings its rows into lines and locks them, ``release``
# unlocks them. The policy `lookahead` is told when rows of coming batches are used next.


def missed(policy, sets):
    """Share of the batches' rows that are not in a cache of so many sets."""
    cache = Cache(sets, policy)
    for b, (ids, counts) in enumerate(batches):
        later = [coming for coming, _ in batches[b + 1 : b + 1 + WINDOW]]
        cache.release(cache.prefetch(ids, counts, batches_ahead(ids, later)).lines)
        if cache.policy.next_use and b + WINDOW + 1 < len(batches):
            cache.expect(batches[b + WINDOW + 1][0], WINDOW + 1)
    return cache.stats()["unique_misses"] / unique_rows


def belady(lines):
    """The least such share: keep the rows whose next use is soonest."""
    next_use = np.full((len(batches) + 1, rows.size), len(batches))
    for b, (ids, _) in reversed(list(enumerate(batches))):
        next_use[b] = next_use[b + 1]
        next_use[b, ids] = b
    cached, misses = np.empty(0, np.int64), 0
    for b, (ids, _) in enumerate(batches):
        misses += np.setdiff1d(ids, cached).size
        cached = np.union1d(cached, ids)
        cached = cached[np.argsort(next_use[b + 1, cached], kind="stable")[:lines]]
    return misses / unique_rows


# %%
# Miss rates over the size of the cache. The dotted line is what no cache avoids: first uses.

shares = (0.02, 0.05, 0.1, 0.2, 0.4)
sizes = [sets_for(rows.size, share) for share in shares]
curves = {policy: [missed(policy, sets) for sets in sizes] for policy in EVICTIONS}
curves["Belady"] = [belady(WAYS * sets) for sets in sizes]
figure, axes = plt.subplots()
for (policy, curve), color in zip(curves.items(), (*COLORS[:4], "black")):
    print(f"{policy:10}", " ".join(f"{rate:6.1%}" for rate in curve))
    style = "--" if policy == "Belady" else "o-"
    axes.plot(shares, curve, style, color=color, label=policy)
axes.axhline(rows.size / unique_rows, color=COLORS[5], ls=":", label="first uses")
axes.set(xscale="log", xlabel="lines of the cache, as a share of all rows", ylabel="rows missed")
axes.set_xticks(shares, [f"{share:.0%}" for share in shares])
axes.minorticks_off()
axes.legend()
show("08_caches")

# %%
# **Read on.** Twins ``neocpu/kernels/twins/tiers/cache.py`` and
# ``neocpu/kernels/twins/tiers/policies.py``, plain ``neocpu/kernels/plain/tiers/cache.py``, kernels
# ``neocpu/kernels/tiers/cache.py`` and ``neocpu/kernels/tiers/policies.py``, test
# ``tests/test_cache.py``; real logs: ``benchmarks/cache.py``.
#
# **Exercise.** Put a scan between the batches, 500 rows that never come again: which policy suffers
# most? Then shorten the window of `lookahead` to 1 batch. How near to Belady is it still?
