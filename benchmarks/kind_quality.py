"""What does a smaller table cost in quality? Every table kind on a real log, from 1x to 10,000x.

A model of the Criteo Kaggle tables (data/models/criteo-kaggle.toml, smaller MLPs) is trained for
one pass on the first 80 % of a real log and measured on the rest, once for each seed. Memory is
that of the embedding: physical tables in their formats, dense parameters and sketches of kinds;
1x are the full fp32 tables of 33.8 million rows. Optimizer state is not counted. A short log
touches few of these rows: with "most frequent rows", every value that the train data has so often
has a row of its own. Marks are means over the seeds, bars reach from the worst seed to the best.

    python -m benchmarks.kind_quality criteo_kaggle_40k.tsv.gz --write   # docs/kind-quality.svg
    python -m benchmarks.kind_quality LOG --quick                        # one seed, fewer points
"""

import argparse
import gc
import math
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import charts
from benchmarks.towers import MODEL, SEEDS, SETTINGS, split
from neocpu.core import svg
from neocpu.core.errors import ConfigError
from neocpu.core.formats import table_format
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.launch import prepare_threads
from neocpu.train.before.datasets import open_splits
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.run.trainer import Trainer
from neocpu.train.watch.results import silent

RATIOS = (10, 100, 1000, 10_000)
SMALL = 200  # rows of tables that stay full, as in the published codes
QR_MOST = 1000  # two parts have 2 sqrt(rows) rows at least
# for a log this short: the first ids are hot after 20 lookups, and looked for every 20 steps
HOT = {"threshold": 20, "every": 20}


class Variant(NamedTuple):
    """One way to keep the tables: its curve, what tells it from others there, and overrides."""

    curve: str
    point: str
    overrides: tuple[str, ...]


class Result(NamedTuple):
    """Bytes of the embedding, logloss and AUC of the test data after one pass."""

    bytes: int
    logloss: float
    auc: float


def of_kind(kind: str, **keys: Any) -> tuple[str, ...]:
    """Overrides that give all tables but the smallest a kind with these keys."""
    named = {"kind": f'"{kind}"', "kind_above": SMALL, **keys}
    return tuple(f"tables.default.{name}={value}" for name, value in named.items())


def variants(quick: bool) -> Iterator[Variant]:
    """All ways to keep the tables."""
    ratios = RATIOS[1::2] if quick else RATIOS
    yield Variant("full", "fp32", ())
    for form in ("bf16", "fp8_e4m3"):
        rounding = 'model.embedding_rounding="stochastic"'
        yield Variant("narrow rows", form, (f'model.embedding_format="{form}"', rounding))
    for count in (1, 4, 64) if quick else (1, 2, 4, 16, 64, 256):
        by_count = ('data.rows_by="vocabulary"', f"data.min_count={count}")
        yield Variant("most frequent rows", f"seen {count} times", by_count)
    for ratio in ratios:
        compression = {"compression": ratio}
        yield Variant("hash", f"{ratio}", of_kind("hash", **compression))
        yield Variant("two hashes", f"{ratio}", of_kind("hash", hashes=2, **compression))
        if ratio <= QR_MOST:
            yield Variant("qr mult", f"{ratio}", of_kind("qr", **compression))
            yield Variant("qr add", f"{ratio}", of_kind("qr", operation='"add"', **compression))
        yield Variant("unified", f"{ratio}", of_kind("unified", chunks=2, **compression))
        yield Variant("cafe", f"{ratio}", of_kind("cafe", **HOT, **compression))
    for alpha in (0.1, 0.25) if quick else (0.05, 0.1, 0.15, 0.2, 0.25):
        yield Variant("mixed dimension", f"alpha {alpha}", of_kind("md", alpha=alpha))
    for rank in (16,) if quick else (4, 16, 64):
        yield Variant("tensor train", f"rank {rank}", of_kind("tt", rank=rank))


def embedding_bytes(config: Config, vocabulary_rows: int) -> int:
    """Bytes of the embedding of a config.

    vocabulary_rows : rows of all tables where a vocabulary chooses them (0: they are the tables').
    """
    dense = sum(
        4 * math.prod(shape)
        for composition in config.compositions
        for _, shape in composition.tensors
    )
    if vocabulary_rows:
        return dense + vocabulary_rows * table_format("fp32").row_bytes(config.model.embedding_dim)
    tables = sum(spec.rows * spec.row_bytes(spec.dim, (0, 0)) for spec in config.tables)
    sketches = sum(each.dynamic.bytes for each in config.compositions if each.dynamic is not None)
    return dense + tables + sketches


def train(config: Config, folder: Path, out: Path) -> Result:
    """Train for one pass and measure."""
    rows = 0
    if config.data.rows_by == "vocabulary":
        splits = open_splits(config, SingleComm(), folder, silent)
        assert splits.vocabularies is not None
        rows = sum(codes.size + 1 for codes in splits.vocabularies.values())
    metrics = Trainer(config, SingleComm(), out).run()["metrics"]["test"]
    gc.collect()  # the tables of several runs would not fit into memory
    return Result(embedding_bytes(config, rows), metrics["logloss"], metrics["auc"])


