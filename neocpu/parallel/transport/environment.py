"""Can kernels run in the environment of this process? Asked before anything is compiled.

`check_variables` and `check_threads` come before numba is imported, which reads its variables then;
`check_kernels` after it. What is wrong is told at once, with what to change; it would otherwise be
a traceback from inside Numba, minutes of compilation, or a crash.
"""

import os
import threading
from collections.abc import Mapping

from neocpu.core.cores import ADDRESS_LIMIT, addresses_left
from neocpu.core.errors import EnvironmentProblem
from neocpu.core.forks import KERNELS, check_fork

LAYERS = ("default", "threadsafe", "forksafe", "safe", "tbb", "omp", "workqueue")
ADDRESSES = 320 << 20  # bytes that Numba and kernels map at least


def check_variables(variables: Mapping[str, str] = os.environ) -> None:
    """Raise EnvironmentProblem for a variable of Numba's with which no kernel could run."""
    threads = variables.get("NUMBA_NUM_THREADS", "").strip()
    if threads and not (threads.isascii() and threads.isdigit() and int(threads) > 0):
        raise EnvironmentProblem(
            f"NUMBA_NUM_THREADS={threads}: not a number of threads; give 1 or more, or unset it"
        )
    layer = variables.get("NUMBA_THREADING_LAYER", "").strip()
    if layer and layer not in LAYERS:
        raise EnvironmentProblem(
            f"NUMBA_THREADING_LAYER={layer}: no such layer; choose one of {', '.join(LAYERS)}, or "
            "unset it"
        )
    if variables.get("NUMBA_DISABLE_JIT", "").strip() not in ("", "0"):
        raise EnvironmentProblem(
            "NUMBA_DISABLE_JIT switches Numba's compiler off, without which kernels cannot run; "
            "unset it"
        )


def check_threads(count: int) -> None:
    """Raise EnvironmentProblem where this process cannot start so many threads.

    They are started for a moment: limits of users, memory and containers all count, and Numba's
    threads would end the process with a segmentation fault where one of them is reached.
    """
    most = _startable(count)
    if most < count:
        raise EnvironmentProblem(
            f"training.threads or NUMBA_NUM_THREADS asks for {count} threads, but this process can "
            f"start only {most} (`ulimit -u`, `ulimit -v`, or the pids limit of the container); "
            "ask for fewer, or raise the limit"
        )


def check_addresses() -> None:
    """Raise EnvironmentProblem where this process may not map what Numba takes, which would say
    that its library is missing.
    """
    left = addresses_left()
    if left < ADDRESSES:
        raise EnvironmentProblem(
            f"this process may map {left / 2**20:.0f} MiB more, and kernels take some "
            f"{ADDRESSES >> 20} MiB, or 1 GiB where they are compiled; raise the limit on "
            f"addresses ({ADDRESS_LIMIT})"
        )


def _startable(count: int) -> int:
    """How many of `count` threads this process can start."""
    end = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(count):
            # none ends before all have started: the limit counts those that are there together
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            started.append(thread)
    # so Python says that the system starts no more of them
    except (RuntimeError, MemoryError):
        pass
    finally:
        end.set()
        for thread in started:
            thread.join()
    return len(started)


def cores_left_out(cores: int, variables: Mapping[str, str] = os.environ) -> str:
    """What to do where a Slurm job has more cores for each task than this rank may use, else "".

    Since Slurm 22.05 srun does not take `--cpus-per-task` from sbatch: where sites bind ranks, each
    then has one core.

    cores : that this rank may use.
    """
    cpus = variables.get("SLURM_CPUS_PER_TASK", "")
    if not cpus.isdigit() or int(cpus) <= cores:
        return ""
    return (
        f"this rank may use {cores} core(s), and its Slurm job has {cpus} for each task: start it "
        f"with srun --cpus-per-task={cpus}, or mpiexec --bind-to none"
    )


def tasks_left_out(ranks: int, variables: Mapping[str, str] = os.environ) -> str:
    """What to do where a Slurm job has several tasks, and this run is one rank alone, else ""."""
    tasks = variables.get("SLURM_NTASKS", "")
    if ranks > 1 or not tasks.isdigit() or int(tasks) <= 1:
        return ""
    return f"this run is one rank, and its Slurm job has {tasks} tasks: srun starts a rank for each"


def check_launcher(variables: Mapping[str, str] = os.environ) -> None:
    """Raise EnvironmentProblem for a process that torchrun or its kin started with others: they are
    no ranks of MPI, and each would train alone, into folders of its own.
    """
    processes = variables.get("WORLD_SIZE", "")
    if "LOCAL_RANK" in variables and processes.isdigit() and int(processes) > 1:
        raise EnvironmentProblem(
            f"{processes} processes were started as by torchrun, accelerate or deepspeed "
            "(WORLD_SIZE, LOCAL_RANK), but ranks are those of MPI, and each would train alone; "
            f"start them with mpiexec -n {processes}, srun or --ranks {processes}, or unset these "
            "variables"
        )


def check_kernels() -> None:
    """Raise EnvironmentProblem where kernels would not run, or not compile in reasonable time."""
    check_fork(KERNELS)
    # these load Numba, which reads its variables once: they must have been checked by then
    from neocpu.kernels.compile.key import cpu_kind, has_fma
    from neocpu.kernels.compile.threads import threading_layer

    if not has_fma():
        _, name, _ = cpu_kind()
        raise EnvironmentProblem(
            f"this CPU ({name}) has no fused multiply-add, which kernels need for equal bits; use "
            "a CPU from 2013 or later, let the virtual machine pass its features on, or unset "
            "NUMBA_CPU_NAME and NUMBA_CPU_FEATURES"
        )
    try:
        threading_layer()
    except (ValueError, ImportError) as error:
        text = " ".join(str(error).split())
        raise EnvironmentProblem(
            f"Numba's threads cannot be started: {text}; unset NUMBA_THREADING_LAYER, or install "
            "libgomp (Linux) or libomp (macOS)"
        ) from error
