"""What do directions of Shampoo and Muon add to a training step? Against AdaGrad, whose step is as
long as Shampoo's.

Training steps of two DLRMs (`shapes.py`), B = 2048, the contenders in turns on the same batches.
Shampoo has its blocks of 128; roots are timed by themselves, all of a rank together, and every
fiftieth step has some: "with roots" is a step and a fiftieth of them.

    python -m benchmarks.dense_steps                  # both models
    python -m benchmarks.dense_steps --model kaggle --threads 1 --rounds 5
"""

import argparse
import statistics
import time

from benchmarks import ours
from benchmarks.harness import CORES, THREADS, Contender, measure
from benchmarks.shapes import KAGGLE, MLPERF, Model, clicks
from neocpu.parallel.transport.comm import Comm
from neocpu.tables.embedding.dense_optimizer import DenseOptimizer, DenseRule
from neocpu.tables.specs.muon import MuonKeys
from neocpu.tables.specs.optimizers import SparseOptimizer
from neocpu.tables.specs.shampoo import ShampooKeys, blocks_of
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


def root_seconds(job: ours.NeocpuDlrm) -> float:
    """Of all roots of a model's blocks, from the factors that its run has."""
    keys = ShampooKeys(every=1)
    blocks = blocks_of(dict(job.dlrm.layout.tensors()), keys)
    roots = BlockRoots(blocks, keys)
    roots.factors = job.dense.factors
    seconds = []
    for _ in range(ROOT_TURNS):
        start = time.perf_counter()
        roots.renew(blocks, 1)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def rows(model: Model, threads: int, rounds: int) -> list[str]:
    """Rows of the table of Markdown."""
    batches = clicks(model, BATCHES)
    jobs = {name: ours.NeocpuDlrm(model, batches, optimizer=o) for name, o in OPTIMIZERS.items()}
    contenders = [
        Contender(name, "ours", job.step, threads, ours.threads) for name, job in jobs.items()
    ]
    measure(contenders, rounds)
    ours.threads(threads)
    base, *others = contenders
    start = f"| {model.name} | {threads} |"
    lines = [f"{start} {base.name} | {1e3 * base.median:.1f} | | |"]
    for contender in others:
        ratios = [mine / its for mine, its in zip(contender.seconds, base.seconds)]
        added = 100 * (statistics.median(ratios) - 1)
        roots = root_seconds(jobs["shampoo"]) if contender.name == "shampoo" else 0.0
        whole = added + 100 * roots / EVERY / base.median
        cells = f"{1e3 * contender.median:.1f} | {1e3 * roots:.0f} | {added:+.0f} %, {whole:+.0f} %"
        lines.append(f"{start} {contender.name} | {cells} |")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=("kaggle", "mlperf-like"))
    parser.add_argument("--threads", type=int, choices=THREADS, action="append")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print("| model | threads | dense half | ms a step | ms of all roots | added, with roots |")
    print("|---|---|---|---|---|---|")
    for model in (KAGGLE, MLPERF):
        if options.model in (None, model.name):
            for threads in options.threads or sorted({1, CORES}):
                print("\n".join(rows(model, threads, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
