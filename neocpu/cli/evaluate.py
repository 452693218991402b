"""`neocpu eval`: how good is a model on some data?"""

import json
from functools import partial
from pathlib import Path

import click

from neocpu.cli.screen.options import ranks_option, set_option
from neocpu.parallel.transport.launch import exec_mpiexec, get_comm, launched, prepare_threads


@click.command(name="eval")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", nargs=-1, required=True, metavar="DATA...")
@ranks_option
@set_option("Override a key of the run's config.")
@click.option("--json", "as_json", is_flag=True, help="Print the metrics as JSON.")
def evaluate(
    model: Path,
    data: tuple[str, ...],
    ranks: int | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure a model on labelled data.

    MODEL: a run's folder or a checkpoint. DATA: raw logs or converted .h5 datasets. Any number of
    ranks, whatever the run had; the metrics are the same.
    """
    if ranks is not None and ranks > 1 and not launched():
        line = ["eval", str(model), *data, "--ranks", str(ranks)]
        for override in overrides:
            line += ["--set", override]
        if as_json:
            line.append("--json")
        exec_mpiexec(ranks, line)
    comm = get_comm(ranks)
    prepare_threads(comm)

    from neocpu.serve.scoring.values import open_values
    from neocpu.train.checkpoint.best import checkpoint_of
    from neocpu.train.run import evaluate as evaluation
    from neocpu.train.run.scoring import restore
    from neocpu.train.watch.results import silent

    tell = partial(click.echo, err=True) if comm.rank == 0 else silent
    checkpoint = checkpoint_of(model, comm)
    vocabulary = open_values(checkpoint, overrides).vocabulary_override
    world, loader = restore(checkpoint, comm, data, overrides=[*overrides, *vocabulary], tell=tell)
    scores = evaluation.score(world, loader.batches(0, 0))
    # One pass over the data for all heads.
    by_head = evaluation.metrics_of(world, scores)
    metrics = by_head.pop("").to_dict()
    heads = {name: measured.to_dict() for name, measured in by_head.items()}
    if comm.rank == 0 and as_json:
        click.echo(json.dumps(metrics | ({"heads": heads} if heads else {})))
    elif comm.rank == 0:
        for head, values in {"": metrics, **heads}.items():
            if head:
                click.echo(f"\nhead {head}")
            for name, value in values.items():
                click.echo(f"{name.ljust(12)} {show(value)}")


def show(value: float | None) -> str:
    """A metric as text."""
    if value is None:
        return "undefined"
    return str(value) if isinstance(value, int) else f"{value:.6f}"
