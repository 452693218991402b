"""
7. Fused backward: duplicates merged, or applied in sequence
============================================================

A popular row is looked up many times in a batch, so many gradients meet at it. Neo's exact
optimizers sort the lookups, add up the gradients of each row and update it once; it never stores a
gradient of the table. Applying the gradients one after the other is simpler, but another model, and
one whose result depends on the order.
"""

from itertools import permutations

from lesson import COLORS, np, plt, show

from neocpu.kernels.plain.rows import update as plain
from neocpu.kernels.records import Segments, ShardPlaces
from neocpu.kernels.rows import update as tuned
from neocpu.kernels.twins.rows import update as twin
from neocpu.tables.specs.optimizers import SparseOptimizer

# %%
# One row of two columns, at the origin, and the gradients of four lookups of it.

F32 = np.float32
gradients = np.array([[-1.0, 0.2], [-0.2, -1.5], [0.6, -0.4], [-0.1, -0.2]], F32)
optimizer = SparseOptimizer("exact_rowwise_adagrad", learning_rate=0.5)
zero, two = np.zeros(1, np.int64), np.full(1, 2)
places = ShardPlaces(
    base=zero,
    width=two,
    full_width=two,
    row_base=zero,
    row0=zero,
    column0=zero,
    key=np.zeros(1, np.uint64),
)


def update(module, lookups, row, state):
    """One fused update of the row by the gradients of these lookups, in place."""
    segments = Segments(
        shards=zero,
        first=np.array([0, 1]),
        unique=zero,
        starts=np.array([0, len(lookups)]),
        place=2 * np.array(lookups),
        weights=np.empty(0, F32),
    )
    fused = module.fused(optimizer.rule, False)
    element_states = optimizer.rule.element_record()
    fused(row, element_states, state, places, segments, gradients.reshape(-1), optimizer.hyper(1))


# %%
# Merged: twin, plain sibling and tuned kernel, the lookups in any order: one result.

merged = set()
for module in (twin, plain, tuned):
    for order in permutations(range(4)):
        row, state = np.zeros(2, F32), np.zeros(1, F32)
        update(module, order, row, state)
        merged.add(tuple(row.tolist()))
print("merged:", len(merged), "result of 72:", *merged)

# %%
# In sequence: each lookup is an update of its own, and the moment grows between them.

paths = []
for order in permutations(range(4)):
    row, state = np.zeros(2, F32), np.zeros(1, F32)
    path = [row.copy()]
    for lookup in order:
        update(twin, [lookup], row, state)
        path.append(row.copy())
    paths.append(np.array(path))
ends = {tuple(path[-1].tolist()) for path in paths}
print("in sequence:", len(ends), "results of 24")

# %%
# Each thin line is an order: 24 orders end in 24 places. The merged update is one step.

figure, axes = plt.subplots()
for path in paths:
    axes.plot(*path.T, "-", color=COLORS[5], lw=0.7, alpha=0.6)
    axes.plot(*path[-1], "o", color=COLORS[1], ms=5)
axes.plot([], [], "o-", color=COLORS[1], label=f"in sequence: {len(ends)} ends")
end = next(iter(merged))
axes.annotate("", end, (0, 0), arrowprops={"arrowstyle": "-|>", "color": COLORS[0], "lw": 2.5})
axes.plot(*end, "s", color=COLORS[0], ms=9, label="merged: one end")
axes.set(xlabel="column 0 of the row", ylabel="column 1")
axes.legend()
show("07_backward")

# %%
# **Read on.** Twin ``neocpu/kernels/twins/rows/update.py``, plain
# ``neocpu/kernels/plain/rows/update.py``, kernel ``neocpu/kernels/rows/update.py``, the rules
# ``neocpu/kernels/rows/rules.py``, test ``tests/test_update.py``; formulas in
# ``docs/arithmetic.md``, section 5.
#
# **Exercise.** Use ``exact_sgd``. Now the ends nearly meet: why, and what is left? Compare their
# bits, and look at ``docs/arithmetic.md``, section 3.
