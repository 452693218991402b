"""How does a test run commands and programs: here, to an end, beside it, or until a power cut?"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from neocpu.cli import cli
from neocpu.parallel.transport.launch import mpiexec_command


def invoke(*words: object) -> Result:
    """What a command of neocpu says in this process; what it raises is raised."""
    return CliRunner().invoke(
        cli, [*map(str, words)], catch_exceptions=False, standalone_mode=False
    )


def ran(words: Sequence[str | Path], **options: Any) -> "subprocess.CompletedProcess[str]":
    """A program that has ended, and what it wrote; options : of `subprocess.run`."""
    return subprocess.run(words, capture_output=True, text=True, **options)


def started(
    words: Sequence[str | Path], stderr: int = subprocess.PIPE, **options: Any
) -> "subprocess.Popen[str]":
    """A program that runs in a group of processes of its own; options : of `subprocess.Popen`."""
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
        **options,
    )


def start(
    config: Path,
    out: Path,
    ranks: int,
    *sets: str,
    resume: bool = False,
    files: Sequence[Path] = (),
) -> "subprocess.Popen[str]":
    """Start `neocpu train`, or `neocpu online` with files; one rank without mpiexec."""
    command = "online" if files else "train"
    arguments = ["-m", "neocpu", command, str(config), *map(str, files), "--out", str(out)]
    arguments += [part for one in sets for part in ("--set", one)] + ["--resume"] * resume
    command, environment = mpiexec_command(ranks, arguments)
    environment |= {"NUMBA_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return started(command if ranks > 1 else command[3:], env=environment)


def kill(job: "subprocess.Popen[str]") -> None:
    """End mpiexec and its ranks, as a power cut would."""
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGKILL)
    job.communicate()


def watched(
    command: Sequence[str], environment: Mapping[str, str], log: Path, events: Path, seconds: float
) -> str:
    """Run a job that writes `events` as it goes on and prints into `log`: its exit status in words.

    The process group is killed when `events` does not grow for `seconds`.
    """
    with open(log, "wb") as out:
        job = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    size = 0
    since = time.monotonic()
    try:
        while job.poll() is None:
            time.sleep(0.05)
            now = events.stat().st_size if events.exists() else 0
            if now != size:
                size = now
                since = time.monotonic()
            elif time.monotonic() - since > seconds:
                return f"killed: nothing came of it for {seconds:g} s"
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    return f"exit status {job.returncode}"
