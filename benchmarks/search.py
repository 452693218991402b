"""Does a search find good models? Against all models of a small space, and against the alpha rule.

1. Every model of a space of 32 is trained by itself: which place has the one that `neocpu search`
   picks, for each seed, by loss and cost together?
2. On a real log: columns of the Criteo Kaggle tables (data/models/criteo-kaggle.toml, smaller MLPs,
   a row for each category seen twice) by a search, against those of the alpha rule of mixed
   dimensions (kind "md") for the same number of parameters or fewer. Every model is trained from
   scratch for one pass on the first 80 % of the log and measured on the rest; a search sees that
   part of the log only. Numbers are means over the seeds, in brackets from the least to the
   greatest; differences are taken seed by seed.

    python -m benchmarks.search                              # part 1
    python -m benchmarks.search criteo_kaggle_40k.tsv.gz     # both
"""

import argparse
import itertools
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.towers import MODEL, SEEDS, SETTINGS, split
from neocpu.ingest.dataset.writer import DatasetWriter
from neocpu.ingest.dataset_layout import FeatureColumn
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.launch import prepare_threads
from neocpu.train.before.datasets import open_splits
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.run.trainer import Trainer
from neocpu.train.search.cost import CostInputs, parameters
from neocpu.train.search.results import FOUND
from neocpu.train.search.space import plain_config, space_of
from neocpu.train.search.trainer import SearchTrainer
from neocpu.train.watch.results import silent

# clicks follow the feature "taste"; of the other one nothing is to be learnt
SMALL_SPACE = """
[model]
embedding_dim = 8
bottom = [8]
top = [16, 1]
interaction = "cat"
[tables]
taste.rows = 64
noise.rows = 64
[optimizer.sparse]
learning_rate = 0.1
[optimizer.dense]
learning_rate = 0.03
[training]
batch_size = 64
epochs = 2
[search]
top = [[2, 16]]
dims = { "*" = [1, 8] }
rows = { "*" = [4, 64] }
split = 0.7
every = 1
learning_rate = 0.3
cost_weight = 0.1
"""
SEARCH_EPOCHS = 8  # of the small space
COST_WEIGHTS = (0.001, 0.003, 0.01)
SEEN = 2  # times that a category of the real log was seen, to have a row of its own
FULL_ROWS = 200  # tables of fewer rows keep all columns, as in the published rule
# alpha of the rule, and whether its columns are powers of two, as those of the search
RULES = ((0.15, True), (0.3, True), (0.3, False))
COLUMNS = (1, 2, 4, 8, 16)
# of the search on the real log
SEARCH_SETTINGS = (
    "training.epochs=1",  # a second pass overfits, and the other split then wants fewer columns
    "search.split=0.8",
    "search.every=1",
    "search.learning_rate=0.3",
)


class Result(NamedTuple):
    """A trained model: parameters of its tables, projections included; logloss and AUC."""

    parameters: int
    logloss: float
    auc: float


def train(config: Config, out: Path) -> Result:
    """Train a model from scratch and measure it on the test data."""
    metrics = Trainer(config, SingleComm(), out).run()["metrics"]["test"]
    return Result(table_parameters(config), metrics["logloss"], metrics["auc"])


def table_parameters(config: Config) -> int:
    """Numbers of all tables and of their projections."""
    dense = sum(
        int(np.prod(shape))
        for composition in config.compositions
        for _, shape in composition.tensors
    )
    return dense + sum(table.rows * table.dim for table in config.tables)


# ---- all models of a small space ----


def write_log(path: Path, samples: int, seed: int) -> Path:
    """A log of two features, of which one decides."""
    random = np.random.default_rng(seed)
    dense = random.standard_normal((samples, 3)).astype(np.float32)
    codes = {name: random.integers(0, 40, samples).astype(np.uint32) for name in ("taste", "noise")}
    tastes = 2 * np.random.default_rng(9).standard_normal(40)
    chance = 1 / (1 + np.exp(-(tastes[codes["taste"]] + 0.5 * dense[:, 0])))
    labels = (random.random(samples) < chance).astype(np.float32)
    with DatasetWriter(path, ["a", "b", "c"], [FeatureColumn(name) for name in codes]) as writer:
        writer.append(labels, dense, codes)
    return path


def small_space(folder: Path, seeds: Sequence[int]) -> str:
    """Places of the picks among all models, as a sentence."""
    train_log = write_log(folder / "train.h5", 3000, 5)
    test_log = write_log(folder / "test.h5", 2000, 6)
    logs = [f'data.train="{train_log}"', f'data.test="{test_log}"']
    config = configs.loads(SMALL_SPACE, overrides=logs)
    space = space_of(config)
    cost = parameters(space, CostInputs(config, 3))
    largest = cost.of(space.largest, space)
    names = [decision.name for decision in space.decisions]
    losses: dict[tuple[int, ...], float] = {}
    for choice in itertools.product(*(decision.choices for decision in space.decisions)):
        model = plain_config(config, space, dict(zip(names, choice)))
        runs = []
        for seed in seeds[:2]:
            out = folder / f"{'-'.join(map(str, choice))}-{seed}"
            seeded = configs.loads(
                model.text, overrides=[*model.overrides, f"training.seed={seed}"]
            )
            runs.append(train(seeded, out).logloss)
        weight = config.search.cost_weight
        losses[choice] = (
            statistics.mean(runs) + weight * cost.of(dict(zip(names, choice)), space) / largest
        )
    ranking = sorted(losses, key=losses.__getitem__)
    places = []
    for seed in seeds:
        longer = [f"training.seed={seed}", f"training.epochs={SEARCH_EPOCHS}"]
        searched = configs.loads(SMALL_SPACE, overrides=[*logs, *longer])
        summary = SearchTrainer(searched, SingleComm(), folder / f"search-{seed}").run()
        decisions = summary["search"]["decisions"].values()
        places.append(ranking.index(tuple(decision["taken"] for decision in decisions)) + 1)
    return f"places of the picks among {space.models} models, by seed: {places}"


