"""`neocpu doctor`: is anything wrong with this machine, or with all hosts under mpiexec?"""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from neocpu.cli.screen.doctor_host import (
    Check,
    check_limits,
    check_machine,
    check_memory,
    check_shared_memory,
    enough,
)
from neocpu.core.cores import available, core_quota
from neocpu.core.errors import EnvironmentProblem
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.environment import cores_left_out
from neocpu.parallel.transport.launch import (
    find_mpiexec,
    get_comm,
    host_name,
    mpiexec_command,
    prepare_threads,
)
from neocpu.train.before.preflight import human

COLORS = {"ok": "green", "warn": "yellow", "bad": "red"}
STATES = ("ok", "warn", "bad")
LITTLE_DISK = 1 << 30  # bytes below which the report warns


@click.command()
def doctor() -> None:
    """Check MPI, threads, CPU, memory and folders; say what to mend.

    Run it as the job would run: alone, or as `mpiexec -n 4 neocpu doctor` or `srun neocpu doctor`.
    """
    comm = get_comm()
    # Read first: `prepare_threads` sets it.
    requested = os.environ.get("NUMBA_NUM_THREADS", "")
    threads = prepare_threads(comm)
    checks = [check for examine in CHECKS for check in examine(comm, threads)]
    checks += check_requested_threads(threads, requested, _usable_cores(comm))
    facts = [platform.node(), _versions(), [asdict(check) for check in checks]]
    messages = comm.allgather(facts)
    if comm.rank == 0:
        for host, versions, host_checks in summed_up(messages):
            click.echo(f"{host}: {versions}")
            for check in host_checks:
                _print(check)
    states = [check["state"] for _, _, rank_checks in messages for check in rank_checks]
    # The same on every rank: what one host lacks fails the check of all.
    sys.exit(int("bad" in states or len({versions for _, versions, _ in messages}) > 1))


