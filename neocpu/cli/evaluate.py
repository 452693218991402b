"""`neocpu eval`: how good is a model on some data?"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from neocpu.cli.screen.options import Launch, ranks_option, set_option, whole_numbers
from neocpu.core.presets import log_path
from neocpu.core.types import Tell

if TYPE_CHECKING:
    from neocpu.core.types import JsonObject
    from neocpu.parallel.transport.comm import Comm
    from neocpu.train.watch.metrics import Metrics

Values: TypeAlias = dict[str, float | None]


@click.command(name="eval")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", nargs=-1, required=True, metavar="DATA...")
@click.option(
    "--group",
    default="",
    metavar="COLUMN",
    help="Also rank the rows that agree in this column, as those of a user: ndcg, recall, hit, "
    "mrr, gauc.",
)
@click.option(
    "--at",
    default="",
    callback=whole_numbers,
    metavar="K,K",
    help="The k of ndcg@k, recall@k and hit@k.  [default: eval.at of the config]",
)
@click.option(
    "--baseline",
    is_flag=True,
    help="Also fit a linear model to the run's train data and measure it on DATA.",
)
@ranks_option
@set_option("Override a key of the run's config.")
@click.option("--json", "as_json", is_flag=True, help="Print the metrics as JSON.")
def evaluate(
    model: Path,
    data: tuple[str, ...],
    group: str,
    at: tuple[int, ...],
    baseline: bool,
    launch: Launch,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure a model on labelled data.

    MODEL: the folder of a run or a fit, or a checkpoint. DATA: raw logs or converted .h5 datasets.
    Any number of ranks, whatever the run had; the metrics are the same.
    """
    data = tuple(map(log_path, data))
    launch.start()
    comm = launch.comm()
    from neocpu.train.watch.reliability import doubts
    from neocpu.train.watch.results import silent

    tell = partial(click.echo, err=True) if comm.rank == 0 else silent
    by_head, linear = measure(model, data, (group, at), baseline, overrides, comm, tell)
    if comm.rank:
        return
    values = {name: measured.to_dict() for name, measured in by_head.items()}
    if as_json:
        heads = {name: values[name] for name in values if name}
        more: dict[str, object] = {"heads": heads} if heads else {}
        more |= {"baseline": linear} if linear else {}
        click.echo(json.dumps(values[""] | more))
    else:
        print_metrics(values, linear)
    for doubt in doubts(by_head[""]):
        tell(f"note: {doubt}")


def measure(
    model: Path,
    data: tuple[str, ...],
    groups: tuple[str, tuple[int, ...]],
    baseline: bool,
    overrides: tuple[str, ...],
    comm: "Comm",
    tell: Tell,
) -> tuple[dict[str, "Metrics"], "JsonObject | None"]:
    """Metrics by head, and what a linear model reaches where that is asked for. Collective.

    groups : the column to group by and the ks, as of `column_grouping`.
    """
    from neocpu.serve.scoring.fits import open_fit
    from neocpu.serve.scoring.groups import column_grouping
    from neocpu.serve.scoring.keys import key_columns
    from neocpu.serve.scoring.unseen import LearntRows, unseen_in
    from neocpu.serve.scoring.values import open_values
    from neocpu.train.checkpoint.folder import checkpoint_of
    from neocpu.train.run import evaluate as evaluation
    from neocpu.train.run.scoring import restore, train_data
    from neocpu.train.run.verdict import of_baseline

    column, at = groups
    if fit := open_fit(model, overrides, comm):
        if baseline:
            kind = "fit, which has no data; fit its log without --hidden"
            kind = kind if fit.fitted.keys.hidden else "linear model itself"
            raise click.UsageError(f"--baseline: {model} is a {kind}")
        return {"": fit.metrics_of(data, column, at, tell, warn=tell)}, None
    checkpoint = checkpoint_of(model, comm)
    values = open_values(checkpoint, overrides)
    overrides = (*overrides, *values.vocabulary_override)
    world, loader = restore(checkpoint, comm, data, overrides=overrides, tell=tell)
    learnt = LearntRows(values)
    if comm.rank == 0:
        seen = learnt.seen(loader)
        if text := unseen_in(loader.dataset, values, learnt.features, seen):
            tell(text)
    raw = partial(key_columns, data, [column], values)
    grouping = column_grouping(world.config.eval, column, at, loader.dataset, raw)
    scores = evaluation.score(world, loader.batches(0, 0))
    # One pass over the data for all heads.
    by_head = evaluation.metrics_of(world, scores, grouping)
    if not baseline:
        return by_head, None
    train = train_data(checkpoint, world.config, comm, tell)
    return by_head, of_baseline(world.config, train, loader.dataset, comm)


def print_metrics(by_head: Mapping[str, Values], linear: "JsonObject | None") -> None:
    """Print metrics of the first label and of further heads, a line each, and the linear model."""
    from neocpu.train.run.verdict import baseline_line

    for head, values in by_head.items():
        if head:
            click.echo(f"\nhead {head}")
        width = max(12, *map(len, values))
        for name, value in values.items():
            click.echo(f"{name.ljust(width)} {show(value)}")
    if linear:
        click.echo(f"\n{baseline_line(linear)}")


def show(value: float | None) -> str:
    """A metric as text."""
    if value is None:
        return "undefined"
    return str(value) if isinstance(value, int) else f"{value:.6f}"
