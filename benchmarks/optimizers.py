"""Which dense optimizer learns how much, and what does it cost?

A model is trained for one pass with each dense rule, alone and with Shampoo, and measured on the
test data after a quarter, a half and all of it. The learning rate of each is the one of `RATES`
with the least logloss after the pass on a seed of its own; tables learn in the same way everywhere.
Times are medians over steps, and means, which have the steps that take roots in them; bytes are
those of the optimizer of dense parameters on each rank.

    python -m benchmarks.optimizers --log criteo_kaggle_40k.tsv.gz
    python -m benchmarks.optimizers --config data/models/tiny.toml      # whose data exist
    python -m benchmarks.optimizers --log LOG --quick                    # one seed, one rate
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.towers import MODEL, split
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.launch import prepare_threads
from neocpu.train.before.datasets import open_splits
from neocpu.train.before.plans import make_plan
from neocpu.train.before.warmup import warm_up
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.run.evaluate import evaluate
from neocpu.train.step.schedule import BatchSchedule
from neocpu.train.step.world import World, build
from neocpu.train.watch.results import silent

SEEDS = (1, 2, 3)
TUNED_BY = 101
RULES = ("adagrad", "adam", "momentum_sgd")
RATES = {
    "adagrad": (0.005, 0.01, 0.02, 0.05),
    "adam": (0.0003, 0.001, 0.003),
    "momentum_sgd": (0.01, 0.03, 0.1),
}
EVERY = 50


class Method(NamedTuple):
    """A dense rule, with Shampoo or without."""

    rule: str
    shampoo: bool

    @property
    def sets(self) -> tuple[str, ...]:
        """Its keys."""
        return (
            f"optimizer.dense.name={self.rule}",
            f"optimizer.shampoo.every={EVERY * self.shampoo}",
        )

    def __str__(self) -> str:
        return f"{self.rule}, Shampoo every {EVERY}" if self.shampoo else self.rule


class Result(NamedTuple):
    """Loglosses after a quarter, a half, and all steps; AUC; milliseconds of steps; bytes."""

    losses: tuple[float, float, float]
    auc: float
    median: float
    mean: float
    bytes: int


def train(config: Config, folder: Path) -> Result:
    """One pass over the train data."""
    comm = SingleComm()
    splits = open_splits(config, comm, folder, silent)
    plan = make_plan(config, comm, splits.pooling_factors())
    warm_up(config, plan, comm)
    world = build(config, comm, plan, splits.dense_features)
    batches = list(BatchSchedule(splits.loader("train"), 1, 0).batches(0))
    marks = {len(batches) // 4, len(batches) // 2, len(batches)}
    losses = []
    seconds = []
    auc = 0.0
    for step, batch in enumerate(batches, 1):
        before = time.perf_counter()
        world.step(batch, step)
        seconds.append(time.perf_counter() - before)
        if step in marks:
            measured = evaluate(world, splits.loader("test").batches(0, 0)).to_dict()
            losses.append(float(measured["logloss"]))
            auc = float(measured["auc"])
    quarter, half, whole = losses
    times = statistics.median(seconds), statistics.mean(seconds)
    median, mean = (1e3 * each for each in times)
    return Result((quarter, half, whole), auc, median, mean, _bytes(world))


def _bytes(world: World) -> int:
    """What the optimizer of dense parameters remembers."""
    fields = [field for factor in world.dense.factors.values() for field in factor.values()]
    return sum(array.nbytes for array in (*world.dense.state.values(), *fields))


def measure(
    path: Path, sets: list[str], seeds: tuple[int, ...], quick: bool
) -> dict[tuple[Method, float], list[Result]]:
    """Results of each method at its best rate, one for each seed."""
    results = {}
    for method in (Method(rule, shampoo) for rule in RULES for shampoo in (False, True)):
        rates = RATES[method.rule][1:2] if quick else RATES[method.rule]

        def run(rate: float, seed: int, method: Method = method) -> Result:
            rated = (f"optimizer.dense.learning_rate={rate}", f"training.seed={seed}")
            config = configs.load(path, [*sets, *method.sets, *rated])
            with tempfile.TemporaryDirectory() as name:
                return train(config, Path(name))

        tuned = {rate: run(rate, TUNED_BY).losses[-1] for rate in rates} if len(rates) > 1 else {}
        best = min(rates, key=lambda rate: tuned.get(rate, 0.0))
        print(f"{method}: {tuned}", file=sys.stderr, flush=True)
        results[method, best] = [run(best, seed) for seed in seeds]
    return results


def text(results: dict[tuple[Method, float], list[Result]]) -> str:
    """A table of Markdown."""
    titles = (
        "rate | logloss after 1/4 | 1/2 | the pass | AUC | ms/step, median | mean | KB of state"
    )
    lines = [f"| dense rule | {titles} |", "|---" * 9 + "|"]
    for (method, rate), runs in results.items():
        losses = [statistics.mean(values) for values in zip(*(run.losses for run in runs))]
        last = [run.losses[-1] for run in runs]
        cells = [f"{losses[0]:.4f}", f"{losses[1]:.4f}"]
        cells.append(f"{losses[2]:.4f} ({min(last):.4f} to {max(last):.4f})")
        cells.append(f"{statistics.mean(run.auc for run in runs):.4f}")
        cells.append(f"{statistics.mean(run.median for run in runs):.2f}")
        cells.append(f"{statistics.mean(run.mean for run in runs):.2f}")
        cells.append(f"{runs[0].bytes / 1e3:,.0f}")
        lines.append(f"| {method} | {rate} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Train with all optimizers, and print their table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--log", type=Path, help="a Criteo log, .tsv.gz, for the config's data")
    parser.add_argument("--config", type=Path, default=MODEL, help="of the model")
    parser.add_argument("--quick", action="store_true", help="one seed, one rate")
    parser.add_argument("--set", action="append", default=[], help="further keys")
    options = parser.parse_args()
    prepare_threads(SingleComm())
    with tempfile.TemporaryDirectory() as name:
        data = split(options.log, Path(name)) if options.log else []
        seeds = SEEDS[:1] if options.quick else SEEDS
        print(text(measure(options.config, [*data, *options.set], seeds, options.quick)))


if __name__ == "__main__":
    main()
