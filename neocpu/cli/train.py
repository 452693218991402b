"""`neocpu train`: from a config file to a trained model and its digest.

The run itself is `train/run/trainer.py`.
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from neocpu.cli.screen.options import (
    Launch,
    as_record,
    option_with_default,
    ranks_option,
    set_option,
)
from neocpu.cli.screen.targets import check_target, force_option
from neocpu.core.cores import available
from neocpu.kernels.compile.choice import FAMILIES, use
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.environment import check_launcher, cores_left_out, tasks_left_out
from neocpu.parallel.transport.launch import held_signals, launched
from neocpu.serve.report.trackers import TRACKERS, trackers
from neocpu.train.config import config as configs
from neocpu.train.config.asynchronous import OFF, ON

if TYPE_CHECKING:
    from neocpu.parallel.transport.comm import Comm
    from neocpu.train.watch.rank_log import RankLog

Summary: TypeAlias = dict[str, Any]  # what run.json holds
STARTED = time.time()


@dataclass(frozen=True)
class ShownOptions:
    """What is shown of a run, beside its results, and how often it goes on by itself."""

    trace: Path | None = None
    trace_steps: int = 50
    force: bool = False
    boards: tuple[str, ...] = ()
    logs: Path | None = None
    restarts: int = 0
    min_ranks: int = 1
    readers: int | None = None
    sync: str | None = None

    def overrides(self) -> list[str]:
        """The keys of the config that options stand for."""
        overrides = [] if self.readers is None else [f"readers.count={self.readers}"]
        return [*overrides, f'training.sync="{self.sync}"'] if self.sync else overrides


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@ranks_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of results.  [default: runs/NAME, or the first free NAME-2, …; with --resume the "
    "last]",
)
@set_option()
@click.option(
    "--resume", is_flag=True, help="Go on from the newest complete checkpoint of the folder."
)
@option_with_default(
    "--restarts",
    type=click.IntRange(0),
    default=0,
    help="Go on by itself so many times, if ranks are killed or the run stands still; on the hosts "
    "that are left, if some fail.",
)
@option_with_default(
    "--min-ranks",
    type=click.IntRange(1),
    default=1,
    help="End where the hosts that are left take fewer ranks.",
)
@click.option(
    "--readers",
    type=click.IntRange(0),
    help="Read raw train data by so many processes of their own, without converting them first.",
)
@click.option("--sync", type=click.Choice((ON, OFF)), help="Off: train on parameter servers.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Write what every rank did when, for ui.perfetto.dev (.json).",
)
@option_with_default(
    "--trace-steps",
    type=click.IntRange(1),
    default=50,
    help="Steps at the start and at the end of the run that --trace shows.",
)
@force_option("the file of --trace")
@click.option(
    "--kernels",
    type=click.Choice(FAMILIES),
    help="Run the textbook kernels instead of the tuned ones: slower, the same digest.",
)
@click.option(
    "--metrics",
    "boards",
    type=click.Choice(tuple(TRACKERS)),
    multiple=True,
    help="Also send every line of metrics.jsonl there; any number of times.",
)
@click.option(
    "--logs",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write what each rank does and when to DIR/rank-N.log.",
)
@click.option(
    "--dry-run", is_flag=True, help="Say what the run would take: plan, memory, disk, time."
)
@as_record("shown", ShownOptions)
def train(
    config: Path,
    launch: Launch,
    out: Path | None,
    overrides: tuple[str, ...],
    resume: bool,
    kernels: str | None,
    dry_run: bool,
    shown: ShownOptions,
) -> None:
    """Train a model as CONFIG says, and print the digest of what was learnt.

    Runs alone, with --ranks, or as `mpiexec -n 4 neocpu train CONFIG` (also srun). The digest is
    the same for any number of ranks and any plan. Results: OUT/run.json, OUT/metrics.jsonl,
    OUT/checkpoints/.

    \b
    --set training.steps=100 --set 'parallel.plan={"C*" = "row_wise"}' --set data.train=train.h5
    """
    if kernels:
        use(kernels)  # also for the processes that this one starts
    if shown.trace:
        check_target(shown.trace, shown.force, [config])
    # Before ranks start: a mistake is one line then, and costs no time on a cluster.
    settings = configs.load(config, (*overrides, *shown.overrides()))
    if shown.trace:
        if settings.training.sync == OFF:
            raise click.UsageError("--trace shows the steps that ranks take together: leave it out")
        data = settings.data
        check_target(shown.trace, shown.force, map(Path, (*data.train, *data.valid, *data.test)))
    if dry_run:
        show_dry_run(settings, config, launch, out)
        return
    if not launched():
        check_launcher()
    if launched() and shown.restarts:
        raise click.UsageError(
            "--restarts is for ranks that this command starts (--ranks); what another launcher "
            "started, it or its scheduler starts again: docs/cluster.md"
        )
    if shown.min_ranks > 1 and not (launch.hosts or launch.hostfile):
        raise click.UsageError("--min-ranks is for hosts that may fail: --hosts, --hostfile")
    if launch.starts_ranks or (shown.restarts and not launched()):
        from neocpu.cli.screen.outlive import outlive

        folder = out or default_folder(config, resume, SingleComm())
        outlive(launch, folder, resume, shown.restarts, shown.min_ranks)
    with held_signals():
        comm = launch.comm(settings)
        for problem in (cores_left_out(len(available())), tasks_left_out(comm.size)):
            if comm.rank == 0 and problem:
                click.echo(f"warning: {problem}", err=True)
        folder = out or default_folder(config, resume, comm)
        from neocpu.cli.screen.progress import log_of_rank

        with log_of_rank(shown.logs, comm) as log:
            summary = run(settings, comm, folder, resume, shown, log)
        if comm.rank == 0:
            show_summary(summary, folder)


def show_dry_run(settings: configs.Config, config: Path, launch: Launch, out: Path | None) -> None:
    """Print what a run would take; nothing is started or written."""
    if launched():
        raise click.UsageError("--dry-run starts no ranks: call it alone, with --ranks")
    if launch.hosts or launch.hostfile:
        raise click.UsageError("--dry-run looks at this machine alone: leave its hosts out")

    from neocpu.train.before.dry_run import dry_run

    for line in dry_run(settings, launch.ranks or 1, out or Path("runs") / config.stem):
        click.echo(line)


def show_summary(summary: Summary, folder: Path) -> None:
    """Print the summary where stdout can be written; else say where it is."""
    try:
        print_summary(summary, folder)
    except OSError as error:  # a full disk, or a pipe that nobody reads
        forget_output()
        reason = f"stdout cannot be written ({error.strerror})"
        click.echo(f"neocpu: {reason}; the summary is {folder / 'run.json'}", err=True)


def run(
    settings: configs.Config,
    comm: "Comm",
    folder: Path,
    resume: bool,
    shown: ShownOptions,
    log: "RankLog | None",
) -> Summary:
    """Train, with a report for whoever looks; the summary.

    log : of this rank.
    """
    from neocpu.cli.screen.progress import make_report
    from neocpu.train.config.keys import flat
    from neocpu.train.run.trainers import trainer_of

    # One tracker for the run: others would log the same lines again.
    boards = () if comm.rank else shown.boards
    trace = None
    if shown.trace:
        from neocpu.train.watch.trace import RunTrace

        trace = RunTrace(shown.trace, comm, shown.trace_steps)
    with trackers(boards, folder, flat(settings), click.echo) as listeners:
        return trainer_of(settings)(
            settings,
            comm,
            folder,
            resume=resume,
            report=make_report(folder, comm.rank, listeners, log),
            started=STARTED,
            trace=trace,
        ).run()


def forget_output() -> None:
    """Let stdout lead nowhere, with what could not be written: Python would try again at its end,
    and give another exit status.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    # On the descriptor, so that C libraries and Python's last flush end there too.
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def default_folder(config: Path, resume: bool, comm: "Comm") -> Path:
    """The first of runs/NAME, NAME-2, NAME-3, … without results; to resume, the last with results.

    Collective.
    """
    from neocpu.train.run.folder import has_results

    free = Path("runs") / config.stem
    last_used = free
    number = 2
    # rank 0 looks for all: the others may see an older state of a network folder
    while comm.rank == 0 and has_results(free):
        last_used = free
        free = free.with_name(f"{config.stem}-{number}")
        number += 1
    chosen = last_used if resume else free
    return Path(comm.allgather(str(chosen))[0])


