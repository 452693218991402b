"""How are the steps of a run watched? Their exchanges are timed, and traced if that is asked for;
and somebody notices if all stand still (`parallel/watch/watchdog.py`).

Links get the speed that the config sets (`parallel/transport/throttle.py`) as long as steps are
watched.
"""

import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from neocpu.core.types import Tell
from neocpu.parallel.settings import ParallelConfig
from neocpu.parallel.transport.comm import Comm
from neocpu.parallel.transport.sent import Times
from neocpu.parallel.transport.throttle import Throttle, link_speeds
from neocpu.train.watch.exchange_times import exchange_report
from neocpu.train.watch.results import RunReport, silent

if TYPE_CHECKING:
    from neocpu.parallel.watch.watchdog import Watchdog
    from neocpu.train.watch.trace import RunTrace


class StepWatch:
    """The exchanges of the steps of one rank.

    Those of the first step are not counted, as its time is not (`StepClock`).
    """

    def __init__(self, comm: Comm, config: ParallelConfig, trace: "RunTrace | None") -> None:
        self._comm = comm
        self._speeds = link_speeds(config.link_bandwidth, config.link_latency)
        self._trace = trace
        self._times: Times = {}
        self._steps = -1
        self._limits = (config.warn_after, config.timeout)
        self._watchdog: Watchdog | None = None

    def prepare(self, report: RunReport) -> None:
        """The run begins. Raises ConfigError, on every rank, if there is a trace that cannot be
        written. Collective.
        """
        if self._trace is not None:
            self._trace.check_writable()
        if self._comm.processes and any(self._limits):
            # sockets and their kin, which a rank alone need not import
            from neocpu.parallel.watch.watchdog import Watchdog

            self._watchdog = Watchdog(self._comm, *self._limits)
            report.ranks(self._watchdog.record())

    def start(self) -> None:
        """Steps follow. Collective."""
        if self._trace is not None:
            self._trace.start()
        if self._speeds:
            # from here on: converting data and compiling are no part of what is tried out
            self._comm.sent.throttle = Throttle(self._speeds)

    def counting(self) -> AbstractContextManager[None]:
        """Exchanges that end in the block are those of a step."""
        # the first step also maps pages and fills caches
        return self._comm.sent.counting(self._times if self._steps >= 0 else {})

    def begin_step(self, step: int) -> None:
        """The step of this number begins."""
        # the first step of a process may compile
        self._comm.sent.pulse.begin_step(step, lengthy=self._steps < 0)
        if self._trace is not None:
            self._trace.begin_step(step)

    def end_step(self) -> None:
        """It is over."""
        self._steps += 1

    def stop(self, tell: Tell = silent) -> None:
        """No step follows; the trace is written. Collective."""
        if self._trace is not None:
            self._trace.finish(tell)

    def release(self) -> None:
        """Leave the comm as it was."""
        if self._watchdog is not None:
            self._watchdog.stop()
        self._comm.sent.throttle = None
        self._comm.sent.timeline = None

    def report(self) -> dict[str, object]:
        """What exchanges took in a mean step (`exchange_times.py`). Collective."""
        return exchange_report(self._comm, self._times, max(self._steps, 1))


class StepClock:
    """Measures the steps of one process.

    Attributes: seconds and samples (of all ranks) of the steps after the first; cold_start, seconds
    from the start of the process to the end of its first step (None before that).
    """

    def __init__(self, process_start: float) -> None:
        self.seconds = 0.0
        self.cold_start: float | None = None
        self._process_start = process_start  # as `time.time()` tells it
        self.samples = 0
        self._begin = 0.0

    def start(self) -> None:
        """A step begins."""
        self._begin = time.perf_counter()

    def stop(self, samples: int) -> None:
        """The step is done; it trained on so many `samples` of all ranks."""
        if self.cold_start is None:
            # wall time: the start of the process is not on this process's monotonic clock
            self.cold_start = time.time() - self._process_start
            return
        self.seconds += time.perf_counter() - self._begin
        self.samples += samples

    @property
    def samples_per_second(self) -> float:
        """Samples of all ranks a second; 0 where no step was timed."""
        return self.samples / self.seconds if self.seconds else 0.0
