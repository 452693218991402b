"""How many rows has a table, how many samples a batch, and how fast is it learnt?

Chosen by measurement: `python -m benchmarks.defaults` compares them with a small search, and
docs/start.md has its table.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neocpu.train.config.defaults import batch_of

if TYPE_CHECKING:  # they load polars, which runs have no need of
    from neocpu.train.advice.columns import LogColumn
    from neocpu.train.advice.look import Log

MIN_COUNT = 1  # of a vocabulary: rows for values seen once did not hurt on any log measured
SPARE = 4  # rows of a hashed table for each value
MOST_ROWS = 40_000_000  # of a hashed table: what MLPerf's DLRM caps its tables at
LARGE_LOG = 60_000  # samples from which wide layers learn more than they overfit


@dataclass(frozen=True)
class ModelSizes:
    """Numbers of a config; `steps` in the train part of the log, one pass."""

    rows_by: str
    min_count: int
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    batch_size: int
    sparse_rate: float
    dense_rate: float
    steps: int


def sizes_of(log: "Log", samples: int) -> ModelSizes:
    """The sizes for a log of which so many samples are trained on."""
    batch_size = batch_of(samples)
    wide = samples >= LARGE_LOG
    return ModelSizes(
        rows_by="vocabulary" if log.whole else "hash",
        min_count=MIN_COUNT,
        dim=16,
        bottom=(512, 256, 64, 16) if wide else (64, 16),
        top=(512, 256, 1) if wide else (64, 1),
        batch_size=batch_size,
        sparse_rate=0.04,
        dense_rate=0.01,
        steps=-(-samples // batch_size),
    )


def rows_of(column: "LogColumn", rows_by: str) -> int:
    """Rows of the table of a category.

    Of a vocabulary: its values, one for all others, and one for empty fields. Of a hash: several
    times the values, since as many rows as values would make a third of them share one.
    """
    if rows_by == "vocabulary":
        return max(column.frequent + 2, 2)
    return int(min(max(SPARE * column.grown, 16), MOST_ROWS))
