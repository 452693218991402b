"""What do tower modules cost in quality, and does it matter which features form a tower?

A model of the Criteo Kaggle tables (data/models/criteo-kaggle.toml, smaller MLPs) is trained for
one pass on the first 80 % of a real log, and measured on the rest: without towers, and with towers
by the partitioner ("coherent", "diverse": likeness after a probe of the same seed), by chance, and
of neighbours (C1 to C7, ...). Each cell is the mean over seeds with the sample standard deviation;
"against flat" is that of the differences seed by seed. Bytes are those of vectors that travel
between nodes, those of the model's 26 pooled vectors as 100 %. With fewer vectors the top MLP has
fewer inputs, so the models differ in size too.

    python -m benchmarks.towers criteo_kaggle_40k.tsv.gz
    python -m benchmarks.towers LOG --quick        # one seed, one shape of modules
"""

import argparse
import gzip
import json
import math
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.launch import prepare_threads
from neocpu.plan.towers.towers import DISTANCES, partition, similarity
from neocpu.train.before.datasets import Splits, open_splits
from neocpu.train.before.plans import make_plan
from neocpu.train.before.tower_probe import learned_vectors
from neocpu.train.before.warmup import warm_up
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.run.evaluate import evaluate
from neocpu.train.step.schedule import BatchSchedule
from neocpu.train.step.world import World, build
from neocpu.train.watch.results import silent

MODEL = Path(__file__).resolve().parent.parent / "data" / "models" / "criteo-kaggle.toml"
SEEDS = (1, 2, 3, 4, 5)
TOWERS = 4
PROBE_STEPS = 100
TRAINED = 0.8  # share of the log
# (joint vectors, feature vectors) of each tower
MODULES = ((1, 0), (4, 0), (0, 1))
SETTINGS = (
    "model.bottom=[64, 16]",
    "model.top=[64, 1]",
    "training.batch_size=128",
    "optimizer.sparse.learning_rate=0.04",
    "optimizer.dense.name=adagrad",
    "optimizer.dense.learning_rate=0.02",
    "parallel.plan=table_wise",
)

Groups = list[list[str]]
Result = tuple[float, float]  # logloss, AUC


def split(log: Path, folder: Path) -> list[str]:
    """Overrides that name the log's first part as train data and the rest as test data."""
    with gzip.open(log) as file:
        lines = file.readlines()
    cut = round(TRAINED * len(lines))
    sets = []
    for name, part in (("train", lines[:cut]), ("test", lines[cut:])):
        path = folder / f"{name}.tsv"
        path.write_bytes(b"".join(part))
        sets.append(f"data.{name}={path}")
    return sets


def settings(base: list[str], seed: int, groups: Groups | None, module: tuple[int, int]) -> Config:
    """The config of one run."""
    sets = [*SETTINGS, *base, f"training.seed={seed}"]
    if groups:
        sets += [f"model.towers.t{t}={json.dumps(keys)}" for t, keys in enumerate(groups)]
        sets.append(f"model.tower.joint_vectors={module[0]}")
        sets.append(f"model.tower.feature_vectors={module[1]}")
    return configs.load(MODEL, sets)


def opened(config: Config, folder: Path, ranks: Comm | None = None) -> tuple[Splits, World]:
    """The data of a run, on one rank unless others are given, and what trains on them, its kernels
    compiled.
    """
    comm = ranks or SingleComm()
    splits = open_splits(config, comm, folder, silent)
    plan = make_plan(config, comm, splits.pooling_factors())
    warm_up(config, plan, comm)
    return splits, build(config, comm, plan, splits.dense_features)


def train(config: Config, folder: Path) -> Result:
    """Logloss and AUC of the test data after one pass."""
    splits, world = opened(config, folder)
    for step, batch in enumerate(BatchSchedule(splits.loader("train"), 1, 0).batches(0), 1):
        world.step(batch, step)
    measured = evaluate(world, splits.loader("test").batches(0, 0)).to_dict()
    return float(measured["logloss"]), float(measured["auc"])


def partitions(config: Config, folder: Path, seed: int) -> Iterator[tuple[str, Groups]]:
    """Ways to group the features into towers of at most ceil(F / T)."""
    vectors = learned_vectors(config, PROBE_STEPS, folder, silent)
    keys = list(vectors)
    likeness = similarity(list(vectors.values()))
    for kind in DISTANCES:
        groups = partition(likeness, TOWERS, kind, 1.0, seed)
        yield kind, [[keys[i] for i in group] for group in groups]
    for name, order in (
        ("random", np.random.default_rng(seed).permutation(len(keys))),
        ("contiguous", np.arange(len(keys))),
    ):
        parts = np.array_split(order, TOWERS)
        yield name, [[keys[i] for i in sorted(part)] for part in parts]


def spread(values: list[float], digits: int = 5) -> str:
    """Mean and standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    return f"{statistics.mean(values):.{digits}f} ± {deviation:.{digits}f}"


def share(config: Config) -> tuple[int, float]:
    """Dense parameters, and bytes of vectors relative to those of the pooled ones."""
    layout = config.layout(13)
    return layout.parameters, sum(layout.vector_widths) / sum(layout.dims)


def main() -> None:
    """Train all variants and print their table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("log", type=Path, help="a Criteo log, .tsv.gz with labels")
    parser.add_argument("--quick", action="store_true", help="one seed, one shape of modules")
    options = parser.parse_args()
    prepare_threads(SingleComm())
    results: dict[tuple[str, tuple[int, int]], list[Result]] = {}
    shares = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = split(options.log, folder)
        for seed in SEEDS[:1] if options.quick else SEEDS:
            flat = settings(base, seed, None, (0, 0))
            runs = [("flat", (0, 0), flat)]
            for kind, groups in partitions(flat, folder, seed):
                for module in MODULES[:1] if options.quick else MODULES:
                    runs.append((kind, module, settings(base, seed, groups, module)))
            for kind, module, config in runs:
                results.setdefault((kind, module), []).append(train(config, folder))
                shares[kind, module] = share(config)
    print("| towers | c, p | parameters | bytes | logloss | against flat | AUC | against flat |")
    print("|---|---|---|---|---|---|---|---|")
    reference = results["flat", (0, 0)]
    for (kind, module), runs_of_seeds in sorted(results.items(), key=lambda item: item[0][1]):
        parameters, relative = shares[kind, module]
        cells = [kind, "-" if kind == "flat" else f"{module[0]}, {module[1]}"]
        cells += [f"{parameters:,}", f"{relative:.0%}"]
        for part in (0, 1):
            values = [run[part] for run in runs_of_seeds]
            cells.append(spread(values))
            differences = [run[part] - flat[part] for run, flat in zip(runs_of_seeds, reference)]
            cells.append("" if kind == "flat" else spread(differences))
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
