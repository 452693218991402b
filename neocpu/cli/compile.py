"""`neocpu compile`: bring the kernels of a run into the cache before the run."""

from pathlib import Path

import click

from neocpu.cli.screen.options import Launch, set_option
from neocpu.train.config import config as configs


@click.command(name="compile")
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--ranks",
    type=click.IntRange(1),
    help="Ranks of the coming run.  [default: those of this command]",
)
@set_option()
def compile(config: Path, ranks: int | None, overrides: tuple[str, ...]) -> None:
    """Compile the kernels that CONFIG needs, so that runs start at once.

    On a cluster run it once per kind of CPU. Kernels live in NEOCPU_CACHE_DIR (default
    ~/.cache/neocpu), which other hosts and installations may share, and only need to read.
    """
    settings = configs.load(config, overrides)
    comm = Launch().comm(settings)

    from neocpu.cli.screen.progress import compiling_shown
    from neocpu.parallel.transport.environment import check_kernels
    from neocpu.train.before.datasets import converted
    from neocpu.train.before.plans import memory_plan, plan_for_data
    from neocpu.train.before.warmup import warm_up

    check_kernels()
    splits = converted(settings, comm)
    tell = click.echo if comm.rank == 0 else None
    # The plan decides which kernels there are; without data it may be another one.
    if tell and splits is None and settings.parallel.plan == "auto":
        tell(
            "planned without the data, which is not converted yet: `auto` may choose other "
            "schemes for the run itself"
        )
    pooling = splits.pooling_factors() if splits else {}
    plan = plan_for_data(settings, comm, splits, ranks)
    placements = memory_plan(settings, plan, pooling).placements
    watch = compiling_shown(comm.rank)
    seconds = warm_up(settings, plan, comm, tell, placements, watch)
    if comm.rank == 0:
        click.echo(f"kernels of {config} are ready after {seconds:.1f} s")
