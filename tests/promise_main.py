"""Runs cases of the promise in one set of processes: `mpiexec -n W python -m mpi4py promise_main.py
FOLDER JOBS`.

JOBS is a JSON list in FOLDER. Rank 0 writes JOBS.lines, JSON too: first the kind of CPU that
kernels are compiled for and the floats in its vectors, then for every case what was run, its
digest or why it was refused, and the seconds. A case that is "killed" ends all processes, once;
started again, they go on with it.
"""

import gc
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    gc.disable()  # until all is imported, as in `spmd_main.py`
sys.path.insert(0, str(Path(__file__).resolve().parent))

from promise_cases import (
    EDITED_WITH_THREADS,
    MEMORIES,
    ONLINE_STEPS,
    PLANS,
    RANKS_PER_NODE,
    Case,
    other_plan,
)
from promise_draws import MIRROR

from neocpu.core.errors import NeocpuError, PlanError, Stopped
from neocpu.kernels.compile.jit import cpu_kind
from neocpu.kernels.compile.threads import use_threads
from neocpu.kernels.simd.tiles import target, tile_shape
from neocpu.parallel.sharding.plan import Plan
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.launch import StopSignal, get_comm, launched_ranks
from neocpu.parallel.transport.threads import run_threads
from neocpu.plan.files import plan_file
from neocpu.plan.search.auto import make_plan
from neocpu.train.before import companion
from neocpu.train.config import config as configs
from neocpu.train.run.online import OnlineTrainer
from neocpu.train.run.trainer import Trainer
from neocpu.train.watch.results import RunReport


def begun_folder(folder: Path, case: Case, source: int) -> Path:
    """Where the run lies that began on `source` ranks and that this case goes on with."""
    return folder / f"begun-{case.family}-{source}-{other_plan(case.plan)}-{case.stop}"


def first_day(case: Case, comm: Comm, folder: Path) -> Path:
    """The run of the first day that a run of the next one starts from; made where it is not yet,
    whoever asks. All of them have one digest, which enters that of the next day.
    """
    out = folder / f"first-{comm.size}-{case.family}"
    note = out.with_suffix(".made")
    made = comm.allgather_bytes(bytes([note.exists()]))[0] != b"\0"
    if not made:
        clear(out, comm)
        config = configs.loads(
            case.learnt.toml(folder, day=1),
            overrides=["parallel.plan=auto", *MEMORIES[case.memory]],
        )
        train(config, comm, out)
        comm.quiet_barrier()
        note.touch()
    return out


def clear(out: Path, comm: Comm) -> None:
    """Remove what was left of a run by processes that were ended."""
    if comm.rank == 0:
        shutil.rmtree(out, ignore_errors=True)
    comm.quiet_barrier()


def day_keys(case: Case, comm: Comm, folder: Path) -> list[str]:
    """What the config of a family of several days has besides."""
    day = case.learnt.day
    if day == "next":
        return [f"training.init_from={first_day(case, comm, folder)}"]
    return [f"training.steps={ONLINE_STEPS}"] if day == "online" else []


def load_config(case: Case, comm: Comm, folder: Path, plan: str, out: Path) -> configs.Config:
    """The config of a case over the data in `folder`; out : of the run."""
    mirror = f"checkpoint.mirror={out.with_suffix('.mirror')}"
    config = configs.loads(
        case.learnt.toml(folder),
        overrides=[
            *day_keys(case, comm, folder),
            *(mirror if one == f"checkpoint.mirror={MIRROR}" else one for one in case.sets),
            # the plan that is chosen for towers and groups
            *["parallel.towers=false", "parallel.replica_groups=1"] * (plan != case.plan),
        ],
    )
    # a pattern that matches no table would be refused: the plan goes through the same checks as a
    # user's
    inline = PLANS[plan]
    if isinstance(inline, dict):
        inline = (
            "{" + ", ".join(f'"{pattern}" = "{scheme}"' for pattern, scheme in inline.items()) + "}"
        )
    return configs.loads(config.text, overrides=[*config.overrides, f"parallel.plan={inline}"])


def with_edited_plan(config: configs.Config, comm: Comm, path: Path) -> configs.Config:
    """The config with its plan in a file that was edited: other ranks, rows cut elsewhere."""
    if comm.rank == 0:
        plan = make_plan(config.tables, config.parallel.plan, comm.size, comm.ranks_per_node)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(plan_file.text(edited(plan)))
    name = json.dumps(str(path))
    return configs.loads(config.text, overrides=[*config.overrides, f"parallel.plan={name}"])


def edited(plan: Plan) -> Plan:
    """The plan with ranks in opposite order, and the first cut of row-wise tables one row later."""
    shards = []
    for number, scheme in enumerate(plan.schemes):
        rectangles = list(plan.of_table(number))
        if scheme == "row_wise" and len(rectangles) > 1:
            first, second = rectangles[:2]
            border = first.rows[1] + 1
            if border < second.rows[1]:
                rectangles[0] = replace(first, rows=(first.rows[0], border))
                rectangles[1] = replace(second, rows=(border, second.rows[1]))
        if scheme != "data_parallel":
            rectangles = [replace(s, rank=plan.ranks - 1 - s.rank) for s in rectangles]
        shards += rectangles
    return replace(plan, shards=tuple(sorted(shards))).check()


