"""Which samples of labelled data are ranked among one another? Those that agree in a column."""

from collections.abc import Callable, Sequence
from dataclasses import replace
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
    config: EvalConfig,
    column: str,
    at: Sequence[int],
    data: Dataset,
    raw: Callable[[], "pl.DataFrame"],
) -> Grouping | None:
    """The grouping by a feature of a dataset, else by any other column of its raw rows.

    column, at : "", (): those of the config; None if it names no column either. raw : gives a frame
    with the column. Raises DataError for a feature that is not there, or holds lists.
    """
    keys = replace(config, group=column or config.group, at=tuple(at) or config.at)
    # the log may have columns that the model does not read, as the number of a request
    if column and column not in data.features:
        return Grouping(lambda: _numbers(raw(), data.rows), keys.at)
    return grouping_of(keys, data)


def _numbers(frame: "pl.DataFrame", samples: int) -> NDArray[np.int64]:
    """A number for each value of a frame's only column; empty fields share 0."""
    (values,) = frame.get_columns()
    if values.len() != samples:
        raise DataError(
            f"{values.len():,} rows have a field {values.name!r}, but {samples:,} are measured, as "
            "faulty rows are left out; remove these, or choose a feature of the model as the group"
        )
    return values.rank("dense").fill_null(0).to_numpy().astype(np.int64)
