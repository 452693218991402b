"""How does a test start `neocpu train` as users do, and end it as a power cut would?"""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from neocpu.parallel.transport.launch import mpiexec_command


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
    return subprocess.Popen(
        command if ranks > 1 else command[3:],
        env=environment | {"NUMBA_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill(job: "subprocess.Popen[str]") -> None:
    """End mpiexec and its ranks, as a power cut would."""
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGKILL)
    job.communicate()
