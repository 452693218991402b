"""Which threads do parallel kernels run on, how many, and where? Numba's threading layer has them;
these functions ask it.

The `workqueue` layer ends the process when two threads enter parallel kernels; `omp` and `tbb` do
not.
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numba

from neocpu.kernels.compile import jit  # noqa: F401  (sets how threads wait before they start)


def threading_layer() -> str:
    """Name of the layer that this process uses: "omp", "tbb" or "workqueue". Starts Numba's
    threads.
    """
    numba.get_num_threads()  # launches the layer, whose name is unknown before
    return numba.threading_layer()


def thread_count() -> int:
    """Threads that the calling thread's parallel kernels use."""
    return int(numba.get_num_threads())


def use_threads(count: int) -> int:
    """Let the calling thread's parallel kernels use this many threads (at most what the process
    started with).
    """
    started: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    count = max(1, min(count, started))
    numba.set_num_threads(count)
    return count


@contextmanager
def one_thread(small: bool = True) -> Iterator[None]:
    """The calling thread's parallel kernels use one thread within the block, if their work is
    small: then waking the others, and waiting for them, takes longer than they save.
    """
    before = thread_count()
    use_threads(1 if small else before)
    try:
        yield
    finally:
        use_threads(before)


def bind_threads(cores: Sequence[int]) -> bool:
    """Let thread i of the calling thread's parallel kernels run on cores[i] only; the caller is
    thread 0.

    A worker that slept between two kernels is otherwise often woken on the core of the thread that
    waits for it, and moved only milliseconds later: small kernels on two threads took nearly as
    long as on one. Returns whether it was done: only GNU OpenMP on Linux numbers its threads for
    us. Threads and processes started later must free themselves (`neocpu.core.cores`).
    """
    if not hasattr(os, "sched_setaffinity") or threading_layer() != "omp":
        return False
    try:
        # the one that Numba loaded, or none
        openmp = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    # an exception cannot leave a callback of C
    refused: list[OSError] = []

    def bind(_: object) -> None:
        try:
            os.sched_setaffinity(0, {cores[openmp.omp_get_thread_num()]})
        except OSError as error:
            refused.append(error)

    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(bind)
    # the team that GNU OpenMP keeps for this thread: Numba's kernels run on the same one
    openmp.GOMP_parallel(body, None, ctypes.c_uint(len(cores)), ctypes.c_uint(0))
    return not refused
