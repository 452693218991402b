"""
9. Narrow rows: nearest against stochastic
==========================================

Rows in 16 bits halve the memory of a table, and 8 bits halve it again. But an update that is
smaller than half a unit in the last place is rounded away: the weight never moves. Neo's way out is
stochastic rounding: up or down with the odds that make the *expected* result exact.
"""

from lesson import COLORS, np, plt, show

from neocpu.core.codecs import LAYOUTS
from neocpu.kernels.twins.codecs.small_floats import decode_rows
from neocpu.parallel.sharding.schemes import Shard
from neocpu.tables.embedding.lookups import EntryLayout, Lookups
from neocpu.tables.embedding.tbe import TableBatchedEmbedding
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec

# %%
# How far apart are the numbers? Around 1, bf16 steps by 1/128 upwards, and fp8 by 1/8.

codes = np.arange(0x3F80, 0x3F84, dtype=np.uint16)
numbers = np.empty(4, np.float32)
decode_rows(codes, LAYOUTS["bf16"], numbers)
print("bf16 from 1 on:", numbers.tolist())

# %%
# One row of 64 weights, all 1, and 400 SGD steps that each subtract 1/1000.

STEPS, D = 400, 64
one = np.zeros(1, np.int64)
batch = Lookups(np.array([0, 1]), one, np.empty(0, np.float32), 1)


def train(form, rounding):
    """Weights after each step: f32[STEPS + 1, D]."""
    table = TableSpec("C", rows=1, dim=D, features=("C",), format=form, rounding=rounding)
    optimizer = SparseOptimizer("exact_sgd", learning_rate=0.001)
    tbe = TableBatchedEmbedding([table], [Shard(0, (0, 1), (0, D), 0)], optimizer, seed=1)
    tbe.load_rows(0, one, {"weight": np.ones((1, D), np.float32)})
    path = [np.ones(D, np.float32)]
    for step in range(STEPS):
        tbe.backward(EntryLayout(one, one), batch, np.ones((1, D), np.float32), step + 1)
        path.append(tbe.values(0, one)["weight"][0])
    return np.array(path)


paths = {rounding: train("bf16", rounding) for rounding in ("nearest", "stochastic")}
for rounding, path in paths.items():
    print(f"{rounding:10} ends at {path[-1].mean():.4f} ± {path[-1].std():.4f}; exact: 0.6")

# %%
# To nearest, nothing moves. Stochastically each weight (thin lines: three of them) jumps now and
# then, and the mean of all keeps to the exact line; the band is their spread.

figure, axes = plt.subplots()
axes.plot(1 - np.arange(STEPS + 1) / 1000, "--", color="black", label="exact", lw=1)
for (rounding, path), color in zip(paths.items(), (COLORS[3], COLORS[0])):
    mean, spread = path.mean(axis=1), path.std(axis=1)
    axes.plot(mean, color=color, label=f"bf16, {rounding}: mean of 64 weights", lw=2)
    axes.fill_between(range(STEPS + 1), mean - spread, mean + spread, color=color, alpha=0.15)
axes.plot(paths["stochastic"][:, :3], color=COLORS[0], lw=0.6)
axes.set(xlabel="steps", ylabel="weight")
axes.legend(loc="lower left")
show("09_narrow")

# %%
# **Read on.** Twins ``neocpu/kernels/twins/rows/narrow.py`` and
# ``neocpu/kernels/twins/codecs/small_floats.py``, plain ``neocpu/kernels/plain/rows/narrow.py``,
# kernel ``neocpu/kernels/rows/narrow.py``, tests ``tests/test_narrow.py`` and
# ``tests/test_codecs.py``; every byte in ``docs/formats.md``. The random bits belong to (seed,
# table, row, column, step), so they are the same under every plan.
#
# **Exercise.** How large must a step be until bf16 to nearest moves at all, and does it then move
# by the right amount? Try ``fp8_e4m3``, which is noisier, and ``bf16_split``, which keeps the lower
# halves of fp32 numbers (each compiles another kernel first).
