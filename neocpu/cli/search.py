"""`neocpu search`: which widths, columns and rows suit a model? A differentiable search tells.

The search itself is `train/search/trainer.py`.
"""

import shlex
import time
from pathlib import Path

import click

from neocpu.cli.screen.options import Launch, ranks_option, set_option
from neocpu.parallel.transport.launch import held_signals
from neocpu.train.config import config as configs
from neocpu.train.search.space import space_of

STARTED = time.time()


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@ranks_option
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of results  [default: searches/NAME].",
)
@set_option()
@click.option(
    "--resume", is_flag=True, help="Go on from the newest complete checkpoint of the folder."
)
def search(
    config: Path,
    launch: Launch,
    folder: Path | None,
    overrides: tuple[str, ...],
    resume: bool,
) -> None:
    """Choose widths, columns and rows of CONFIG's model as its section [search] says.

    All models are trained as one, whose choices have probabilities that learn too; docs/search.md.
    Runs alone, with --ranks, or under mpiexec, to the same digest. Ends with a plain config:

    \b
    neocpu search CONFIG --out searches/small
    neocpu train searches/small/found.toml
    """
    settings = configs.load(config, overrides)
    space_of(settings)  # refused before ranks start
    folder = folder or Path("searches") / config.stem
    if launch.starts_ranks:
        from neocpu.cli.screen.outlive import outlive

        outlive(launch, folder, resume)
    with held_signals():
        comm = launch.comm(settings)

        from neocpu.cli.screen.progress import make_report
        from neocpu.train.search.trainer import SearchTrainer

        summary = SearchTrainer(
            settings,
            comm,
            folder,
            resume=resume,
            report=make_report(folder, comm.rank, [], None),
            started=STARTED,
        ).run()
        if comm.rank == 0:
            for line_of_table in summary["lines"]:
                click.echo(line_of_table)
            click.echo(f"digest {summary['digest']}")
            found = shlex.quote(str(folder / "found.toml"))
            click.echo(f"train the found model from scratch: neocpu train {found}")
