"""Does a fit end with one digest however it is run? `python -m tests.promise_fits [--write]`.

Fits of one small log on 1 to 8 ranks under `mpiexec`, with one thread and two, whole, stopped by a
signal and resumed, and killed after a step and resumed; on the host's CPU and as `promise_cases.py`
tells the code generator to compile. All ways of a fit have the digest committed in
`promise_fits.json`, which only --write replaces.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import polars as pl
from jobs import watched
from promise_cases import CPUS, RANKS, THREADS
from promise_main import first_ranks, terminate

from neocpu.core.errors import Stopped
from neocpu.kernels.compile.threads import use_threads
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.launch import StopSignal, get_comm, launched_ranks, mpiexec_command
from neocpu.train.config.config import Config
from neocpu.train.fit.fit import StepFacts
from neocpu.train.fit.keys import FitKeys
from neocpu.train.run import fitting

HERE = Path(__file__).resolve().parent
DIGESTS = HERE / "promise_fits.json"
ROWS = 203  # which no number of ranks divides
SECONDS = 600.0  # until a case ends, its kernels to be compiled included
STEP = 2  # after which a fit is stopped or killed
FITS: dict[str, dict[str, Any]] = {
    "dance": {"quadratic": True, "bits": 8, "start": 20},
    "lbfgs": {"method": "lbfgs", "start": 20, "l2": 4.0},
    "softmax": {"loss": "softmax", "start": 20, "intercepts": True},
    "layers": {"hidden": (3,), "start": 20, "l2": 4.0, "most": 8},
}


class FitCase(NamedTuple):
    """One way of running a fit. how: "whole", "stopped" and resumed, "killed" and resumed."""

    fit: str
    ranks: int
    threads: int
    how: str


def cases(ranks: Sequence[int] = RANKS) -> list[FitCase]:
    """All ways; those of a count of ranks follow one another. A kill takes a launch, so some have
    one.
    """
    ways = [FitCase(*way) for way in product(FITS, ranks, THREADS, ("whole", "stopped"))]
    killed = [FitCase(fit, count, 1, "killed") for fit, count in zip(FITS, sorted(ranks)[::-1])]
    return sorted([*ways, *killed], key=lambda case: case.ranks)


def write_log(path: Path) -> None:
    """Numbers over fifteen orders of magnitude, lists, three classes, and weights, some of 0."""
    rng = np.random.default_rng(7)
    site = rng.choice(list("stuvw"), ROWS)
    words = [rng.choice(list("pqr"), size).tolist() for size in rng.integers(0, 4, ROWS)]
    large = rng.normal(size=ROWS) * 10.0 ** rng.integers(-7, 8, ROWS)
    y = np.searchsorted([-0.6, 0.6], rng.normal(size=ROWS) + (site < "u") - 0.5)
    columns = {"large": large, "small": rng.normal(size=ROWS), "site": site, "words": words}
    shop = rng.integers(0, 9, ROWS).astype(str)
    pl.DataFrame({"y": y, **columns, "shop": shop, "w": rng.integers(0, 4, ROWS)}).write_parquet(
        path
    )


def run_case(case: FitCase, comm: Comm, log: Path, out: Path) -> str:
    """The digest of a case, on this rank."""
    use_threads(case.threads)
    kind = 'kind="number"' if case.fit == "softmax" else "threshold=1.0"
    labels = f'[{{column="y", {kind}}}, {{column="w", kind="number"}}]'
    sets = ["data.split=[]", f"data.schema.label={labels}"]
    config = fitting.config_of([str(log)], [], sets, comm, label="y", weight="w")
    keys = FitKeys(**FITS[case.fit])
    killed = out.with_suffix(".killed")
    resume = killed.exists()
    if case.how != "whole" and not resume:
        try:
            _Interrupted(config, keys, comm, out, partial(strike, case, comm, killed)).run()
        except Stopped:
            StopSignal.held = 0
        else:
            raise AssertionError("it took its last step before it was to stop")
        resume = True
    return fitting.FitRun(config, keys, comm, out, resume=resume).run()["digest"]


def strike(case: FitCase, comm: Comm, killed: Path) -> None:
    """Ask all ranks to end, or kill the last one once; `killed` says that it was."""
    if case.how == "stopped":
        terminate()
    elif comm.rank == comm.size - 1:
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class _Interrupted(fitting.FitRun):
    """A fit that is struck after a step, and saved after each."""

    def __init__(
        self, config: Config, keys: FitKeys, comm: Comm, out: Path, strike: Callable[[], None]
    ) -> None:
        super().__init__(config, keys, comm, out)
        self._strike = strike

    def _note(self, facts: StepFacts) -> None:
        super()._note(facts)
        self._saved = -1e9  # so that it is due
        if facts.step == STEP + 1:
            self._strike()


def work(folder: Path, world: Comm, ranks: Sequence[int]) -> None:
    """Run the cases that have no line in `folder`/lines yet, on the first ranks of this launch."""
    comm_of = first_ranks(world)
    lines = folder / "lines"
    done = len(lines.read_text().splitlines()) if lines.exists() else 0
    world.quiet_barrier()  # before a line is added
    for number, case in enumerate(cases(ranks)):
        if number < done:
            continue
        out = folder / str(number)
        digest = ""
        if comm := comm_of(case.ranks):
            digest = run_case(case, comm, folder / "log.parquet", out)
        world.quiet_barrier()
        if world.rank == 0:
            shutil.rmtree(out, ignore_errors=True)
            with open(lines, "a") as file:
                file.write(json.dumps([*case, digest]) + "\n")
        world.quiet_barrier()


def launch(cpu: str, folder: Path, ranks: Sequence[int] = RANKS) -> Iterator[tuple[FitCase, str]]:
    """Every case with its digest, on a kind of CPU. RuntimeError says what was printed where one
    failed.
    """
    folder.mkdir()
    write_log(folder / "log.parquet")
    arguments = [
        "-m",
        "mpi4py",
        __file__,
        "--work",
        str(folder),
        "--ranks",
        ",".join(map(str, ranks)),
    ]
    command, environment = mpiexec_command(max(ranks), arguments)
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
        "NUMBA_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "PASSIVE",
        **CPUS[cpu],
    }
    log = folder / "log"
    killed = -1
    status = ""
    while len(list(folder.glob("*.killed"))) > killed:
        killed = len(list(folder.glob("*.killed")))
        status = watched(command, environment, log, folder / "lines", SECONDS)
    if status != "exit status 0":
        raise RuntimeError(f"{cpu}: {status}:\n{log.read_text(errors='replace')[-4000:]}")
    for line in (folder / "lines").read_text().splitlines():
        *case, digest = json.loads(line)
        yield FitCase(*case), digest


def committed() -> dict[str, str]:
    """The digest of every fit."""
    return json.loads(DIGESTS.read_text())


def main() -> int:
    """Run all, compare, and with --write record."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.promise_fits")
    parser.add_argument("--write", action="store_true", help="replace the committed digests")
    parser.add_argument("--cpu", choices=CPUS, action="append", help="only these")
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)))
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    ranks = [int(count) for count in options.ranks.split(",")]
    if options.work:
        work(options.work, get_comm(launched_ranks() or 1), ranks)
        return 0
    kinds = list(CPUS) if platform.machine() in ("x86_64", "AMD64") else ["host"]
    seen: dict[str, str] = {}
    wrong = count = 0
    with tempfile.TemporaryDirectory(prefix="promise-") as folder:
        for cpu in options.cpu or kinds:
            for case, digest in launch(cpu, Path(folder) / cpu, ranks):
                expected = seen if options.write else committed()
                count += 1
                if digest != expected.setdefault(case.fit, digest):
                    wrong += 1
                    print(f"{cpu}, {case}: digest {digest}, not {expected[case.fit]}")
            print(f"{cpu}: {count} ways until here", flush=True)
    if options.write and not wrong:
        DIGESTS.write_text(json.dumps(seen, indent=2) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
