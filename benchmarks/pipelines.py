"""How long is a step by kind of pipelining? All kinds in one job, in turns.

    mpiexec -n W python -m mpi4py -m benchmarks.pipelines [--model NAME] [--turns N] [--steps N]

Each kind has tables and a model of its own. A turn is several steps, from a barrier to a barrier;
printed are medians over the turns, and the median of a kind's ratios to "off" in the same round.
"unpolled" is "full" where exchanges go on only when they are waited for.
"""

import argparse
import os
import time
from statistics import median
from typing import Any

from benchmarks.shapes import KAGGLE, MLPERF, SMALL, Model, clicks
from neocpu.core.stages import PIPELINES
from neocpu.train.model.mlp import nothing

MODELS = {model.name: model for model in (KAGGLE, MLPERF, SMALL)}
# Batches that take turns.
BATCHES = 4
# Turns of each kind that are not counted.
WARMUP = 2
UNPOLLED = "unpolled"


def build(model: Model, kind: str, comm: Any, plan: str) -> Any:
    """A rank's model and tables, which step as the kind says."""
    from benchmarks.ours import NeocpuDlrm

    pipeline = "full" if kind == UNPOLLED else kind
    job = NeocpuDlrm(model, clicks(model, BATCHES), comm, plan, pipeline=pipeline)
    if kind == UNPOLLED:
        job.dlrm.between.act = nothing
    return job


def turn(job: Any, comm: Any, steps: int) -> float:
    """Seconds of a step, of so many."""
    comm.barrier()
    start = time.perf_counter()
    for i in range(steps):
        job.step(i)
    comm.barrier()
    return (time.perf_counter() - start) / steps


def report(model: Model, ranks: int, seconds: dict[str, list[float]]) -> None:
    """Print a line for each kind."""
    base = seconds["off"]
    for kind, times in seconds.items():
        gain = median(before / after for before, after in zip(base, times))
        print(
            f"{model.name:12} {ranks} rank(s)  {kind:9} {median(times) * 1e3:8.2f} ms"
            f"  {gain:5.3f} x off",
            flush=True,
        )


def main() -> None:
    """One rank."""
    from benchmarks.ours import mpi_comm, threads

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(MODELS), default=KAGGLE.name)
    parser.add_argument("--plan", default="table_wise")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    comm = mpi_comm()
    threads(max(1, (os.cpu_count() or 1) // comm.size))
    model = MODELS[options.model]
    kinds = [*PIPELINES, UNPOLLED]
    # a comm each: what is under way of one kind does not go on during the turns of others
    comms = {kind: comm.split(0, comm.rank) for kind in kinds}
    jobs = {kind: build(model, kind, comms[kind], options.plan) for kind in kinds}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(WARMUP + options.turns):
        for kind, job in jobs.items():
            taken = turn(job, comms[kind], options.steps)
            if number >= WARMUP:
                seconds[kind].append(taken)
    if comm.rank == 0:
        report(model, comm.size, seconds)


if __name__ == "__main__":
    main()
