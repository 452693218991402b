"""`neocpu together`: several models train on the same ranks at the same time."""

from collections.abc import Sequence
from pathlib import Path

import click

from neocpu.cli.screen.options import Launch, ranks_option, set_option
from neocpu.core.cores import available
from neocpu.core.errors import ConfigError
from neocpu.parallel.transport.environment import cores_left_out
from neocpu.parallel.transport.launch import held_signals
from neocpu.train.config import config as configs
from neocpu.train.watch.results import RunReport


@click.command()
@click.argument(
    "files", metavar="CONFIG...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@ranks_option
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path),
    help="Folder of the models' folders.  [default: runs/A+B]",
)
@set_option("Override a key of all configs.")
@click.option("--resume", is_flag=True, help="Go on from the newest complete checkpoints.")
def together(
    files: tuple[Path, ...],
    launch: Launch,
    folder: Path | None,
    overrides: tuple[str, ...],
    resume: bool,
) -> None:
    """Train several models at once, which take turns and share memory.

    Each is a run of its own: OUT/NAME has what `neocpu train` would write, and its digest is the
    same. While one works, arrays of the others leave memory and come back, where
    `memory.activations` is less than all of them need; the operations of the models follow one
    another in the order of least delay.

    \b
    neocpu together a.toml b.toml --set memory.activations=300_000_000
    """
    settings = [configs.load(file, overrides) for file in files]
    names = names_of(files)
    folder = folder or Path("runs") / "+".join(names)

    from neocpu.train.run.together import shared_budget, train_together

    # before ranks start
    shared_budget(settings)
    if launch.starts_ranks:
        from neocpu.cli.screen.outlive import outlive

        outlive(launch, folder, resume)
    with held_signals():
        comm = launch.comm(settings[0])
        if comm.rank == 0 and (problem := cores_left_out(len(available()))):
            click.echo(f"warning: {problem}", err=True)
        folders = [folder / name for name in names]
        summaries = train_together(settings, comm, folders, resume, report_of)
        if comm.rank == 0:
            show(names, summaries, folders)


def names_of(files: Sequence[Path]) -> list[str]:
    """Names of the models. Raises ConfigError where two have one name, or there is one model."""
    names = [file.stem for file in files]
    if len(names) < 2:
        raise ConfigError("together: give two configs or more; `neocpu train` trains one")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"together: two configs are called {twice[0]}; copy one to another name")
    return names


def report_of(folder: Path, rank: int) -> RunReport:
    """Lines of a model, with its name before them."""
    return RunReport(folder, rank, tell=lambda text: click.echo(f"{folder.name}: {text}"))


def show(
    names: Sequence[str], summaries: Sequence[dict[str, object]], folders: Sequence[Path]
) -> None:
    """The summaries of all, one after the other."""
    from neocpu.cli.train import show_summary

    for name, summary, folder in zip(names, summaries, folders):
        click.echo(f"\n{name}")
        show_summary(summary, folder)
