"""May a forked process compute? Not with threads that its parent had started: a fork leaves them
behind, and whoever waits for them waits for ever, or ends the process (GNU OpenMP).
"""

import os
import sys

from neocpu.core.errors import EnvironmentProblem

POLARS = "polars"
KERNELS = "kernels"
_started: set[str] = set()  # what has threads in this process
_left_behind: set[str] = set()  # what had threads in the one that it was forked from


def check_fork(what: str) -> None:
    """Call it before what starts threads. Raises EnvironmentProblem in a forked process whose
    parent had started them.
    """
    if what in _left_behind:
        raise EnvironmentProblem(
            f"this process was forked from one that had used {what}, whose threads stay behind in "
            'a fork: start it by multiprocessing.get_context("spawn"), or "forkserver"; or let the '
            "parent neither train nor predict before it forks"
        )
    _started.add(what)


def _forked() -> None:
    _left_behind.update(_started - {KERNELS})
    numba = sys.modules.get("numba")
    try:
        # the other layers start their threads again
        omp = numba is not None and numba.threading_layer() == "omp"
    except (ValueError, AttributeError):  # no threads yet, or half imported
        return
    if omp:
        _left_behind.add(KERNELS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
