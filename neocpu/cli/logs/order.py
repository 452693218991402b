"""`neocpu data order`: rows that are looked up together side by side."""

from pathlib import Path

import click

from neocpu.cli.screen.options import option_with_default
from neocpu.cli.screen.targets import check_target, force_option

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("train", type=FILE)
@click.argument("dst", type=FILE, metavar="ROWS")
@option_with_default(
    "--window",
    type=click.IntRange(1),
    default=256,
    help="Neighbouring samples that count as together, where a sample has one value: a batch.",
)
@force_option("ROWS")
def order(train: Path, dst: Path, window: int, force: bool) -> None:
    """Order the vocabulary of TRAIN so that rows looked up together are neighbours (EL-Rec).

    ROWS gets no samples, only the vocabularies in their new order: train with data.vocabulary =
    "ROWS" and data.rows_by = "vocabulary". Tables of kind tt then make fewer products. TRAIN is a
    dataset with a vocabulary (--min-count); rows that most batches ask for stay in front.
    """
    from neocpu.core.errors import DataError
    from neocpu.ingest.dataset.dataset import Dataset
    from neocpu.ingest.dataset.together import occurrences, order_together, prefixes
    from neocpu.ingest.dataset.writer import DatasetWriter
    from neocpu.tables.kinds.tt import cube_factors

    check_target(dst, force, [train])
    data = Dataset(train)
    if not data.vocabularies:
        raise DataError(f"{train}: has no vocabulary to order; convert it with --min-count N")
    if not data.rows:
        raise DataError(f"{train}: has no samples to learn an order from")
    columns = list(data.features.values())
    notes = {"ordered_by": {"source": train.name, "window": window}}
    click.echo(f"{'feature':14}{'rows':>12}{'prefixes':>12}{'ordered':>12}  per group, on average")
    with DatasetWriter(dst, [], columns, attributes=notes, labelled=False) as writer:
        for name, codes in data.vocabularies.items():
            lookups = occurrences(data, name, window)
            ordered = order_together(codes.size, lookups)
            writer.vocabularies[name] = codes[ordered]
            # row 0 of a table is that of unknown codes
            last = cube_factors(codes.size + 1)[2]
            means = [prefixes(lookups, order, last) for order in (None, ordered)]
            click.echo(f"{name[:13]:14}{codes.size:>12,}{means[0]:>12.1f}{means[1]:>12.1f}")
