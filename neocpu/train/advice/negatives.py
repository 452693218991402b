"""How does a log of choices alone become one to train on? With rows for what was not chosen.

add_negatives(["views.csv"], Path("labelled.csv"), Columns("user_id", "item_id")) -> lines about it
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from neocpu.core.errors import ConfigError, DataError, listed
from neocpu.core.targets import refuse_sources
from neocpu.ingest.formats.files.folders import all_files
from neocpu.ingest.formats.frames import write_frame
from neocpu.ingest.synthetic.negatives import UNIFORM, draw_negatives
from neocpu.train.advice.look import LOOKED_AT, ROWS_AT, Log, look

SHOWN = 12  # columns in a line
HELD = 64  # times what `init` looks at of a log


@dataclass(frozen=True)
class Columns:
    """Columns of a log of choices.

    user, item : of their keys. label : of the result: 1 for a choice, 0 for a negative. of_item :
    those that a negative has from its item, not from the choice ((): those whose value follows from
    the item in every row).
    """

    user: str
    item: str
    label: str = "label"
    of_item: Sequence[str] = ()


def add_negatives(
    data: Sequence[str | Path],
    out: Path,
    columns: Columns,
    per: int = 4,
    way: str = UNIFORM,
    seed: int = 1,
) -> list[str]:
    """Write a log with `per` negatives behind each of its rows; lines that say what was done.

    out : .parquet, else CSV. way, seed : as for `draw_negatives`.

    Raises DataError for files that cannot be read, written, or are too large to be held;
    ConfigError for a column that is not there, or a label that has two values already.
    """
    refuse_sources(out, all_files(data))
    log = look(data, HELD * LOOKED_AT, HELD * ROWS_AT)
    frame = log.frame
    if not log.whole:
        raise DataError(f"{log.paths[0]}: has {log.rows:,} rows, too many to hold; give a part")
    _check(frame, columns)
    users, items = (
        frame[name].rank("dense").fill_null(0).to_numpy().astype(np.int64)
        for name in (columns.user, columns.item)
    )
    _, first, numbers = np.unique(items, return_index=True, return_inverse=True)
    beside, drawn = draw_negatives(users, numbers.astype(np.int64), per, way, seed)
    of_item = list(dict.fromkeys([columns.item, *(columns.of_item or _of_item(log, columns))]))
    negatives = frame[beside].with_columns(frame[first[drawn]].select(of_item))
    order = np.argsort(np.concatenate([np.arange(frame.height), beside]), kind="stable")
    labels = np.concatenate([np.ones(frame.height, np.int8), np.zeros(beside.size, np.int8)])
    label = pl.Series(columns.label, labels[order])
    write_frame(pl.concat([frame, negatives])[order].with_columns(label), out)
    lines = [
        f"{out}: {frame.height:,} choices, {beside.size:,} negatives, column {columns.label}",
        f"of the item: {listed(of_item, SHOWN)}; all other columns are those of the choice",
    ]
    if short := frame.height * per - beside.size:
        lines.append(f"{short:,} negatives fewer than asked: some users left too few items")
    return lines


def _check(frame: pl.DataFrame, columns: Columns) -> None:
    """Raise ConfigError where a column is missing, or the label tells two things already."""
    for name in (columns.user, columns.item, *columns.of_item):
        if name not in frame.columns:
            known = listed(frame.columns, SHOWN)
            raise ConfigError(f"the log has no column {name!r}; it has {known}")
    if columns.label in frame.columns and frame[columns.label].n_unique() > 1:
        raise ConfigError(
            f"the log has a column {columns.label!r} of several values: it is labelled already; "
            "leave the rows without a click out, or name another column with --label"
        )


def _of_item(log: Log, columns: Columns) -> list[str]:
    """Columns whose value follows from the item in every row."""
    frame = log.frame
    others = [name for name in frame.columns if name not in (columns.user, columns.item)]
    count = frame[columns.item].n_unique()
    # in a log without any item twice all follow, and nothing is known
    if count == frame.height:
        return []
    pairs = {name: frame.select(columns.item, name).n_unique() for name in others}
    return [name for name in others if pairs[name] == count]
