"""
10. Break a kernel and ask the oracle
=====================================

A kernel for an accelerator has its own order of sums, so it never gives our bits. Is it right? The
oracle knows the exact answer of every element, and a proven bound for how far a correct kernel may
be from it. What lies beyond is a bug, and often one that has a name.
"""

from lesson import COLORS, np, plt, show

from neocpu import oracle

# %%
# A table of 50 rows, and 12 bags of up to 9 weighted lookups.

rng = np.random.default_rng(0)
lengths = rng.integers(0, 10, 12)
inputs = {
    "weights": rng.standard_normal(50 * 8, dtype=np.float32),
    "rows": np.array([50]),
    "dims": np.array([8]),
    "feature_table": np.array([0]),
    "indices": rng.integers(0, 50, lengths.sum()),
    "offsets": np.append(0, lengths.cumsum()),
    "per_sample_weights": rng.random(lengths.sum(), dtype=np.float32),
}


def kernel(mistake=""):
    """Weighted means of all bags in fp32, as somebody might write it; perhaps with a mistake."""
    table = inputs["weights"].reshape(50, 8)
    out = np.zeros((12, 8), np.float32)
    for b, (lo, hi) in enumerate(zip(inputs["offsets"], inputs["offsets"][1:])):
        last = hi - 1 if mistake == "last lookup is lost" else hi
        for j in range(lo, last):
            weight = (
                np.float32(1)
                if mistake == "weights are ignored"
                else inputs["per_sample_weights"][j]
            )
            out[b] += weight * table[inputs["indices"][j]]
            if mistake == "sums are kept in fp16":
                out[b] = out[b].astype(np.float16)
        if hi > lo and mistake != "means are not divided":
            out[b] /= np.float32(hi - lo)
    return out


# %%
# The right kernel passes, though its sums are rounded at every step. Each broken one fails, and the
# oracle says where and by how much. A mistake is named where its own exact model predicts what is
# wrong, and nothing is named otherwise: sums in fp16 are wrong by no rule.

mistakes = (
    "",
    "sums are kept in fp16",
    "last lookup is lost",
    "weights are ignored",
    "means are not divided",
)
reports = {}
for mistake in mistakes:
    report = oracle.check("lookup", inputs, kernel(mistake), options={"pooling": "mean"})
    reports[mistake or "right"] = report
    print(f"--- {mistake or 'right'}", report, sep="\n")

# %%
# A race shows in some calls only. Called several times with the same inputs, a right kernel may
# round otherwise each time, but not lose the last lookup of a bag now and then.


def racing(inputs, options):
    """The right kernel, but one sample of each call does not wait for its last lookup."""
    out = kernel()
    sample = rng.integers(12)
    out[sample] = kernel("last lookup is lost")[sample]
    return out


race = oracle.check_repeatedly("lookup", inputs, racing, {"pooling": "mean"}, runs=20)
print("--- a race", race, sep="\n")

# %%
# The error of every element over its bound: up to 1 is rounding, beyond is a bug.

exact = oracle.run("lookup", inputs, options={"pooling": "mean"})["out"]
bound = oracle.OPERATORS["lookup"].truth(inputs, {"pooling": "mean"}, frozenset())["out"].bound
figure, axes = plt.subplots()
for place, (mistake, color) in enumerate(zip(mistakes, (COLORS[2], *COLORS[:2], *COLORS[3:]))):
    error = np.abs(kernel(mistake) - exact) / np.where(bound > 0, bound, 1)
    spread = rng.uniform(-0.2, 0.2, error.size)
    axes.plot(np.maximum(error.ravel(), 1e-2), place + spread, ".", color=color)
axes.axvline(1, color="black", lw=1)
axes.annotate("the bound", (1.3, 0.45))
axes.set(xscale="log", xlabel="error over bound (right answers at 0.01 or more)")
axes.set_yticks(range(len(mistakes)), [mistake or "right" for mistake in mistakes])
axes.invert_yaxis()
show("10_oracle")

# %%
# **Read on.** Kernel ``neocpu/kernels/rows/lookup.py``, plain
# ``neocpu/kernels/plain/rows/lookup.py``, twin ``neocpu/kernels/twins/rows/lookup.py``; the exact
# model ``neocpu/oracle/truth/lookups.py``, the list of mistakes
# ``neocpu/oracle/switches.csv``; test ``tests/test_oracle_diagnose.py``; whole suites, and
# what failed cases have in common, in ``docs/oracle.md``.
#
# **Exercise.** Break the kernel so that the oracle finds no name for it. Then break it so little
# that it passes: what is the largest mistake that hides below the bound?
