"""
6. Three AllToAlls and their traffic matrix
===========================================

Samples are spread over ranks in one way and table rows in another. So a step exchanges three times:
lookups go to the ranks that hold the rows, pooled vectors come back, and later their gradients take
the same way again. Every message is known beforehand, byte by byte; planners live on that.
"""

from lesson import np, plt, show

from neocpu.core.jagged import KJT
from neocpu.parallel.embeddings.sharded import ShardedEmbedding
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.threads import run_threads
from neocpu.plan.cost.traffic.collectives import link_report, total
from neocpu.plan.cost.traffic.demand import CountedDemand, sample_cuts
from neocpu.plan.cost.traffic.step import StepShape, step_traffic
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec

# %%
# Three tables with bags of different lengths: a small one on one rank, a long-bagged one cut by
# rows over all ranks, and one cut by columns.

RANKS, BATCH = 4, 256
TABLES = (
    TableSpec("user", rows=200, dim=32, features=("user",)),
    TableSpec("history", rows=4000, dim=32, features=("history",)),
    TableSpec("word", rows=1000, dim=32, features=("word",)),
)
PLAN = place(TABLES, ["table_wise", "row_wise", "column_wise"], RANKS)
rng = np.random.default_rng(5)
lengths = rng.poisson([[1], [20], [5]], (3, BATCH)).astype(np.int32)
values = [rng.integers(0, t.rows, n.sum()) for t, n in zip(TABLES, lengths)]
batch = KJT(("user", "history", "word"), lengths, np.concatenate(values), None)
cuts = sample_cuts(RANKS, BATCH, RANKS)

# %%
# Predicted: every call of the step, with its bytes from each rank to each other one.
# ``row_scalars`` is what row-wise AdaGrad needs where a row is cut by columns.

optimizer = SparseOptimizer()
scalars = tuple(len(phase.of) for phase in optimizer.rounds)
demand = CountedDemand(TABLES, batch, cuts)
calls = step_traffic(PLAN, StepShape(BATCH, RANKS, row_scalars=scalars), demand)
calls = [call for call in calls if not call.name.startswith("dense")]
for call in calls:
    print(f"{call.name:18} {call.matrix(RANKS).sum():>9,} bytes")

# %%
# Measured: the same step on four ranks, as threads. Each rank counts what it sends.


def step(comm):
    """One step; what all ranks sent."""
    embedding = ShardedEmbedding(ShardingEnv(PLAN, comm, optimizer, 1, RANKS))
    lo, hi = cuts[comm.rank : comm.rank + 2]
    ends = batch.offsets[np.arange(3)[:, None] * BATCH + [lo, hi]]
    kjt = KJT(
        batch.keys,
        lengths[:, lo:hi].copy(),
        np.concatenate([batch.values[a:b] for a, b in ends]),
        None,
    )
    pooled = np.zeros((hi - lo, embedding.columns), np.float32)
    embedding.forward(kjt, BATCH).finish(pooled)
    embedding.backward(pooled, 1)
    return comm.traffic()


measured = run_threads(RANKS, step)[0]["alltoallv"]
predicted = link_report(calls, np.zeros(RANKS, np.int64))["alltoallv"]
for link in ("same_rank", "same_node"):
    print(link, f"{measured[link]['bytes']:,} bytes, predicted {predicted[link]['bytes']:,}")

# %%
# The matrices: who sends how much to whom. Sums of rows that are cut by rows travel as exact words
# of 8 bytes, so the pooled vectors of a long bag on four ranks cost more than its lookups.

exchanges = {
    "lookups": ("input lengths", "input rows"),
    "pooled vectors": ("pooled output", "words", "further counts"),
    "gradients": ("pooled gradients", "word gradients"),
}
figure, axes = plt.subplots(1, 3, figsize=(9, 3.6), sharey=True)
for axis, (title, names) in zip(axes, exchanges.items()):
    kilobytes = sum(total(calls, RANKS, name) for name in names) / 1000
    axis.imshow(kilobytes, cmap="Blues", vmin=0, vmax=32)
    for (source, target), size in np.ndenumerate(kilobytes):
        color = "white" if size > 17 else "black"
        axis.text(target, source, f"{size:.1f}", ha="center", va="center", color=color)
    axis.set(title=f"{title}, kB", xlabel="to rank", xticks=range(RANKS), yticks=range(RANKS))
axes[0].set_ylabel("from rank")
show("06_alltoall")

# %%
# **Read on.** ``neocpu/plan/cost/traffic/step.py`` lists the calls;
# ``neocpu/parallel/exchange/input_dist.py`` and ``neocpu/parallel/exchange/output_dist.py`` make
# them; kernel ``neocpu/kernels/exchange/bucketize.py``, twin
# ``neocpu/kernels/twins/exchange/bucketize.py``; tests ``tests/test_traffic.py`` and
# ``tests/test_exchange.py``. What each option of the exchange does is in ``docs/communication.md``.
#
# **Exercise.** Put the history on one rank: which matrix shrinks, and which cell of it grows? Then
# give ``StepShape`` ``unique_rows="on"`` and see what duplicates were worth.
