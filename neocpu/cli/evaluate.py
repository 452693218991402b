"""`neocpu eval`: how good is a model on some data?"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import click

from neocpu.cli.screen.options import ranks_option, set_option, whole_numbers
from neocpu.core.presets import log_path
from neocpu.parallel.transport.launch import exec_mpiexec, get_comm, launched, prepare_threads


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
    default="5,10",
    show_default=True,
    callback=whole_numbers,
    metavar="K,K",
    help="The k of ndcg@k, recall@k and hit@k.",
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
    ranks: int | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure a model on labelled data.

    MODEL: a run's folder or a checkpoint. DATA: raw logs or converted .h5 datasets. Any number of
    ranks, whatever the run had; the metrics are the same.
    """
    data = tuple(map(log_path, data))
    if ranks is not None and ranks > 1 and not launched():
        line = ["eval", str(model), *data, "--ranks", str(ranks)]
        for override in overrides:
            line += ["--set", override]
        line += ["--group", group, "--at", ",".join(map(str, at))]
        line += ["--json"] * as_json + ["--baseline"] * baseline
        exec_mpiexec(ranks, line)
    comm = get_comm(ranks)
    prepare_threads(comm)

    from neocpu.serve.scoring.groups import column_grouping
    from neocpu.serve.scoring.keys import key_columns
    from neocpu.serve.scoring.values import open_values
    from neocpu.train.checkpoint.best import checkpoint_of
    from neocpu.train.run import evaluate as evaluation
    from neocpu.train.run.scoring import restore, train_data
    from neocpu.train.run.verdict import baseline_line, of_baseline
    from neocpu.train.watch.reliability import doubts
    from neocpu.train.watch.results import silent

    tell = partial(click.echo, err=True) if comm.rank == 0 else silent
    checkpoint = checkpoint_of(model, comm)
    values = open_values(checkpoint, overrides)
    overrides = (*overrides, *values.vocabulary_override)
    world, loader = restore(checkpoint, comm, data, overrides=overrides, tell=tell)
    config = world.config
    grouping = evaluation.grouping_of(config.eval, loader.dataset) if not group else None
    if group:
        raw = partial(key_columns, data, [group], values.schema)
        grouping = column_grouping(group, at, loader.dataset, raw)
    scores = evaluation.score(world, loader.batches(0, 0))
    # One pass over the data for all heads.
    by_head = evaluation.metrics_of(world, scores, grouping)
    heads = {name: measured.to_dict() for name, measured in by_head.items() if name}
    result: dict[str, Any] = by_head[""].to_dict() | ({"heads": heads} if heads else {})
    if baseline:
        train = train_data(checkpoint, config, comm, tell)
        result["baseline"] = of_baseline(config, train, loader.dataset, comm)
    if comm.rank:
        return
    if as_json:
        click.echo(json.dumps(result))
    else:
        print_metrics(by_head[""].to_dict(), heads)
    if baseline and not as_json:
        click.echo(f"\n{baseline_line(result['baseline'])}")
    for doubt in doubts(by_head[""]):
        tell(f"note: {doubt}")


def print_metrics(
    metrics: dict[str, float | None], heads: dict[str, dict[str, float | None]]
) -> None:
    """Print metrics of the first label and of further heads, a line each."""
    for head, values in {"": metrics, **heads}.items():
        if head:
            click.echo(f"\nhead {head}")
        width = max(12, *map(len, values))
        for name, value in values.items():
            click.echo(f"{name.ljust(width)} {show(value)}")


def show(value: float | None) -> str:
    """A metric as text."""
    if value is None:
        return "undefined"
    return str(value) if isinstance(value, int) else f"{value:.6f}"
