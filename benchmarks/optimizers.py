"""Which dense optimizer learns how much, and what does it cost?

A model is trained for one pass on the first four fifths of a log, and measured on the rest at
twelfths of it. The rate of each method is the one of its grid with the least logloss at the end on
a seed of its own; tables learn in the same way everywhere. Each run leaves a file in a folder, and
is not run again while it is there, so that a benchmark that was ended goes on.

Times are those of the CPU, of the fastest tenth of steps, and what the fastest step that takes
roots adds, spread over the steps from root to root; bytes are those of the optimizer of dense
parameters on each rank; messages are those of a step of rank 0 of two.

    python -m benchmarks.optimizers RUNS --log criteo_kaggle_40k.tsv.gz
    python -m benchmarks.optimizers RUNS --log LOG --methods adagrad shampoo --seeds 1
    python -m benchmarks.optimizers RUNS --log LOG --svg docs/pictures/optimizers.svg
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks import charts
from benchmarks.towers import MODEL, opened, split
from neocpu.core import svg
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.launch import prepare_threads
from neocpu.parallel.transport.sent import sum_traffic
from neocpu.parallel.transport.threads import run_threads
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.run.evaluate import evaluate
from neocpu.train.step.schedule import BatchSchedule
from neocpu.train.step.world import World

COLOURS = (svg.QUIET, svg.BLUE, svg.GREEN, svg.YELLOW, svg.RED, svg.PURPLE)
TUNED_BY = 101
MARKS = 12
FROM_THE_FIRST = "optimizer.shampoo.start=1"  # directions
COUNTED = 4  # steps of two ranks whose messages are counted


class Method(NamedTuple):
    """A dense optimizer: its keys, the key of its rate, and the rates that are tried."""

    sets: tuple[str, ...]
    rates: tuple[float, ...]
    rate: str = "optimizer.dense.learning_rate"


METHODS = {
    "sgd": Method(("optimizer.dense.name=sgd",), (0.03, 0.1, 0.3, 1.0)),
    "adagrad": Method(("optimizer.dense.name=adagrad",), (0.005, 0.01, 0.02, 0.04)),
    "adam": Method(("optimizer.dense.name=adam",), (0.0003, 0.001, 0.003, 0.01)),
    "lamb": Method(
        ("optimizer.dense.name=adam", "optimizer.trust_ratio=true"), (0.001, 0.003, 0.01, 0.03)
    ),
    "shampoo": Method(
        ("optimizer.dense.name=adagrad", "optimizer.shampoo.every=50"), (0.0025, 0.005, 0.01, 0.02)
    ),
    "muon": Method(
        ("optimizer.dense={ name='adam', learning_rate=0.001 }", "optimizer.muon.steps=5"),
        (0.3, 1.0, 3.0, 10.0),
        "optimizer.muon.rate",
    ),
}


class Result(NamedTuple):
    """A run.

    marks : steps taken at each measurement, and losses then. auc : at the end. step, roots :
    milliseconds of a step, and of its share of the roots. bytes : of the optimizer.
    """

    marks: list[int]
    losses: list[float]
    auc: float
    step: float
    roots: float
    bytes: int


def train(config: Config, folder: Path) -> Result:
    """The passes, or steps, of the config."""
    splits, world = opened(config, folder)
    training = config.training
    schedule = BatchSchedule(splits.loader("train"), training.epochs, training.steps)
    marks = [round(k * schedule.total_steps / MARKS) for k in range(1, MARKS + 1)]
    losses = []
    seconds = []
    auc = 0.0
    for step, batch in enumerate(schedule.batches(0), 1):
        before = time.process_time()
        world.step(batch, step)
        seconds.append(time.process_time() - before)
        if step in marks:
            measured = evaluate(world, splits.loader("test").batches(0, 0)).to_dict()
            losses.append(float(measured["logloss"]))
            auc = float(measured["auc"])
    usual, roots = step_times(seconds, config.optimizer.shampoo.every)
    return Result(marks, losses, auc, usual, roots, _bytes(world))


def step_times(seconds: Sequence[float], every: int) -> tuple[float, float]:
    """Milliseconds of a step, and of its share of the roots that every so many steps take."""
    usual = 1e3 * sorted(seconds)[len(seconds) // 10]
    rooted = seconds[every - 1 :: every] if every else []
    return usual, max(1e3 * min(rooted) - usual, 0.0) / every if rooted else 0.0


def _bytes(world: World) -> int:
    """What the optimizer of dense parameters remembers."""
    fields = [field for factor in world.dense.factors.values() for field in factor.values()]
    return sum(array.nbytes for array in (*world.dense.state.values(), *fields))


class Bench:
    """Runs of methods on one log, and their files.

    runs : the folder of files. config : path of the model. sets : keys of all runs.
    """

    def __init__(self, runs: Path, config: Path, sets: Sequence[str]) -> None:
        self._runs = runs
        self._config = config
        self._sets = tuple(sets)

    def result(self, name: str, rate: float, seed: int) -> Result:
        """A run, from its file if it has one."""

        def run() -> Result:
            with tempfile.TemporaryDirectory() as folder:
                return train(self.config(name, rate, seed), Path(folder))

        return Result(*self._kept(f"{name}-{rate:g}-{seed}", run))

    def config(self, name: str, rate: float, seed: int, shampoo: str = "") -> Config:
        """The config of a run; shampoo : a further key of its methods."""
        method = METHODS[name]
        rated = [f"{method.rate}={rate}", f"training.seed={seed}"]
        more = [shampoo] if shampoo and "shampoo" in name else []
        return configs.load(self._config, [*self._sets, *method.sets, *rated, *more])

    def best(self, name: str) -> float:
        """The rate of the grid with the least loss."""
        rates = METHODS[name].rates
        return min(rates, key=lambda rate: self.result(name, rate, TUNED_BY).losses[-1])

    def messages(self, name: str) -> tuple[float, float]:
        """(messages, bytes) that a rank of two sends in a step."""

        def run() -> tuple[float, float]:
            with tempfile.TemporaryDirectory() as folder:
                config = self.config(name, METHODS[name].rates[0], TUNED_BY, FROM_THE_FIRST)
                sent = run_threads(2, partial(_sent, config, Path(folder)))
            return sent[0]

        messages, size = self._kept(f"{name}-messages", run)
        return messages, size

    def _kept(self, name: str, run: Callable[[], Sequence[object]]) -> list:
        path = self._runs / f"{name}.json"
        if not path.exists():
            print(name, file=sys.stderr, flush=True)
            text = json.dumps(run())
            path.write_text(text)
        return json.loads(path.read_text())


def _sent(config: Config, folder: Path, comm: Comm) -> tuple[float, float]:
    """Messages and bytes of a rank in a step."""
    splits, world = opened(config, folder / str(comm.rank), comm)
    steps = BatchSchedule(splits.loader("train"), 1, COUNTED).batches(0)
    before = _totals(comm)
    for step, batch in enumerate(steps, 1):
        world.step(batch, step)
    after = _totals(comm)
    messages, size = ((b - a) / COUNTED for a, b in zip(before, after))
    return messages, size


def _totals(comm: Comm) -> tuple[int, int]:
    """Messages and bytes that this rank sent to others."""
    verbs = sum_traffic([comm.sent.state()]).values()
    others = [verb[link] for verb in verbs for link in ("same_node", "other_node")]
    return sum(each["messages"] for each in others), sum(each["bytes"] for each in others)


def table(bench: Bench, names: Sequence[str], seeds: Sequence[int]) -> Iterator[str]:
    """A table of Markdown."""
    titles = (
        "rate | logloss after 1/4 | 1/2 | all | AUC | ms/step | roots | KB | messages | KB sent"
    )
    yield f"| dense half | {titles} |"
    yield "|---" * 11 + "|"
    for name in names:
        rate = bench.best(name)
        runs = [bench.result(name, rate, seed) for seed in seeds]
        cells = [f"{rate:g}"]
        cells += [
            spread([run.losses[at] for run in runs]) for at in (MARKS // 4 - 1, MARKS // 2 - 1)
        ]
        cells += [spread([run.losses[-1] for run in runs]), spread([run.auc for run in runs])]
        # others of the machine slow steps down, even by the clock of the CPU
        cells += [f"{min(run.step for run in runs):.1f}", f"{min(run.roots for run in runs):.1f}"]
        cells.append(f"{runs[0].bytes / 1e3:,.0f}")
        messages, size = bench.messages(name)
        cells += [f"{messages:.0f}", f"{size / 1e3:,.0f}"]
        yield f"| {name} | {' | '.join(cells)} |"


def picture(bench: Bench, names: Sequence[str], seeds: Sequence[int]) -> str:
    """Means of losses against steps, and against the seconds of these steps, as SVG."""
    curves = {}
    for name in names:
        rate = bench.best(name)
        runs = [bench.result(name, rate, seed) for seed in seeds]
        losses = [statistics.mean(losses) for losses in zip(*(run.losses for run in runs))]
        each = min(run.step + run.roots for run in runs) / 1e3
        curves[name] = [*zip(runs[0].marks, losses)], each
    steps = max(points[-1][0] for points, _ in curves.values())
    longest = max(points[-1][0] * each for points, each in curves.values())
    lowest = min(loss for points, _ in curves.values() for _, loss in points)
    least = 0.01 * math.floor(100 * lowest)
    y = charts.Scale(least, 0.5, [(least + 0.01 * n, f"{least + 0.01 * n:.2f}") for n in range(8)])
    title = "Logloss of later clicks while the dense half learns by six optimizers"
    body = svg.headings(title, "mean of seeds, each optimizer at its best rate of four; one rank")
    panels = (("steps", steps, 1.0), ("seconds of steps", longest, 0.0))
    for number, (what, most, unit) in enumerate(panels):
        x = charts.Scale(0, most, [(tick, f"{tick:g}") for tick in svg.ticks(most) if tick <= most])
        axes = charts.Axes(70.0 + 420 * number, 96, 330, 280, x, y)
        body += axes.frame(x=what, y="" if number else "logloss")
        for (points, each), colour in zip(curves.values(), COLOURS):
            inside = [(at * (unit or each), loss) for at, loss in points if loss <= y.high]
            body.append(axes.curve(inside, colour))
    for number, (name, colour) in enumerate(zip(curves, COLOURS)):
        left = 70.0 + 120 * number
        body.append(svg.line(left, 442, left + 22, 442, colour))
        body.append(svg.text(left + 28, 446, name))
    words = "; ".join(f"{name}: {points[-1][1]:.4f}" for name, (points, _) in curves.items())
    return svg.document(850, 462, title, words, body)


def spread(values: Sequence[float]) -> str:
    """Mean, and deviation of samples."""
    mean = f"{statistics.mean(values):.4f}"
    return mean + (f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else "")


def main() -> None:
    """Run what has no file yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, help="folder of the files that runs leave")
    parser.add_argument("--log", type=Path, help="a Criteo log, .tsv.gz, for the config's data")
    parser.add_argument("--config", type=Path, default=MODEL, help="of the model")
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=[*METHODS])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], help="further keys")
    parser.add_argument("--svg", type=Path, help="a picture of losses against steps and seconds")
    options = parser.parse_args()
    prepare_threads(SingleComm())
    options.runs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        data = split(options.log, Path(name)) if options.log else []
        sets = [*data, "training.batch_size=128", *options.set]
        bench = Bench(options.runs, options.config, sets)
        seeds = range(1, options.seeds + 1)
        print("\n".join(table(bench, options.methods, seeds)))
        if options.svg:
            options.svg.write_text(picture(bench, options.methods, seeds))


if __name__ == "__main__":
    main()
