"""Is a run that is killed, stopped or misused safe through the real command? `mpiexec -n W neocpu
train`, start to end.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import kill
from jobs import start as start_job
from promise_cases import FAMILIES, MAIN, write_data

from neocpu.parallel.transport.launch import find_mpiexec
from neocpu.train.checkpoint.reading import CheckpointFile
from tests.jobs import ran

pytestmark = pytest.mark.usefixtures("mpiexec")

SECONDS = 240  # a job, kernels to be compiled included
LONG = ("training.epochs=100000", "training.steps=200000")  # a run that nobody waits for
KEEP = ("checkpoint.keep=100000", "checkpoint.full_every=4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, a config, and `whole`: an uninterrupted run of 40 steps on one rank."""
    folder = tmp_path_factory.mktemp("resume")
    write_data(folder)
    (folder / "small.toml").write_text(FAMILIES[MAIN].toml(folder))
    done = finish(start(folder, "whole", 1, "training.epochs=10", "training.steps=40"))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def jobs() -> Iterator[list[subprocess.Popen[str]]]:
    """Jobs that are killed if a test leaves them."""
    left: list[subprocess.Popen[str]] = []
    yield left
    for job in left:
        kill(job)


def start(
    folder: Path, out: str, ranks: int, *sets: str, resume: bool = False
) -> subprocess.Popen[str]:
    """Start the small run, or go on with it."""
    return start_job(folder / "small.toml", folder / out, ranks, *sets, resume=resume)


