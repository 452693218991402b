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
AVERAGED = 0.1  # share of a pass that the moving average of a small log's model looks back on


@dataclass(frozen=True)
class ModelSizes:
    """Numbers of a config; `steps` in the train part of the log, one pass.

    interaction : "cat" on a small log, whose effects of single values a "dot" learns only through
    products. ema : of `eval.ema`, 0 for none: what a few noisy steps leave is their average.
    """

    rows_by: str
    min_count: int
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    interaction: str
    ema: float
    batch_size: int
    sparse_rate: float
    dense_rate: float
    steps: int


def sizes_of(log: "Log", samples: int) -> ModelSizes:
    """The sizes for a log of which so many samples are trained on."""
    batch_size = batch_of(samples)
    wide = samples >= LARGE_LOG
    steps = -(-samples // batch_size)
    return ModelSizes(
        rows_by="vocabulary" if log.whole else "hash",
        min_count=MIN_COUNT,
        dim=16,
        bottom=(512, 256, 64, 16) if wide else (64, 16),
        top=(512, 256, 1) if wide else (64, 1),
        interaction="dot" if wide else "cat",
        ema=0.0 if wide else _decay_over(AVERAGED * steps),
        batch_size=batch_size,
        sparse_rate=0.04,
        dense_rate=0.01,
        steps=steps,
    )


def _decay_over(steps: float) -> float:
    """The decay of a moving average over so many steps, two digits from 1 on."""
    # of very few steps the initial values would be a large part
    return 0.0 if steps < 2 else round(1.0 - 1.0 / steps, 1 + len(f"{steps:.0f}"))


def rows_of(column: "LogColumn", rows_by: str) -> int:
    """Rows of the table of a category.

    Of a vocabulary: its values, one for all others, and one for empty fields. Of a hash: several
    times the values, since as many rows as values would make a third of them share one.
    """
    if rows_by == "vocabulary":
        return max(column.frequent + 2, 2)
    return int(min(max(SPARE * column.grown, 16), MOST_ROWS))
