"""`neocpu init`: look at a log, and write a config that trains on it."""

import shlex
from pathlib import Path

import click

from neocpu.cli.screen.targets import LogPath, check_target, force_option


@click.command()
@click.argument("data", nargs=-1, required=True, metavar="DATA...", type=LogPath())
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Folder of the config, or the config itself, NAME.toml.  [default: here]",
)
@force_option("the config")
@click.option("--label", default="", metavar="COLUMN", help="The column to predict.")
@click.option(
    "--dense", multiple=True, metavar="COLUMN", help="A column of numbers; may be repeated."
)
@click.option(
    "--category",
    "categories",
    multiple=True,
    metavar="COLUMN",
    help="A column of categories; likewise.",
)
@click.option(
    "--leave-out",
    "left_out",
    multiple=True,
    metavar="COLUMN",
    help="A column not to learn from; likewise.",
)
@click.option(
    "--positive",
    multiple=True,
    metavar="TEXT",
    help="A text of the label that is a click; all others are none. Likewise.",
)
@click.option(
    "--threshold", type=float, metavar="NUMBER", help="The label is a click from this number on."
)
@click.option(
    "--weight", default="", metavar="COLUMN", help="A column of how much each row counts."
)
@click.option(
    "--baseline",
    is_flag=True,
    help="Also say what logistic regression reaches on the log: what a model has to beat.",
)
@click.option(
    "--valid", type=LogPath(), multiple=True, help="Measure on it now and then; DATA is not split."
)
@click.option(
    "--test", type=LogPath(), multiple=True, help="Measure on it at the end; DATA is not split."
)
def init(
    data: tuple[str, ...],
    out: Path,
    force: bool,
    label: str,
    dense: tuple[str, ...],
    categories: tuple[str, ...],
    left_out: tuple[str, ...],
    positive: tuple[str, ...],
    threshold: float | None,
    weight: str,
    baseline: bool,
    valid: tuple[str, ...],
    test: tuple[str, ...],
) -> None:
    """Look at a log (DATA...) and write a commented config that trains on it.

    Criteo TSV, Avazu CSV, any CSV or TSV, plain or compressed, Parquet, Arrow, JSON, NumPy, libsvm,
    libffm, Vowpal Wabbit; several files of the same columns, or of a folder, follow one another. It
    says what it guessed; nothing is asked. Without --valid and --test the last fifth of the rows is
    measured on.
    """
    from neocpu.train.advice.roles import Roles
    from neocpu.train.advice.write import Wishes, target_of, write_config

    target = target_of(data, out)
    check_target(target, force, (*data, *valid, *test))
    roles = Roles(label, dense, categories, left_out, positive, threshold, weight=weight)
    wishes = Wishes(**vars(roles), valid=valid, test=test)
    drafted = write_config(data, target, wishes)
    for line in drafted.said:
        click.echo(line)
    if baseline:
        print_baseline(target)
    command = f"neocpu train {shlex.quote(str(target))}"
    click.echo(f"{target} is written; change it as you like, then: {command}")


def print_baseline(target: Path) -> None:
    """What a linear model of the config's train data reaches on what is measured."""
    from neocpu.parallel.transport.comm import SingleComm
    from neocpu.parallel.transport.launch import prepare_threads

    comm = SingleComm()
    prepare_threads(comm)
    from neocpu.train.config import config as configs
    from neocpu.train.run.verdict import baseline_line, baseline_of

    baseline = baseline_of(configs.load(target), comm, target.parent, click.echo)
    click.echo(f"{baseline['split']}: {baseline_line(baseline)}")
