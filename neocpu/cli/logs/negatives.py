"""`neocpu data negatives`: rows for what users did not choose."""

from pathlib import Path

import click

from neocpu.cli.screen.options import option_with_default
from neocpu.cli.screen.targets import LogPath, check_target, force_option
from neocpu.ingest.synthetic.negatives import UNIFORM, WAYS

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("log", nargs=-1, required=True, metavar="LOG...", type=LogPath(dir_okay=False))
@click.option("--user", required=True, metavar="COLUMN", help="Who chose.")
@click.option("--item", required=True, metavar="COLUMN", help="What was chosen.")
@click.option("--out", type=FILE, required=True, help="File to write: .parquet, else CSV.")
@force_option("OUT")
@option_with_default("--per", type=click.IntRange(1), default=4, help="Negatives of each row.")
@option_with_default(
    "--by",
    "way",
    type=click.Choice(WAYS),
    default=UNIFORM,
    help="All items alike, or by their popularity to the power of 0.75.",
)
@option_with_default("--label", default="label", help="The new column: 1 for rows of LOG, else 0.")
@click.option(
    "--of-item",
    "of_item",
    multiple=True,
    metavar="COLUMN",
    help="A column that goes with the item; may be repeated.  [default: those whose value follows "
    "from the item]",
)
@option_with_default("--seed", type=click.IntRange(0), default=1, help="Of the draws.")
def negatives(
    log: tuple[str, ...],
    user: str,
    item: str,
    out: Path,
    force: bool,
    per: int,
    way: str,
    label: str,
    of_item: tuple[str, ...],
    seed: int,
) -> None:
    """Write a log with a label from one of choices alone (views, purchases, plays).

    Behind each row of LOG come rows of the same user, time and so on, with items that this user
    chose nowhere in LOG.
    """
    from neocpu.train.advice.negatives import Columns, add_negatives

    check_target(out, force, log)
    columns = Columns(user, item, label, of_item)
    for line in add_negatives(log, out, columns, per, way, seed):
        click.echo(line)
