"""`neocpu eval`: how good is a checkpoint's model on some data?"""

import json
from pathlib import Path

import click

from neocpu.parallel.launch import exec_mpiexec, get_comm, launched, prepare_threads


@click.command(name="eval")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("data", nargs=-1, required=True, metavar="DATA...")
@click.option(
    "--ranks",
    type=click.IntRange(1),
    help="Start so many MPI ranks on this machine (not under mpiexec).",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the run's config.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the metrics as JSON.")
def evaluate(
    checkpoint: Path,
    data: tuple[str, ...],
    ranks: int | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure a checkpoint's model on labelled data.

    DATA: raw logs or converted .h5 datasets. Any number of ranks, whatever the run had; the metrics
    are the same.
    """
    if ranks is not None and ranks > 1 and not launched():
        sets = [part for override in overrides for part in ("--set", override)]
        exec_mpiexec(
            ranks,
            ["eval", str(checkpoint), *data, "--ranks", str(ranks), *sets, *["--json"] * as_json],
        )
    comm = get_comm(ranks)
    prepare_threads(comm)

    from neocpu.training import evaluate as evaluation
    from neocpu.training.scoring import restore

    tell = (lambda text: click.echo(text, err=True)) if comm.rank == 0 else (lambda text: None)
    world, loader = restore(checkpoint, comm, data, overrides=overrides, tell=tell)
    metrics = evaluation.evaluate(world, loader.batches(0, 0)).to_dict()
    if comm.rank == 0:
        if as_json:
            click.echo(json.dumps(metrics))
        else:
            for name, value in metrics.items():
                shown = (
                    "undefined"
                    if value is None
                    else value
                    if isinstance(value, int)
                    else f"{value:.6f}"
                )
                click.echo(f"{name.ljust(12)} {shown}")
