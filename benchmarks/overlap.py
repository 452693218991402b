"""How much of a step's communication does pipelining hide? Kinds of pipelining, in turns.

One thread per rank. All kinds run in the same processes, each with tables of its own; a turn is one
untimed step and several timed ones between two barriers. Every kind also runs on links of a set
speed: as fast as needed for the exchanges, one after the other, to take a given share of the
unpipelined step. `traced` is the full pipeline with spans recorded, as for `--trace`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import Contender, main, summarise
from benchmarks.shapes import KAGGLE, MLPERF, SMALL, Model, clicks

# Models by name.
MODELS = {model.name: model for model in (KAGGLE, MLPERF, SMALL)}
KINDS = ("off", "input", "full", "traced")
# Batches that take turns.
BATCHES = 4
# Turns that are not counted.
WARMUP = 2
# Most seconds of a job.
LIMIT = 1800.0


class Kind:
    """A kind of pipelining on this rank: its step, what it sent, and its times."""

    def __init__(self, name: str, model: Model, options: argparse.Namespace, comm: Any) -> None:
        from benchmarks.ours import NeocpuDlrm
        from neocpu.parallel.transport.sent import Traffic
        from neocpu.parallel.transport.timeline import RunTimeline

        self.name = name
        self.comm = comm.split(0, comm.rank)
        self.comm.sent = self.traffic = Traffic()
        pipeline = "full" if name == "traced" else name
        batches = clicks(model, BATCHES)
        self._job = NeocpuDlrm(model, batches, self.comm, options.plan, pipeline=pipeline)
        self._timeline = RunTimeline() if name == "traced" else None
        self._step = 0
        self.reset()

    def reset(self) -> None:
        """Forget what was measured.

        times: by collective. seconds: of a step, by turn; computing: without what was exposed.
        """
        self.times: dict[Any, Any] = {}
        self.steps = 0
        self.seconds: list[float] = []
        self.computing: list[float] = []

    def turn(self, steps: int, counted: bool) -> None:
        """Take one untimed step and some timed ones."""
        self.comm.barrier()
        self.traffic.timeline = self._timeline
        self._take_step()
        self.comm.barrier()
        times = self.times if counted else {}
        before = sum(each.exposed for each in times.values())
        start = time.perf_counter()
        with self.traffic.counting(times):
            for _ in range(steps):
                self._take_step()
        self.comm.barrier()
        if counted:
            seconds = time.perf_counter() - start
            exposed = sum(each.exposed for each in times.values()) - before
            self.seconds.append(seconds / steps)
            self.computing.append((seconds - exposed) / steps)
            self.steps += steps
        self.traffic.timeline = None

    def _take_step(self) -> None:
        self._step += 1
        if self._timeline is not None:
            self._timeline.begin_step(self._step)
        self._job.step(self._step)


def measured(off: Kind) -> tuple[float, float]:
    """Seconds that the slowest rank computes in an unpipelined step, and bytes that one sends."""
    size = sum(times.bytes for times in off.times.values()) / off.steps
    computing = statistics.median(off.computing)
    return off.comm.largest(int(1e9 * computing)) / 1e9, float(off.comm.largest(int(size)))


def slow_down(kinds: list[Kind], computing: float, size: float, share: float) -> float:
    """Give all links the speed at which exchanges alone take this share of the unpipelined step:
    bytes a second. What was measured is forgotten.
    """
    from neocpu.parallel.transport.throttle import LinkSpeed, Throttle

    bandwidth = size / (computing * share / (1 - share)) if share else 0.0
    for kind in kinds:
        speeds = {"same_node": LinkSpeed(bandwidth, 0.0)}
        kind.traffic.throttle = Throttle(speeds) if share else None
        kind.reset()
    return bandwidth


def run_rank(model: Model, options: argparse.Namespace) -> None:
    """All kinds on one rank; rank 0 writes what was measured."""
    from benchmarks.ours import mpi_comm, threads
    from neocpu.train.watch.step_watch import exchange_report

    comm = mpi_comm()
    threads(1)
    kinds = [Kind(name, model, options, comm) for name in KINDS]
    cases = []
    computing = size = 0.0
    for share in (0.0, *options.shares):
        bandwidth = slow_down(kinds, computing, size, share)
        for number in range(WARMUP + options.rounds):
            for kind in kinds:
                kind.turn(options.steps, number >= WARMUP)
        reports = [exchange_report(kind.comm, kind.times, kind.steps) for kind in kinds]
        seconds = {kind.name: kind.seconds for kind in kinds}
        case = {"share": share, "bandwidth": bandwidth, "seconds": seconds, "reports": reports}
        cases.append(case)
        if not share:
            computing, size = measured(kinds[0])
    if comm.rank == 0:
        options.out.write_text(json.dumps(cases))


def job(model: Model, ranks: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Start a job of so many ranks; what its rank 0 wrote."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        mpiexec = Path(sys.executable).with_name("mpiexec")
        command = [str(mpiexec) if mpiexec.exists() else "mpiexec", "-n", str(ranks)]
        command += [sys.executable, "-m", "mpi4py", "-m", "benchmarks.overlap"]
        command += ["--rank-of", model.name, "--out", str(out), "--plan", options.plan]
        command += ["--rounds", str(options.rounds), "--steps", str(options.steps)]
        command += ["--shares", *map(str, options.shares)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=environment, timeout=LIMIT)
        return json.loads(out.read_text())


def record(model: Model, ranks: int, case: dict[str, Any], plan: str) -> dict[str, Any]:
    """The table of one case, with what was hidden below it."""
    names = {"full": "ours", "off": "rival", "input": "rival", "traced": "note"}
    contenders = [
        Contender(f"pipeline {name}", side, lambda i: None, 1, seconds=case["seconds"][name])
        for name, side in names.items()
    ]
    notes = []
    for name, report in zip(KINDS, case["reports"]):
        parts = []
        for queue in report["queues"]:
            key = "alone" if report["set_speed"] else "under_way"
            milliseconds = [1e3 * queue[each]["mean"] for each in (key, "exposed")]
            parts.append(
                f"{queue['queue']} {milliseconds[1]:.2f} of {milliseconds[0]:.2f} ms exposed "
                f"({100 * queue['hidden']:.0f} % hidden)"
            )
        notes.append(f"{name}: {'; '.join(parts)}.")
    bandwidth = case["bandwidth"]
    where = f"links of {bandwidth / 1e6:.1f} MB/s" if bandwidth else "no set speed"
    shape = model.describe() | {"plan": plan}
    title = f"overlap on {ranks} ranks, {model.name}, {where}"
    return summarise(title, shape, contenders) | {"notes": notes, "cases": case}


def benchmark(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All models and numbers of ranks, or this process's part of one job."""
    models = (SMALL,) if options.quick else (KAGGLE, MLPERF)
    options.steps = 2 if options.quick else options.steps
    if options.model:
        models = (MODELS[options.model],)
    return [
        record(model, ranks, case, options.plan)
        for ranks in options.ranks
        for model in models
        for case in job(model, ranks, options)
    ]


def extra(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark only."""
    parser.add_argument("--model", choices=list(MODELS), help="only this model")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="numbers of ranks")
    parser.add_argument("--plan", default="table_wise", help="our sharding scheme")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a turn")
    parser.add_argument(
        "--shares",
        type=float,
        nargs="*",
        default=[0.2, 0.4],
        help="of the unpipelined step that exchanges take on links of a set speed",
    )
    parser.add_argument("--rank-of", choices=list(MODELS), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)


def start() -> None:
    """Be a rank of a job, or the whole benchmark."""
    if "--rank-of" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--rounds", type=int)
        extra(parser)
        options = parser.parse_args()
        run_rank(MODELS[options.rank_of], options)
    else:
        main(__doc__, benchmark, extra)


if __name__ == "__main__":
    start()
