"""Which dense optimizer learns how much, and what does it cost?

A model is trained with each dense rule, alone and with Shampoo, and measured on the test data after
a quarter, a half and all of its steps. The learning rate of each is the one of `RATES` with the
least logloss at the end on a seed of its own; tables learn in the same way everywhere.
Times are those of the fastest tenth of steps, and what the fastest step that takes roots adds,
spread over the steps from root to root; bytes are those of the optimizer of dense parameters on
each rank.

    python -m benchmarks.optimizers --log criteo_kaggle_40k.tsv.gz
    python -m benchmarks.optimizers --config data/models/tiny.toml      # whose data exist
    python -m benchmarks.optimizers --log LOG --quick --rules adagrad   # one seed, one rate
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.towers import MODEL, opened, split
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.launch import prepare_threads
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.run.evaluate import evaluate
from neocpu.train.step.schedule import BatchSchedule
from neocpu.train.step.world import World

SEEDS = (1, 2, 3)
TUNED_BY = 101
RATES = {
    "adagrad": (0.005, 0.01, 0.02, 0.05),
    "adam": (0.0003, 0.001, 0.003),
    "momentum_sgd": (0.01, 0.03, 0.1),
}


class Method(NamedTuple):
    """A dense rule, and steps from root to root with Shampoo (0: without) in blocks of `dim`."""

    rule: str
    every: int = 0
    dim: int = 0

    @property
    def sets(self) -> tuple[str, ...]:
        """Its keys."""
        rule = f"optimizer.dense.name={self.rule}"
        if not self.every:
            return (rule,)
        shampoo = f"every={self.every}", f"max_preconditioner_dim={self.dim}"
        return (rule, *(f"optimizer.shampoo.{key}" for key in shampoo))

    def __str__(self) -> str:
        shampoo = f", Shampoo every {self.every} in blocks of {self.dim}"
        return self.rule + shampoo * bool(self.every)


class Result(NamedTuple):
    """Loglosses after a quarter, a half, and all steps; AUC; milliseconds of a step, and of its
    share of the roots; bytes.
    """

    losses: tuple[float, float, float]
    auc: float
    step: float
    roots: float
    bytes: int


def train(config: Config, folder: Path) -> Result:
    """The passes, or steps, of the config."""
    splits, world = opened(config, folder)
    training = config.training
    schedule = BatchSchedule(splits.loader("train"), training.epochs, training.steps)
    marks = {schedule.total_steps // 4, schedule.total_steps // 2, schedule.total_steps}
    losses = []
    seconds = []
    auc = 0.0
    for step, batch in enumerate(schedule.batches(0), 1):
        before = time.perf_counter()
        world.step(batch, step)
        seconds.append(time.perf_counter() - before)
        if step in marks:
            measured = evaluate(world, splits.loader("test").batches(0, 0)).to_dict()
            losses.append(float(measured["logloss"]))
            auc = float(measured["auc"])
    quarter, half, whole = losses
    usual = 1e3 * sorted(seconds)[len(seconds) // 10]
    every = config.optimizer.shampoo.every
    rooted = seconds[every - 1 :: every] if every else []
    roots = max(1e3 * min(rooted) - usual, 0.0) / every if rooted else 0.0
    return Result((quarter, half, whole), auc, usual, roots, _bytes(world))


def _bytes(world: World) -> int:
    """What the optimizer of dense parameters remembers."""
    fields = [field for factor in world.dense.factors.values() for field in factor.values()]
    return sum(array.nbytes for array in (*world.dense.state.values(), *fields))


def measure(
    path: Path, sets: list[str], methods: list[Method], quick: bool
) -> dict[tuple[Method, float], list[Result]]:
    """Results of each method at its best rate, one for each seed."""
    results = {}
    for method in methods:
        rates = RATES[method.rule][1:2] if quick else RATES[method.rule]

        def run(rate: float, seed: int, method: Method = method) -> Result:
            rated = (f"optimizer.dense.learning_rate={rate}", f"training.seed={seed}")
            config = configs.load(path, [*sets, *method.sets, *rated])
            with tempfile.TemporaryDirectory() as name:
                return train(config, Path(name))

        tuned = {rate: run(rate, TUNED_BY).losses[-1] for rate in rates} if len(rates) > 1 else {}
        best = min(rates, key=lambda rate: tuned.get(rate, 0.0))
        print(f"{method}: {tuned}", file=sys.stderr, flush=True)
        results[method, best] = [run(best, seed) for seed in SEEDS[: 1 if quick else None]]
    return results


def text(results: dict[tuple[Method, float], list[Result]]) -> str:
    """A table of Markdown."""
    titles = "rate | logloss after 1/4 | 1/2 | all | AUC | ms/step | roots | KB of state"
    lines = [f"| dense rule | {titles} |", "|---" * 9 + "|"]
    for (method, rate), runs in results.items():
        losses = [statistics.mean(values) for values in zip(*(run.losses for run in runs))]
        last = [run.losses[-1] for run in runs]
        cells = [f"{losses[0]:.4f}", f"{losses[1]:.4f}"]
        cells.append(f"{losses[2]:.4f} ({min(last):.4f} to {max(last):.4f})")
        cells.append(f"{statistics.mean(run.auc for run in runs):.4f}")
        # others of the machine only slow steps down
        cells.append(f"{min(run.step for run in runs):.2f}")
        cells.append(f"{min(run.roots for run in runs):.2f}")
        cells.append(f"{runs[0].bytes / 1e3:,.0f}")
        lines.append(f"| {method} | {rate} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Train with all optimizers, and print their table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--log", type=Path, help="a Criteo log, .tsv.gz, for the config's data")
    parser.add_argument("--config", type=Path, default=MODEL, help="of the model")
    parser.add_argument("--rules", nargs="+", choices=tuple(RATES), default=[*RATES])
    parser.add_argument("--every", nargs="+", type=int, default=[50], help="steps, root to root")
    parser.add_argument("--dims", nargs="+", type=int, default=[128, 1024], help="of blocks")
    parser.add_argument("--quick", action="store_true", help="one seed, one rate")
    parser.add_argument("--set", action="append", default=[], help="further keys")
    options = parser.parse_args()
    prepare_threads(SingleComm())
    with tempfile.TemporaryDirectory() as name:
        data = split(options.log, Path(name)) if options.log else []
        sets = [*data, *options.set]
        shampoos = [(every, dim) for dim in options.dims for every in options.every]
        methods = [Method(rule, *keys) for rule in options.rules for keys in ((), *shampoos)]
        print(text(measure(options.config, sets, methods, options.quick)))


if __name__ == "__main__":
    main()
