"""For how long has a rank done nothing new? Its watch looks at its pulse now and then, and counts.

Work that may take long (reading data, compiling, writing) counts as standing still only while the
process takes neither time of a core nor reads or writes.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

from neocpu.parallel.transport.timeline import Pulse
from neocpu.parallel.watch.rank_page import process_fields

# a process is at work if it takes so much of a core, or so many bytes a second
AT_WORK = 0.02
BYTES_AT_WORK = 1 << 16


class Stillness:
    """Counts the seconds in which a rank does nothing new.

    Only seconds in which the watch itself ran count: a process that was stopped, or a machine that
    slept, is not to blame the others.

    Attributes: seconds; longest, of the time before the rank moved last.
    """

    def __init__(self, pulse: Pulse, period: float) -> None:
        self._pulse = pulse
        self._period = period
        self._before: object = None
        self._looked = time.monotonic()
        self._work = (0.0, 0)
        self.seconds = 0.0
        self.longest = 0.0

    def look(self) -> float:
        """Seconds until now."""
        pulse = self._pulse
        now = time.monotonic()
        passed = min(now - self._looked, 2 * self._period)
        self._looked = now
        doing = (pulse.step, pulse.doing, pulse.wait)
        moved = doing != self._before
        self._before = doing
        if pulse.lengthy and pulse.wait is None:
            moved = self._at_work(passed) or moved
        if moved:
            self.longest = self.seconds
            self.seconds = 0.0
        else:
            self.seconds += passed
        return self.seconds

    def _at_work(self, passed: float) -> bool:
        """Did this process, and those that it started, compute, read or write meanwhile?"""
        seconds, size = self._work
        self._work = _work()
        return (
            self._work[0] - seconds > AT_WORK * passed
            or self._work[1] - size > BYTES_AT_WORK * passed
        )


def _work() -> tuple[float, int]:
    """Seconds of cores, and bytes read and written, of this process, but for the calling thread,
    and of those that it started.
    """
    # to the microsecond, where the system's list of processes counts hundredths of a second
    own = time.process_time() - time.thread_time()
    seconds, size = _listed_work(os.getpid())
    return own + seconds, size - _bytes(Path("/proc/thread-self"))


def _bytes(folder: Path) -> int:
    """Read and written by a process or thread; 0 where that cannot be told."""
    with suppress(OSError, ValueError):
        words = (folder / "io").read_text().split()
        return sum(map(int, words[1:4:2]))
    return 0


def _listed_work(process: int, started: bool = False) -> tuple[float, int]:
    """Bytes of a process and those that it started, and the seconds of the latter."""
    folder = Path(f"/proc/{process}")
    stat = process_fields(folder)
    seconds = sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK") if started and stat else 0.0
    size = _bytes(folder)
    with suppress(OSError):
        for thread in (folder / "task").iterdir():
            for child in (thread / "children").read_text().split():
                more_seconds, more_size = _listed_work(int(child), started=True)
                seconds += more_seconds
                size += more_size
    return seconds, size
