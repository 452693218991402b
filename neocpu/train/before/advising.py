"""What does a run say of a config that does not serve its data? Lines of `neocpu.train.advice`,
once.
"""

import numpy as np

from neocpu.train.advice.complaints import TrainData, complaints
from neocpu.train.before.datasets import Splits
from neocpu.train.watch.results import RunReport

LOOKED_AT = 1 << 16  # samples whose values are counted


def advise(splits: Splits, steps: int, report: RunReport) -> None:
    """Tell what in a run's config does not serve its train data; rank 0 only, not collective."""
    if splits.comm.rank:
        return
    data = splits.datasets["train"]
    # only rows by hash collide
    values = _distinct_values(splits) if splits.config.data.rows_by == "hash" else {}
    train_data = TrainData(data.rows, data.features, values)
    for line in complaints(splits.config, train_data, steps):
        report.tell(f"note: {line}")


def _distinct_values(splits: Splits) -> dict[str, int]:
    """Feature -> distinct values in the first samples; one at a time, for the sake of memory."""
    data = splits.datasets["train"]
    samples = np.arange(min(LOOKED_AT, data.rows), dtype=np.int64)
    features = {feature for table in splits.config.tables for feature in table.features}
    return {
        name: int(np.unique(data.take(samples, [name]).features[name].codes).size)
        for name in sorted(features)
    }