class QuickReport(RunReport):
    """Leaves out the summary and the picture: they would take most of the time."""

    def finish(self, summary: dict[str, Any]) -> None:
        """Nothing."""


def files_of(case: Case, folder: Path) -> list[str]:
    """The files of an online run; none: it is not one."""
    online = case.learnt.day == "online"
    return [str(folder / f"day-{day}.h5") for day in (1, 2)] if online else []


def stop_at(step: int, strike: Callable[[], None]) -> Any:
    """A `progress` that calls `strike` once so many steps are taken."""

    @contextmanager
    def progress(total: int, done: int) -> Iterator[Any]:
        def advance(steps_taken: int, samples: int) -> None:
            if steps_taken == step:
                strike()

        yield advance

    return progress


def terminate() -> None:
    """Ask this process to end; a thread asks the others, which no signal would reach."""
    if threading.current_thread() is threading.main_thread():
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        StopSignal.held = signal.SIGTERM


def train(
    config: configs.Config,
    comm: Comm,
    out: Path,
    *,
    resume: bool = False,
    stop: int = 0,
    files: Sequence[str] = (),
) -> dict[str, Any]:
    """The summary of a run, over files as they come if there are any; nothing if it was to be
    stopped, and was.
    """
    lines: list[str] = []
    progress = stop_at(stop, terminate) if stop else None
    report = QuickReport(out, comm.rank, tell=lines.append, progress=progress)
    try:
        summary = trainer_of(config, comm, out, files, resume, report).run()
    except Stopped:
        assert stop, "nobody sent a signal"
        StopSignal.held = 0  # all have agreed on it
        return {}
    assert not stop or config.training.patience, "the signal was not noticed"
    assert (
        not resume or comm.rank or any(text.startswith("resuming from step-") for text in lines)
    ), lines
    return summary


def train_killed(
    config: configs.Config, comm: Comm, out: Path, files: Sequence[str], step: int
) -> dict[str, Any]:
    """The summary of a run that goes on in a second life of these processes: in the first, a rank
    is killed some milliseconds after a step, and all end with it.
    """
    note = out.with_suffix(".killed")
    second = note.exists()
    processes = [int(number) for number in comm.allgather_bytes(str(os.getpid()).encode())]
    victim = processes[step % comm.size]
    milliseconds = int(sha256(str(out).encode()).hexdigest(), 16) % 40

    def strike() -> None:  # on rank 0, which shows how far the run has come
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
        # while ranks go on: in the next step, in a checkpoint, at the end
        threading.Timer(milliseconds / 1e3, os.kill, (victim, signal.SIGKILL)).start()

    progress = None if second else stop_at(step, strike)
    report = QuickReport(out, comm.rank, tell=lambda line: None, progress=progress)
    summary = trainer_of(config, comm, out, files, second, report).run()
    if not second:
        time.sleep(60)  # the signal is on its way
        raise AssertionError("no rank was killed")
    return summary


def trainer_of(
    config: configs.Config,
    comm: Comm,
    out: Path,
    files: Sequence[str],
    resume: bool,
    report: RunReport,
) -> Trainer:
    """The trainer of a run, over files as they come if there are any."""
    if files:
        return OnlineTrainer(config, comm, out, files, resume=resume, report=report)
    return Trainer(config, comm, out, resume=resume, report=report)


def begin(case: Case, comm: Comm, folder: Path) -> None:
    """Leave a stopped run for `case` to go on with."""
    use_threads(1 + case.stop % 2)
    out = begun_folder(folder, case, comm.size)
    clear(out, comm)
    config = load_config(case, comm, folder, other_plan(case.plan), out)
    train(config, comm, out, stop=case.stop, files=files_of(case, folder))


def run_case(case: Case, comm: Comm, folder: Path, out: Path, source: int) -> dict[str, Any]:
    """Digest, and a hash of the metrics, of one case on this rank."""
    use_threads(case.threads)
    if not out.with_suffix(".killed").exists():
        clear(out, comm)
    config = load_config(case, comm, folder, case.plan, out)
    files = files_of(case, folder)
    if case.plan == "mixed" and case.threads == EDITED_WITH_THREADS:
        config = with_edited_plan(config, comm, out.with_suffix(".json"))
    if case.how == "stopped":
        train(config, comm, out, stop=case.stop, files=files)
    elif case.how == "elsewhere":
        begun = begun_folder(folder, case, source)
        if case.ways and not (begun / "checkpoints").exists():
            raise PlanError(f"the run that begins on {source} ranks was refused")
        comm.quiet_barrier()
        if comm.rank == 0:
            shutil.copytree(begun, out)
        comm.quiet_barrier()
    if case.how == "killed":
        summary = train_killed(config, comm, out, files, case.stop)
    else:
        summary = train(config, comm, out, resume=case.how != "whole", files=files)
    metrics = json.dumps(summary["metrics"]["test"], sort_keys=True)
    return {"digest": summary["digest"], "metrics": sha256(metrics.encode()).hexdigest()}


