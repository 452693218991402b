"""Which small run do many tests train? Two tables, a log of 150 samples, a few steps of SGD."""

from pathlib import Path

import numpy as np

from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import BagColumn, FeatureColumn
from neocpu.train.config import config

# the third batch of an epoch has 22 samples
ROWS = 150
BATCH = 64
CONFIG = f"""
[model]
embedding_dim = 4
bottom = [6, 4]
top = [5, 1]
[tables]
one.rows = 50
many.rows = 30
many.pooling = "mean"
[optimizer.sparse]
learning_rate = 0.05
[optimizer.dense]
learning_rate = 0.1
[training]
batch_size = {BATCH}
"""


def write_log(
    path: Path, spoil: int | slice | None = None, value: float = np.nan, least: int = 0
) -> Path:
    """A log of two features, one of them multi-hot.

    spoil: a sample, or several, whose dense values are `value`. least: the least code.
    """
    random = np.random.default_rng(5)
    dense = random.standard_normal((ROWS, 3)).astype(np.float32)
    if spoil is not None:
        dense[spoil] = value
    lengths = random.integers(0, 4, ROWS).astype(np.int32)
    codes = {
        "one": random.integers(least, least + 20, ROWS).astype(np.uint32),
        "many": BagColumn(
            random.integers(least, least + 20, lengths.sum()).astype(np.uint32), lengths
        ),
    }
    labels = (codes["one"] % 3 == 0).astype(np.float32)
    columns = [FeatureColumn("one"), FeatureColumn("many", hotness=0)]
    with DatasetWriter(path, ["a", "b", "c"], columns) as writer:
        writer.append(labels, dense, codes)
    return path


def config_of(log: Path, *overrides: str) -> config.Config:
    """The run's config: trained and tested on `log`."""
    return config.loads(CONFIG, overrides=[f'data.train="{log}"', f'data.test="{log}"', *overrides])