def print_summary(summary: Summary, folder: Path) -> None:
    """Print metrics, speed, memory and traffic, and the digest as the last line."""
    from neocpu.train.run.recovery import checkpoint_lines
    from neocpu.train.run.verdict import baseline_line
    from neocpu.train.watch.exchange_times import exchange_lines

    for split, metrics in summary["metrics"].items():
        defined = {name: value for name, value in metrics.items() if value is not None}
        numbers = "  ".join(f"{name} {show(value)}" for name, value in defined.items())
        click.echo(f"{split:5} {numbers}")
    if baseline := summary.get("baseline"):
        click.echo(f"{baseline['split']:5} {baseline_line(baseline)}")
    click.echo(
        f"{summary['steps']} steps, {summary['samples']} samples, {summary['seconds']:.1f} s, "
        f"{summary['samples_per_second']:,.0f} samples/s"
    )
    if summary["cold_start_seconds"] is not None:
        click.echo(f"first step done {summary['cold_start_seconds']:.1f} s after the start")
    click.echo(f"memory of the largest rank: {summary['memory_per_rank'] / 2**20:,.0f} MiB")
    if "activations" in summary:
        click.echo(activations_line(summary["activations"]))
    for line in checkpoint_lines(summary["checkpoints"]):
        click.echo(line)
    if summary["ranks"] > 1:
        for line in traffic_lines(summary["traffic"]):
            click.echo(line)
        for line in exchange_lines(summary["exchanges"]):
            click.echo(line)
    if "machine" in summary:
        from neocpu.cli.screen.machine_times import machine_lines

        for line in machine_lines(summary["machine"]):
            click.echo(line)
    if "readers" in summary:
        from neocpu.train.run.reading import reader_line

        click.echo(reader_line(summary))
    for line in tier_lines(summary):
        click.echo(line)
    click.echo(f"results in {folder}")
    click.echo(f"digest {summary['digest']}")


