"""Is this process one of many, how does it become one, and how many cores are its own?

An MPI launch is recognised by what launchers leave in the environment (`SIZES`, and PMIX_RANK for
launchers that leave no size). Alone, mpi4py is never imported. Nothing here imports numba: it reads
its thread count when it is imported.
"""

import os
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from neocpu.core import cores
from neocpu.core.cores import core_quota
from neocpu.core.errors import ConfigError, EnvironmentProblem
from neocpu.parallel.transport.abort import (
    StopSignal,
    ended_by_signals,
    guard,
    held_signals,
    join_job,
    let_finish,
)
from neocpu.parallel.transport.comm import Comm, SingleComm
from neocpu.parallel.transport.environment import (
    check_addresses,
    check_threads,
    check_variables,
)

if TYPE_CHECKING:
    from neocpu.parallel.transport.hosts import HostRanks

__all__ = [
    "StopSignal",
    "abort_job",
    "bind_kernel_threads",
    "core_quota",
    "ended_by_signals",
    "exec_mpiexec",
    "find_mpiexec",
    "get_comm",
    "held_signals",
    "host_name",
    "launched",
    "launched_ranks",
    "let_finish",
    "mpiexec_command",
    "prepare_threads",
    "run_guarded",
    "share_of_cores",
]

# Number of ranks, as left by: MPICH, Intel MPI, Slurm's PMI | Open MPI | MVAPICH | Flux | LSF's
# jsrun | srun
SIZES = (
    "PMI_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "FLUX_JOB_SIZE",
    "JSM_NAMESPACE_SIZE",
    "SLURM_STEP_NUM_TASKS",
)

# by which launchers find the hosts of a job: Slurm, PBS, LSF, LoadLeveler, Cobalt, Grid Engine
SCHEDULERS = ("SLURM_", "SLURMD_", "PBS_", "LSB_", "LOADL_", "COBALT_", "PE_HOSTFILE")
# by which they, Kubernetes' MPI operator and modules of sites tell mpiexec other hosts
HOST_FILES = (
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
)
# how it reaches them, which ranks of this machine do not need
REACHES = (
    "HYDRA_LAUNCHER",
    "HYDRA_RMK",
    "HYDRA_IFACE",
    "I_MPI_HYDRA_",
    "OMPI_MCA_plm",
    "PRTE_MCA_plm",
)

# the user decides how threads are placed and how they wait
PLACED = {"OMP_PROC_BIND", "OMP_WAIT_POLICY"}
# set for ranks that leave it to rank 0 to say that the kernel cache cannot be written
CACHE_QUIET = "NEOCPU_CACHE_QUIET"  # as in `kernels/compile/cache.py`, which would load numba
# what `parallel.shared_windows` may be, and what it tells `MpiComm`
WINDOWS = {"auto": None, "on": True, "off": False}
SHARED = "/dev/shm"  # memory by which ranks of a host meet
SPIN = "100000"  # turns of GNU OpenMP's loop, some 50 ns each


def launched_ranks() -> int:
    """Ranks of the MPI launch that this process belongs to; 1 when it is alone, 0 when only MPI
    itself can tell.
    """
    sizes = [int(os.environ[name]) for name in SIZES if os.environ.get(name, "").isdigit()]
    if sizes:
        return max(sizes)
    return 0 if "PMIX_RANK" in os.environ else 1


def launched() -> bool:
    """Was this process started by an MPI launcher, together with others?"""
    return launched_ranks() != 1


def get_comm(
    ranks: int | None = None, ranks_per_node: int | None = None, windows: str = "auto"
) -> Comm:
    """Comm of this process: all ranks of the MPI launch it belongs to, or itself alone (mpi4py is
    then not imported).

    ranks : how many there should be; None takes what there is.
    ranks_per_node : group ranks into nodes by number; None: by host.
    windows : do ranks of a host exchange through shared memory: "auto" (messages that are quicker
        so), "on" or "off"?

    Call it once per process; from then on the guard (`run_guarded`) can end the job, and this
    process ends if its launcher is killed. Collective.

    Raises ConfigError: another number of ranks was started than asked for; EnvironmentProblem: no
    MPI library, one that does not belong to the launcher, or variables of a launcher that is no
    more.
    """
    comm: Comm = SingleComm()
    if launched():
        from neocpu.parallel.transport.stale import (
            advice,
            check_launch,
            choose_copies,
            started_in_time,
        )

        check_launch()
        choose_copies()
        with started_in_time():
            from neocpu.parallel.transport import mpi

        expected = launched_ranks()
        if expected > 1 and mpi.world_size() == 1:
            raise EnvironmentProblem(
                f"{expected} processes were started, but each is alone to its MPI library, "
                f"{mpi.library()}: the "
                "launcher belongs to another MPI. Use the mpiexec of that "
                f"library{_beside_hint()}, or point mpi4py to "
                "the launcher's (MPI4PY_LIBMPI=/path/libmpi.so), or with Slurm try srun's "
                f"--mpi=pmi2 or --mpi=pmix. Otherwise {advice()}"
            )
        comm = mpi.MpiComm(ranks_per_node=ranks_per_node, windows=WINDOWS[windows])
        # drawn, since jobs that one shell starts after each other have the same parent
        token = comm.allgather(secrets.token_hex(8))[0]
        if comm.size > 1:
            join_job(token, comm.rank, comm.abort)
            from neocpu.parallel.transport.stale import end_with_launcher

            end_with_launcher()
    if ranks is not None and ranks != comm.size:
        raise ConfigError(
            f"{ranks} rank(s) were asked for, but {comm.size} run; leave --ranks out under mpiexec"
        )
    return comm


