"""What of this host may stop a run or slow it down? Its memory, limits, and the machine file."""

import os
import resource
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from neocpu.core.cores import memory_left
from neocpu.core.errors import ConfigError
from neocpu.parallel.transport.comm import Comm
from neocpu.train.before.preflight import available_memory, human

# Bytes below which the report warns
LITTLE_MEMORY = 2 << 30
LITTLE_SHARED_MEMORY = 65 << 20  # containers have 64 MiB by default, too little for MPI
FEW_FILES = 256  # that a process may have open at a time
SHARED_MEMORY = Path("/dev/shm")
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")


@dataclass(frozen=True)
class Check:
    """One line of the report; advice : what to do, unless `state` is "ok"."""

    topic: str
    state: str
    finding: str
    advice: str = ""


def enough(topic: str, size: int, finding: str, little: int, advice: str) -> Check:
    """A check of bytes that should not be few."""
    return Check(topic, "ok", finding) if size >= little else Check(topic, "warn", finding, advice)


def in_container() -> bool:
    """Does this process run in a container of Docker, Podman or Kubernetes?"""
    marks = ("/.dockerenv", "/run/.containerenv")
    return any(Path(mark).exists() for mark in marks) or "KUBERNETES_SERVICE_HOST" in os.environ


def check_memory(comm: Comm, threads: int) -> Iterator[Check]:
    """Memory that this process can have, of this host and under its limits."""
    free = available_memory()
    finding = f"{human(free)} free"
    advice = "end other programs, or use smaller tables"
    # What the job may have is less than what the host has: name the limit, not the host.
    if memory_left() <= free:
        finding += ", which a limit on this job or container sets"
        advice = "raise that limit (docker run --memory, sbatch --mem), or use smaller tables"
    yield enough("memory", free, finding, LITTLE_MEMORY, advice)


def check_shared_memory(comm: Comm, threads: int) -> Iterator[Check]:
    """Shared memory through which the ranks of a host talk."""
    try:
        usage = shutil.disk_usage(SHARED_MEMORY)
    except OSError:
        return
    size = f"{human(usage.total)} in {SHARED_MEMORY}"
    if usage.total < LITTLE_SHARED_MEMORY:
        remedy = f"as root: mount -o remount,size=1G {SHARED_MEMORY}"
        if in_container():
            remedy = (
                "start the container with --shm-size=1g or --ipc=host (Kubernetes: mount an "
                "emptyDir of medium Memory there)"
            )
        advice = f"MPI may crash between ranks of this host: {remedy}"
        yield Check("shared memory", "warn", size, advice)
    elif usage.free < LITTLE_SHARED_MEMORY:
        advice = (
            "MPI may crash between ranks of this host: remove what ended programs left there "
            f"(ls -l {SHARED_MEMORY})"
        )
        yield Check("shared memory", "warn", f"{size}, {human(usage.free)} of it free", advice)
    else:
        yield Check("shared memory", "ok", size)


def check_limits(comm: Comm, threads: int) -> Iterator[Check]:
    """Limits of this process that large tables or many ranks run into."""
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # Tables are mapped whole and touched row by row, which strict accounting refuses.
        strict = OVERCOMMIT.read_text().strip() == "2"
    except OSError:
        strict = False
    if space != resource.RLIM_INFINITY:
        finding = f"{human(space)} of address space (ulimit -v)"
        advice = "ulimit -v unlimited: tables are mapped whole, and use memory row by row"
        yield Check("limits", "warn", finding, advice)
    elif strict:
        finding = "memory that is not used yet counts (vm.overcommit_memory=2)"
        advice = "as root: sysctl vm.overcommit_memory=0, or use tables that fit in memory whole"
        yield Check("limits", "warn", finding, advice)
    elif 0 <= files < FEW_FILES:
        finding = f"{files} open files (ulimit -n)"
        yield Check("limits", "warn", finding, f"ulimit -n {4 * FEW_FILES}")
    else:
        yield Check("limits", "ok", "none on address space")


def check_machine(comm: Comm, threads: int) -> Iterator[Check]:
    """The machine file of this host, which planning and predictions may use; no run needs it."""
    from neocpu.plan.machines import machine_file
    from neocpu.plan.machines.calibration import figures

    path = machine_file.this_machine_path()
    if not path.exists():
        yield Check("machine file", "ok", "none; `neocpu calibrate` measures this machine")
        return
    try:
        machine = machine_file.load(path)
        age = time.time() - path.stat().st_mtime
    except (ConfigError, OSError) as error:
        yield Check("machine file", "warn", f"{error}", "`neocpu calibrate` writes it anew")
        return
    numbers = ", ".join(f"{what} {amount}" for what, amount in figures(machine))
    yield Check("machine file", "ok", f"{path}, {_days(age)} old: {numbers}")


def _days(seconds: float) -> str:
    """Seconds as "3 day(s)", or as hours below a day."""
    days, rest = divmod(max(seconds, 0.0), 86400)
    return f"{days:.0f} day(s)" if days else f"{rest / 3600:.0f} hour(s)"
