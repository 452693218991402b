"""What do large batches cost in quality, with CowClip and without?

A model of the Criteo Kaggle tables is trained for some passes on the first 80 % of a real log and
measured on the rest, once for each seed. Rates are chosen for the base batch; larger batches take
them as they are, with the scaling rule, or with the scaling rule and CowClip.

    python -m benchmarks.cowclip --log criteo_kaggle_40k.tsv.gz
    python -m benchmarks.cowclip --log LOG --quick                 # one seed, fewer points
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.towers import MODEL, SEEDS, SETTINGS, split
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.launch import prepare_threads
from neocpu.train.config import config as configs
from neocpu.train.run.trainer import Trainer

BASE = 128
FACTORS = (1, 4, 16, 64)
COMMON = (
    "optimizer.dense.name=adam",
    "optimizer.dense.learning_rate=0.001",
    "optimizer.dense.eps=1e-8",
    "optimizer.sparse.learning_rate=0.001",
    "optimizer.sparse.weight_decay=1e-5",
    "optimizer.sparse.weight_decay_mode=l2",
)
SCALED = (
    "optimizer.scaling.rule=cowclip",
    f"optimizer.scaling.base_batch_size={BASE}",
    "optimizer.scaling.warmup_epochs=0.1",
)
PLAIN = ("optimizer.sparse.name=adam",)
CLIPPED = ("optimizer.sparse.name=adam_with_cowclip", *SCALED)
METHODS = {
    "rates as they are": PLAIN,
    "scaled rates": (*PLAIN, *SCALED),
    **{
        f"scaled rates, CowClip r = {r:g}": (
            *CLIPPED,
            f"optimizer.sparse.weight_norm_coefficient={r}",
            f"optimizer.sparse.lower_bound={1e-5 * r}",
        )
        for r in (1.0, 1e-2, 1e-4)
    },
}
# rows of the largest tables: more than the log has values
ROWS = tuple(f"tables.C{number}.rows=100000" for number in (3, 4, 12, 16, 21, 24, 26))


class Result(NamedTuple):
    """Logloss and AUC of the test data."""

    logloss: float
    auc: float


def train(sets: list[str], out: Path) -> Result:
    """Train and measure."""
    config = configs.load(MODEL, sets)
    metrics = Trainer(config, SingleComm(), out).run()["metrics"]["test"]
    return Result(metrics["logloss"], metrics["auc"])


def measure(
    log: Path, factors: tuple[int, ...], seeds: tuple[int, ...], epochs: int, extra: list[str]
) -> dict[tuple[str, int], list[Result]]:
    """Results by method and factor on the base batch, one for each seed."""
    results: dict[tuple[str, int], list[Result]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = [*SETTINGS, *split(log, folder), "checkpoint.every_steps=0", *ROWS, *COMMON]
        for method, keys in METHODS.items():
            for factor in factors:
                runs = results.setdefault((method, factor), [])
                for seed in seeds:
                    sets = [
                        *settings,
                        *keys,
                        f"training.batch_size={factor * BASE}",
                        f"training.epochs={epochs}",
                        f"training.seed={seed}",
                        *extra,
                    ]
                    runs.append(train(sets, folder / f"{len(results)}-{seed}"))
                print(f"{method}, {factor * BASE}: {runs}", file=sys.stderr, flush=True)
    return results


def text(results: dict[tuple[str, int], list[Result]]) -> str:
    """A table of Markdown: a row for each batch size, a column for each method."""
    methods = list(dict.fromkeys(method for method, _ in results))
    lines = [f"| batch | {' | '.join(methods)} |", f"|---|{'---|' * len(methods)}"]
    for factor in dict.fromkeys(factor for _, factor in results):
        cells = []
        for method in methods:
            losses = [run.logloss for run in results[method, factor]]
            aucs = [run.auc for run in results[method, factor]]
            spread = f"{min(losses):.4f} to {max(losses):.4f}"
            cells.append(f"{statistics.mean(losses):.4f} ({spread}), {statistics.mean(aucs):.4f}")
        lines.append(f"| {factor * BASE:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Train all methods with all batches, and print their table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--log", type=Path, required=True, help="a Criteo log, .tsv.gz")
    parser.add_argument("--quick", action="store_true", help="one seed, fewer points")
    parser.add_argument("--epochs", type=int, default=1, help="passes over the train data")
    parser.add_argument("--factors", type=int, nargs="+", default=FACTORS, help="of the base batch")
    parser.add_argument("--set", action="append", default=[], help="further keys")
    parser.add_argument("--json", type=Path, help="write the results there too")
    options = parser.parse_args()
    prepare_threads(SingleComm())
    factors = tuple(options.factors)[:: 2 if options.quick else 1]
    seeds = SEEDS[: 1 if options.quick else None]
    results = measure(options.log, factors, seeds, options.epochs, options.set)
    print(text(results))
    if options.json:
        records = [
            {"method": method, "batch": factor * BASE, "runs": [run._asdict() for run in runs]}
            for (method, factor), runs in results.items()
        ]
        options.json.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
