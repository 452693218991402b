"""What do directions of Shampoo and Muon add to a training step? Against AdaGrad, whose step is as
long as Shampoo's.

Training steps of two DLRMs (`shapes.py`) on one thread, the contenders in turns on the same
batches. Times are those of the CPU: others of the machine take as little part in them as they can.
Shampoo has its blocks of 128; roots are timed by themselves, and every fiftieth step has some:
"with roots" is a step and a fiftieth of them.

    python -m benchmarks.dense_steps                  # both models
    python -m benchmarks.dense_steps --model kaggle --samples 8192
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks import ours
from benchmarks.shapes import KAGGLE, MLPERF, Model, clicks
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer, DenseRule
from neocpu.tables.specs.directions import MuonKeys, ShampooKeys, blocks_of
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.train.model.dlrm import Dlrm
from neocpu.train.step.muon import Muon
from neocpu.train.step.shampoo import Shampoo
from neocpu.train.step.shampoo_roots import BlockRoots

EVERY = 50
BATCHES = 4
NEVER = 1 << 30  # roots at the first step, and never again
ROOT_TURNS = 3


def adagrad(_: Comm, dlrm: Dlrm) -> DenseOptimizer:
    """The dense rule alone."""
    rule = _rule(dlrm)
    return DenseOptimizer(rule.optimizer, rule.parameters)


def shampoo(comm: Comm, dlrm: Dlrm) -> DenseOptimizer:
    """Its directions, with roots of the first step."""
    return Shampoo(comm, dict(dlrm.layout.tensors()), ShampooKeys(NEVER, start=1), _rule(dlrm))


def muon(comm: Comm, dlrm: Dlrm) -> DenseOptimizer:
    """Its directions of matrices."""
    return Muon(comm, dict(dlrm.layout.tensors()), MuonKeys(steps=5), _rule(dlrm))


def _rule(dlrm: Dlrm) -> DenseRule:
    return DenseRule(SparseOptimizer(name="adagrad", learning_rate=0.01), dlrm.flat)


OPTIMIZERS = {"adagrad": adagrad, "shampoo": shampoo, "muon": muon}


def seconds_of(work: Callable[[], object]) -> float:
    """CPU seconds of all threads of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def root_seconds(job: ours.NeocpuDlrm) -> float:
    """Of all roots of a model's blocks, from the factors that its run has."""
    keys = ShampooKeys(every=1)
    blocks = blocks_of(dict(job.dlrm.layout.tensors()), keys)
    roots = BlockRoots(blocks, keys)
    roots.factors = job.dense.factors
    return statistics.median(seconds_of(lambda: roots.renew(blocks, 1)) for _ in range(ROOT_TURNS))


def rows(model: Model, rounds: int) -> list[str]:
    """Rows of the table of Markdown."""
    batches = clicks(model, BATCHES)
    jobs = {name: ours.NeocpuDlrm(model, batches, optimizer=o) for name, o in OPTIMIZERS.items()}
    ours.threads(1)
    turns = [
        {name: seconds_of(lambda job=job: job.step(0)) for name, job in jobs.items()}
        for _ in range(rounds + 1)
    ][1:]  # the first compiles, and touches rows
    base = statistics.median(turn["adagrad"] for turn in turns)
    lines = [f"| {model.name} | adagrad | {1e3 * base:.0f} | | | |"]
    for name in ("shampoo", "muon"):
        added = statistics.median(turn[name] - turn["adagrad"] for turn in turns)
        roots = root_seconds(jobs["shampoo"]) if name == "shampoo" else 0.0
        shares = [100 * more / base for more in (added, added + roots / EVERY)]
        cells = [
            f"{1e3 * added:.1f}",
            f"{1e3 * roots:.0f}",
            *(f"{share:.0f} %" for share in shares),
        ]
        lines.append(
            f"| {model.name} | {name} | {1e3 * (base + added):.0f} | {' | '.join(cells)} |"
        )
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=("kaggle", "mlperf-like"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--samples", type=int, default=KAGGLE.samples, help="of a batch")
    options = parser.parse_args()
    print("| model | dense half | ms a step | added | all roots | added | with roots |")
    print("|---|---|---|---|---|---|---|")
    for model in (KAGGLE, MLPERF):
        if options.model in (None, model.name):
            sized = replace(model, samples=options.samples)
            print("\n".join(rows(sized, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
