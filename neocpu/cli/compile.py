"""`neocpu compile`: bring the kernels of a run into the cache before the run."""

from pathlib import Path

import click

from neocpu import config as configs
from neocpu.parallel.launch import get_comm, prepare_threads


@click.command(name="compile")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--ranks", type=click.IntRange(1), help="Ranks of the coming run.  [default: those of this command]")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key, any number of times.")
def compile(config: Path, ranks: int | None, overrides: tuple[str, ...]) -> None:
    """Compile the kernels that CONFIG needs, so that runs start at once.

    On a cluster run it once per kind of CPU; kernels live in NEOCPU_CACHE_DIR, default ~/.cache/neocpu.
    """
    settings = configs.load(config, overrides)
    comm = get_comm(None, settings.parallel.ranks_per_node or None)
    prepare_threads(comm, settings.training.threads or None)

    from neocpu.planner.auto import make_plan
    from neocpu.training.warmup import warm_up

    nodes = settings.parallel.ranks_per_node or None
    plan = make_plan(settings.tables, settings.parallel.plan, ranks or comm.size, nodes)
    seconds = warm_up(settings, plan, comm, click.echo if comm.rank == 0 else None)
    if comm.rank == 0:
        click.echo(f"kernels of {config} are ready after {seconds:.1f} s")
