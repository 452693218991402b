"""Does `neocpu init` make a model of few ratings that is no worse than a logistic regression?

    python -m benchmarks.ratings --rows 5000 20000 --seeds 5
    python -m benchmarks.ratings --rows 20000 --seeds 1 --write ratings.csv

Logs are drawn in the shape of MovieLens 100K: 943 users, 1,682 items, activity and popularity with
long tails, and clicks for ratings of at least 4 stars. A rating is the sum of effects of the user,
of the item, and of the tastes of one in the other, with standard deviations near those that were
fitted to such ratings (Koren et al. 2009: biases explain most of what can be explained). The config
of `neocpu init` for so many rows, and the same one with single keys changed, are trained and
measured on 20,000 further ones of the same users, with the linear model of `eval.baseline`.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from neocpu.train.advice.write import Wishes, write_config
from neocpu.train.config import config as configs
from neocpu.train.run.trainer import Trainer

USERS = 943
ITEMS = 1682
GENRES = 18
TASTES = 8
MEAN = 3.53  # stars
USER_EFFECT = 0.44
ITEM_EFFECT = 0.6
TASTE_EFFECT = 0.35
NOISE = 0.8
TEST_ROWS = 20_000
ONE_THREAD = ("training.threads=1", "checkpoint.every_steps=0", "eval.every_steps=0")
CHANGES = ((), ("eval.ema=0",), ("model.interaction=dot",), ("model.interaction=dot", "eval.ema=0"))
HEADER = "user_id,item_id,time,age,gender,occupation,genres,clicked"


def write_ratings(path: Path, rows: int, seed: int) -> Path:
    """Write a CSV of so many ratings in the order of time; returns its path."""
    random = np.random.default_rng(seed)
    activity = random.lognormal(0.0, 1.0, USERS)
    popularity = random.lognormal(0.0, 1.4, ITEMS)
    user = random.choice(USERS, rows, p=activity / activity.sum())
    item = random.choice(ITEMS, rows, p=popularity / popularity.sum())
    genres = random.random((ITEMS, GENRES)) < 0.1
    genres[np.arange(ITEMS), random.integers(0, GENRES, ITEMS)] = True
    # popular items are liked better
    liked = 0.6 * np.log(popularity) / 1.4 + 0.8 * random.normal(size=ITEMS)
    of_genre = random.normal(size=(GENRES, TASTES))
    taste = random.normal(size=(USERS, TASTES))
    flavour = random.normal(size=(ITEMS, TASTES)) + genres @ of_genre
    flavour /= np.linalg.norm(flavour, axis=1, keepdims=True)
    stars = (
        MEAN
        + USER_EFFECT * random.normal(size=USERS)[user]
        + ITEM_EFFECT * liked[item]
        + TASTE_EFFECT * np.einsum("nd,nd->n", taste[user], flavour[item])
        + NOISE * random.normal(size=rows)
    )
    age = random.integers(12, 70, USERS)
    gender = np.where(random.random(USERS) < 0.71, "M", "F")
    occupation = random.integers(0, 21, USERS)
    names = ["|".join(f"g{genre}" for genre in np.flatnonzero(each)) for each in genres]
    lines = [HEADER]
    seconds = 874_724_710 + np.sort(random.integers(0, 18_000_000, rows))
    time = np.datetime_as_string(seconds.astype("datetime64[s]"))
    for n in range(rows):
        u = user[n]
        columns = (u + 1, item[n] + 1, time[n], age[u], gender[u], f"job{occupation[u]}")
        lines.append(f"{','.join(map(str, columns))},{names[item[n]]},{int(stars[n] >= 3.5)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def split(log: Path, rows: int, seed: int) -> tuple[Path, Path]:
    """So many rows of a log to train on and the others to test, drawn, in the order of time."""
    header, *lines = log.read_text(encoding="utf-8").splitlines()
    chosen = np.zeros(len(lines), bool)
    chosen[np.random.default_rng(seed).permutation(len(lines))[:rows]] = True
    paths = (log.with_name("train.csv"), log.with_name("test.csv"))
    for path, part in zip(paths, (chosen, ~chosen)):
        kept = [lines[row] for row in np.flatnonzero(part)]
        path.write_text("\n".join([header, *kept]) + "\n", encoding="utf-8")
    return paths


def train(config: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """The summary of a run on one thread."""
    with tempfile.TemporaryDirectory() as out:
        return Trainer(configs.load(config, [*ONE_THREAD, *overrides]), None, out).run()


def compare(rows: int, seeds: int) -> None:
    """Print a table of logloss and AUC on the test rows, means over seeds."""
    scores: dict[str, list[tuple[float, float]]] = {}
    for seed in range(1, seeds + 1):
        with tempfile.TemporaryDirectory() as name:
            log = write_ratings(Path(name) / "all.csv", rows + TEST_ROWS, seed)
            learnt, test = split(log, rows, seed)
            config = Path(name) / "ratings.toml"
            write_config([learnt], config, Wishes(test=[test]))
            for change in CHANGES:
                summary = train(config, [*change, f"training.seed={seed}"])
                baseline = summary["baseline"]
                for label, metrics in (
                    (", ".join(change) or "nothing", summary["metrics"]["test"]),
                    (baseline["model"], baseline["metrics"]),
                ):
                    scores.setdefault(label, []).append((metrics["logloss"], metrics["auc"]))
    print(f"\n{rows:,} rows, {seeds} seeds\n\n| changed | logloss | AUC |\n|---|---|---|")
    for label, values in scores.items():
        loss, auc = zip(*values)
        spread = f" ± {stdev(auc):.4f}" if len(auc) > 1 else ""
        print(f"| {label} | {mean(loss):.4f} | {mean(auc):.4f}{spread} |", flush=True)


def main() -> None:
    """Parse the command line; write a log, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[5_000, 20_000])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--write", type=Path, help="write one log instead, of the last seed")
    options = parser.parse_args()
    if options.write:
        write_ratings(options.write, options.rows[0], options.seeds)
        return
    for rows in options.rows:
        compare(rows, options.seeds)


if __name__ == "__main__":
    main()
