"""`neocpu calibrate`: what does this machine achieve? Measured once, written to a machine file."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neocpu.cli.screen.options import HostOptions, as_record, hosts_options, option_with_default
from neocpu.cli.screen.targets import check_target, force_option

if TYPE_CHECKING:
    from neocpu.plan.machines.calibration import Tell


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write.  [default: that of `this-machine`]",
)
@force_option("the file of --out")
@click.option("--quick", is_flag=True, help="Fewer sizes and tries: seconds, and rough.")
@option_with_default(
    "--ranks",
    type=click.IntRange(2),
    multiple=True,
    default=(2, 4),
    help="Ranks that are measured together under mpiexec, any number of times.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path(),
    help="On the disk that plays the SSD.  [default: the current folder]",
)
@click.option(
    "--learned",
    is_flag=True,
    help="Train the networks of the planners neuroshard and autoshard instead.",
)
@option_with_default(
    "--machine",
    default="this-machine",
    help="With --learned: whose networks; of another machine its file is asked, not measured.",
)
@hosts_options
@as_record("where", HostOptions)
def calibrate(
    out: Path | None,
    force: bool,
    quick: bool,
    ranks: tuple[int, ...],
    folder: Path,
    learned: bool,
    machine: str,
    where: HostOptions,
) -> None:
    """Measure what this machine achieves, and write it to a machine file.

    Lookups, updates, matrix products, copies, collectives and memory tiers, with the kernels that
    training uses: on one rank, and where there is an MPI on several. It takes less than a minute
    once kernels are compiled. Let nothing else run meanwhile.

    The file is machines/HOST.toml in NEOCPU_CACHE_DIR (default ~/.cache/neocpu), and is known as
    `this-machine`. Runs do not need it.

    With --hosts or --hostfile the links between hosts are measured too; the others shall be like
    this one, and have as many ranks each.

    With --learned random sets of tables and exchanges are measured, and networks trained on them,
    in some minutes: machines/HOST.learned.npz, for `parallel.planner`. It needs the machine's file.
    """
    from neocpu.plan.machines import calibration, machine_file

    if out is not None:
        check_target(out, force)
    hosts = where.by_host(None)
    if learned and hosts:
        raise click.UsageError("--learned takes no hosts: its networks are of one node")
    if learned:
        learn_costs(machine, out, "quick" if quick else "full", ranks, folder)
        return
    if machine != machine_file.THIS_MACHINE:
        raise click.UsageError("--machine goes with --learned; calibrate measures this machine")
    path = out or machine_file.this_machine_path()
    machine_file.check_writable(path)
    # One job on one rank, and one for each number of ranks.
    with progress(1 + len(set(ranks))) as tell:
        effort = "quick" if quick else "full"
        text = calibration.calibrate(effort, ranks, folder, tell, hosts)
    machine_file.save(path, text)
    for what, amount in calibration.figures(machine_file.load(path)):
        click.echo(f"{what:32}{amount}")
    click.echo(f"written to {path}")


def learn_costs(
    name: str, out: Path | None, effort: str, ranks: tuple[int, ...], folder: Path
) -> None:
    """Train the networks of a machine, write them, and say how good they are."""
    from neocpu.plan.learned import learn, store
    from neocpu.plan.machines import machine_file

    machine = machine_file.load(name)
    path = out or store.networks_path(machine.name)
    machine_file.check_writable(path)
    if machine.name == machine_file.THIS_MACHINE:
        samples = learn.measured_here(
            effort, ranks, folder, lambda count, topic: click.echo(f"{count} rank(s): {topic}")
        )
    else:
        # A machine that is not here cannot be measured: its simulator answers.
        samples = learn.simulated(machine, sets=learn.SETS[effort])
    networks = learn.learn(machine, samples, learn.TRAININGS[effort], click.echo)
    machine_file.save(path, store.pack(networks))
    for what, fact in networks.facts.items():
        click.echo(f"{what:16}{fact}")
    click.echo(f"written to {path}")


@contextmanager
def progress(jobs: int) -> Iterator["Tell"]:
    """A bar on stderr that topics of the jobs move on; nothing where nobody looks."""
    if not sys.stderr.isatty():
        yield lambda ranks, topic: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from neocpu.plan.machines.calibration import TOPICS

    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=jobs * TOPICS)

        def tell(ranks: int, topic: str) -> None:
            bar.update(task, advance=1, description=f"{ranks} rank(s): {topic}")

        yield tell
