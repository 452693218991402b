"""Which bags break a lookup? Cases of the operator `lookup`."""

from collections.abc import Iterator

import numpy as np

from neocpu.oracle.records import Case


def cases(seed: int) -> Iterator[Case]:
    """A ragged first case."""
    inputs = {
        "weights": (np.arange(40, dtype=np.float32) - 20) / 7,
        "rows": np.array([5, 5]),
        "dims": np.array([4, 4]),
        "feature_table": np.array([0, 1]),
        "indices": np.array([0, 1, 4, 4, 2]),
        "offsets": np.array([0, 2, 2, 3, 5]),
    }
    yield Case("lookup-ragged", "lookup", inputs, {}, "bags of different lengths, one of them empty")
    yield Case("lookup-ragged-mean", "lookup", inputs, {"pooling": "mean"}, "MEAN over ragged bags, one of them empty")