def activations_line(held: Summary) -> str:
    """What activations took of their budget."""
    block, budget, moved = (held[name] / 2**20 for name in ("block", "budget", "moved"))
    return (
        f"activations: {block:,.1f} of {budget:,.1f} MiB; {moved:,.1f} MiB left and came back, "
        f"{held['remade']:,} were computed again; steps waited {held['stall_seconds']:.2f} s"
    )


def traffic_lines(traffic: Summary) -> list[str]:
    """What all ranks sent, by collective and link, as a small table."""
    links = ("same_rank", "same_node", "other_node")
    titles = "".join(f"{link.replace('_', ' '):>16}" for link in links)
    lines = [f"{'sent by all ranks':18}{'calls':>10}{titles}"]
    for collective, sent in traffic.items():
        sizes = "".join(f"{sent[link]['bytes']:>14,} B" for link in links)
        lines.append(f"{collective:18}{sent['calls']:>10,}{sizes}")
    return lines


def tier_lines(summary: Summary) -> list[str]:
    """What the memories of cached tables held, all ranks together, as a small table.

    Then how long steps waited for rows, and what a crash would cost. Nothing for a run without
    cached tables.
    """
    tiers: list[Summary] = summary["tiers"]
    if not tiers:
        return []
    titles = (
        f"{'table':14}{'tier':5}{'rows':>14}{'MiB':>10}{'hit':>8}{'conflicts':>11}{'late':>11}"
        f"{'read':>13}{'written':>13}"
    )
    lines = [titles, *(tier_line(tier) for tier in tiers)]
    files = [tier for tier in tiers if "index_bytes" in tier]
    rows = sum(tier.get("rows", 0) for tier in files)
    index_bytes = sum(tier["index_bytes"] for tier in files)
    if rows:
        lines.append(
            f"index of SSD files in memory: {index_bytes / 2**20:,.1f} MiB, "
            f"{index_bytes / rows:.1f} bytes a row"
        )
    stall = summary["stall_seconds"]
    seconds = summary["seconds"]
    share = f" ({100 * stall / seconds:.1f} % of the steps' time)" if seconds else ""
    lines.append(f"steps waited {stall:.2f} s for rows{share}")
    cost = summary["crash_cost"]
    lines.append(
        f"a crash now costs nothing: the last checkpoint has step {summary['steps']}; between "
        f"checkpoints it cost up to {cost['steps']} steps ({cost['seconds']:.1f} s)"
    )
    return lines


def tier_line(tier: Summary) -> str:
    """One memory of one table; `hit`: share of the unique rows of steps that were in it;
    `late`: rows of training that were not there when their batch's turn came.
    """
    hit = ""
    conflicts = ""
    if "unique" in tier:
        conflicts = f"{tier['conflict_unique_misses']:,}"
        if tier["unique"]:
            hit = f"{100 * (1 - tier['unique_misses'] / tier['unique']):.1f} %"
    late = f"{tier['late']:,}" if "late" in tier else ""
    read = f"{tier['read']:,}" if "read" in tier else ""
    written = f"{tier['written']:,}" if "written" in tier else ""
    return (
        f"{tier['table'][:13]:14}{tier['tier']:5}{tier['rows']:>14,}"
        f"{tier['bytes'] / 2**20:>10,.1f}{hit:>8}{conflicts:>11}{late:>11}{read:>13}{written:>13}"
    )


def show(value: float) -> str:
    """A metric as text."""
    return str(value) if isinstance(value, int) else f"{value:.5f}"
