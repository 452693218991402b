"""What does it cost a step that a thread of each rank watches the run?

    python -m benchmarks.watch        # with nothing else to do

Two ranks of one thread take turns of steps, with the watch and without, in one process each. A look
every 2 s is not seen in steps that vary by a percent, so the watch looks `--often` times as often
here: its price is that part of what steps take longer. (That a rank notes what it waits for, two
stores for each exchange, is in both.)
"""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np


def turns(options: argparse.Namespace) -> None:
    """A rank: print what the pairs of turns say, on rank 0."""
    from benchmarks.ours import NeocpuDlrm, mpi_comm, threads
    from benchmarks.rank_jobs import MODELS
    from benchmarks.shapes import clicks
    from neocpu.parallel.watch import watchdog

    comm = mpi_comm()
    threads(1)
    model = MODELS[options.model]
    job = NeocpuDlrm(model, clicks(model, 4), comm)
    seldom = watchdog.SELDOM
    watchdog.SELDOM = watchdog.OFTEN = seldom / options.often
    steps_done = 0

    def seconds(watched: bool) -> float:
        nonlocal steps_done
        watch = watchdog.Watchdog(comm, 1e9, 0.0) if watched else None
        comm.barrier()
        begun = time.perf_counter()
        for _ in range(options.steps):
            job.step(steps_done)
            steps_done += 1
        comm.barrier()
        taken = (time.perf_counter() - begun) / options.steps
        if watch is not None:
            watch.stop()
        return taken

    seconds(False)  # compiles
    pairs = []
    for number in range(options.pairs):
        watched_first = bool(number % 2)
        one = seconds(watched_first)
        other = seconds(not watched_first)
        pairs.append((one, other) if watched_first else (other, one))
    if comm.rank:
        return
    watched, alone = np.array(pairs).T
    longer = (watched - alone) / alone.mean() * 100 / options.often
    error = longer.std(ddof=1) / np.sqrt(longer.size)
    record = {
        "ms of a step": round(alone.mean() * 1e3, 3),
        "longer by %": round(longer.mean(), 5),
        "standard error": round(error, 5),
        "pairs": options.pairs,
    }
    print(json.dumps(record), flush=True)


def main() -> None:
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="small")
    parser.add_argument("--steps", type=int, default=1000, help="of a turn")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--often", type=float, default=100.0)
    options = parser.parse_args()
    if "PMI_RANK" in os.environ:
        turns(options)
        return
    from neocpu.parallel.transport.launch import mpiexec_command

    command, environment = mpiexec_command(2, ["-m", "benchmarks.watch", *sys.argv[1:]])
    subprocess.run(command, env={**os.environ, **environment}, check=True)


if __name__ == "__main__":
    main()
