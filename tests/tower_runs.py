"""A small model with towers, trained a few steps on any ranks: what the tests of towers share."""

import numpy as np
from composed_runs import DENSE, STEPS, TRAINING, digest_after

from neocpu.core.jagged import KJT
from neocpu.core.trees import rank_samples
from neocpu.parallel.transport.comm import Comm
from neocpu.train.before.warmup import MiniBatch
from neocpu.train.config import config
from neocpu.train.config.config import Config
from neocpu.train.step.world import World

TOML = (
    """
[model]
embedding_dim = 8
bottom = [6, 8]
top = [5, 1]
[model.tower]
joint_vectors = 1
feature_vectors = 1
[model.towers]
user = ["u1", "u0"]
item = ["i0", "i1"]
[tables.u0]
rows = 60
pooling = "mean"
[tables.i0]
rows = 40
features = ["i0", "i1"]
[tables.u1]
rows = 90
weighted = true
"""
    + TRAINING
)


def settings(*sets: str) -> Config:
    """The config with overrides."""
    return config.loads(TOML, "towers.toml", sets)


def batch_of(options: Config, comm: Comm, number: int, samples: int = 22) -> MiniBatch:
    """This rank's part of batch `number`: bags of 0 to 3 rows, weights, dense features, labels."""
    rng = np.random.default_rng(number)
    rows = {"u0": 60, "i0": 40, "i1": 40, "u1": 90}
    lengths = rng.integers(0, 4, (len(rows), samples)).astype(np.int32)
    values = [rng.integers(0, high, n) for high, n in zip(rows.values(), lengths.sum(axis=1))]
    # 1 for tables without weights, as in any batch
    weights = [
        rng.uniform(0.5, 2, v.size).astype(np.float32)
        if key == "u1"
        else np.ones(v.size, np.float32)
        for key, v in zip(rows, values)
    ]
    dense = rng.standard_normal((samples, DENSE), dtype=np.float32)
    labels = rng.integers(0, 2, samples).astype(np.float32)
    lo, hi = rank_samples(comm.rank, comm.size, samples, options.training.leaves)
    parts = []
    for key in range(len(rows)):
        ends = np.concatenate([[0], np.cumsum(lengths[key])])
        parts.append(slice(ends[lo], ends[hi]))
    kjt = KJT(
        tuple(rows),
        np.ascontiguousarray(lengths[:, lo:hi]),
        np.concatenate([v[part] for v, part in zip(values, parts)]),
        np.concatenate([w[part] for w, part in zip(weights, parts)]),
    )
    return MiniBatch(dense[lo:hi], kjt, labels[lo:hi], samples)


def train(world: World) -> str:
    """Digest after STEPS."""
    return digest_after(world, (batch_of(world.config, world.comm, *step) for step in STEPS))
