"""What do bf16, fp16 and fp8 in the dense half cost, in quality and in time?

Quality: the model of the Criteo Kaggle tables is trained for one pass on the first four fifths of a
log, and measured on the rest, in each arithmetic from the same seeds. The yardstick is that of
Kalamkar et al. (arXiv 1905.12322): the same quality in the same steps with the hyper-parameters of
fp32, so each run is compared with the fp32 run of its seed. Each run leaves a file in a folder, and
is not run again while it is there.

Time: that of the CPU for steps of the same model on synthetic clicks (`shapes.py`), B = 2048, one
thread, the contenders in turns on the same batches. What operands cost is emulation: an accelerator
is faster by them.

    python -m benchmarks.precision RUNS --log criteo_kaggle_40k.tsv.gz
    python -m benchmarks.precision RUNS --steps
"""

import argparse
import math
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import ours
from benchmarks.dense_steps import seconds_of
from benchmarks.optimizers import MARKS, MODEL, Bench, Result, spread
from benchmarks.shapes import KAGGLE, clicks
from benchmarks.towers import split
from neocpu.parallel.transport.comm import SingleComm
from neocpu.parallel.transport.launch import prepare_threads
from neocpu.train.config import config as configs
from neocpu.train.config.config import Config
from neocpu.train.model.precision.keys import PrecisionKeys

FP32 = "fp32"
ARITHMETICS = {
    FP32: PrecisionKeys(),
    "bf16, fp32 master weights": PrecisionKeys("bf16"),
    "bf16, split weights": PrecisionKeys("bf16", weights="split"),
    "bf16, stochastic": PrecisionKeys("bf16", "stochastic"),
    "bf16, truncated": PrecisionKeys("bf16", "truncate"),
    "bf16, no master weights": PrecisionKeys("bf16", weights="none"),
    "bf16, no master weights, stochastic": PrecisionKeys("bf16", "stochastic", "none"),
    "bf16, no master weights, truncated": PrecisionKeys("bf16", "truncate", "none"),
    "fp16, dynamic loss scale": PrecisionKeys("fp16"),
    "fp16, unscaled": PrecisionKeys("fp16", loss_scale=1.0),
    "fp8, delayed scales": PrecisionKeys("fp8"),
}
BATCHES = 4


class Arithmetics(Bench):
    """Runs of arithmetics on one log, and their files; `Bench` with other names."""

    def config(self, name: str, rate: float, seed: int) -> Config:
        """The config of a run; rate : of the dense rule."""
        keys = ARITHMETICS[name].header()
        sets = [f"model.precision.{key}={value}" for key, value in keys.items()]
        sets += [f"optimizer.dense.learning_rate={rate}", f"training.seed={seed}"]
        return configs.load(self._config, [*self._sets, *sets])


def quality(bench: Bench, names: Sequence[str], rate: float, seeds: Sequence[int]) -> Iterator[str]:
    """A table of Markdown: losses, and how far they are from those of fp32, seed by seed."""
    yield "| operands | logloss after 1/4 | 1/2 | all | AUC | logloss - fp32 |"
    yield "|---|---|---|---|---|---|"
    exact = [bench.result(FP32, rate, seed) for seed in seeds]
    for name in names:
        runs = [bench.result(name, rate, seed) for seed in seeds]
        cells = [
            spread([run.losses[at] for run in runs])
            for at in (MARKS // 4 - 1, MARKS // 2 - 1, MARKS - 1)
        ]
        cells += [spread([run.auc for run in runs]), against(runs, exact)]
        yield f"| {name} | {' | '.join(cells)} |"


def against(runs: Sequence[Result], exact: Sequence[Result]) -> str:
    """Mean of the differences of last losses seed by seed, and its standard error."""
    differences = [run.losses[-1] - other.losses[-1] for run, other in zip(runs, exact)]
    mean = f"{statistics.mean(differences):+.5f}"
    if len(differences) < 2:
        return mean
    return f"{mean} ± {statistics.stdev(differences) / math.sqrt(len(differences)):.5f}"


def steps(names: Sequence[str], rounds: int) -> Iterator[str]:
    """A table of Markdown: medians of steps on one thread, and of what each turn is of fp32's."""
    batches = clicks(KAGGLE, BATCHES)
    jobs = {
        name: ours.NeocpuDlrm(KAGGLE, batches, precision=ARITHMETICS[name])
        for name in dict.fromkeys((FP32, *names))
    }
    ours.threads(1)
    turns = [
        {name: seconds_of(lambda job=job: job.step(0)) for name, job in jobs.items()}
        for _ in range(rounds + 1)
    ][1:]  # the first compiles, and touches rows
    yield "| operands | ms a step | of fp32 |"
    yield "|---|---|---|"
    for name in jobs:
        median = statistics.median(turn[name] for turn in turns)
        share = statistics.median(turn[name] / turn[FP32] for turn in turns)
        yield f"| {name} | {1e3 * median:.1f} | {share:.2f} |"


def main() -> None:
    """Run what has no file yet, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, help="folder of the files that runs leave")
    parser.add_argument("--log", type=Path, help="a Criteo log, .tsv.gz")
    parser.add_argument("--steps", action="store_true", help="times of steps, without a log")
    parser.add_argument("--only", nargs="+", choices=tuple(ARITHMETICS), default=[*ARITHMETICS])
    parser.add_argument("--rate", type=float, default=0.01, help="of the dense rule, adagrad")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    prepare_threads(SingleComm())
    options.runs.mkdir(parents=True, exist_ok=True)
    if options.steps:
        print("\n".join(steps(options.only, options.rounds)))
        return
    with tempfile.TemporaryDirectory() as name:
        sets = [*split(options.log, Path(name)), "training.batch_size=128"]
        bench = Arithmetics(options.runs, MODEL, sets)
        seeds = range(1, options.seeds + 1)
        print("\n".join(quality(bench, options.only, options.rate, seeds)))


if __name__ == "__main__":
    main()
