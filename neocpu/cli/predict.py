"""`neocpu predict`: what does a model predict for each sample of some data?"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neocpu.cli.screen.options import Launch, as_record, ranks_option, set_option
from neocpu.cli.screen.targets import check_target, force_option
from neocpu.core.presets import log_path
from neocpu.ingest.formats.files.folders import all_files

if TYPE_CHECKING:
    from neocpu.parallel.transport.comm import Comm
    from neocpu.serve.scoring.ranks import ScoredRows
    from neocpu.serve.scoring.score_file import ScoreFile


@dataclass(frozen=True)
class TopOptions:
    """What is to be recommended instead of predicted row by row; top_k 0: nothing.

    items, exclude : files. group, item : columns that name users and items.
    """

    top_k: int = 0
    items: str = ""
    group: str = ""
    item: str = ""
    exclude: str = ""

    def files(self) -> list[Path]:
        """The files that are read. Raises UsageError for options that do not go together."""
        if bool(self.top_k) != bool(self.items) or (self.exclude and not self.items):
            raise click.UsageError("--top-k K and --items FILE go together; --exclude needs both")
        return [Path(log_path(name)) for name in (self.items, self.exclude) if name]


@dataclass(frozen=True)
class RowOptions:
    """How each row is predicted: columns beside the prediction, the head, logs without labels."""

    keys: tuple[str, ...] = ()
    head: str = ""
    unlabelled: bool = False


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", nargs=-1, required=True, metavar="DATA...")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File to write: .parquet, .npy, else CSV.",
)
@force_option("OUT")
@click.option(
    "--with",
    "keys",
    multiple=True,
    metavar="COLUMN",
    help="Copy a column of raw data beside the predictions.",
)
@click.option(
    "--head", default="", help="Predict the label of this head of model.heads (default: the first)."
)
@click.option(
    "--unlabelled",
    is_flag=True,
    help="The raw log has no label column, where its columns do not say so.",
)
@click.option(
    "--top-k",
    type=click.IntRange(0),
    default=0,
    metavar="K",
    help="Write the K best items of --items for each user of DATA instead.",
)
@click.option("--items", default="", metavar="FILE", help="Items for --top-k, a header ahead.")
@click.option(
    "--group",
    default="",
    metavar="COLUMN",
    help="Column of DATA that names a user.  [default: the first]",
)
@click.option(
    "--item",
    default="",
    metavar="COLUMN",
    help="Column of --items that names an item.  [default: the first]",
)
@click.option(
    "--exclude", default="", metavar="LOG", help="Leave out the pairs of user and item in this log."
)
@ranks_option
@set_option("Override a key of the run's config.")
@as_record("best", TopOptions)
@as_record("rows", RowOptions)
def predict(
    model: Path,
    data: tuple[str, ...],
    out: Path,
    force: bool,
    launch: Launch,
    overrides: tuple[str, ...],
    best: TopOptions,
    rows: RowOptions,
) -> None:
    """Write the predictions of a model for every row, in order.

    MODEL: the folder of a run or a fit, or a checkpoint. DATA: raw logs, with or without labels, or
    converted .h5 files. OUT has the columns row (from 0, over all DATA files) and prediction (click
    probability; for mse the number itself; of a fit of classes the likeliest one). With
    data.on_error=skip a row that cannot be read has no prediction, and the column reason says why.

    With --top-k, OUT has the K best items of each user: the user, rank (from 1), the item,
    prediction. A pair has the user's last row in DATA and the item's row; a column of both is the
    item's.
    """
    if best.top_k and rows != RowOptions():
        raise click.UsageError("--with, --head and --unlabelled do not go with --top-k")
    data = tuple(map(log_path, data))
    check_target(out, force, [model, *all_files(data), *best.files()])
    launch.start()
    comm = launch.comm()
    if not best.top_k:
        score(model, data, out, rows, overrides, comm)
    else:
        recommend(model, data, out, best, overrides, comm)


def score(
    model: Path,
    data: tuple[str, ...],
    out: Path,
    rows: RowOptions,
    overrides: tuple[str, ...],
    comm: "Comm",
) -> None:
    """Write the predictions for all rows. Collective."""
    from neocpu.serve.scoring.fits import open_fit
    from neocpu.serve.scoring.keys import key_columns
    from neocpu.serve.scoring.ranks import BlockScorer, RunScorer, score_rows
    from neocpu.serve.scoring.rows import file_rows
    from neocpu.serve.scoring.score_file import ScoreFile
    from neocpu.serve.scoring.values import open_values
    from neocpu.train.checkpoint.folder import checkpoint_of
    from neocpu.train.watch.results import silent

    tell = partial(click.echo, err=True) if comm.rank == 0 else silent
    scorer: BlockScorer
    named = None
    if fit := open_fit(model, overrides, comm):
        if rows.head:
            raise click.UsageError(f"--head {rows.head}: a fit has one label")
        scorer, values, named = fit, fit.values, fit.fitted.named
    else:
        values = open_values(checkpoint_of(model, comm), overrides)
        of_run = [*overrides, *values.vocabulary_override]
        scorer = RunScorer(values, comm, overrides=of_run, head=rows.head, tell=tell)
    columns = None
    # Only the rank that writes needs them.
    if rows.keys and comm.rank == 0:
        columns = key_columns(data, rows.keys, values, rows.unlabelled)
    blocks = score_rows(scorer, comm, file_rows(data, values, rows.unlabelled), tell)
    if comm.rank == 0:
        _write(blocks, ScoreFile(out, columns, values.config.data.on_error == "skip", named))
    else:
        deque(blocks, 0)  # scores this rank's share, and is handed nothing


def _write(blocks: Iterator["ScoredRows"], file: "ScoreFile") -> None:
    """Write the scores of all rows, and say how many there are."""
    from neocpu.serve.scoring.rows import FaultCount

    faults = FaultCount()
    try:
        for scores, why in blocks:
            file.write(scores, why)
            faults.add(why)
        file.finish()
    finally:
        file.discard()
    click.echo(f"{file.path}: {file.rows - faults.count} predictions")
    if faults.count:
        click.echo(str(faults), err=True)


def recommend(
    model: Path,
    data: tuple[str, ...],
    out: Path,
    best: TopOptions,
    overrides: tuple[str, ...],
    comm: "Comm",
) -> None:
    """Write the best items of each user. Collective."""
    from neocpu.serve.scoring.fits import FitScorer, open_fit
    from neocpu.serve.scoring.model import Model
    from neocpu.serve.scoring.recommend import pairs_of, write_best
    from neocpu.serve.scoring.scorer import LocalScorer
    from neocpu.train.checkpoint.folder import checkpoint_of

    scorer: FitScorer | LocalScorer | None = open_fit(model, overrides, comm)
    if scorer is None:
        opened = Model(checkpoint_of(model, comm), overrides)
        scorer = LocalScorer(opened.path, opened.config, opened.values, comm)
    exclude = log_path(best.exclude) if best.exclude else None
    keys = (best.group, best.item)
    pairs = pairs_of(scorer.logs.frame, data, log_path(best.items), exclude, keys)
    frame = scorer.best_items(pairs, best.top_k)
    if comm.rank == 0:
        write_best(frame, out)
        click.echo(f"{out}: {frame.height} items for {pairs.users.height} users")
