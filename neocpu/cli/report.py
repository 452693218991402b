"""`neocpu report`: runs as one HTML page."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neocpu.cli.screen.options import option_with_default
from neocpu.cli.screen.targets import check_target, force_option
from neocpu.core.errors import DataError, told_as
from neocpu.core.targets import refuse_sources

if TYPE_CHECKING:
    from neocpu.serve.report.runs import Run


@click.command()
@click.argument(
    "folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@option_with_default(
    "--out", type=click.Path(path_type=Path), default=Path("report.html"), help="The page."
)
@force_option("the page")
@click.option(
    "--baseline",
    is_flag=True,
    help="Show a linear model beside runs that fitted none: it is fitted to their train data.",
)
def report(folders: tuple[Path, ...], out: Path, force: bool, baseline: bool) -> None:
    """Show runs as one HTML page: config, curves, calibration, plan, traffic, memory.

    DIR is the folder of a run, or holds such folders. Several runs stand side by side, the keys in
    which they differ first. The page is one file that needs no network. A run that still goes on,
    or was killed, is shown as far as it came.
    """
    from neocpu.serve.report.page import page
    from neocpu.serve.report.runs import FILES, find_runs

    check_target(out, force, folders)
    runs = find_runs(folders)
    # --force replaces pages, and never what a run has left.
    refuse_sources(out, [run.folder / name for run in runs for name in FILES])
    if baseline:
        add_baselines(runs)
    text = page(runs)
    with told_as(DataError, out):
        out.write_text(text, encoding="utf-8")
    for run in runs:
        for problem in run.problems:
            click.echo(f"{run.name}: {problem}", err=True)
    click.echo(f"{len(runs)} run{'s' if len(runs) > 1 else ''} in {out}")


def add_baselines(runs: "Sequence[Run]") -> None:
    """Measure a linear model beside each finished run that has none."""
    from neocpu.parallel.transport.comm import SingleComm
    from neocpu.parallel.transport.launch import prepare_threads

    comm = SingleComm()
    prepare_threads(comm)
    from neocpu.serve.report.page import with_baseline

    for run in runs:
        if run.summary and not run.summary.get("baseline"):
            run.summary = with_baseline(run, comm)
