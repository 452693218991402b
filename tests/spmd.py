"""How is a parallel test written once and run on threads and under real MPI?

    # tests/spmd_something.py; (comm, folder) asks for an empty folder that all ranks share
    @spmd(2, 3, 4, 8)
    def sums_are_the_same(comm): ...

`tests/test_spmd.py` finds every body in `tests/spmd_*.py` and runs it on threads, and under
`mpiexec`: one launch for all bodies that were selected, each reported as its own test. A body is
called on every rank with a new comm, which need not have all ranks of the job; it must call the
comm's verbs in the same order everywhere and draw nothing at random that differs between ranks.
"""

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs import watched

from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.launch import mpiexec_command

TESTS = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Body:
    """A test body and the rank counts on which it runs."""

    name: str
    ranks: tuple[int, ...]
    function: Callable[..., Any]

    def run(self, comm: Comm, folder: Path) -> None:
        """Call the body on one rank."""
        wants_folder = "folder" in inspect.signature(self.function).parameters
        self.function(comm, folder) if wants_folder else self.function(comm)


BODIES: dict[str, Body] = {}
Case = tuple[str, int]  # name of a body, number of ranks


def spmd(*ranks: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a body to run on these numbers of ranks."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = f"{function.__module__.removeprefix('spmd_')}.{function.__name__}"
        assert name not in BODIES, f"two bodies are called {name}"
        BODIES[name] = Body(name, ranks, function)
        return function

    return register


def discover() -> dict[str, Body]:
    """Import every `tests/spmd_*.py`; all bodies by name."""
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    for path in sorted(TESTS.glob("spmd_*.py")):
        if path.stem != "spmd_main":
            importlib.import_module(path.stem)
    return BODIES


@dataclass(frozen=True)
class Outcome:
    """What became of a body: "ok", "failed", "skipped", and why."""

    state: str
    text: str = ""


def run_under_mpi(
    cases: Sequence[Case], folder: Path, seconds: float = 180.0
) -> dict[Case, Outcome]:
    """Outcome of every case under one `mpiexec`, launched again only for what a failing body left
    undone.

    The job has as many ranks as the largest case; a case of fewer ranks runs on the first of them,
    over a communicator of their own.

    seconds: time for the launch and for each body, kernels to be compiled included; then the
    process group is killed.
    """
    outcomes: dict[Case, Outcome] = {}
    todo = list(cases)
    for attempt in range(len(cases)):
        if not todo:
            break
        place = folder / f"launch{attempt}"
        place.mkdir(parents=True)
        printed = _launch(todo, place, seconds)
        finished = _read(place, todo)
        silent = [case for case in todo if case not in finished]
        if silent and all(outcome.state != "failed" for outcome in finished.values()):
            # the launch broke outside of any body that spoke: blame the first without an outcome
            finished[silent[0]] = Outcome(
                "failed", f"mpiexec ended before the body did:\n{printed}"
            )
        outcomes.update(finished)
        todo = [case for case in todo if case not in outcomes]
    return outcomes


def _launch(cases: Sequence[Case], place: Path, seconds: float) -> str:
    """Run the bodies; what the job printed, and how it ended."""
    words = [f"{name}-{ranks}" for name, ranks in cases]
    command, environment = mpiexec_command(
        max(ranks for _, ranks in cases),
        ["-m", "mpi4py", str(TESTS / "spmd_main.py"), str(place), *words],
    )
    environment.setdefault("NUMBA_NUM_THREADS", "1")
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    log = place / "log.txt"
    status = watched(command, environment, log, place / "rank0.jsonl", seconds)
    text = log.read_text(errors="replace")
    return f"{text}\n{status}"


def _read(place: Path, cases: Sequence[Case]) -> dict[Case, Outcome]:
    """Outcomes that the ranks wrote down: a case is ok when it is so on all its ranks."""
    by_case: dict[Case, dict[int, Outcome]] = {}
    for rank in range(max(ranks for _, ranks in cases)):
        path = place / f"rank{rank}.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            name, ranks, state, text = json.loads(line)
            by_case.setdefault((name, ranks), {})[rank] = Outcome(state, text)
    outcomes = {}
    for case in cases:
        by_rank = by_case.get(case, {})
        failures = [f"rank {rank}:\n{o.text}" for rank, o in by_rank.items() if o.state == "failed"]
        if failures:
            outcomes[case] = Outcome("failed", "\n".join(failures))
        elif len(by_rank) == case[1]:
            outcomes[case] = by_rank[0]
    return outcomes