def measure(log: Path, quick: bool) -> dict[Variant, list[Result]]:
    """Results of all variants, a result for each seed."""
    results: dict[Variant, list[Result]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = [*SETTINGS, *split(log, folder), "checkpoint.every_steps=0"]
        for variant in variants(quick):
            for seed in SEEDS[:1] if quick else SEEDS:
                sets = [*base, *variant.overrides, f"training.seed={seed}"]
                out = folder / f"{len(results)}-{seed}"
                try:
                    config = configs.load(MODEL, sets)
                except ConfigError as error:  # a kind that cannot be so small
                    print(f"{variant.curve}, {variant.point}: {error}", file=sys.stderr)
                    break
                results.setdefault(variant, []).append(train(config, folder, out))
            if variant in results:
                print(row(variant, results), file=sys.stderr, flush=True)
    return results


def ratio_of(variant: Variant, results: dict[Variant, list[Result]]) -> float:
    """How many times smaller a variant is than the full tables."""
    full = next(runs for other, runs in results.items() if other.curve == "full")
    return full[0].bytes / results[variant][0].bytes


def row(variant: Variant, results: dict[Variant, list[Result]]) -> str:
    """A row of the table."""
    runs = results[variant]
    cells = [variant.curve, variant.point, f"{ratio_of(variant, results):,.1f}x"]
    for values, digits in (([r.logloss for r in runs], 4), ([r.auc for r in runs], 4)):
        spread = f"{min(values):.{digits}f} to {max(values):.{digits}f}"
        cells.append(f"{statistics.mean(values):.{digits}f} ({spread})")
    return f"| {' | '.join(cells)} |"


def table(results: dict[Variant, list[Result]]) -> str:
    """All variants as a table of Markdown."""
    lines = ["| kind | | memory | logloss (5 seeds) | AUC (5 seeds) |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *(row(variant, results) for variant in results)]) + "\n"


class Point(NamedTuple):
    """A variant in the picture: its curve, what it is there, how many times smaller than full
    tables, and the mean, best and worst logloss.
    """

    curve: str
    name: str
    ratio: float
    mean: float
    best: float
    worst: float


def points(results: dict[Variant, list[Result]]) -> list[Point]:
    """What is drawn of results."""
    drawn = []
    for variant, runs in results.items():
        losses = [run.logloss for run in runs]
        ratio = ratio_of(variant, results)
        mean = statistics.mean(losses)
        drawn.append(Point(variant.curve, variant.point, ratio, mean, min(losses), max(losses)))
    return drawn


def recorded() -> list[Point]:
    """The points of the table in docs/kinds.md."""
    (rows,) = charts.rows_of("kinds.md", "| kind | | memory | logloss (5 seeds) |")
    drawn = []
    for curve, name, ratio, logloss, _ in rows:
        mean, best, worst = map(float, re.findall(r"[0-9.]+", logloss))
        drawn.append(Point(curve, name, float(ratio[:-1].replace(",", "")), mean, best, worst))
    return drawn


def picture(drawn: list[Point]) -> str:
    """Logloss over memory as an SVG picture: a panel for each kind, the others pale behind it."""
    (full,) = (point for point in drawn if point.curve == "full")
    curves: dict[str, list[Point]] = {}
    for point in sorted(drawn, key=lambda point: point.ratio):
        if point.curve != "full":
            curves.setdefault(point.curve, []).append(point)
    least = 0.001 * math.floor(1000 * min(point.best for point in drawn))
    most = 0.001 * math.ceil(1000 * max(point.worst for point in drawn))
    x = charts.Scale(1, 2e5, charts.powers(1, 2e5, exponents=True), logarithmic=True)
    y = charts.Scale(
        least,
        most,
        [(0.001 * n, f"{0.001 * n:.3f}") for n in range(435, 455, 5) if n < 1000 * most],
    )
    title = "Logloss of later clicks, by how many times smaller the tables are"
    subtitle = (
        "mean of 5 seeds, bars from best to worst; dashes: full tables of 33.8 million rows; pale: "
        "the other kinds"
    )
    body = svg.headings(title, subtitle)
    for number, (curve, members) in enumerate(curves.items()):
        left = 66.0 + 230 * (number % 4)
        top = 104.0 + 196 * (number // 4)
        axes = charts.Axes(left, top, 172, 140, x, y)
        body += axes.frame(curve, small=True)
        for other, others in curves.items():
            if other != curve:
                body.append(axes.curve([(p.ratio, p.mean) for p in others], svg.GRID, 1))
        ends = [(x.low, full.mean), (x.high, full.mean)]
        body.append(axes.curve(ends, svg.QUIET, 1, "5 4"))
        body.append(axes.curve([(p.ratio, p.mean) for p in members], svg.BLUE))
        for point in members:
            bar = [(point.ratio, point.best), (point.ratio, point.worst)]
            body.append(axes.curve(bar, svg.BLUE, 1))
            tip = f"{curve}, {point.name}: {point.ratio:,.0f} times smaller, {point.mean:.4f}"
            body.append(svg.dot(*axes.point(point.ratio, point.mean), svg.BLUE, tip, 3))
    words = "; ".join(f"{p.curve} {p.name}: {p.ratio:,.0f}x, {p.mean:.4f}" for p in drawn)
    return svg.document(950, 90 + 196 * -(-len(curves) // 4), title, words, body)


def main() -> None:
    """Train all variants, print their table, and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("log", type=Path, help="a Criteo log, .tsv.gz with labels")
    parser.add_argument("--quick", action="store_true", help="one seed, fewer points")
    parser.add_argument("--write", action="store_true", help="write docs/kind-quality.svg")
    options = parser.parse_args()
    prepare_threads(SingleComm())
    results = measure(options.log, options.quick)
    print(table(results))
    if options.write:
        (charts.DOCS / "kind-quality.svg").write_text(picture(points(results)))


if __name__ == "__main__":
    main()
