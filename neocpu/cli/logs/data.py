"""`neocpu data`: convert raw click logs into datasets, look into them, and what `logs/` has."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neocpu.cli.logs.generate import generate
from neocpu.cli.logs.negatives import negatives
from neocpu.cli.logs.order import order
from neocpu.cli.screen.options import option_with_default
from neocpu.cli.screen.targets import LogPath, check_target, force_option
from neocpu.parallel.transport.launch import ended_by_signals

if TYPE_CHECKING:
    from rich.table import Table

    from neocpu.ingest.dataset.card import Card
    from neocpu.ingest.dataset.convert_options import ConvertOptions

FILE = click.Path(path_type=Path, dir_okay=False)
LOG = LogPath()
DATASET = LogPath(dir_okay=False)


@click.group()
def data() -> None:
    """Convert, generate and look at click logs."""
    # what a command had not finished is removed
    click.get_current_context().with_resource(ended_by_signals())


@data.group()
def convert() -> None:
    """Convert raw logs into one HDF5 dataset DST.

    Text, plain or compressed, Parquet, Arrow, JSON, NumPy, libsvm, libffm and Vowpal Wabbit:
    files, folders of files, or patterns as "part-*.csv". Several sources are joined in the order
    given.
    """


_COMPRESS = option_with_default(
    "--compress",
    type=click.Choice(["none", "gzip", "zstd"]),
    default="none",
    help="Uncompressed files are mapped and load fastest. zstd needs the extra neocpu[zstd].",
)
_CLUSTERING = (
    click.option(
        "--cluster-by",
        default="",
        metavar="COLUMN",
        help="Make the rows of a session neighbours: this feature's value names it.",
    ),
    option_with_default(
        "--cluster-rows",
        type=click.IntRange(1),
        default=1 << 20,
        help="In so many rows of the log at a time, which are held in memory.",
    ),
)


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that all conversions share."""
    for option in reversed(
        (
            option_with_default(
                "--dense-transform",
                type=click.Choice(["log1p", "none"]),
                default="log1p",
                help="What is stored for a number x: log1p(max(x, 0)), or x. Missing numbers are "
                "0 before it.",
            ),
            option_with_default(
                "--on-error",
                type=click.Choice(["fail", "skip"]),
                default="fail",
                help="A faulty line stops the conversion, or is left out and reported in "
                "DST.errors.txt.",
            ),
            _COMPRESS,
            click.option(
                "--min-count",
                type=click.IntRange(0),
                default=0,
                help="Fit a vocabulary: codes seen so often.",
            ),
            click.option(
                "--frequencies",
                is_flag=True,
                help="Keep counts of frequent codes (memory.warm uses them).",
            ),
            *_CLUSTERING,
            click.option(
                "--vocabulary",
                type=FILE,
                help="Take the vocabulary from this dataset (the train file).",
            ),
            click.option(
                "--no-label",
                is_flag=True,
                help="The log has no labels (to be scored by `neocpu predict`).",
            ),
            force_option("DST"),
        )
    ):
        command = option(command)
    return command


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on a terminal, silence elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    # stdout is for what the conversion did, which scripts read.
    console = Console(stderr=True)
    columns = (
        # File names may have brackets, which rich would take for markup.
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(title, total=None, note="")

        def progress(done: int, total: int, note: str) -> None:
            bar.update(task, completed=done, total=total, note=note)

        yield progress


def _run(
    sources: tuple[str, ...], dst: Path, kind: str, force: bool, options: "ConvertOptions"
) -> None:
    from neocpu.ingest.dataset.convert import convert as run
    from neocpu.ingest.dataset_layout import extreme_lines
    from neocpu.ingest.formats.files.folders import all_files

    check_target(dst, force, [*all_files(sources), *options.files()])
    if options.min_count and options.vocabulary:
        raise click.UsageError(
            "--min-count fits a vocabulary and --vocabulary takes another file's; give one of them"
        )
    with _bar(f"{dst.name}") as show:

        def progress(done: int, total: int, rows: int) -> None:
            show(done, total, f"{rows:,} rows")

        conversion = run(sources, dst, kind, options, progress)
    click.echo(f"{dst}: {conversion.rows:,} row{'s' * (conversion.rows != 1)}")
    for column, count in conversion.invalid.items():
        if count:
            click.echo(f"column {column}: {count:,} texts are no numbers and count as missing")
    for line in extreme_lines([str(dst)], [conversion.extreme]):
        click.echo(f"warning: {line}")
    if conversion.skipped:
        lines = "line was" if conversion.skipped == 1 else "lines were"
        where = f"see {conversion.report}"
        if conversion.trouble:
            where = f"the report of them cannot be written: {conversion.trouble}"
        click.echo(f"{conversion.skipped:,} faulty {lines} skipped; {where}")


def _convert_options(arguments: dict[str, Any], **more: Any) -> tuple[bool, "ConvertOptions"]:
    """(force, options) from the arguments that click parsed."""
    from neocpu.ingest.dataset.convert_options import ConvertOptions

    force = arguments.pop("force")
    labelled = not arguments.pop("no_label")
    return force, ConvertOptions(labelled=labelled, **arguments, **more)


@convert.command()
@click.argument("src", nargs=-1, required=True, type=LOG)
@click.argument("dst", type=FILE)
@_options
@click.option("--header", is_flag=True, help="The first line names the columns; skip it.")
def criteo(src: tuple[str, ...], dst: Path, header: bool, **arguments: object) -> None:
    """Criteo: label, 13 integers, 26 hexadecimal categories, tab-separated, no header."""
    force, options = _convert_options(arguments, header=header)
    _run(src, dst, "criteo", force, options)


@convert.command()
@click.argument("src", nargs=-1, required=True, type=LOG)
@click.argument("dst", type=FILE)
@_options
def avazu(src: tuple[str, ...], dst: Path, **arguments: object) -> None:
    """Avazu: CSV with a header; every column is a category, the time becomes hour and weekday."""
    force, options = _convert_options(arguments)
    _run(src, dst, "avazu", force, options)


@convert.command()
@click.argument("schema", type=FILE)
@click.argument("src", nargs=-1, required=True, type=LOG)
@click.argument("dst", type=FILE)
@_options
@click.option(
    "--fitted",
    type=FILE,
    help="Take means, deviations, edges of buckets and classes from this dataset (the train file).",
)
def table(schema: Path, src: tuple[str, ...], dst: Path, **arguments: object) -> None:
    """Any log with one row a line; SCHEMA (TOML) says which columns are what.

    \b
    delimiter = ","          # one character or several; "\\t" for TSV
    quote = '"'              # "" for none
    header = true            # or columns = ["click", "price", …]
    missing = ["NULL"]       # texts that stand for an empty field
    decimal = ","            # the point of numbers
    encoding = "latin-1"     # of text that is no UTF-8
    comment = "#"            # lines ahead of the header that begin so
    session = "user"         # rows that agree in it become neighbours
    [label]                  # several: [[label]], each with a name
    column = "click"
    kind = "click"           # click: 0 or 1, false or true | number | class, a text
    threshold = 4.0          # or: 1 from this number on
    positive = ["buy"]       # or: 1 for these texts, else 0
    [[dense]]
    columns = ["price"]
    kind = "float"           # int | float
    transform = "none"       # log1p | none | standard
    [[category]]
    columns = ["site"]
    kind = "text"            # text | int | hex
    [[category]]
    columns = ["when"]
    kind = "hour"            # hour | weekday | day | month | date
    time = "iso"             # YYMMDDHH | unix | unix_ms | iso | "%d/%m/%Y"
    [[category]]
    columns = ["income"]
    kind = "bucket"          # of a number, by quantiles
    buckets = 50             # or edges = [10, 20, 50]
    [[category]]
    columns = ["tags"]
    separator = "|"          # a list: a|b|c
    list = true              # lists of Parquet
    weight_separator = ":"   # with weights: a:0.5|b:2
    weights = "tag_weights"  # or those of another column
    """
    force, options = _convert_options(arguments, schema=schema)
    _run(src, dst, "table", force, options)


@data.command()
@click.argument("file", nargs=-1, required=True, type=DATASET)
@click.option("--json", "as_json", is_flag=True, help="Print the card as JSON.")
def show(file: tuple[str, ...], as_json: bool) -> None:
    """Print a dataset's card: rows, click rate, cardinalities, skew, bag lengths, missing.

    It has a line for each dense column and for each feature.
    """
    from neocpu.ingest.dataset.card import make_card
    from neocpu.ingest.dataset.dataset import Dataset
    from neocpu.ingest.formats.files.folders import all_files

    with _bar("reading") as bar:
        card = make_card(Dataset(all_files(file)), lambda done, total: bar(done, total, "columns"))
    if as_json:
        click.echo(json.dumps(card.as_dict(), indent=1))
    else:
        _print(card)


def _print(card: "Card") -> None:
    from rich.console import Console

    console = Console()
    rate = "no labels" if card.positive_rate is None else f"mean label {card.positive_rate:.4f}"
    console.print(
        f"{', '.join(card.files)}: {card.rows:,} rows, {rate}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if card.dense:
        console.print(_dense_table(card))
    if card.features:
        console.print(_feature_table(card))
    for key, value in card.attributes.items():
        # The first line of the card has them.
        if key not in ("format", "rows"):
            text = value if isinstance(value, str) else json.dumps(value)
            console.print(f"{key}: {text}", highlight=False, markup=False, soft_wrap=True)


def _dense_table(card: "Card") -> "Table":
    """A line for each dense column; names may hold what rich takes for markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = max(card.rows, 1)
    dense = Table("dense (as stored)", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in ("least", "mean", "most", "missing"):
        dense.add_column(title, justify="right")
    for column in card.dense:
        numbers = (
            f"{column.least:.4g}",
            f"{column.mean:.4g}",
            f"{column.most:.4g}",
            f"{column.missing / rows:.1%}",
        )
        dense.add_row(Text(column.name), *numbers)
    return dense


def _feature_table(card: "Card") -> "Table":
    """A line for each feature."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = max(card.rows, 1)
    fitted = any(feature.vocabulary for feature in card.features)
    table = Table("feature", "kind", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    titles = ("distinct", "once", "top", "top 10", "a row", "missing")
    for title in (*titles, *["vocabulary"] * fitted):
        table.add_column(title, justify="right")
    for feature in card.features:
        bag = (
            f"{feature.bag_mean:.2f} ({feature.bag_least} to {feature.bag_most})"
            if feature.bag_least != feature.bag_most
            else ""
        )
        table.add_row(
            Text(feature.name),
            Text(feature.kind + (" weighted" if feature.weighted else "")),
            f"{feature.distinct:,}",
            f"{feature.once:,}",
            f"{feature.top_share:.1%}",
            f"{feature.top10_share:.1%}",
            bag or str(feature.bag_most),
            f"{feature.missing / rows:.1%}",
            *[f"{feature.vocabulary:,}"] * fitted,
        )
    return table


@data.command("cache")
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


data.add_command(generate)
data.add_command(negatives)
data.add_command(order)
