"""`neocpu tier`: look into the file that plays the SSD, verify it, make it small."""

from pathlib import Path

import click

FILE = click.Path(path_type=Path)


@click.group()
def tier() -> None:
    """Show, verify and compact the files of rows that play the SSD."""


@tier.command()
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
def show(files: tuple[Path, ...]) -> None:
    """Print a card: tables, rows, slots, the last commit."""
    from neocpu.tables.storage.row_file import RowFile
    from neocpu.tables.storage.row_tools import card

    for path in files:
        with RowFile(path, write=False) as file:
            for line in card(file):
                click.echo(line)


@tier.command()
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
def verify(files: tuple[Path, ...]) -> int:
    """Compare every record with its hash; exit status 1 if any byte is not as it was written.

    A growth of the file that a kill interrupted is undone first.
    """
    from neocpu.tables.storage.row_file import RowFile
    from neocpu.tables.storage.row_tools import verify as check

    status = 0
    for path in files:
        with RowFile(path) as file:
            damages = check(file)
            rows = file.stats()["rows"]
            epoch = file.epoch
        for line in damages:
            click.echo(f"{path}: {line}")
        if not damages:
            click.echo(f"{path}: {rows:,} rows of epoch {epoch} are as they were written")
        status |= bool(damages)
    return status


@tier.command()
@click.argument("file", type=FILE)
def compact(file: Path) -> None:
    """Write the rows densely, in ascending order, into a new file that takes the old one's name."""
    from neocpu.tables.storage.row_tools import compact as rewrite

    before, after = rewrite(file)
    click.echo(f"{file}: {before:,} bytes before, {after:,} after")
