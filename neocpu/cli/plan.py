"""`neocpu plan`: which rank would hold what, and how many bytes is that? Nothing is run.

With --machine also: how long would a step take there, and why?
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from neocpu.cli.screen.machine_plan import MachineOptions, given_plan, print_machine_plan
from neocpu.cli.screen.options import as_record, set_option
from neocpu.cli.screen.targets import check_target, force_option
from neocpu.core.policies import POLICIES
from neocpu.core.units import bytes_text as human
from neocpu.parallel.transport.comm import SingleComm
from neocpu.train.config import config as configs

if TYPE_CHECKING:
    from neocpu.parallel.sharding.plan import Plan
    from neocpu.tables.embedding.memory_plan import MemoryPlan
    from neocpu.train.config.config import Config

path_type = click.Path(path_type=Path)


@click.command()
@click.argument("config", type=path_type)
@click.option(
    "--ranks",
    type=click.IntRange(1),
    help="Ranks to plan for.  [default: 1, or all of --machine]",
)
@click.option(
    "--capacity",
    is_flag=True,
    help="Count bytes, by format and optimizer, and by memory of a rank.",
)
@click.option(
    "--machine", default="", help="Plan for a machine and explain: a preset, or a .toml file."
)
@click.option("--ranks-per-node", type=click.IntRange(1), help="Of the machine, if not its own.")
@click.option("--planner", help="Who plans for the machine.  [default: search]")
@click.option("--cost-model", help="What a step costs there.  [default: neo]")
@click.option(
    "--reserve",
    type=click.FloatRange(0, 1, max_open=True),
    help="Part of the fast memory that is not for tables.  [default: 0.15]",
)
@click.option("--explain", multiple=True, metavar="TABLE", help="Explain one table in full.")
@click.option("--verbose", is_flag=True, help="Show all ranks and tables.")
@click.option("--from-torchrec", type=path_type, help="Take a plan that TorchRec made (.json).")
@click.option(
    "--present", type=path_type, help="The plan in use (.json): tell what would move from it."
)
@click.option(
    "--most-moved", type=click.FloatRange(0), metavar="GB", help="Move no more from --present."
)
@click.option(
    "--beside",
    type=path_type,
    multiple=True,
    help="Config of another job on the machine, whose parallel.plan is a plan file.",
)
@click.option(
    "--out", type=path_type, help="Write the plan to a .json file, which parallel.plan can name."
)
@click.option("--svg", type=path_type, help="Draw ranks, memories and links of the machine.")
@force_option("the files of --out and --svg")
@set_option(
    "Override a key of the config; with --machine also of the machine (machine.nic=2x) or the step."
)
@as_record("options", MachineOptions)
def plan(
    config: Path,
    ranks: int | None,
    capacity: bool,
    from_torchrec: Path | None,
    out: Path | None,
    force: bool,
    overrides: tuple[str, ...],
    options: MachineOptions,
) -> None:
    """Show where CONFIG's tables would be, and how many bytes they take.

    With --machine: how long a step would take on it, what bounds it, why each table is kept as it
    is, and what would change that. Train data that is not converted yet is not looked at: planners
    then count one lookup per sample and feature, or work.pooling. Keys of the step are those of
    `neocpu simulate`: wires.*, work.*. With readers.count the train data are parsed for a moment,
    to say how many readers keep up with the steps.
    """
    files = (config, from_torchrec, options.present, *options.beside)
    sources = [path for path in files if path]
    # Each is a source of the next check, so that --out and --svg cannot name one file.
    for target in (out, options.svg):
        if target:
            check_target(target, force, sources)
            sources.append(target)
    changed = None
    if options.machine:
        from neocpu.plan.simulation.what_if import changes

        # as for `simulate`: --set has keys of the config, the machine, and the step
        changed = changes(overrides)
    settings = configs.load(config, changed.config if changed else overrides)

    from neocpu.plan.files import plan_file
    from neocpu.plan.files.plan_file import MadeFor
    from neocpu.plan.machines.machine_file import save

    options.check()
    if changed:
        if capacity:
            for line in [*model_lines(settings), ""]:
                click.echo(line)
        sharding, placements, note = print_machine_plan(
            settings, ranks, options, from_torchrec, changed
        )
    else:
        given = given_plan(settings, from_torchrec, ranks or 1) if from_torchrec else None
        sharding, placements = print_plan(settings, ranks or 1, capacity, given)
        note = MadeFor(planner=settings.parallel.planner, batch_size=settings.training.batch_size)
    if out:
        save(out, plan_file.text(sharding, placements, note))
        click.echo(f"the plan is in {out}; train with it by --set parallel.plan={out}")


def print_plan(
    settings: "Config", ranks: int, capacity: bool, given: "Plan | None"
) -> tuple["Plan", tuple[str, ...]]:
    """Print where tables are, without a machine; the plan, and its placements.

    given : a plan that is there already.
    """
    from neocpu.parallel.exchange.wire_formats import refuse_cut_blocks
    from neocpu.plan.cost.capacity import placement_lines
    from neocpu.train.advice.kinds import kind_lines
    from neocpu.train.before.datasets import converted
    from neocpu.train.before.plans import memory_plan, plan_for_data

    comm = SingleComm()
    state = settings.optimizer.sparse.state_floats
    splits = converted(settings, comm)
    pooling = splits.pooling_factors() if splits else {}
    sharding = given or plan_for_data(settings, comm, splits, ranks)
    refuse_cut_blocks(sharding, settings.wires.specs)
    memory = memory_plan(settings, sharding, pooling)
    if capacity:
        lines = model_lines(settings) + rank_lines(settings, sharding, memory)
    else:
        lines = [sharding.text(state), *kind_lines(settings)]
    # With all tables in one memory there is nothing to say of placements.
    if memory.demands or not memory.plain:
        policy = POLICIES[memory.policy].text(settings.memory)
        lines += ["", *placement_lines(sharding, memory, state), policy]
    if settings.readers.count and not capacity:
        from neocpu.train.before.reader_rate import readers_line  # and parsers

        lines.append(readers_line(settings, 0.0))
    for line in lines:
        click.echo(line)
    return sharding, memory.placements


def model_lines(settings: "Config") -> list[str]:
    """Bytes of all rows, in the paper's formats and as configured, as lines of text."""
    from neocpu.plan.cost.capacity import LADDER, model_bytes
    from neocpu.train.advice.kinds import kind_lines

    tables = settings.tables
    optimizer = settings.optimizer.sparse
    rows = sum(table.rows for table in tables)
    parameters = sum(table.rows * table.dim for table in tables)
    lines = [f"{len(tables)} tables, {rows:,} rows, {parameters:,} parameters"]
    lines += [*kind_lines(settings), ""]
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
    from neocpu.plan.cost.capacity import rank_bytes

    state = settings.optimizer.sparse.state_floats
    lines = ["", f"{'rank':6}{'hbm':>12}{'ddr':>12}{'ssd, full':>12}{'rows in memory':>18}"]
    for rank in range(sharding.ranks):
        rooms = memory.rooms(sharding.tables, sharding.local(rank), state)
        size = rank_bytes(sharding, rank, memory.placements, rooms, state)
        memories = "".join(f"{human(size[name]):>12}" for name in size)
        slots = sum(room.slots for room in rooms)
        lines.append(f"{rank:<6}{memories}{slots:>18,}")
    return lines