def summed_up(messages: list[Any]) -> list[tuple[str, str, list[Check]]]:
    """(host, its versions, its checks) of all hosts; of what its ranks found the worst counts.

    messages : of each rank (host, versions, checks as mappings).
    """
    hosts: dict[str, dict[str, Check]] = {}
    versions: dict[str, str] = {}
    for host, text, checks in messages:
        versions.setdefault(host, text)
        topics = hosts.setdefault(host, {})
        for check in (Check(**fields) for fields in checks):
            known = topics.get(check.topic, check)
            # Ranks of one host look at the same things; one that finds fault is not outvoted.
            topics[check.topic] = max(known, check, key=lambda each: STATES.index(each.state))
        if text != messages[0][1]:
            advice = "install the same packages for all ranks, in one environment that hosts share"
            topics["versions"] = Check("versions", "bad", f"not those of rank 0: {text}", advice)
    return [(host, versions[host], list(topics.values())) for host, topics in hosts.items()]


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
        from neocpu.parallel.transport.mpi import library

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
        "from neocpu.parallel.transport import mpi; "
        "print(f'<{mpi.world_size()}|{mpi.library()}>\\n', end='')"
    )
    command, environment = mpiexec_command(2, ["-c", code])
    try:
        completed = subprocess.run(
            command,
            check=False,
            env=environment,
            capture_output=True,
            text=True,
            # An MPI that waits for a network it cannot reach would wait for ever.
            timeout=seconds,
            # Some launchers read stdin, which belongs to whoever called us.
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(
            "MPI",
            "bad",
            f"{mpiexec}: {error}",
            'try `pip install "neocpu[mpi]"`, or load another MPI module',
        )
    # Marked by <>: launchers and MPI libraries print warnings among it.
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
    # The launcher of another MPI starts processes that never hear of each other.
    if ranks == "1":
        advice = "use that library's mpiexec, or set MPI4PY_LIBMPI to the libmpi of this one"
        return Check(
            "MPI", "bad", f"{mpiexec} is not the launcher of {library}: its ranks are alone", advice
        )
    return Check("MPI", "ok", f"{library}, {mpiexec}; two ranks met")


def check_threads(comm: Comm, threads: int) -> Iterator[Check]:
    """Cores and threads of this rank, and Numba's threading layer."""
    quota = core_quota()
    host_cores = _cores_of_ranks(comm)
    # Ranks of a host may be bound to different cores: together they have all of these.
    usable = len(set.union(*host_cores))
    ranks = len(host_cores)
    limit = f", limited to {quota:g} cores' time" if quota < usable else ""
    summary = (
        f"{usable} core(s) usable{limit}, {ranks} rank(s) on this host: {threads} "
        "thread(s) per rank"
    )
    room = max(int(min(usable, quota)), 1)
    idle = (os.cpu_count() or usable) - usable
    # A rank that is bound to one core has one thread, however many cores are free.
    bound = ranks > 1 and all(len(cores) == 1 for cores in host_cores)
    if ranks * threads <= min(usable, quota) and not (bound and idle):
        yield Check("cores per rank", "ok", summary)
    elif bound and idle:
        advice = (
            f"the launcher binds each rank to one core and leaves {idle} of the host unused: where "
            "the job may use them, give ranks more (mpiexec --bind-to none, srun --cpus-per-task)"
        )
        yield Check("cores per rank", "warn", summary, advice)
    elif ranks > room:
        advice = f"more ranks than cores: start {room} rank(s) on this host"
        yield Check("cores per rank", "warn", summary, advice)
    else:
        advice = f"more threads than cores: use {max(room // ranks, 1)} thread(s) per rank"
        yield Check("cores per rank", "warn", summary, advice)
    # Only now: `prepare_threads` must come before Numba is imported.
    from neocpu.kernels.compile.threads import threading_layer

    layer = threading_layer()
    if layer != "workqueue":
        yield Check("threading layer", "ok", layer)
        return
    advice = (
        "install libgomp (Linux) or libomp (macOS), or `pip install tbb`; runs work, "
        "tests on threads do not"
    )
    if os.environ.get("NUMBA_THREADING_LAYER"):
        advice = "NUMBA_THREADING_LAYER asks for it; unset it"
    yield Check("threading layer", "warn", layer, advice)


def check_requested_threads(threads: int, requested: str, cores: int) -> Iterator[Check]:
    """What variables of the environment make of the threads.

    requested : NUMBA_NUM_THREADS before this process set it. cores : that ranks of this host may
    use.
    """
    limit = os.environ.get("OMP_THREAD_LIMIT", "")
    if requested and threads > cores:
        finding = f"NUMBA_NUM_THREADS={requested}, and {cores} core(s)"
        yield Check("threads asked for", "warn", finding, "unset it: ranks then share the cores")
    elif limit.isdigit() and int(limit) < threads:
        finding = f"OMP_THREAD_LIMIT={limit} is below the {threads} threads of a rank"
        yield Check("threads asked for", "warn", finding, "unset it, or set training.threads")
    if advice := cores_left_out(len(available())):
        finding = f"{threads} thread(s) of a rank"
        yield Check("cores asked for", "warn", finding, advice)


def _cores_of_ranks(comm: Comm) -> list[set[int]]:
    """Cores that each rank of this host may run on. Collective."""
    ranks = comm.allgather([host_name(), sorted(available())])
    return [set(cores) for host, cores in ranks if host == host_name()]


def _usable_cores(comm: Comm) -> int:
    """Cores that ranks of this host may use. Collective."""
    return len(set.union(*_cores_of_ranks(comm)))


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
    # Without it LLVM calls a function of libm for every product.
    elif "fma" in flags and not _compiled_with_fma():
        yield Check(
            "FMA",
            "bad",
            f"this {machine} CPU has fma, but kernels are compiled for one without",
            "unset NUMBA_CPU_NAME and NUMBA_CPU_FEATURES",
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


def _compiled_with_fma() -> bool:
    from neocpu.kernels.compile.key import has_fma

    return has_fma()


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
    from neocpu.kernels.compile.cache import OWN, cache_folder, refusal

    if reason := refusal():
        text = f"{reason}: not used, because others could have written it; every process compiles "
        yield Check("kernel cache", "bad", f"{text}its kernels again, in memory only", OWN)
    else:
        yield check_cache(cache_folder())
    free = shutil.disk_usage(".").free
    yield enough(
        "disk",
        free,
        f"{human(free)} free in {os.getcwd()}",
        LITTLE_DISK,
        "checkpoints may not fit: choose --out",
    )


def check_cache(folder: Path) -> Check:
    """The kernels of a cache folder that is trusted: are they whole, and can more be kept?"""
    from neocpu.kernels.compile.cache import ADVICE, cannot_write, is_sound

    files = list(folder.glob("*.nbc"))
    damaged = [path.name for path in files if not is_sound(path)]
    ready = len(files) - len(damaged)
    kernels = f"{folder}, {ready} kernels for this compiler and CPU"
    obstacle = cannot_write()
    if obstacle and not ready:
        text = f"{obstacle}: every process compiles its kernels again, in memory only"
        return Check("kernel cache", "bad", text, ADVICE)
    if obstacle:
        text = f"{kernels}, cannot be written: every process compiles what it lacks"
        advice = f"`neocpu compile` fills it beforehand, or {ADVICE}"
        return Check("kernel cache", "warn", text, advice)
    if damaged:
        text = f"{kernels}; {len(damaged)} files cannot be used, for example {damaged[0]}"
        return Check("kernel cache", "warn", text, "remove them; runs compile them again")
    return Check("kernel cache", "ok", kernels)


CHECKS: tuple[Callable[[Comm, int], Iterator[Check]], ...] = (
    check_mpi,
    check_threads,
    check_cpu,
    check_pages,
    check_folders,
    check_memory,
    check_shared_memory,
    check_limits,
    check_machine,
)
