"""`neocpu data cache`: which converted copies of raw logs are kept?"""

import click


@click.command("cache")
@click.option("--clear", is_flag=True, help="Remove the copies that no run uses.")
def cache(clear: bool) -> None:
    """Show the converted copies of raw logs, or remove them.

    `neocpu train` and the like convert a raw log once and keep the copy in this folder; a copy that
    is gone is made again when it is needed. NEOCPU_DATA_CACHE names the folder,
    NEOCPU_DATA_CACHE_GIB its size.
    """
    from neocpu.ingest import copy_cache
    from neocpu.train.before.preflight import human

    folder = copy_cache.cache_folder()
    if clear:
        gone, left = copy_cache.clear()
        freed = human(sum(copy.size for copy in gone))
        click.echo(f"{folder}: {len(gone)} copies removed, {freed}")
        for copy in left:
            click.echo(f"  in use: {copy.path.name}")
        return
    copies = copy_cache.copies()
    total = human(sum(copy.size for copy in copies))
    click.echo(f"{folder}: {len(copies)} copies, {total} of at most {human(copy_cache.limit())}")
    for copy in reversed(copies):
        use = "in use now" if copy.in_use else f"used {copy.idle / 3600:,.1f} h ago"
        click.echo(f"  {human(copy.size):>10}  {use}  {copy.path.name}")
