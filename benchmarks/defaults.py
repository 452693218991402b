"""How far from the best of a small search is who changes nothing?

    python -m benchmarks.defaults                        synthetic Criteo logs of 10⁴ and 10⁵ rows
    python -m benchmarks.defaults --rows 1000000 --seeds 1 --few
    python -m benchmarks.defaults --log train.tsv test.tsv

The config of `neocpu init` for the train log, and the same one with single keys changed, are
trained with several seeds on one thread and measured on the test log. Printed are logloss and AUC,
half the distance between the extremes of the seeds, and how far the config of `neocpu init` and one
that names nothing but its tables and layers are from the best one.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from neocpu.train.advice.write import Wishes, write_config
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.run.trainer import Trainer

WIDE = ("model.bottom=[512, 256, 64, 16]", "model.top=[512, 256, 1]")
SMALL = ("model.bottom=[64, 16]", "model.top=[64, 1]")
TEST_ROWS = 50_000  # of synthetic logs
ONE_THREAD = ("training.threads=1", "checkpoint.every_steps=0", "eval.every_steps=0")


class Score(NamedTuple):
    """Mean test metrics over seeds, and half the distance of the extremes of logloss."""

    name: str
    logloss: float
    spread: float
    auc: float


def alternatives(config: Config, few: bool) -> Iterator[tuple[str, ...]]:
    """Overrides of each config of the search; few : those that matter most."""
    batch = config.for_samples(1).training.batch_size
    rate = config.optimizer.sparse.learning_rate
    dense = config.optimizer.dense.learning_rate
    other = SMALL if len(config.model.bottom) > 2 else WIDE
    for factor in (0.5, 2) if few else (0.5, 2, 4, 8):
        yield (f"training.batch_size={round(batch * factor)}",)
    yield other
    yield (
        "model.interaction=dot" if config.model.interaction == "cat" else "model.interaction=cat",
    )
    if config.eval.ema:
        yield ("eval.ema=0",)
    yield (f"optimizer.sparse.learning_rate={2 * rate}",)
    if few:
        return
    yield (f"optimizer.sparse.learning_rate={rate / 2}",)
    for factor in (0.5, 2):
        yield (f"optimizer.dense.learning_rate={factor * dense}",)
    yield ("optimizer.dense.name=adam", "optimizer.dense.learning_rate=0.001")
    yield ("optimizer.sparse.name=exact_adagrad",)
    yield ("data.min_count=2",)
    yield ("data.rows_by=hash", "data.min_count=0")
    yield (*other, f"training.batch_size={4 * batch}")
    yield (f"training.batch_size={2 * batch}", f"optimizer.sparse.learning_rate={rate / 2}")


def measure(name: str, path: Path, overrides: Sequence[str], seeds: int) -> Score:
    """Train with several seeds, and measure on the test log."""
    losses = []
    aucs = []
    for seed in range(1, seeds + 1):
        config = configs.load(path, [*ONE_THREAD, *overrides, f"training.seed={seed}"])
        with tempfile.TemporaryDirectory() as out:
            metrics = Trainer(config, None, out).run()["metrics"]["test"]
        losses.append(metrics["logloss"])
        aucs.append(metrics["auc"])
    spread = (max(losses) - min(losses)) / 2
    score = Score(name, statistics.mean(losses), spread, statistics.mean(aucs))
    print(f"| {name} | {score.logloss:.4f} ± {spread:.4f} | {score.auc:.4f} |", flush=True)
    return score


def without_keys(path: Path) -> Path:
    """The config of `neocpu init` without sections that tell how to learn."""
    text = path.read_text(encoding="utf-8")
    lines = []
    dropped = False
    for line in text.splitlines():
        if line.startswith("["):
            dropped = line.startswith(("[optimizer", "[training", "[checkpoint"))
        if not dropped:
            lines.append(line)
    bare = path.with_name(f"bare-{path.name}")
    bare.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return bare


def compare(title: str, train: Path, test: Path, folder: Path, seeds: int, few: bool) -> None:
    """The table of one log."""
    path = folder / f"{title}.toml"
    write_config([train], path, Wishes(test=[test]))
    config = configs.load(path)
    print(f"\n{title}: batch size {config.training.batch_size}, layers {config.model.bottom}")
    print("\n| changed | logloss | AUC |\n|---|---|---|", flush=True)
    kept = measure("nothing", path, (), seeds)
    bare = measure("no key named", without_keys(path), (), seeds)
    scores = [kept, bare]
    for overrides in alternatives(config, few):
        scores.append(measure(", ".join(overrides), path, overrides, seeds))
    best = min(scores, key=lambda score: score.logloss)
    print(
        f"\n{title}: best {best.logloss:.4f} ({best.name}); nothing changed "
        f"+{kept.logloss - best.logloss:.4f}, no key named +{bare.logloss - best.logloss:.4f}",
        flush=True,
    )


def generate(path: Path, rows: int, first: int) -> Path:
    """A synthetic Criteo log."""
    command = [sys.executable, "-m", "neocpu", "data", "generate", "criteo", str(path)]
    arguments = ["--rows", str(rows), "--first-row", str(first)]
    subprocess.run([*command, *arguments], check=True, stdout=subprocess.DEVNULL)
    return path


def main() -> None:
    """Parse the command line, make logs, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--log", type=Path, nargs=2, metavar=("TRAIN", "TEST"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--few", action="store_true", help="search less, for large logs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.log:
            train, test = options.log
            compare(train.stem.split(".")[0], train, test, folder, options.seeds, options.few)
            return
        for rows in options.rows:
            train = generate(folder / f"train-{rows}.tsv", rows, 0)
            test = generate(folder / f"test-{rows}.tsv", TEST_ROWS, rows)
            compare(f"criteo-{rows}", train, test, folder, options.seeds, options.few)


if __name__ == "__main__":
    main()
