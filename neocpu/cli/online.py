"""`neocpu online`: each file is measured, then trained on, as days of a log come in."""

import time
from pathlib import Path

import click

from neocpu.cli.screen.options import Launch, ranks_option, set_option
from neocpu.cli.train import default_folder, show_summary
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.launch import held_signals
from neocpu.train.config import config as configs

STARTED = time.time()


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@ranks_option
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path),
    help="Folder of results.  [default: runs/NAME, or the first free NAME-2, …; with --resume the "
    "last]",
)
@set_option()
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the run of the folder: files that it was trained on are left out.",
)
def online(
    config: Path,
    files: tuple[str, ...],
    launch: Launch,
    folder: Path | None,
    overrides: tuple[str, ...],
    resume: bool,
) -> None:
    """Measure the model on each FILE, then train on it, in the order given.

    One pass over each. Every file leaves a line of split "progressive" in OUT/metrics.jsonl, which
    says how good the model was on samples it had never seen, and a checkpoint. When the next day's
    file is there: the same command with the new FILE and --resume.

    \b
    neocpu online model.toml day-1.tsv day-2.tsv --out runs/live
    neocpu online model.toml day-3.tsv --out runs/live --resume
    """
    settings = configs.load(config, overrides)
    if launch.starts_ranks:
        from neocpu.cli.screen.outlive import outlive

        outlive(launch, folder or default_folder(config, resume, SingleComm()), resume)
    with held_signals():
        comm = launch.comm(settings)

        from neocpu.cli.screen.progress import make_report
        from neocpu.train.run.online import OnlineTrainer

        # Collective: rank 0 chooses for all.
        folder = folder or default_folder(config, resume, comm)
        summary = OnlineTrainer(
            settings,
            comm,
            folder,
            files,
            resume=resume,
            report=make_report(folder, comm.rank),
            started=STARTED,
        ).run()
        if comm.rank == 0:
            show_summary(summary, folder)
