"""Do the scripts of examples/slurm work as their users run them? With a stand-in for Slurm."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from promise_cases import FAMILIES, MAIN, write_data

from neocpu.core.errors import EnvironmentProblem
from neocpu.parallel.transport.launch import find_mpiexec, mpiexec_command
from neocpu.train.checkpoint.reading import CheckpointFile

try:
    find_mpiexec()
    HAS_MPI = True
except EnvironmentProblem:
    HAS_MPI = False

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "examples" / "slurm"
# srun starts two ranks; scontrol notes what it was asked
SRUN = """#!/bin/bash
for name in ${{!SLURM_@}}; do unset "$name"; done
exec {mpiexec} -n 2 "$@"
"""
SCONTROL = """#!/bin/bash
echo "$@" >> {folder}/requeued
"""
NEOCPU = """#!/bin/bash
exec {python} -m neocpu "$@"
"""


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_bash(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def slurm(folder: Path) -> dict[str, str]:
    """The environment of a task of a job array, with the stand-ins in front of PATH."""
    programs = folder / "bin"
    programs.mkdir()
    facts = {"mpiexec": find_mpiexec(), "folder": folder, "python": sys.executable}
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("neocpu", NEOCPU)):
        (programs / name).write_text(text.format(**facts))
        (programs / name).chmod(0o755)
    _, environment = mpiexec_command(2, [])
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    return environment | {
        "PATH": f"{programs}{os.pathsep}{environment['PATH']}",
        "SLURM_JOB_ID": "8",
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "1",
        "SLURM_SUBMIT_DIR": str(SCRIPTS),
        "SLURM_TMPDIR": str(folder),
        "NUMBA_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }


@pytest.mark.skipif(not HAS_MPI, reason="no mpiexec")
def test_a_job_that_nears_its_limit_goes_back_into_the_queue(tmp_path: Path) -> None:
    """Slurm's early warning, the requeue, and the next life of the job, which goes on."""
    write_data(tmp_path)
    config = tmp_path / "small.toml"
    text = FAMILIES[MAIN].toml(tmp_path).replace("epochs = 2", "epochs = 100000")
    config.write_text(text.replace("steps = 5", "steps = 200000") + "[checkpoint]\nevery_steps=5\n")
    environment = slurm(tmp_path)
    command = ["bash", str(SCRIPTS / "array.sh"), str(config), str(tmp_path / "runs")]
    job = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    folder = tmp_path / "runs" / "1" / "checkpoints"
    deadline = time.monotonic() + 200
    try:
        while not list(folder.glob("step-*.h5")):
            assert job.poll() is None, job.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(job.pid, signal.SIGUSR1)
        said, _ = job.communicate(timeout=120)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode == 0, said
    assert (tmp_path / "requeued").read_text() == "requeue 7_1\n"
    assert f"stopped by signal {int(signal.SIGUSR1)} after step" in said
    last = max(folder.glob("step-*.h5"))
    with CheckpointFile(last) as file:
        step = file.step
        assert file.config().optimizer.sparse.learning_rate == 0.02
    # the next life; this time the run reaches its end, and the job with it
    config.write_text(config.read_text().replace("steps = 200000", f"steps = {step + 2}"))
    done = subprocess.run(
        command,
        env=environment | {"SLURM_RESTART_COUNT": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert f"resuming from {last.name}" in done.stdout
    assert (tmp_path / "requeued").read_text() == "requeue 7_1\n"
