"""How long will kernels take to compile? By what one took on this machine before.

CPU seconds are remembered, which other programs on the machine do not change; how long they take on
a clock follows from the cores that are free now.
"""

import os
import resource
import time
from contextlib import suppress

from neocpu.core.cores import available, core_quota
from neocpu.kernels.compile.cache import cache_folder, cannot_write, write

# CPU seconds of a kernel where none was compiled yet: the mean of those of data/models/tiny.toml,
# on a Xeon of 2.1 GHz
USUAL = 1.0
FEWEST = 8  # kernels whose mean is remembered: they differ by a factor of ten


def cpu_seconds() -> float:
    """CPU seconds of this process, and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def remember(kernels: int, seconds: float) -> None:
    """Keep what a kernel takes beside the kernels: so many took so many CPU seconds."""
    if kernels >= FEWEST:
        with suppress(OSError):
            write(cache_folder() / "pace", f"{seconds / kernels:.3f}\n".encode())


def expected_seconds(kernels: int) -> float:
    """Seconds on a clock in which so many kernels can be compiled now."""
    processes = 1 if len(available()) < 2 or cannot_write() else 2
    cores = min(len(available()), core_quota())
    load = 0.0
    with suppress(OSError):  # not known on this system
        load = os.getloadavg()[0]
    # whatever runs has the same share of the cores, and a process one core at most
    share = min(1.0, cores / (load + processes))
    return kernels * _cpu_seconds_each() / (processes * share)


def _cpu_seconds_each() -> float:
    """CPU seconds of a kernel, as remembered."""
    with suppress(OSError, ValueError):
        seconds = float((cache_folder() / "pace").read_text())
        if 0.01 < seconds < 100:  # not what somebody else wrote there
            return seconds
    return USUAL
