"""How long is a step on two ranks, or more? Ours under mpiexec, TorchRec under torchrun on gloo.

Each rank has its share of the cores, at least one thread. Both jobs are started once; while one
takes its turn, the other sleeps. A turn is several steps, each ended by a barrier.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import rivals
from benchmarks.harness import CORES, Contender, main, summarise
from benchmarks.shapes import KAGGLE, MLPERF, SMALL, Model

# Ranks of a job, unless told otherwise.
RANKS = 2
# Turns that are not counted.
WARMUP = 2
# Most seconds of a turn.
LIMIT = 900.0
# Seconds between turns.
PAUSE = 0.05


class Job:
    """A launched job that does its steps in its turns."""

    def __init__(
        self,
        side: str,
        model: Model,
        folder: Path,
        turns: int,
        steps: int,
        plan: str,
        ranks: int,
    ) -> None:
        self.side = side
        self._folder = folder
        self._log = folder / f"{side}.log"
        arguments = [
            "-m",
            "benchmarks.rank_jobs",
            side,
            str(folder),
            "--model",
            model.name,
            "--turns",
            str(turns),
        ]
        arguments += ["--steps", str(steps), "--plan", plan]
        if side == "neocpu":
            mpiexec = Path(sys.executable).with_name("mpiexec")
            command = [
                str(mpiexec) if mpiexec.exists() else "mpiexec",
                "-n",
                str(ranks),
                sys.executable,
                "-m",
                "mpi4py",
                *arguments,
            ]
        else:
            command = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                str(ranks),
                *arguments,
            ]
        threads = str(max(1, CORES // ranks))
        environment = os.environ | {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment
            )

    def turn(self, number: int) -> float:
        """Seconds of one step in this turn."""
        (self._folder / f"go-{self.side}-{number}").touch()
        done_file = self._folder / f"done-{self.side}-{number}"
        end = time.monotonic() + LIMIT
        while not done_file.exists():
            stopped = self._process.poll() is not None and not done_file.exists()
            if stopped or time.monotonic() > end:
                raise RuntimeError(
                    f"{self.side} did not finish turn {number}:\n{self._log.read_text()[-4000:]}"
                )
            time.sleep(0.01)
        return json.loads(done_file.read_text())["seconds"]

    def peaks(self) -> list[float]:
        """Peak MiB of each rank so far."""
        return [
            json.loads(path.read_text())["peak"]
            for path in sorted(self._folder.glob(f"peak-{self.side}-?"))
        ]

    def end(self) -> None:
        """Wait for the job, or stop it."""
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()


def run(model: Model, options: argparse.Namespace, ranks: int) -> dict[str, Any]:
    """Both jobs on one model, in turns."""
    sides = ["neocpu"]
    if not options.no_rivals and rivals.have("torch", "torchrec", "fbgemm_gpu"):
        sides.append("torchrec")
    turns = options.rounds + WARMUP
    steps = 2 if options.quick else 5
    with tempfile.TemporaryDirectory() as name:
        jobs = [Job(side, model, Path(name), turns, steps, options.plan, ranks) for side in sides]
        try:
            seconds: dict[str, list[float]] = {side: [] for side in sides}
            for turn in range(turns):
                for job in jobs:
                    time.sleep(PAUSE)
                    seconds[job.side].append(job.turn(turn))
            peaks = {job.side: job.peaks() for job in jobs}
        finally:
            for job in jobs:
                job.end()
    names = {
        "neocpu": (f"neocpu, {ranks} ranks, mpich", "ours"),
        "torchrec": (f"TorchRec, {ranks} ranks, gloo", "rival"),
    }
    threads = max(1, CORES // ranks)
    contenders = [
        Contender(*names[side], lambda i: None, threads, seconds=seconds[side][WARMUP:])
        for side in sides
    ]
    notes = [
        f"Peak memory per rank: {', '.join(f'{s} {max(p):,.0f} MiB' for s, p in peaks.items())}."
    ]
    shape = model.describe() | {"plan": options.plan, "steps per turn": steps}
    return summarise(f"step on {ranks} ranks, {model.name}", shape, contenders) | {"notes": notes}


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Both models, on each number of ranks."""
    models = (SMALL,) if options.quick else (KAGGLE, MLPERF)
    return [run(model, options, ranks) for ranks in options.ranks for model in models]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--plan", default="table_wise", help="our sharding scheme")
    parser.add_argument("--ranks", type=int, nargs="+", default=[RANKS], help="ranks of a job")


if __name__ == "__main__":
    main(__doc__, benchmark, arguments)
