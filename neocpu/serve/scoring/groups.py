"""Which samples of labelled data are ranked among one another? Those that agree in a column."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neocpu.core.errors import DataError
from neocpu.ingest.dataset.dataset import Dataset
from neocpu.train.config.settings import EvalConfig
from neocpu.train.run.evaluate import Grouping, grouping_of

if TYPE_CHECKING:
    import polars as pl


def column_grouping(
    column: str, at: Sequence[int], data: Dataset, raw: Callable[[], "pl.DataFrame"]
) -> Grouping:
    """The grouping by a feature of a dataset, else by any other column of its raw rows.

    raw : gives a frame with that column. Raises DataError for a feature that holds lists.
    """
    keys = EvalConfig(group=column, at=tuple(at))
    # the log may have columns that the model does not read, as the number of a request
    known = grouping_of(keys, data) if column in data.features else None
    return known or Grouping(lambda: _numbers(raw(), data.rows), keys.at)


def _numbers(frame: "pl.DataFrame", samples: int) -> NDArray[np.int64]:
    """A number for each value of a frame's only column; empty fields share 0."""
    (values,) = frame.get_columns()
    if values.len() != samples:
        raise DataError(
            f"{values.len():,} rows have a field {values.name!r}, but {samples:,} are measured, as "
            "faulty rows are left out; remove these, or choose a feature of the model as the group"
        )
    return values.rank("dense").fill_null(0).to_numpy().astype(np.int64)
