"""How long is a training step of a DLRM? Against torch MLPs (as they are, and
compiled) + FBGEMM CPU, on the same batches.

A step is forward, loss, backward, row-wise AdaGrad on 26 tables and SGD on the MLPs, B = 2048. Row
numbers follow a scrambled Zipf law (1.2), four batches take turns. Memory is the peak resident size
of a process of its own that does the same steps. Our tables are mapped lazily (a row costs memory
once it is touched), FBGEMM's are allocated whole.
"""

import argparse
import json
import shutil
import subprocess
import sys
from typing import Any

from benchmarks import ours, rivals
from benchmarks.harness import CORES, THREADS, Contender, main, measure, peak, summarise
from benchmarks.shapes import KAGGLE, MLPERF, SMALL, Model, clicks

# Models by name.
MODELS = {model.name: model for model in (KAGGLE, MLPERF, SMALL)}
# Name of the rival, its MLPs run eagerly.
RIVAL = "torch MLPs + FBGEMM CPU TBE"
# The same with MLPs that `torch.compile` has compiled, which takes a C++ compiler.
COMPILED = "torch compiled MLPs + FBGEMM CPU TBE"
# Batches that take turns.
BATCHES = 4


def memory(side: str, model: Model) -> dict[str, float]:
    """Peak MiB of a fresh process that builds `side`'s model and does eight steps."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.dlrm_step",
        "--memory",
        side,
        "--model",
        model.name,
    ]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(process.stdout.splitlines()[-1])


def report_memory(side: str, model: Model) -> None:
    """Print the peak memory of eight steps in this process; `memory` starts it."""
    batches = clicks(model, BATCHES)
    job: Any = (
        ours.NeocpuDlrm(model, batches) if side == "ours" else rivals.TorchDlrm(model, batches)
    )
    (ours if side == "ours" else rivals).threads(CORES)
    for i in range(2 * BATCHES):
        job.step(i)
    print(json.dumps({"peak": peak()}))


def step(model: Model, options: argparse.Namespace) -> dict[str, Any]:
    """One model."""
    batches = clicks(model, BATCHES)
    neocpu_dlrm = ours.NeocpuDlrm(model, batches)
    contenders = [Contender("neocpu", "ours", neocpu_dlrm.step, n, ours.threads) for n in THREADS]
    with_rival = not options.no_rivals and rivals.have("torch", "fbgemm_gpu")
    if with_rival:
        for name in (RIVAL, COMPILED) if shutil.which("g++") else (RIVAL,):
            torch_dlrm = rivals.TorchDlrm(model, batches, compiled=name == COMPILED)
            contenders += [
                Contender(name, "rival", torch_dlrm.step, n, rivals.threads) for n in THREADS
            ]
    measure(contenders, options.rounds, warmup=3)
    record = summarise(
        f"training step, {model.name}",
        model.describe(),
        contenders,
        None if options.quick else {RIVAL: 1.5, COMPILED: 1.5},
    )
    speeds = [
        f"{c.name} {c.threads} threads {model.samples / c.median:,.0f} samples/s"
        for c in contenders
    ]
    weights = sum(model.rows) * model.dim * 4 / 2**20
    peaks = [f"neocpu {memory('ours', model)['peak']:,.0f} MiB"]
    if with_rival:
        peaks.append(f"torch + FBGEMM {memory('torch', model)['peak']:,.0f} MiB")
    notes = [
        "; ".join(speeds) + ".",
        f"Peak memory of one rank: {', '.join(peaks)} (all table weights: {weights:,.0f} MiB).",
    ]
    return record | {"notes": notes}


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Both models, or the chosen one."""
    if not options.no_rivals:
        rivals.preload()
    if options.quick:
        return [step(SMALL, options)]
    return [
        step(model, options) for model in (KAGGLE, MLPERF) if options.model in (None, model.name)
    ]


def extra(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark only."""
    parser.add_argument("--model", choices=list(MODELS), help="only this model")
    parser.add_argument(
        "--memory", choices=["ours", "torch"], help="print this side's peak memory and stop"
    )


def start(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Benchmark, or report memory."""
    if options.memory:
        report_memory(options.memory, MODELS[options.model])
        return []
    return benchmark(options)


if __name__ == "__main__":
    main(__doc__, start, extra)
