"""`neocpu calibrate`: what does this machine achieve? Measured once, written to a machine file."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neocpu.cli.targets import check_target, force_option

if TYPE_CHECKING:
    from neocpu.zionex.calibration import Tell


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write.  [default: that of `this-machine`]",
)
@force_option("the file of --out")
@click.option("--quick", is_flag=True, help="Fewer sizes and tries: seconds, and rough.")
@click.option(
    "--ranks",
    type=click.IntRange(2),
    multiple=True,
    default=(2, 4),
    show_default=True,
    help="Ranks that are measured together under mpiexec, any number of times.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path(),
    help="On the disk that plays the SSD.  [default: the current folder]",
)
def calibrate(
    out: Path | None, force: bool, quick: bool, ranks: tuple[int, ...], folder: Path
) -> None:
    """Measure what this machine achieves, and write it to a machine file.

    Lookups, updates, matrix products, copies, collectives and memory tiers, with the kernels that
    training uses: on one rank, and where there is an MPI on several. It takes less than a minute
    once kernels are compiled. Let nothing else run meanwhile.

    The file is machines/HOST.toml in NEOCPU_CACHE_DIR (default ~/.cache/neocpu), and is known as
    `this-machine`. Runs do not need it.
    """
    from neocpu.zionex import calibration, machine_file

    if out is not None:
        check_target(out, force)
    path = out or machine_file.this_machine_path()
    machine_file.check_writable(path)
    with progress(1 + len(set(ranks))) as tell:
        effort = "quick" if quick else "full"
        text = calibration.calibrate(effort, ranks, folder, tell)
    machine_file.save(path, text)
    machine = machine_file.load(path)
    for what, amount in calibration.figures(machine):
        click.echo(f"{what:32}{amount}")
    click.echo(f"written to {path}")


@contextmanager
def progress(jobs: int) -> Iterator["Tell"]:
    """A bar on stderr that topics of the jobs move on; nothing where nobody looks."""
    if not sys.stderr.isatty():
        yield lambda ranks, topic: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from neocpu.zionex.calibration import TOPICS

    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=jobs * TOPICS)

        def tell(ranks: int, topic: str) -> None:
            bar.update(task, advance=1, description=f"{ranks} rank(s): {topic}")

        yield tell