def first_ranks(world: Comm) -> Callable[[int], Comm | None]:
    """A function from a number of ranks to the comm of so many; None on ranks beyond them.

    Every rank has to call it with the same numbers.
    """

    @cache
    def comm_of(ranks: int) -> Comm | None:
        if ranks == world.size:
            return world
        takes_part = world.rank < ranks
        if world.size == 1 or ranks == 1:
            return SingleComm() if takes_part else None
        from mpi4py import MPI

        from neocpu.parallel.transport.mpi import MpiComm

        group = MPI.COMM_WORLD.Split(0 if takes_part else MPI.UNDEFINED, world.rank)
        return MpiComm(group, RANKS_PER_NODE) if takes_part else None

    return comm_of


def on_ranks(world: Comm, threads: bool) -> Callable[[int, Callable[[Comm], object]], None]:
    """A function that lets so many ranks do something: the first ones of this launch, or threads.

    Every rank has to call it with the same numbers.
    """
    comm_of = first_ranks(world)

    def work(ranks: int, body: Callable[[Comm], object]) -> None:
        if threads and ranks > 1:
            run_threads(ranks, body, ranks_per_node=RANKS_PER_NODE)
        elif comm := comm_of(ranks):
            body(comm)

    return work


def main(folder: Path, jobs: str, world: Comm, threads: bool = False) -> None:
    """Do all jobs, each ["begin" or "run", case, ranks on which the case began], on the first ranks
    of this launch; the others sleep meanwhile. Those that are done, in an earlier life, are left.

    threads : ranks are threads of this process, the only one.
    """
    lines = folder / f"{jobs}.lines"
    out = folder / f"{jobs}.out"
    let_work = on_ranks(world, threads)
    done = len(lines.read_text().splitlines()) - 1 if lines.exists() else -1
    world.quiet_barrier()  # before a line is added
    if world.rank == 0 and done < 0:
        lines.write_text(json.dumps([" ".join(cpu_kind()[1:]), tile_shape(*target())[2]]) + "\n")
    jobs_of = {"begin": [], "run": []}
    for what, fields, source in json.loads((folder / jobs).read_text()):
        case = Case(**fields | {"ways": tuple(fields["ways"])})
        if threads and case.how == "killed":
            # a signal asks for a checkpoint, for which rows leave their caches and are rounded
            case = replace(case, how="whole" if case.learnt.bound else "stopped")
        jobs_of[what].append((case, source))
    for case, source in jobs_of["begin"]:
        note = begun_folder(folder, case, source).with_suffix(".made")
        made = note.exists()
        world.quiet_barrier()  # before it is there
        if not made:
            with refusals(case):
                let_work(source, lambda comm, case=case: begin(case, comm, folder))
            world.quiet_barrier()
            if world.rank == 0:
                note.touch()
    for number, (case, source) in enumerate(jobs_of["run"]):
        if number < done:
            continue
        started = time.perf_counter()
        results: list[dict[str, Any]] = [{"digest": "", "metrics": ""}]
        place = out / str(number)

        def body(comm: Comm, case: Case = case, place: Path = place, source: int = source) -> None:
            results.append(run_case(case, comm, folder, place, source))  # noqa: B023

        with refusals(case) as refused:
            let_work(case.ranks, body)
        world.quiet_barrier()
        if world.rank == 0:
            shutil.rmtree(place, ignore_errors=True)
            seconds = time.perf_counter() - started
            record = asdict(case) | results[-1] | {"seconds": seconds, "refused": "".join(refused)}
            with open(lines, "a") as file:
                file.write(json.dumps(record) + "\n")
        world.quiet_barrier()


@contextmanager
def refusals(case: Case) -> Iterator[list[str]]:
    """Takes note of why a drawn case cannot be run, which all its ranks say alike."""
    why: list[str] = []
    try:
        yield why
    except NeocpuError as error:
        if not case.ways:
            raise
        why.append(str(error))


if __name__ == "__main__":
    # Nearly every case cuts its tables in a way of its own, and each would start a second compiler.
    companion.available = lambda: {0}
    if launched_ranks() != 1:
        from neocpu.parallel.transport import mpi

        # Two ranks of a core sleep while they wait: other tests run beside them. Fewer wait as MPI
        # does, so the cases have both ways.
        mpi.CROWD = 2
    gc.freeze()
    gc.enable()
    world = get_comm(ranks_per_node=RANKS_PER_NODE)
    main(Path(sys.argv[1]), sys.argv[2], world, threads="threads" in sys.argv[3:])
