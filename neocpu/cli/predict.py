"""`neocpu predict`: what does a model predict for each sample of some data?"""

from functools import partial
from pathlib import Path

import click

from neocpu.cli.screen.options import ranks_option, set_option
from neocpu.cli.screen.targets import check_target, force_option
from neocpu.core.presets import log_path
from neocpu.parallel.transport.launch import exec_mpiexec, get_comm, launched, prepare_threads


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
@ranks_option
@set_option("Override a key of the run's config.")
def predict(
    model: Path,
    data: tuple[str, ...],
    out: Path,
    force: bool,
    keys: tuple[str, ...],
    unlabelled: bool,
    head: str,
    ranks: int | None,
    overrides: tuple[str, ...],
) -> None:
    """Write the predictions of a model for every row, in order.

    MODEL: a run's folder or a checkpoint. DATA: raw logs, with or without labels, or converted .h5
    files. OUT has the columns row (from 0, over all DATA files) and prediction (click probability;
    for mse the number itself).
    """
    data = tuple(map(log_path, data))
    check_target(out, force, [model, *map(Path, data)])
    if ranks is not None and ranks > 1 and not launched():
        line = ["predict", str(model), *data, "--out", str(out), "--ranks", str(ranks)]
        line += [*_repeated("--with", keys), *_repeated("--set", overrides)]
        line += ["--head", head, *["--force"] * force, *["--unlabelled"] * unlabelled]
        exec_mpiexec(ranks, line)
    comm = get_comm(ranks)
    prepare_threads(comm)
    from neocpu.serve.scoring.keys import key_columns
    from neocpu.serve.scoring.score_file import ScoreFile
    from neocpu.serve.scoring.values import open_values
    from neocpu.train.checkpoint.best import checkpoint_of
    from neocpu.train.run.evaluate import predict as score
    from neocpu.train.run.scoring import restore
    from neocpu.train.watch.results import silent

    checkpoint = checkpoint_of(model, comm)
    # Before the model is built: it tells from the columns whether the logs have labels.
    values = open_values(checkpoint, overrides)
    unlabelled = unlabelled or values.lacks_label(data)
    columns = None
    # Only the rank that writes needs them.
    if keys and comm.rank == 0:
        columns = key_columns(data, keys, values.schema, labelled=not unlabelled)
    world, loader = restore(
        checkpoint,
        comm,
        data,
        overrides=[*overrides, *values.vocabulary_override],
        labelled=not unlabelled,
        need_labels=False,
        tell=partial(click.echo, err=True) if comm.rank == 0 else silent,
    )
    file = ScoreFile(out, columns) if comm.rank == 0 else None
    try:
        count = score(world, loader.batches(0, 0), file.write if file else _nowhere, head)
        if file:
            file.finish()
            click.echo(f"{out}: {count} predictions")
    finally:
        if file:
            file.discard()


def _repeated(option: str, values: tuple[str, ...]) -> list[str]:
    """An option on a command line, once for each value."""
    return [word for value in values for word in (option, value)]


def _nowhere(_: object) -> None:
    """Where ranks other than the first write their predictions."""