def run_guarded(main: Callable[[], int | None]) -> int:
    """Exit status of `main`; if a rank fails, its message is printed once and the whole job ends
    (`guard.py`).
    """
    return guard(main, abort_job if _has_job() else None)


def _has_job() -> bool:
    """Does this process belong to an MPI job whose launcher is still there?"""
    if not launched():
        return False
    from neocpu.parallel.transport.stale import is_stale

    return not is_stale()


def abort_job(status: int) -> None:
    """End the job of a process that never got its comm: other ranks may already wait in MPI's
    start. Alone: nothing.
    """
    if not launched():
        return
    from neocpu.parallel.transport.stale import started_in_time

    try:
        with started_in_time():
            from neocpu.parallel.transport import mpi
    except EnvironmentProblem:
        return
    mpi.abort_world(status)


def find_mpiexec() -> Path:
    """The `mpiexec` beside this Python, else on PATH; EnvironmentProblem if there is none."""
    beside = Path(sys.executable).with_name("mpiexec")
    if os.access(beside, os.X_OK):
        return beside
    for name in ("mpiexec", "mpirun"):
        if path := shutil.which(name):
            return Path(path)
    raise EnvironmentProblem(
        f'no mpiexec beside {sys.executable} nor on PATH; `pip install "neocpu[mpi]"` brings one, '
        "or on a cluster `module load` the site's MPI, or leave out --ranks to run on one rank"
    )


def mpiexec_command(
    ranks: int, arguments: Sequence[str], hosts: "Sequence[HostRanks]" = ()
) -> tuple[list[str], dict[str, str]]:
    """(command, environment) that run `python ARGUMENTS` on so many ranks of this machine, or of
    hosts, which mpiexec reaches by ssh.

    Open MPI refuses root, and more ranks than cores, and binds ranks to cores, unless told
    otherwise; other MPIs ignore these variables, and what the user set stays. Variables of
    schedulers do not, nor those that name other hosts: mpiexec would start ranks through them on
    the hosts of a job, and wait for ever where that job is no more.

    Raises ConfigError for more ranks than a machine has memory to start; EnvironmentProblem where
    MPI, or what it needs, is missing.
    """
    from neocpu.parallel.transport.hosts import check_room, host_words, is_open_mpi

    check_room(ranks, hosts)
    strange = (*SCHEDULERS, *HOST_FILES, *(() if hosts else REACHES))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(strange)
    }
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
        environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    environment.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
    environment.setdefault("PRTE_MCA_hwloc_default_binding_policy", "none")
    environment.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")
    environment.setdefault("OMPI_MCA_hwloc_base_binding_policy", "none")
    mpiexec = find_mpiexec()
    where: list[str] = []
    if ranks > 1 and not hosts and sys.platform == "linux" and not os.access(SHARED, os.W_OK):
        if not is_open_mpi(mpiexec):  # which has another way
            raise EnvironmentProblem(
                f"{SHARED} is missing or cannot be written, and MPICH's ranks on a host meet in "
                "it; mount a tmpfs there, or leave out --ranks to run on one rank"
            )
    if hosts:
        where = host_words(mpiexec, hosts, environment)
    return [str(mpiexec), *where, "-n", str(ranks), sys.executable, *arguments], environment


