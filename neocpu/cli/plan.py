"""`neocpu plan`: which rank would hold what, and how many bytes is that? Nothing is run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neocpu import config as configs
from neocpu.cli.targets import check_target, force_option
from neocpu.parallel.comm import SingleComm

if TYPE_CHECKING:
    from neocpu.config import Config
    from neocpu.embedding.tiered import MemoryPlan
    from neocpu.parallel.plan import Plan

UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1))


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--ranks", type=click.IntRange(1), default=1, show_default=True, help="Ranks to plan for."
)
@click.option(
    "--capacity",
    is_flag=True,
    help="Count bytes, by format and optimizer, and by memory of a rank.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write the plan to a .json file, which parallel.plan can name.",
)
@force_option("the file of --out")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key, any number of times.",
)
def plan(
    config: Path,
    ranks: int,
    capacity: bool,
    out: Path | None,
    force: bool,
    overrides: tuple[str, ...],
) -> None:
    """Show where CONFIG's tables would be, and how many bytes they take.

    Train data that is not converted yet is not looked at: `auto` then plans for one lookup per
    sample and feature.
    """
    if out:
        check_target(out, force, [config])
    settings = configs.load(config, overrides)

    from neocpu.planner import plan_file
    from neocpu.planner.capacity import placement_lines
    from neocpu.planner.plan_file import MadeFor
    from neocpu.training.datasets import converted
    from neocpu.training.plans import make_plan, memory_plan
    from neocpu.zionex.machine_file import save

    comm = SingleComm()
    state = settings.optimizer.sparse.state_floats
    splits = converted(settings, comm)
    pooling = splits.pooling_factors() if splits else {}
    sharding = make_plan(settings, comm, pooling, ranks)
    memory = memory_plan(settings, sharding, pooling)
    if capacity:
        lines = model_lines(settings) + rank_lines(settings, sharding, memory)
    else:
        lines = [sharding.text(state)]
    if memory.demands or not memory.plain:
        lines += ["", *placement_lines(sharding, memory, state)]
    for line in lines:
        click.echo(line)
    if out:
        note = MadeFor(planner="auto", batch_size=settings.training.batch_size)
        save(out, plan_file.text(sharding, memory.placements, note))
        click.echo(f"the plan is in {out}; train with it by parallel.plan = {json.dumps(str(out))}")


def model_lines(settings: "Config") -> list[str]:
    """Bytes of all rows, in the paper's formats and as configured, as lines of text."""
    from neocpu.planner.capacity import LADDER, model_bytes

    tables = settings.tables
    optimizer = settings.optimizer.sparse
    rows = sum(table.rows for table in tables)
    parameters = sum(table.rows * table.dim for table in tables)
    lines = [f"{len(tables)} tables, {rows:,} rows, {parameters:,} parameters", ""]
    lines.append(
        f"{'if every row exists':36}{'numbers':>10}{'state':>10}{'of rows':>10}{'together':>10}"
    )
    ladder = [(f"{form}, {name}", model_bytes(tables, state, form)) for form, name, state in LADDER]
    formats = ", ".join(sorted({table.format for table in tables}))
    configured = f"as configured: {formats}, {optimizer.name}"[:36]
    ladder.append((configured, model_bytes(tables, optimizer.state_floats)))
    for name, size in ladder:
        parts = (size.numbers, size.per_element, size.per_row, size.total)
        lines.append(f"{name:36}" + "".join(f"{human(part):>10}" for part in parts))
    return lines


def rank_lines(settings: "Config", sharding: "Plan", memory: "MemoryPlan") -> list[str]:
    """Bytes of each rank's memories, and how many rows it can hold in them, as lines of text."""
    from neocpu.planner.capacity import rank_bytes

    state = settings.optimizer.sparse.state_floats
    lines = ["", f"{'rank':6}{'hbm':>12}{'ddr':>12}{'ssd, full':>12}{'rows in memory':>18}"]
    for rank in range(sharding.ranks):
        rooms = memory.rooms(sharding.tables, sharding.local(rank), state)
        size = rank_bytes(sharding, rank, memory.placements, rooms, state)
        memories = "".join(f"{human(size[name]):>12}" for name in size)
        slots = sum(room.slots for room in rooms)
        lines.append(f"{rank:<6}{memories}{slots:>18,}")
    return lines


def human(size: int) -> str:
    """Bytes in the largest unit that fits: 48187500000000 -> '48.19 TB'."""
    name, unit = next(((name, unit) for name, unit in UNITS if size >= unit), ("B", 1))
    return f"{size / unit:.2f} {name}" if unit > 1 else f"{size} B"
