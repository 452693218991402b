"""May Numba's parallel kernels be entered by several Python threads at once? That depends on the threading layer.

The `workqueue` layer ends the process when two threads enter parallel kernels; `omp` and `tbb` do not.
"""

import numba

from neocpu.kernels import _jit  # noqa: F401  (sets how threads wait, before they are launched)


def threading_layer() -> str:
    """Name of the layer that this process uses: "omp", "tbb" or "workqueue". Starts Numba's threads."""
    numba.get_num_threads()  # launches the layer, whose name is unknown before
    return numba.threading_layer()


def use_threads(count: int) -> int:
    """Let the calling thread's parallel kernels use this many threads (at most what the process started with)."""
    started: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    count = max(1, min(count, started))
    numba.set_num_threads(count)
    return count