def exec_mpiexec(ranks: int, argv: Sequence[str], hosts: "Sequence[HostRanks]" = ()) -> NoReturn:
    """Become `mpiexec -n RANKS python -m neocpu ARGV`, on hosts if there are any; signals then
    reach mpiexec, which passes them on.
    """
    command, environment = mpiexec_command(ranks, ["-m", "neocpu", *argv], hosts)
    # this process becomes another, which knows nothing of its buffers
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environment)


def host_name() -> str:
    """The same text for all processes that share this machine's cores, in whatever container."""
    return cores.boot_id() or socket.gethostname()


def share_of_cores(my_cores: set[int], quota: float, other_ranks: Sequence[set[int]]) -> int:
    """Threads for a rank on `my_cores` beside other ranks of its host.

    A core is divided among the ranks that may use it.
    So 8 cores for 4 unbound ranks are 2 each, and a rank that its launcher bound to 8 cores of its
    own keeps 8.
    """
    all_ranks = [my_cores, *other_ranks]
    share = sum(1 / sum(core in cpus for cpus in all_ranks) for core in my_cores)
    # thirds and sevenths add up to a little less than the whole number that is meant
    return max(1, int(min(share, quota / len(all_ranks)) + 1e-9))


def prepare_threads(comm: Comm, threads: int | None = None) -> int:
    """Threads that this rank's kernels will use, written to the environment for numba, which must
    not be imported yet.

    threads : from the config; None: NUMBA_NUM_THREADS if the user set it, else the rank's share of
        its host's cores.

    Threads with cores of their own (`own_cores`) spin some milliseconds where one waits for another
    (GOMP_SPINCOUNT): a core that halts is slow to come back, above all a virtual one. Otherwise
    ranks that share a host sleep at once (OMP_WAIT_POLICY). Where numba is already imported (a
    notebook), it is told the number, but cannot exceed what it started with. Collective.

    Raises EnvironmentProblem for variables of Numba's that make no sense, and for more threads than
    can be started.
    """
    if comm.rank:
        os.environ.setdefault(CACHE_QUIET, "1")
    my_cores, other_cores = _cores_on_this_host(comm)
    check_variables()
    if threads is None:
        requested = os.environ.get("NUMBA_NUM_THREADS", "")
        threads = (
            int(requested)
            if requested.isdigit()
            else share_of_cores(my_cores, core_quota(), list(other_cores.values()))
        )
    if "numba" in sys.modules:
        from neocpu.kernels.compile.threads import use_threads

        return use_threads(threads)
    check_addresses()
    check_threads(threads)
    os.environ["NUMBA_NUM_THREADS"] = str(threads)
    if own_cores(comm.rank, my_cores, other_cores, threads) and not PLACED & os.environ.keys():
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN)
    elif other_cores:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return threads


def bind_kernel_threads(comm: Comm) -> bool:
    """Give each of this rank's kernel threads a core of its own, where the host's ranks together
    use every core once.

    Not done for ranks of one thread, where a core would be left over or shared, or where the user
    placed threads (OMP_PROC_BIND). Returns whether it was done. Collective; the calling thread is
    bound too.
    """
    from neocpu.kernels.compile.threads import bind_threads, thread_count

    my_cores, other_cores = _cores_on_this_host(comm)
    chosen = own_cores(comm.rank, my_cores, other_cores, thread_count())
    return bool(chosen) and "OMP_PROC_BIND" not in os.environ and bind_threads(chosen)


def own_cores(
    rank: int, my_cores: set[int], other_cores: Mapping[int, set[int]], threads: int
) -> list[int]:
    """The cores for a rank's `threads` threads, when the ranks with the same cores use each of them
    once; else none.

    my_cores : those that the rank may run on. other_cores : of the other ranks of its host, by
        rank.
    """
    sharing = sorted([rank, *(peer for peer, cpus in other_cores.items() if cpus == my_cores)])
    apart = all(cpus == my_cores or not cpus & my_cores for cpus in other_cores.values())
    if threads < 2 or not apart or threads * len(sharing) != len(my_cores):
        return []
    start = sharing.index(rank) * threads
    return sorted(my_cores)[start : start + threads]


def _cores_on_this_host(comm: Comm) -> tuple[set[int], dict[int, set[int]]]:
    """Cores that this rank may run on, and those of the other ranks of its host, by rank.
    Collective.
    """
    ranks = comm.allgather([host_name(), sorted(cores.available())])
    host, my_cores = ranks[comm.rank]
    return set(my_cores), {
        r: set(cpus) for r, (name, cpus) in enumerate(ranks) if name == host and r != comm.rank
    }


def _beside_hint() -> str:
    beside = Path(sys.executable).with_name("mpiexec")
    return f", {beside}" if os.access(beside, os.X_OK) else ""
