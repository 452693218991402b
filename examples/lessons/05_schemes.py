"""
5. One table under six schemes
==============================

A table may live on one rank, be cut by rows or columns, over all ranks or those of one node, or be
copied: Neo calls it 4D parallelism. Here a scheme is nothing but a list of rectangles, and the
exchange knows rectangles only. So the result cannot know the scheme, to the bit.
"""

import hashlib
from functools import partial

from lesson import COLORS, np, plt, show

from neocpu.core.jagged import KJT
from neocpu.core.trees import rank_samples
from neocpu.parallel.embeddings.sharded import ShardedEmbedding
from neocpu.parallel.exchange.sharding_env import ShardingEnv
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.threads import run_threads
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.specs import TableSpec

SCHEMES = ("table_wise", "row_wise", "column_wise", "table_row_wise", "grid_shard", "data_parallel")
RANKS, PER_NODE, BATCH, LEAVES = 4, 2, 64, 4
TABLE = (TableSpec("C", rows=40, dim=16, features=("C",)),)

# %%
# One batch: 64 bags of 0 to 5 lookups, and some gradient of the pooled rows. Every rank takes its
# own samples of it.

rng = np.random.default_rng(3)
lengths = rng.integers(0, 6, (1, BATCH)).astype(np.int32)
values = rng.integers(0, 40, lengths.sum())
gradient = rng.standard_normal((BATCH, 16)).astype(np.float32)
starts = np.append(0, lengths.cumsum())


def train(comm, scheme):
    """Pool one batch and update the table; what this rank pooled afterwards."""
    plan = place(TABLE, [scheme], comm.size, PER_NODE)
    env = ShardingEnv(plan, comm, SparseOptimizer(learning_rate=0.1), 1, LEAVES)
    embedding = ShardedEmbedding(env)
    lo, hi = rank_samples(comm.rank, comm.size, BATCH, LEAVES)
    kjt = KJT(("C",), lengths[:, lo:hi].copy(), values[starts[lo] : starts[hi]], None)
    pooled = np.empty((hi - lo, 16), np.float32)
    for step in (1, 2):
        embedding.forward(kjt, BATCH).finish(pooled)
        embedding.backward(gradient[lo:hi], step)
    return pooled


# %%
# Four ranks on two nodes, as threads. Six plans, one digest, which is that of one rank alone.

digests = {}
for scheme in SCHEMES:
    pooled = np.concatenate(
        run_threads(RANKS, partial(train, scheme=scheme), ranks_per_node=PER_NODE)
    )
    digests[scheme] = hashlib.sha256(pooled.tobytes()).hexdigest()
alone = hashlib.sha256(run_threads(1, partial(train, scheme="table_wise"))[0].tobytes()).hexdigest()
for scheme, digest in digests.items():
    print(f"{scheme:16} {digest[:16]}")
print(f"{'one rank':16} {alone[:16]}")

# %%
# The rectangles: columns to the right, rows downwards, a colour for each rank.

figure, axes = plt.subplots(2, 3, figsize=(8, 6), sharex=True, sharey=True)
for axis, scheme in zip(axes.flat, SCHEMES):
    for shard in place(TABLE, [scheme], RANKS, PER_NODE).shards:
        inset = 1.2 * shard.rank if scheme == "data_parallel" else 0
        corner = (shard.cols[0] + inset / 3, shard.rows[0] + inset)
        width, height = shard.shape[1] - inset * 2 / 3, shard.shape[0] - inset * 2
        axis.add_patch(plt.Rectangle(corner, width, height, fc=COLORS[shard.rank], ec="white"))
        middle = (corner[0] + width / 2, corner[1] + height / 2)
        text = "every\nrank" if scheme == "data_parallel" else f"rank {shard.rank}"
        turn = 90 if width < 8 else 0
        axis.text(*middle, text, rotation=turn, ha="center", va="center", color="white")
    axis.set(title=scheme, xlim=(0, 16), ylim=(40, 0), xlabel="columns", ylabel="rows")
    axis.label_outer()
show("05_schemes")

# %%
# **Read on.** ``neocpu/parallel/sharding/schemes.py`` (a scheme is a function of a few lines), the
# exchange ``neocpu/parallel/exchange/input_dist.py`` with its kernel
# ``neocpu/kernels/exchange/bucketize.py``, twin ``neocpu/kernels/twins/exchange/bucketize.py``;
# tests ``tests/test_sharding.py``, ``tests/test_sharded.py``.
#
# **Exercise.** Which scheme sends the fewest bytes if bags are long, and which if they are short?
# Set the lengths to 0 or 1, then to 50, and compare `comm.traffic()` of rank 0 under each scheme.
