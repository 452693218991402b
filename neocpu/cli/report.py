"""`neocpu report`: runs as one HTML page."""

from pathlib import Path

import click

from neocpu.cli.screen.targets import check_target, force_option
from neocpu.core.errors import DataError
from neocpu.ingest.targets import refuse_sources


@click.command()
@click.argument(
    "folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The page.",
)
@force_option("the page")
def report(folders: tuple[Path, ...], out: Path, force: bool) -> None:
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
    text = page(runs)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{out}: cannot be written: {error.strerror}") from error
    for run in runs:
        for problem in run.problems:
            click.echo(f"{run.name}: {problem}", err=True)
    click.echo(f"{len(runs)} run{'s' if len(runs) > 1 else ''} in {out}")
