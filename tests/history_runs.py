"""Small models that attend to histories, trained a few steps on any ranks: what tests share."""

import numpy as np
from composed_runs import DENSE, STEPS, TRAINING, digest_after

from neocpu.core.jagged import KJT
from neocpu.core.trees import rank_samples
from neocpu.parallel.sharding.plan import place
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.specs.specs import bags
from neocpu.train.before.plans import memory_plan
from neocpu.train.before.warmup import MiniBatch
from neocpu.train.config import config
from neocpu.train.config.config import Config
from neocpu.train.step.world import World, build

TOML = (
    """
[model]
embedding_dim = 8
bottom = [6, 8]
top = [5, 1]
[model.attention]
history = { target = "item", hidden = [6] }
likes = { target = "kind", hidden = [4, 3], normalise = "softmax" }
[tables.items]
rows = 50
features = ["history", "item"]
pooling = "none"
[tables.kinds]
rows = 7
features = ["kind"]
[tables.likes]
rows = 30
pooling = "none"
[tables.user]
rows = 40
pooling = "mean"
"""
    + TRAINING
)


def settings(*sets: str, text: str = TOML) -> Config:
    """The config with overrides."""
    return config.loads(text, "histories.toml", sets)


def batch_of(options: Config, comm: Comm, number: int, samples: int = 22) -> MiniBatch:
    """This rank's part of batch `number`: bags of 0 to 4 rows, some pruned, the last rows of
    tables among them.
    """
    rng = np.random.default_rng(number)
    keys = bags(options.tables)
    lengths = rng.integers(0, 5, (len(keys), samples)).astype(np.int32)
    lengths[:, rng.random(samples) < 0.2] = 0
    first = [next(k for k, each in enumerate(keys) if each.feature == key.feature) for key in keys]
    lengths = lengths[first]  # a feature has the same bags in all tables
    lo, hi = rank_samples(comm.rank, comm.size, samples, options.training.leaves)
    values = []
    pruned: dict[str, np.ndarray] = {}  # the same lookups in all tables of a feature
    for key, key_lengths in zip(keys, lengths):
        height = options.tables[key.table].rows
        rows = rng.integers(0, height, key_lengths.sum())
        rows[rng.random(rows.size) < 0.2] = height - 1
        rows[pruned.setdefault(key.feature, rng.random(rows.size) < 0.1)] = -1
        ends = np.append(0, np.cumsum(key_lengths))
        values.append(rows[ends[lo] : ends[hi]])
    dense = rng.standard_normal((samples, DENSE), dtype=np.float32)
    labels = rng.integers(0, 2, samples).astype(np.float32)
    kjt = KJT(
        tuple(key.key for key in keys),
        np.ascontiguousarray(lengths[:, lo:hi]),
        np.concatenate(values),
    )
    return MiniBatch(dense[lo:hi], kjt, labels[lo:hi], samples)


def world_of(options: Config, comm: Comm, plan: str, folder=None) -> World:
    """The objects of a rank; plan : one scheme for all tables, or one of each in turn."""
    schemes = plan.split(",")
    tables = options.tables
    names = [schemes[number % len(schemes)] for number in range(len(tables))]
    made = place(tables, names, comm.size, min(2, comm.size))
    memory = None if folder is None else memory_plan(options, made, {}, folder)
    return build(options, comm, made, DENSE, memory=memory)


def train(options: Config, comm: Comm, *, plan: str = "table_wise", folder=None) -> str:
    """Digest after STEPS."""
    world = world_of(options, comm, plan, folder)
    result = digest_after(world, (batch_of(options, comm, *step) for step in STEPS))
    world.embedding.tbe.close()
    return result
