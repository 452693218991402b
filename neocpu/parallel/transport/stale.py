"""Do the variables of an MPI launcher belong to this process? Shells inherit them, and keep them.

A process that was started alone, in a shell that has the variables of another job, would wait for
ranks and servers that are not there. What can be seen to be gone is told at once (`check_launch`);
where MPI does not start in time, the process is ended with a message (`started_in_time`).
"""

import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from neocpu.core.errors import EnvironmentProblem

PATIENCE = "NEOCPU_MPI_START"  # seconds that MPI may take to start
SECONDS = 60.0
# how the names of processes begin that start ranks, as the system shortens them
LAUNCHERS = (
    "hydra_",
    "pmi_proxy",
    "mpiexec",
    "mpirun",
    "orted",
    "prte",
    "slurmstepd",
    "flux",
    "jsm",
)
PREFIXES = ("PMI_", "PMIX_", "OMPI_", "MV2_", "FLUX_", "JSM_", "SLURM_STEP_", "HYDI_")
SETTINGS = ("OMPI_ALLOW_", "OMPI_MCA_osc")  # these do not belong to a job


def check_launch(variables: Mapping[str, str] = os.environ) -> None:
    """Raise EnvironmentProblem where a launcher's variable names a connection that is not there."""
    descriptor = variables.get("PMI_FD", "")
    if descriptor.isdigit():
        try:
            os.fstat(int(descriptor))
        except (OSError, OverflowError):
            raise EnvironmentProblem(
                f"PMI_FD={descriptor} is no open connection to a launcher; {advice(variables)}"
            ) from None
    for name, value in variables.items():
        port = value.rpartition("tcp4://127.0.0.1:")[2]
        # of servers on other hosts nothing can be seen from here
        local = name.startswith("PMIX_SERVER_URI") and port.isdigit()
        if local and int(port) not in _listening(int(port)):
            raise EnvironmentProblem(
                f"{name}={value}: no launcher listens there; {advice(variables)}"
            )


def is_stale(variables: Mapping[str, str] = os.environ) -> bool:
    """Is the launcher that these variables name seen to be gone?"""
    try:
        check_launch(variables)
    except EnvironmentProblem:
        return True
    return False


def advice(variables: Mapping[str, str] = os.environ) -> str:
    """What to do if they are left from another job."""
    names = sorted(
        name for name in variables if name.startswith(PREFIXES) and not name.startswith(SETTINGS)
    )
    unset = " ".join(f"-u {name}" for name in names[:12])
    return (
        "start ranks with mpiexec or srun; or, if this process was started alone, these variables "
        f"are left from another job: env {unset} neocpu ..."
    )


@contextmanager
def started_in_time(variables: Mapping[str, str] = os.environ) -> Iterator[None]:
    """End this process, with a message, if the block takes longer than MPI may take to start.

    A child process watches: MPI's start does not return to Python, whose threads then wait too.
    Where the parent is a launcher, the variables are its own: then ranks may start as slowly as
    many on few cores do, and nobody watches unless NEOCPU_MPI_START says how long.
    """
    try:
        seconds = float(variables.get(PATIENCE, SECONDS))
    except ValueError:
        seconds = SECONDS
    if not hasattr(os, "fork") or (PATIENCE not in variables and _parent_launches()):
        yield
        return
    text = (
        f"neocpu: error: MPI has not started within {seconds:g} s; {advice(variables)}; a start "
        f"that takes longer needs {PATIENCE}=SECONDS"
    )
    parent = os.getpid()
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, none of which the child needs
        child = os.fork()
    if child == 0:
        try:
            _watch(parent, text, seconds)
        finally:
            # the child is a copy: it must not run what the parent has registered for its end
            os._exit(0)
    try:
        yield
    finally:
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _parent_launches() -> bool:
    """Whether the parent of this process is part of a launcher, by its name."""
    try:
        name = Path(f"/proc/{os.getppid()}/comm").read_text().strip()
    except OSError:
        return False
    return name.startswith(LAUNCHERS)


def _watch(parent: int, text: str, seconds: float) -> None:
    """End the parent after so many seconds; return if it ends by itself."""
    # sent to the whole group of processes: the child stays as long as its parent does
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(3, 1024)  # the launcher must see the end of its connections to the parent
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.getppid() != parent:
            return
        time.sleep(0.05)
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())
    # a handler written in Python does not run while MPI's start holds the process
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(OSError):
            os.kill(parent, number)
        time.sleep(1.0)
        # its number may soon be another process's
        if os.getppid() != parent:
            return


def _listening(port: int) -> Sequence[int]:
    """Ports of this host that are listened on; where that is not known, the one asked for."""
    ports = []
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        except OSError:
            return [port]
        for line in lines:
            fields = line.split()
            if fields[3] == "0A":  # TCP_LISTEN
                ports.append(int(fields[1].rpartition(":")[2], 16))
    return ports
