"""
4. Skew: few rows are looked up most of the time
================================================

Categories are anything but uniform: some users, words and products are everywhere. Skew decides how
well a cache does, how much merging duplicates saves, and which rank has the most to do. Neo's
memory hierarchy lives on it.
"""

from lesson import COLORS, np, plt, show

from neocpu.ingest.synthetic.law import SyntheticCriteo
from neocpu.tables.embedding.lookups import EntryLayout, Lookups
from neocpu.tables.embedding.sorting import Scratch, sort

# %%
# 16,384 samples of a synthetic log with the shape of Criteo's: each category follows a law that
# was fitted to the real one. Values are numbered by how often they occur.

SAMPLES = 16384
block = SyntheticCriteo(seed=1).block(0, SAMPLES)
ranked, counts = {}, {}
for name in ("C3", "C4", "C10", "C15", "C22"):
    codes, row, count = np.unique(
        block.categories[name].codes, return_inverse=True, return_counts=True
    )
    order = np.argsort(-count, kind="stable")
    counts[name] = count[order]
    ranked[name] = np.argsort(order, kind="stable")[row]
    print(f"{name}: {codes.size:,} values; the first takes {counts[name][0] / SAMPLES:.1%}")

# %%
# Before a step updates rows, it sorts the lookups of a batch by row: each unique row becomes one
# segment, and gets one update. Skew shortens the list of rows and makes segments long.

BATCH = 2048
one = np.arange(1)
rows = ranked["C10"][:BATCH]
batch = Lookups(np.arange(BATCH + 1), rows, np.empty(0, np.float32), BATCH)
segments = sort(EntryLayout(one, one), batch, np.array([counts["C10"].size]), 16, Scratch())
longest = np.diff(segments.starts).max()
print(f"C10: {BATCH} lookups are {segments.unique.size} rows; the longest segment has {longest}")

# %%
# Left: the share of lookups that the most frequent rows take. Right: the more samples a batch has,
# the fewer of its lookups are new rows; with uniform values it would be the dashed line.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4))
sizes = 2 ** np.arange(5, 15)
for (name, count), color in zip(counts.items(), COLORS):
    share = np.arange(1, count.size + 1) / count.size
    left.plot(share, np.cumsum(count) / SAMPLES, color=color, label=f"{name}, {count.size:,} rows")
    unique = [np.unique(ranked[name][:size]).size / size for size in sizes]
    right.plot(sizes, unique, "o-", ms=4, color=color)
uniform = [counts["C10"].size * -np.expm1(-n / counts["C10"].size) / n for n in sizes]
right.plot(sizes, uniform, "--", color=COLORS[5], label="C10, were it uniform")
left.set(xscale="log", xlabel="share of the rows, most frequent first", ylabel="share of lookups")
right.set(xscale="log", ylim=(0, 1), xlabel="samples of a batch", ylabel="unique rows per lookup")
left.legend(fontsize=9)
right.legend(fontsize=9)
show("04_skew")

# %%
# **Read on.** Twin ``neocpu/kernels/twins/rows/segments.py``, kernel
# ``neocpu/kernels/rows/segments.py`` (it has no plain sibling), test ``tests/test_segments.py``;
# the law ``neocpu/ingest/synthetic/law.py``, fitted as ``tests/test_synthetic.py`` checks.
#
# **Exercise.** A table is cut by rows over 4 ranks, in blocks of ranked rows. Which share of C10's
# lookups goes to each rank? And when rows are dealt by a hash instead? (`neocpu data show` prints
# the skew of your own log.)
