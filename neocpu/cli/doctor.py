"""`neocpu doctor`: is anything wrong with this machine, or with all hosts under mpiexec?"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from neocpu.cores import available
from neocpu.errors import ConfigError, EnvironmentProblem
from neocpu.parallel.comm import Comm
from neocpu.parallel.launch import (
    core_quota,
    find_mpiexec,
    get_comm,
    host_name,
    mpiexec_command,
    prepare_threads,
)
from neocpu.training.preflight import available_memory, human

COLORS = {"ok": "green", "warn": "yellow", "bad": "red"}
# Bytes below which the report warns
LITTLE_MEMORY = 2 << 30
LITTLE_DISK = 1 << 30
LITTLE_SHARED_MEMORY = 65 << 20  # containers have 64 MiB by default, too little for MPI


@dataclass(frozen=True)
class Check:
    """One line of the report; `advice`: what to do, unless `state` is "ok"."""

    topic: str
    state: str
    finding: str
    advice: str = ""


@click.command()
def doctor() -> None:
    """Check MPI, threads, CPU, memory and folders; say what to mend.

    Run it as the job would run: alone, or as `mpiexec -n 4 neocpu doctor` or `srun neocpu doctor`.
    """
    comm = get_comm()
    threads = prepare_threads(comm)
    checks = [check for examine in CHECKS for check in examine(comm, threads)]
    message = json.dumps([platform.node(), [asdict(check) for check in checks]]).encode()
    hosts: dict[str, list[Check]] = {}
    for data in comm.allgather_bytes(message):
        host, host_checks = json.loads(data)
        hosts.setdefault(host, [Check(**check) for check in host_checks])
    if comm.rank == 0:
        for host, host_checks in hosts.items():
            click.echo(f"{host}: {_versions()}")
            for check in host_checks:
                _print(check)
    worst = comm.largest(int(any(check.state == "bad" for check in checks)))
    sys.exit(worst)


def _print(check: Check) -> None:
    state = click.style(check.state.ljust(5), fg=COLORS[check.state])
    click.echo(f"  {state}{check.topic.ljust(18)}{check.finding}")
    if check.state != "ok":
        click.echo(f"{' ' * 25}-> {check.advice}")


def _versions() -> str:
    versions = [f"Python {platform.python_version()}"]
    for name in ("neocpu", "numba", "numpy", "mpi4py", "h5py"):
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"{name} missing")
    return ", ".join(versions)


def check_mpi(comm: Comm, threads: int) -> Iterator[Check]:
    """Do ranks find each other?"""
    if comm.size > 1:
        from neocpu.parallel.mpi import library

        hosts = len(set(comm.nodes.tolist()))
        yield Check("MPI", "ok", f"{library()}; {comm.size} ranks on {hosts} host(s)")
        return
    try:
        mpiexec = find_mpiexec()
    except EnvironmentProblem as problem:
        yield Check("MPI", "warn", "no mpiexec: only one rank can run", str(problem))
        return
    yield try_mpi(mpiexec)


def try_mpi(mpiexec: Path, seconds: float = 60.0) -> Check:
    """Start two ranks and check that they form one MPI world."""
    code = (
        "from neocpu.parallel import mpi; print(f'<{mpi.world_size()}|{mpi.library()}>\\n', end='')"
    )
    command, environment = mpiexec_command(2, ["-c", code])
    try:
        completed = subprocess.run(
            command,
            check=False,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(
            "MPI",
            "bad",
            f"{mpiexec}: {error}",
            'try `pip install "neocpu[mpi]"`, or load another MPI module',
        )
    answer = re.search(r"<(\d+)\|([^<>]*)>", completed.stdout)
    if completed.returncode or answer is None:
        last = (
            completed.stderr.strip()
            or completed.stdout.strip()
            or f"exit status {completed.returncode}"
        ).splitlines()[-1]
        return Check(
            "MPI",
            "bad",
            f"two ranks did not start with {mpiexec}: {last}",
            'try `pip install "neocpu[mpi]"`, or another MPI',
        )
    ranks, library = answer.groups()
    if ranks == "1":
        advice = "use that library's mpiexec, or set MPI4PY_LIBMPI to the libmpi of this one"
        return Check(
            "MPI", "bad", f"{mpiexec} is not the launcher of {library}: its ranks are alone", advice
        )
    return Check("MPI", "ok", f"{library}, {mpiexec}; two ranks met")


def check_threads(comm: Comm, threads: int) -> Iterator[Check]:
    """Cores and threads of this rank, and Numba's threading layer."""
    quota = core_quota()
    cores_by_rank = [
        json.loads(data)
        for data in comm.allgather_bytes(json.dumps([host_name(), sorted(available())]).encode())
    ]
    host_cores = [set(cpus) for host, cpus in cores_by_rank if host == host_name()]
    usable = len(set.union(*host_cores))
    limit = f", limited to {quota:g} cores' time" if quota < usable else ""
    summary = (
        f"{usable} core(s) usable{limit}, {len(host_cores)} rank(s) on this host: {threads} "
        "thread(s) per rank"
    )
    if len(host_cores) * threads > min(usable, quota):
        yield Check(
            "cores per rank",
            "warn",
            summary,
            "more threads than cores: start fewer ranks or set training.threads",
        )
    else:
        yield Check("cores per rank", "ok", summary)
    from neocpu.kernels._threads import threading_layer

    layer = threading_layer()
    if layer == "workqueue":
        advice = (
            "install libgomp (Linux) or libomp (macOS), or `pip install tbb`; runs work, "
            "tests on threads do not"
        )
        yield Check("threading layer", "warn", layer, advice)
    else:
        yield Check("threading layer", "ok", layer)


