"""Which cores may a thread run on? Those the process started with; kernel threads may each have one
of their own.

A new thread inherits the cores of its creator, and a process those of its parent: the helpers of a
bound thread therefore say `roam()` first, or they would share its one core.
"""

import os

__all__ = ["available", "roam"]

_AT_START = frozenset(
    os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
)


def available() -> set[int]:
    """Numbers of the cores that this process was given."""
    return set(_AT_START)


def roam() -> None:
    """Let the calling thread run on all of them."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, _AT_START)  # 0: the calling thread
