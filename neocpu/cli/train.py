"""`neocpu train`: from a config file to a trained model and its digest."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neocpu import config as configs
from neocpu.parallel.launch import exec_mpiexec, get_comm, launched, prepare_threads
from neocpu.training.run_folder import has_results

if TYPE_CHECKING:
    from neocpu.parallel.comm import Comm

STARTED = time.time()


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--ranks",
    type=click.IntRange(1),
    help="Start so many MPI ranks on this machine (not under mpiexec).",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help=(
        "Folder of results.  [default: runs/NAME, or the first free NAME-2, …; with --resume the "
        "last]"
    ),
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key, any number of times.",
)
@click.option(
    "--resume", is_flag=True, help="Go on from the newest complete checkpoint of the folder."
)
def train(
    config: Path, ranks: int | None, out: Path | None, overrides: tuple[str, ...], resume: bool
) -> None:
    """Train a model as CONFIG says, and print the digest of what was learnt.

    Runs alone, with --ranks, or as `mpiexec -n 4 neocpu train CONFIG` (also srun). The digest is
    the same for any number of ranks and any plan. Results: OUT/run.json, OUT/metrics.jsonl,
    OUT/checkpoints/.

    \b
    --set training.steps=100 --set 'parallel.plan={"C*" = "row_wise"}' --set data.train=train.h5
    """
    settings = configs.load(config, overrides)
    if ranks is not None and ranks > 1 and not launched():
        exec_mpiexec(ranks, arguments(config, ranks, out, overrides, resume))
    comm = get_comm(ranks, settings.parallel.ranks_per_node or None)
    prepare_threads(comm, settings.training.threads or None)

    from neocpu.cli.progress import make_report
    from neocpu.training.trainer import Trainer

    folder = out or default_folder(config, resume, comm)
    report = make_report(folder, comm.rank)
    summary = Trainer(
        settings, comm, folder, resume=resume, report=report, started=STARTED, bind=True
    ).run()
    if comm.rank == 0:
        print_summary(summary, folder)


def default_folder(config: Path, resume: bool, comm: "Comm") -> Path:
    """The first of runs/NAME, NAME-2, NAME-3, … without results, or, to resume, the last one with;
    rank 0 looks.
    """
    last = found = first = Path("runs") / config.stem
    number = 2
    while comm.rank == 0 and has_results(found):
        last = found
        found = first.with_name(f"{config.stem}-{number}")
        number = number + 1
    return Path(comm.allgather_bytes(str(last if resume else found).encode())[0].decode())


def arguments(
    config: Path, ranks: int, out: Path | None, overrides: tuple[str, ...], resume: bool
) -> list[str]:
    """The command line once more, for the ranks that mpiexec starts."""
    given = ["train", str(config), "--ranks", str(ranks)]
    given += ["--out", str(out)] if out else []
    given += [part for override in overrides for part in ("--set", override)]
    return given + ["--resume"] * resume


def print_summary(summary: dict[str, Any], folder: Path) -> None:
    """What was reached, and the digest as the last line."""
    for split, metrics in summary["metrics"].items():
        numbers = "  ".join(
            f"{name} {show(value)}" for name, value in metrics.items() if value is not None
        )
        click.echo(f"{split:6}{numbers}")
    steps = summary["steps"]
    samples = summary["samples"]
    seconds = summary["seconds"]
    click.echo(
        f"{steps} steps, {samples} samples, {seconds:.1f} s, {summary['samples_per_second']:,.0f} "
        "samples/s"
    )
    if summary["cold_start_seconds"] is not None:
        click.echo(f"first step done {summary['cold_start_seconds']:.1f} s after the start")
    click.echo(f"memory of the largest rank: {summary['memory_per_rank'] / 2**20:,.0f} MiB")
    click.echo(checkpoint_line(summary["checkpoints"]))
    if summary["ranks"] > 1:
        for line in traffic_lines(summary["traffic"]):
            click.echo(line)
    for line in tier_lines(summary):
        click.echo(line)
    click.echo(f"results in {folder}")
    click.echo(f"digest {summary['digest']}")


def checkpoint_line(made: dict[str, Any]) -> str:
    """What was written, and how long training waited for it."""
    some = [
        f"{made[name]} {what}"
        for name, what in (("of_changes", "of changes"), ("in_background", "in the background"))
    ]
    detail = f" ({', '.join(some)})" if made["of_changes"] or made["in_background"] else ""
    size = f"{made['bytes'] / 2**20:,.1f} MiB"
    return (
        f"checkpoints written: {made['written']}{detail}, {size}; training waited "
        f"{made['seconds']:.2f} s for them"
    )


def traffic_lines(traffic: dict[str, Any]) -> list[str]:
    """What all ranks sent, by collective and link, as a small table."""
    links = ("same_rank", "same_node", "other_node")
    lines = [
        f"{'sent by all ranks':18}{'calls':>10}"
        + "".join(f"{link.replace('_', ' '):>16}" for link in links)
    ]
    for verb, entry in traffic.items():
        sizes = "".join(f"{entry[link]['bytes']:>14,} B" for link in links)
        lines.append(f"{verb:18}{entry['calls']:>10,}{sizes}")
    return lines


def tier_lines(summary: dict[str, Any]) -> list[str]:
    """What the memories of cached tables held, all ranks together, as a small table (`hit`: of the
    rows asked for); how long steps waited for rows; what a crash would cost.
    """
    tiers: list[dict[str, Any]] = summary["tiers"]
    if not tiers:
        return []
    lines = [
        f"{'table':14}{'tier':5}{'rows':>14}{'MiB':>10}{'hit':>8}{'conflicts':>11}{'read':>13}{'written':>13}"
    ]
    for tier in tiers:
        asked = tier.get("unique", 0)
        hit = f"{100 * (1 - tier['unique_misses'] / asked):.1f} %" if asked else ""
        conflicts = f"{tier['conflict_unique_misses']:,}" if "unique" in tier else ""
        moved = [f"{tier[name]:,}" if name in tier else "" for name in ("read", "written")]
        size = tier["bytes"] / 2**20
        lines.append(
            f"{tier['table'][:13]:14}{tier['tier']:5}{tier['rows']:>14,}{size:>10,.1f}{hit:>8}{conflicts:>11}"
            f"{moved[0]:>13}{moved[1]:>13}"
        )
    rows, index = (
        sum(tier.get(name, 0) for tier in tiers if "index_bytes" in tier)
        for name in ("rows", "index_bytes")
    )
    if rows:
        lines.append(
            f"index of SSD files in memory: {index / 2**20:,.1f} MiB, {index / rows:.1f} bytes a "
            "row"
        )
    stall = summary["stall_seconds"]
    seconds = summary["seconds"]
    cost = summary["crash_cost"]
    share = f" ({100 * stall / seconds:.1f} % of the steps' time)" if seconds else ""
    lines.append(f"steps waited {stall:.2f} s for rows{share}")
    lines.append(
        f"a crash now costs nothing: the last checkpoint has step {summary['steps']}; between "
        "checkpoints it cost up to "
        f"{cost['steps']} steps ({cost['seconds']:.1f} s)"
    )
    return lines


def show(value: float) -> str:
    """A metric as text."""
    return str(value) if isinstance(value, int) else f"{value:.5f}"