def finish(job: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """What a job said, and its status."""
    try:
        out, err = job.communicate(timeout=SECONDS)
    finally:
        kill(job) if job.poll() is None else None
    return subprocess.CompletedProcess(job.args, job.returncode, out, err)


def wait(job: subprocess.Popen[str], reached: Callable[[], object]) -> None:
    """Until something is reached; fails with what the job said if it ends before."""
    deadline = time.monotonic() + SECONDS
    while not reached():
        assert job.poll() is None, finish(job)
        assert time.monotonic() < deadline, "not reached in time"
        time.sleep(0.01)


def steps(folder: Path, out: str) -> list[int]:
    """Steps of the complete checkpoints of a run."""
    return sorted(
        int(path.stem.removeprefix("step-"))
        for path in (folder / out / "checkpoints").glob("step-*.h5")
    )


def digest(folder: Path, out: str) -> str:
    return json.loads((folder / out / "run.json").read_text())["digest"]


def saved(folder: Path, out: str, step: int) -> str:
    """Digest of a checkpoint."""
    with CheckpointFile(folder / out / "checkpoints" / f"step-{step:08d}.h5") as file:
        assert file.recomputed_digest() == file.digest
        return file.digest


def test_a_killed_run_goes_on_elsewhere_to_the_same_digest(
    folder: Path, jobs: list[subprocess.Popen[str]]
) -> None:
    jobs.append(
        start(
            folder, "killed", 3, *LONG, "checkpoint.every_steps=3", *KEEP, "parallel.plan=row_wise"
        )
    )
    wait(jobs[0], lambda: steps(folder, "killed"))
    kill(jobs[0])
    _drop_after(folder, "killed", 36)  # if the machine was quick, or this test asleep
    done = finish(
        start(
            folder,
            "killed",
            2,
            "training.epochs=10",
            "training.steps=40",
            "parallel.plan=column_wise",
            resume=True,
        )
    )
    assert done.returncode == 0, done.stderr
    assert "resuming from step-" in done.stdout
    assert done.stdout.splitlines()[-1] == f"digest {digest(folder, 'whole')}"
    assert digest(folder, "killed") == digest(folder, "whole")


def test_a_killed_run_of_rows_narrower_than_their_caches_goes_on_as_if_untouched(
    folder: Path, jobs: list[subprocess.Popen[str]]
) -> None:
    levels = ("memory.placement=hbm_over_ddr_over_ssd", "memory.policy=lfu", "memory.prefetch=2")
    budgets = ("memory.hbm=70_000", "memory.ddr=90_000", "memory.cache_format=fp32")
    forms = (
        "model.embedding_format=fp16",
        "model.embedding_rounding=stochastic",
        "tables.large.format=int8",
    )
    same = (*levels, *budgets, *forms, "parallel.plan=row_wise", "checkpoint.every_steps=3", *KEEP)
    jobs.append(start(folder, "wide", 2, *LONG, *same))
    wait(jobs[0], lambda: len(steps(folder, "wide")) > 7)
    kill(jobs[0])
    there = steps(folder, "wide")
    untouched = {step: saved(folder, "wide", step) for step in there}
    _drop_after(folder, "wide", there[2])  # now it was killed soon after
    done = finish(
        start(folder, "wide", 2, LONG[0], f"training.steps={there[-1]}", *same, resume=True)
    )
    assert done.returncode == 0, done.stderr
    assert f"resuming from step-{there[2]:08d}.h5" in done.stdout
    assert {step: saved(folder, "wide", step) for step in steps(folder, "wide")} == untouched
    tiers = json.loads((folder / "wide" / "run.json").read_text())["tiers"]
    assert any(tier["tier"] == "ssd" and tier["read"] and tier["index_bytes"] for tier in tiers)


def test_sigterm_leaves_a_checkpoint_to_resume_from(
    folder: Path, jobs: list[subprocess.Popen[str]]
) -> None:
    jobs.append(start(folder, "stopped", 3, *LONG, "checkpoint.every_steps=20", *KEEP))
    wait(jobs[0], lambda: steps(folder, "stopped"))
    second = finish(start(folder, "stopped", 1, resume=True))  # while the first runs
    assert second.returncode == 1
    assert "stopped is in use by another run: process " in second.stderr
    os.kill(jobs[0].pid, _stop_signal())
    done = finish(jobs[0])
    assert done.returncode == 128 + _stop_signal(), done.stderr
    assert (
        done.stderr.count("neocpu: ") == 1
        and "a checkpoint is written, go on with --resume" in done.stderr
    )
    last = steps(folder, "stopped")[-1]
    assert f"after step {last};" in done.stderr
    done = finish(start(folder, "stopped", 1, f"training.steps={last + 2}", LONG[0], resume=True))
    assert done.returncode == 0, done.stderr
    assert f"resuming from step-{last:08d}.h5" in done.stdout


def test_resume_without_a_checkpoint_starts_anew_and_says_so(folder: Path) -> None:
    unreadable = folder / "none" / "checkpoints" / "step-00000003.h5"
    unreadable.parent.mkdir(parents=True)
    unreadable.write_bytes(b"not a checkpoint")
    done = finish(start(folder, "none", 2, "training.steps=2", resume=True))
    assert done.returncode == 1, done.stderr
    assert "from step 0 would overwrite them" in done.stderr and "step-00000003.h5" in done.stderr
    assert "passing over step-00000003.h5: " in done.stdout
    assert unreadable.read_bytes() == b"not a checkpoint"
    unreadable.unlink()
    done = finish(start(folder, "none", 2, "training.steps=2", resume=True))
    assert done.returncode == 0, done.stderr
    assert "no complete checkpoint in" in done.stdout and "starting at step 0" in done.stdout


@pytest.mark.parametrize(
    ("ranks", "sets", "resume", "message"),
    [
        (
            2,
            ("training.seed=5",),
            True,
            "keys that may not change on resume: training.seed was 20221, now 5",
        ),
        (
            1,
            ("tables.few.rows=4", "optimizer.sparse.eps=1e-6"),
            True,
            "tables.few.rows was 3, now 4; optimizer.sparse.eps",
        ),
        (2, (), False, "whole already has results (run.json); go on with --resume"),
    ],
)
def test_what_would_spoil_results_is_refused(
    folder: Path, ranks: int, sets: tuple[str, ...], resume: bool, message: str
) -> None:
    before = {
        path: path.read_bytes()
        for path in (folder / "whole").rglob("*")
        if path.suffix in (".h5", ".json")
    }
    done = finish(start(folder, "whole", ranks, *sets, resume=resume))
    assert done.returncode == 1, done.stderr
    assert message in done.stderr
    assert done.stderr.count("neocpu: error: ") == 1 and "Traceback" not in done.stderr
    changed = [path for path, data in before.items() if path.read_bytes() != data]
    assert [path.name for path in changed if path.name != "plan.json"] == []


def _drop_after(folder: Path, out: str, step: int) -> None:
    """Delete the checkpoints after a step."""
    for late in steps(folder, out):
        if late > step:
            (folder / out / "checkpoints" / f"step-{late:08d}.h5").unlink()


def _stop_signal() -> signal.Signals:
    """SIGTERM; Open MPI's launcher kills the ranks soon after that one."""
    version = ran([str(find_mpiexec()), "--version"], timeout=60).stdout
    return signal.SIGUSR1 if "Open MPI" in version or "prte" in version.lower() else signal.SIGTERM


def test_runs_killed_at_any_instant_end_as_if_untouched() -> None:
    command = [sys.executable, "-m", "tests.kill_runs", "--times", "6", "--steps", "100"]
    done = ran(command, timeout=600)
    assert done.returncode == 0, done.stderr
    assert re.match(
        r"killed [1-9]\d* times; [1-9]\d* runs reached their end, all with the digest", done.stdout
    )
