"""`neocpu data generate`: write a synthetic click log whose best possible score is known."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from neocpu.cli.screen.options import as_record, option_with_default
from neocpu.cli.screen.targets import check_target, force_option

if TYPE_CHECKING:
    from neocpu.ingest.synthetic.law import SyntheticCriteo

FORMATS = ("h5", "tsv")


@dataclass(frozen=True)
class LawOptions:
    """What codes of the log are drawn, and how often again."""

    cardinality_scale: float
    max_rows: int | None
    hotness: str
    reuse: str | None
    reuse_rows: int | None
    sessions: int | None
    keep: str
    together: tuple[str, ...]

    def law(self, seed: int, rows: int) -> "SyntheticCriteo":
        """The log of this seed; `rows` : of it, that are written. Raises UsageError, DataError."""
        from neocpu.ingest.synthetic.law import Reuse, SyntheticCriteo, parse_hotness
        from neocpu.ingest.synthetic.sessions import Sessions, parse_keep

        hotness = parse_hotness(self.hotness)
        reuse = Reuse(self.reuse, self.reuse_rows or rows) if self.reuse else None
        sessions = None
        if self.sessions:
            groups = [[name.strip() for name in group.split(",")] for group in self.together]
            keep = parse_keep(self.keep)
            sessions = Sessions(self.sessions, keep, tuple(tuple(group) for group in groups))
        return SyntheticCriteo(
            seed,
            cardinality_scale=self.cardinality_scale,
            max_rows=self.max_rows,
            hotness=hotness,
            reuse=reuse,
            sessions=sessions,
        )

    def check(self) -> None:
        """Raise UsageError for options that have no effect without another."""
        if self.reuse_rows is not None and self.reuse is None:
            raise click.UsageError(
                "--reuse-rows says for how many rows --reuse holds: give that too"
            )
        if self.together and self.sessions is None:
            raise click.UsageError("--together is about --sessions: give that too")


@click.command()
@click.argument("shape", type=click.Choice(["criteo"]))
@click.argument("dst", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--rows", type=click.IntRange(1, 1 << 60), required=True, help="Rows to write.")
@option_with_default(
    "--seed", type=click.IntRange(0, (1 << 64) - 1), default=1, help="Names the log."
)
@option_with_default(
    "--first-row",
    type=click.IntRange(0, 1 << 60),
    default=0,
    help="First row: train, valid and test files are disjoint ranges of one log.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Default: h5 for .h5 and .hdf5, else the raw TSV.",
)
@option_with_default(
    "--cardinality-scale",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=1.0,
    help="Shrinks every category to this share of its published cardinality (at least 3 values).",
)
@click.option("--max-rows", type=click.IntRange(1), help="Caps every category's cardinality.")
@option_with_default(
    "--hotness",
    default="1",
    help="Codes per row: 4, geometric:4, or C1=8,C3=geometric:20 for single features (h5 only).",
)
@click.option(
    "--reuse",
    help=(
        "2021 or 2022: codes are used as often, one by one, as the published traces of that year "
        "say."
    ),
)
@click.option(
    "--reuse-rows",
    type=click.IntRange(1),
    help="In so many rows of the log.  [default: rows written]",
)
@click.option(
    "--sessions",
    type=click.IntRange(1),
    help="Rows of a session, whose categories are more or less often those of the row before.",
)
@option_with_default(
    "--keep",
    default="0.9",
    help="How often, in a session: 0.9, or 0.9,C1=1,C20=0 for single categories.",
)
@click.option(
    "--together",
    multiple=True,
    help="Categories that change at the same rows of a session: C1,C2,C3; may be repeated.",
)
@option_with_default(
    "--compress", type=click.Choice(["none", "gzip", "zstd"]), default="none", help="h5 only."
)
@force_option("DST")
@as_record("options", LawOptions)
def generate(
    shape: str,
    dst: Path,
    rows: int,
    seed: int,
    first_row: int,
    form: str | None,
    compress: str,
    force: bool,
    options: LawOptions,
) -> None:
    """Write rows of the synthetic log SHAPE to DST: an .h5 dataset, or a raw .tsv or .tsv.gz.

    The log has Criteo's shape (cardinalities, skew, joint missing fields) and planted clicks. A row
    depends only on the seed, the options and its number. Prints what the true click probabilities
    score: the best a model can reach.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    from neocpu.ingest.synthetic.generate import write_dataset, write_log

    check_target(dst, force)
    options.check()
    log = options.law(seed, rows)
    # A name that says nothing means the raw log, which other programs read.
    raw = form == "tsv" or (form is None and dst.suffix not in (".h5", ".hdf5"))
    if raw and compress != "none":
        raise click.UsageError("--compress is for .h5 files; name the raw file .gz to compress it")
    # stdout is for the scores, which scripts read.
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(escape(dst.name), total=rows)

        def progress(done: int) -> None:
            bar.update(task, completed=done)

        if raw:
            score = write_log(log, dst, first_row, rows, progress=progress)
        else:
            score = write_dataset(log, dst, first_row, rows, compress=compress, progress=progress)
    click.echo(
        f"{dst}: rows {first_row} to {first_row + rows - 1} of {shape} seed {seed}, "
        f"click rate {score['click_rate']:.4f}"
    )
    click.echo(
        f"best logloss {score['best_logloss']:.5f} (constant rate "
        f"{score['constant_logloss']:.5f}), "
        f"best AUC {score['best_auc']:.5f}"
    )