# ---- a real log ----


def with_seen_rows(base: Sequence[str], folder: Path) -> list[str]:
    """Overrides that give every category of the train data seen often enough a row of its own."""
    by_count = [*base, 'data.rows_by="vocabulary"']
    splits = open_splits(configs.load(MODEL, by_count), SingleComm(), folder, silent)
    sizes = {name: codes.size + 1 for name, codes in splits.vocabularies.items()}
    return [*by_count, *(f"tables.{name}.rows={rows}" for name, rows in sizes.items())]


def searched_tables(base: Sequence[str]) -> dict[str, list[int]]:
    """Columns to choose from, of all tables but the smallest."""
    tables = configs.load(MODEL, base).tables
    return {table.name: list(COLUMNS) for table in tables if table.rows > FULL_ROWS}


def found_config(base: Sequence[str], seed: int, weight: float, out: Path) -> Config:
    """The config that a search finds; for training from scratch."""
    dims = "{" + ", ".join(f"{k} = {v}" for k, v in searched_tables(base).items()) + "}"
    sets = [*base, *SEARCH_SETTINGS, f"training.seed={seed}", f"search.dims={dims}"]
    config = configs.load(MODEL, [*sets, f"search.cost_weight={weight}"])
    SearchTrainer(config, SingleComm(), out).run()
    return configs.load(out / FOUND, ["training.epochs=1"])


def rule_config(base: Sequence[str], seed: int, rule: tuple[float, bool], budget: int) -> Config:
    """The config of the alpha rule for at most so many parameters of tables."""
    tables = configs.load(MODEL, base).tables
    full = sum(table.rows * table.dim for table in tables if table.rows > FULL_ROWS)
    small = sum(table.rows * table.dim for table in tables if table.rows <= FULL_ROWS)
    alpha, rounded = rule
    keys: Mapping[str, object] = {
        "kind": '"md"',
        "kind_above": FULL_ROWS,
        "alpha": alpha,
        "compression": full / (budget - small),
        "round_dims": str(rounded).lower(),
    }
    sets = [f"tables.default.{key}={value}" for key, value in keys.items()]
    return configs.load(MODEL, [*base, *sets, f"training.seed={seed}"])


def real_log(log: Path, folder: Path, seeds: Sequence[int], weights: Sequence[float]) -> str:
    """The table of found models and of those of the rule."""
    base = with_seen_rows([*SETTINGS, *split(log, folder), f"data.min_count={SEEN}"], folder)
    full = [
        train(configs.load(MODEL, [*base, f"training.seed={seed}"]), folder / f"full-{seed}")
        for seed in seeds
    ]
    lines = [
        "| model | parameters of tables | logloss | AUC | logloss above the search's |",
        "|---|---|---|---|---|",
        row("full tables", full, None),
    ]
    print(lines[-1], file=sys.stderr, flush=True)
    for weight in weights:
        found: list[Result] = []
        by_rule: dict[tuple[float, bool], list[Result]] = {rule: [] for rule in RULES}
        for seed in seeds:
            name = f"{weight}-{seed}"
            config = found_config(base, seed, weight, folder / f"search-{name}")
            found.append(train(config, folder / f"found-{name}"))
            for number, rule in enumerate(RULES):
                narrow = rule_config(base, seed, rule, found[-1].parameters)
                by_rule[rule].append(train(narrow, folder / f"rule-{number}-{name}"))
        lines.append(row(f"search, cost_weight {weight}", found, None))
        for (alpha, rounded), runs in by_rule.items():
            any_number = "" if rounded else ", any number of columns"
            lines.append(row(f"rule, alpha {alpha}{any_number}", runs, found))
        print("\n".join(lines[-1 - len(RULES) :]), file=sys.stderr, flush=True)
    return "\n".join(lines)


def row(name: str, runs: Sequence[Result], found: Sequence[Result] | None) -> str:
    """A row of the table; found : what the differences are to."""
    cells = [name, spread([run.parameters / 1e3 for run in runs], 0) + " k"]
    cells += [spread([run.logloss for run in runs], 4), spread([run.auc for run in runs], 4)]
    differences = ""
    if found:
        differences = spread([run.logloss - best.logloss for run, best in zip(runs, found)], 4, "+")
    return f"| {' | '.join([*cells, differences])} |"


def spread(values: Sequence[float], digits: int, sign: str = "") -> str:
    """Mean (least to greatest)."""
    form = f"{sign}.{digits}f"
    return f"{statistics.mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    """Print both parts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("log", type=Path, nargs="?", help="a Criteo log, .tsv.gz with labels")
    parser.add_argument("--quick", action="store_true", help="one seed, one weight of the cost")
    parser.add_argument("--real-only", action="store_true", help="leave out the small space")
    options = parser.parse_args()
    prepare_threads(SingleComm())
    seeds = SEEDS[:1] if options.quick else SEEDS
    weights = COST_WEIGHTS[1:2] if options.quick else COST_WEIGHTS
    with tempfile.TemporaryDirectory() as name:
        if not options.real_only:
            print(small_space(Path(name), seeds))
        if options.log:
            print(real_log(options.log, Path(name), seeds, weights))


if __name__ == "__main__":
    main()
