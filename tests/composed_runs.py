"""A few steps of a model with tables of some kinds, on any ranks: what their tests share."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from neocpu.core.jagged import KJT
from neocpu.core.trees import rank_samples
from neocpu.kernels.twins.rows.row_maps import map_rows, sign_weights
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.specs.specs import bags
from neocpu.train.before.warmup import MiniBatch
from neocpu.train.config.config import Config
from neocpu.train.state.state import digest
from neocpu.train.step.world import World

DENSE = 3
STEPS = ((1, 22), (2, 22), (3, 13))  # number and samples of each batch
TRAINING = """[training]
batch_size = 22
leaves = 16
[optimizer.sparse]
name = "exact_rowwise_adagrad"
learning_rate = 0.1
[optimizer.dense]
name = "adam"
learning_rate = 0.01
"""
MOST = 4  # lookups of a bag

Bags = dict[str, list[np.ndarray]]


def feature_bags(options: Config, number: int, samples: int) -> Bags:
    """Rows of the logical tables that each feature looks up in each sample of batch `number`."""
    rng = np.random.default_rng(number)
    drawn: Bags = {}
    for table in options.model_tables:
        for feature in table.features:
            lengths = rng.integers(0, MOST, samples)
            drawn[feature] = [
                rng.integers(0, table.rows, n) ** 2 // table.rows for n in lengths
            ]  # the first rows are the frequent ones
            drawn[feature][0] = np.array([table.rows - 1, 0, table.rows - 1])
    return drawn


def physical_kjt(options: Config, drawn: Bags, lo: int, hi: int) -> KJT:
    """The bags of samples [lo, hi) as the loader gives them: rows of the physical tables."""
    keys = bags(options.tables)
    lengths = []
    values = []
    weights = []
    for key in keys:
        bag_rows = drawn[key.feature][lo:hi]
        rows = np.concatenate([*bag_rows, np.empty(0)]).astype(np.int64)
        signs = np.ones(rows.size, np.float32)
        if m := key.row_map:
            if m.signed:
                sign_weights(rows, np.uint64(m.key), signs)
            map_rows(rows, m.number, m.divisor, m.modulus, m.first, np.uint64(m.key), rows)
        lengths.append([bag.size for bag in bag_rows])
        values.append(rows)
        weights.append(signs)
    weighted = any(table.weighted for table in options.tables)
    return KJT(
        tuple(key.key for key in keys),
        np.array(lengths, np.int32).reshape(len(keys), hi - lo),
        np.concatenate(values),
        np.concatenate(weights) if weighted else None,
    )


def batch_of(options: Config, comm: Comm, number: int, samples: int = 22) -> MiniBatch:
    """This rank's part of batch `number`: bags of 0 to 3 rows, dense features, labels."""
    drawn = feature_bags(options, number, samples)
    rng = np.random.default_rng((number, 1))
    dense = rng.standard_normal((samples, DENSE), dtype=np.float32)
    labels = rng.integers(0, 2, samples).astype(np.float32)
    lo, hi = rank_samples(comm.rank, comm.size, samples, options.training.leaves)
    return MiniBatch(dense[lo:hi], physical_kjt(options, drawn, lo, hi), labels[lo:hi], samples)


def digest_after(world: World, batches: Iterable[MiniBatch], *options: Any) -> str:
    """Digest after the batches, one of each of STEPS; options : of `over`."""
    steps = world.step.over(batches, 1, *options)
    for _ in STEPS:
        steps.next()
    steps.close()
    return digest(world, len(STEPS))


def train(world: World) -> str:
    """Digest after STEPS."""
    return digest_after(world, (batch_of(world.config, world.comm, *step) for step in STEPS))
