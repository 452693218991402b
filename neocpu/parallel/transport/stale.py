"""Do the variables of an MPI launcher belong to this process? Shells inherit them, and keep them.

A process that was started alone, in a shell that has the variables of another job, would wait for
ranks and servers that are not there. What can be seen to be gone is told at once (`check_launch`);
where MPI does not start in time, the process is ended with a message (`started_in_time`).

A rank whose launcher was killed ends by itself, within a second. Open MPI's mpiexec leaves its
ranks running when it is killed by SIGKILL, and so do other launchers when their server of one host
dies: the ranks would train on, hold the folder of results, and nobody could reach them.
`end_with_launcher` watches the launcher from a thread. From where a rank sees its launcher,
`choose_copies` tells whether ranks of a host may read each other's memory.
"""

import ctypes
import errno
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

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
# by which MPICH reads long messages from the sender's memory, and its UCX opens the sender's files
DIRECT = {"MPIR_CVAR_CH4_CMA_ENABLE": "0", "UCX_POSIX_USE_PROC_LINK": "n"}
ALL_USERS = ["0", "0", "4294967295"]  # the map of users outside of any container


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


EVERY = 0.25  # seconds between two looks
GENERATIONS = 8  # a launcher may start a shell, which starts the rank
STATUS = 137  # as of a process that was killed


def end_with_launcher() -> bool:
    """End this process soon after the launcher that started it; false where none is seen."""
    launcher = _launcher()
    if launcher is None:
        return False
    threading.Thread(target=_follow, args=(launcher,), name="launcher", daemon=True).start()
    return True


class _Process(NamedTuple):
    """A running process of this host; `started` tells it from a later one of the same number."""

    number: int
    name: str
    parent: int
    started: str


def choose_copies() -> None:
    """Have MPICH copy long messages through shared memory where a rank may not read the memory of
    those beside it: each is in a container of its own, or a filter of calls forbids it. The first
    such message would end the job.
    """
    if sys.platform == "linux" and not _reads_others():
        os.environ.update(DIRECT | os.environ)


def _reads_others() -> bool:
    launcher = _launcher()
    # who does not see its launcher counts processes as no other rank does
    if launcher is None or not _may_read(os.getpid()):
        return False
    # the launcher of another user, as Slurm's, may never be read
    users = Path("/proc/self/uid_map").read_text().split()
    return users == ALL_USERS or _may_read(launcher.number)


def _may_read(process: int) -> bool:
    """May this process read the memory of another one? Asked with an address that nobody has."""
    libc = ctypes.CDLL(None, use_errno=True)
    byte = ctypes.create_string_buffer(1)
    here, there = ((ctypes.c_size_t * 2)(base, 1) for base in (ctypes.addressof(byte), 0))
    libc.process_vm_readv(process, here, 1, there, 1, 0)
    return ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)


def _look(number: int) -> _Process | None:
    """A process by its number; None if it has ended. OSError where that cannot be told."""
    try:
        # the name stands in brackets, and may itself hold brackets and blanks
        head, _, tail = Path(f"/proc/{number}/stat").read_text().rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = tail.split()
    if fields[0] in ("Z", "X"):  # it has ended, and nobody has asked for its status
        return None
    return _Process(number, head.partition("(")[2], int(fields[1]), fields[19])


def _launcher() -> _Process | None:
    """The nearest of this process's parents and grandparents that starts ranks, by its name."""
    number = os.getppid()
    for _ in range(GENERATIONS):
        try:
            process = _look(number)
        except OSError:
            return None
        if process is None or process.name.startswith(LAUNCHERS):
            return process
        number = process.parent
    return None


def _follow(launcher: _Process) -> None:
    """End this process when the launcher has ended: at once, as all its ranks do.

    The launcher's own parent may end before it (`nohup mpiexec ... &`), which changes nothing.
    """
    running: _Process | None = launcher
    while running is not None and running.started == launcher.started:
        time.sleep(EVERY)
        with suppress(OSError):  # such as too many open files: look again later
            running = _look(launcher.number)
    # not sys.exit, which would end this thread only
    os._exit(STATUS)