def cpu_flags() -> set[str] | None:
    """Feature names of this CPU as Linux lists them; None where it does not."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return set(line.partition(":")[2].split())
    except OSError:
        pass
    return None


def check_cpu(comm: Comm, threads: int) -> Iterator[Check]:
    """Fused multiply-add: equal bits need it in hardware, or it is emulated very slowly."""
    machine = platform.machine()
    flags = cpu_flags()
    if machine in ("aarch64", "arm64"):
        yield Check("FMA", "ok", f"{machine} always has it")
    elif flags is None:
        yield Check(
            "FMA", "ok", f"{machine}; this system does not list CPU features, FMA is assumed"
        )
    elif "fma" in flags:
        widest = next((name for name in ("avx512f", "avx2", "avx") if name in flags), "sse")
        yield Check("FMA", "ok", f"{machine} with fma, widest vectors: {widest}")
    else:
        yield Check(
            "FMA",
            "bad",
            f"this {machine} CPU has no fma",
            "use a CPU from 2013 or later, or let the VM pass it on",
        )


def check_pages(comm: Comm, threads: int) -> Iterator[Check]:
    """Huge pages make lookups in large tables faster."""
    switch = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    try:
        choice = switch.read_text().split("[")[1].split("]")[0]
    except (OSError, IndexError):
        yield Check("huge pages", "ok", "not offered by this system")
        return
    if choice == "never":
        yield Check("huge pages", "warn", "switched off", f"as root: echo madvise > {switch}")
    else:
        yield Check("huge pages", "ok", choice)


def check_folders(comm: Comm, threads: int) -> Iterator[Check]:
    """The folder of compiled kernels, and room on the disk here."""
    from neocpu.kernels._cache import OWN, cache_folder, refusal

    if reason := refusal():
        text = f"{reason}: not used, because others could have written it; kernels are compiled "
        yield Check("kernel cache", "bad", f"{text}in memory, in every process again", OWN)
    else:
        yield check_cache(cache_folder())
    free = shutil.disk_usage(".").free
    yield _room(
        "disk",
        free,
        f"{human(free)} free in {os.getcwd()}",
        LITTLE_DISK,
        "checkpoints may not fit: choose --out",
    )


def check_cache(folder: Path) -> Check:
    """The kernels of a cache folder that is trusted: are they whole, and can more be kept?"""
    from neocpu.kernels._cache import ADVICE, cannot_write, is_sound

    files = list(folder.glob("*.nbc"))
    damaged = [path.name for path in files if not is_sound(path)]
    ready = len(files) - len(damaged)
    kernels = f"{folder}, {ready} kernels for this compiler and CPU"
    obstacle = cannot_write()
    if obstacle and not ready:
        text = f"{obstacle}: kernels are compiled in memory, in every process again"
        return Check("kernel cache", "bad", text, ADVICE)
    if obstacle:
        text = f"{kernels}, cannot be written: what it lacks is compiled in memory"
        advice = f"`neocpu compile` fills it beforehand, or {ADVICE}"
        return Check("kernel cache", "warn", text, advice)
    if damaged:
        text = f"{kernels}; {len(damaged)} files cannot be used, for example {damaged[0]}"
        return Check("kernel cache", "warn", text, "remove them; runs compile them again")
    return Check("kernel cache", "ok", kernels)


def check_memory(comm: Comm, threads: int) -> Iterator[Check]:
    """Free memory of this host, and the shared memory through which its ranks talk."""
    free = available_memory()
    yield _room(
        "memory",
        free,
        f"{human(free)} free",
        LITTLE_MEMORY,
        "end other programs, or use smaller tables",
    )
    try:
        shared = shutil.disk_usage("/dev/shm").total
    except OSError:
        return
    advice = "MPI may crash between ranks of this host: start the container with --shm-size=1g"
    yield _room(
        "shared memory", shared, f"{human(shared)} in /dev/shm", LITTLE_SHARED_MEMORY, advice
    )


def _room(topic: str, size: int, finding: str, little: int, advice: str) -> Check:
    return Check(topic, "ok", finding) if size >= little else Check(topic, "warn", finding, advice)


def check_machine(comm: Comm, threads: int) -> Iterator[Check]:
    """The machine file of this host, which planning and predictions may use; no run needs it."""
    from neocpu.zionex import machine_file
    from neocpu.zionex.calibration import figures

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


CHECKS: tuple[Callable[[Comm, int], Iterator[Check]], ...] = (
    check_mpi,
    check_threads,
    check_cpu,
    check_pages,
    check_folders,
    check_memory,
    check_machine,
)
